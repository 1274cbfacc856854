"""Captures on NVFlare, with stand-ins for its classes: one filter, which is told of tasks and given their results."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.base.errors import UsageError
from harness.judging.capture import read_capture
from harness.judging.framework_defenses import declared_beside, translated


class Shareable:
    """A task, or its result."""

    def __init__(self, data: dict[str, Any], kind: str = "WEIGHTS", code: str = "OK") -> None:
        self.data, self.data_kind, self.code = data, kind, code

    def get_return_code(self) -> str:
        return self.code

    def get_header(self, _: str) -> int:
        return 4


class Context:
    """A client's."""

    def __init__(self, client: str, **props: Any) -> None:
        self.client, self.props = client, props

    def get_identity_name(self) -> str:
        return self.client

    def get_prop(self, name: str) -> Any:
        return self.props.get(name)


class Filter:
    """NVFlare's."""


STANDS_IN: dict[str, dict[str, Any]] = {
    "dxo": {"DataKind": SimpleNamespace(WEIGHTS="WEIGHTS", WEIGHT_DIFF="DIFF"), "from_shareable": lambda one: one},
    "event_type": {"EventType": SimpleNamespace(BEFORE_TASK_EXECUTION="before", ABORT_TASK="abort", END_RUN="end")},
    "filter": {"Filter": Filter}, "shareable": {"Shareable": Shareable}, "fl_context": {"FLContext": Context},
    "fl_constant": {
        "FilterKey": SimpleNamespace(IN="in", OUT="out"), "ReturnCode": SimpleNamespace(OK="OK"),
        "FLContextKey": SimpleNamespace(FILTER_DIRECTION="direction", TASK_DATA="data", TASK_NAME="name"),
    },
}  # fmt: skip


@pytest.fixture
def nvflare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("nvflare", "nvflare.apis", *(f"nvflare.apis.{one}" for one in STANDS_IN)):
        made = ModuleType(name)
        vars(made).update(STANDS_IN.get(name.rpartition(".")[2], {}))
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.delitem(sys.modules, "harness.capture.nvflare", raising=False)
    yield importlib.import_module("harness.capture.nvflare")
    sys.modules.pop("harness.capture.nvflare", None)


class Net(nn.Module):
    """The clients'."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


def arrays(network: nn.Module) -> dict[str, np.ndarray]:
    return {name: one.numpy().copy() for name, one in network.state_dict().items()}


def train(network: nn.Module) -> None:
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for images, labels in DataLoader(TensorDataset(torch.rand(5, 1, 4, 4), torch.arange(5) % 3), 2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()


class Blurred(Filter):
    """One whose arguments are attributes."""

    percentile = 0

    def __init__(self, percentile: int) -> None:
        self.percentile, self.logger = percentile, object()

    def process(self, shareable: Shareable, _: Context) -> Shareable:
        return shareable


def play(filters: list[Any], task: str = "train", client: str = "site-1", **answer: Any) -> Shareable:
    """A task, as NVFlare's client runner does it."""
    torch.manual_seed(0)
    network = Net()
    context = Context(client, name=task, data=Shareable(arrays(network)))
    for one in filters:
        if hasattr(one, "handle_event"):
            one.handle_event("before", context)
    train(network)
    context.props["direction"] = "out"
    return apply_filters(filters, Shareable(arrays(network), **answer), context)


def apply_filters(filter_list: list[Any], filter_data: Shareable, context: Context) -> Shareable:
    for one in filter_list:
        filter_data = one.process(filter_data, context)
    return filter_data


def test_one_filter_reads_the_training_and_changes_nothing(nvflare: Any, tmp_path: Path) -> None:
    plain, made = play([]), play([nvflare.CaptureFilter(str(tmp_path), strict=True)])
    assert all(np.array_equal(plain.data[name], one) for name, one in made.data.items())
    capture = read_capture(tmp_path / "round-4-client-site-1")
    assert np.array_equal(capture.moved["head.weight"], made.data["head.weight"])
    record = capture.record
    assert (record.optimizer, record.learning_rate, record.model) == ("adam", 0.01, f"{Net.__module__}:Net()")
    assert (record.examples, record.batch_size, record.local_steps, record.epochs) == (5, 2, 3, 1)
    assert (record.framework, record.client, record.round, record.defense) == ("nvflare", "site-1", 4, None)


def test_filters_before_it_are_kept_with_their_arguments(
    nvflare: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.judging.framework_defenses._TOLD", set())
    play([Blurred(30), nvflare.CaptureFilter(str(tmp_path), strict=True)])
    declared = read_capture(tmp_path / "round-4-client-site-1").record.defense
    assert declared is not None and declared.name.endswith("Blurred")
    assert declared.settings == {"percentile": 30}
    assert getattr(translated(declared), "name", None) == "none"
    assert "is declared, not known" in capsys.readouterr().err


class PercentilePrivacy(Blurred):
    """By the name that NVFlare's own has."""


def test_a_filter_that_is_known_by_its_name_is_played(nvflare: Any, tmp_path: Path) -> None:
    play([PercentilePrivacy(30), nvflare.CaptureFilter(str(tmp_path), strict=True)])
    made = translated(read_capture(tmp_path / "round-4-client-site-1").record.defense)
    assert made is not None and made.name == "nvflare:PercentilePrivacy"
    assert made.settings == {"percentile": 30.0, "gamma": 0.01, "steps": 1}


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as problem:
        read_capture(folder / "round-4-client-site-1")
    return str(problem.value)


@pytest.mark.parametrize(
    ("behind", "answer", "said"),
    [
        ([Blurred(30)], {}, "add CaptureFilter last"),
        ([], {"code": "TASK_ABORTED"}, "its task ended with TASK_ABORTED"),
        ([], {"kind": "METRICS"}, "of kind METRICS"),
    ],
)
def test_what_cannot_be_captured_is_one_line_and_the_result_passes(
    nvflare: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, behind: list[Any], answer: Any, said: str
) -> None:
    assert isinstance(play([nvflare.CaptureFilter(str(tmp_path)), *behind], **answer), Shareable)
    assert said in refusal(tmp_path) and len(caplog.records) == 1


def test_a_round_without_a_result_is_marked(nvflare: Any, tmp_path: Path) -> None:
    one = nvflare.CaptureFilter(str(tmp_path))
    context = Context("site-1", name="train", data=Shareable(arrays(Net())))
    one.handle_event("before", context)
    assert "did not end, or its process was killed" in refusal(tmp_path)
    one.handle_event("end", context)
    assert "ended without a result" in refusal(tmp_path)


def test_other_tasks_and_a_second_filter_leave_no_trace(nvflare: Any, tmp_path: Path) -> None:
    own = nvflare.CaptureFilter(str(tmp_path))
    play([own], task="validate")
    assert not list(tmp_path.iterdir())
    play([nvflare.CaptureFilter(str(tmp_path)), own])
    assert read_capture(tmp_path / "round-4-client-site-1").record.local_steps == 3


def test_a_mistake_is_told_when_the_job_is_made_if_that_is_wished(nvflare: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        nvflare.CaptureFilter(str(tmp_path), {"batch_size": 0}, strict=True)


def test_sparse_vector_is_declared_with_the_arguments_that_it_keeps_under_other_names() -> None:
    one = type("SVTPrivacy", (), {})()
    vars(one).update(frac=0.5, eps_1=2.0, eps_2=None, eps_3=0.3, gamma=1e-4, tau=1e-5, replace=False, logger=object())
    made = declared_beside([one])
    assert made is not None and made.settings == {
        "fraction": 0.5, "epsilon": 2.0, "noise_var": 0.3, "gamma": 1e-4, "tau": 1e-5, "replace": False,
    }  # fmt: skip
