"""What Python gives in the place of names, and the object that it gets back."""

import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import harness
from harness.attacks import ATTACKS
from harness.base.errors import UsageError
from harness.datasets import load_dataset
from harness.defenses import DEFENSES, ClipUpdate, Cohort, Defense, GaussianNoise, Operation

pytestmark = [pytest.mark.usefixtures("coarse_losses", "harness")]

Call = Callable[..., Any]
SMALL = {"attack": "cpl", "attack_args": {"max_iterations": 2}, "victims": 3}


@pytest.fixture
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_dataset("digits", Path("no-data"))
    return data.images[:200], data.labels[:200]


def state() -> tuple[Any, ...]:
    return (
        torch.get_num_threads(), torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.get_default_dtype(),
        np.random.get_state()[1].tolist(), torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


def test_a_module_and_tensors_give_a_verdict_and_stay_as_they_were(
    net: nn.Module, digits: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    net.eval()
    net.register_buffer("seen", torch.arange(3.0))
    called = list[int]()
    hook = net.register_forward_hook(lambda *_: called.append(1))
    before, weights = state(), {name: value.clone() for name, value in net.state_dict().items()}
    images = digits[0].clone()
    defense = DEFENSES["fed_cdp"](sigma=6.0)
    with torch.no_grad():
        run = harness.evaluate(model=net, data=digits, defense=["none", defense], **SMALL)
        assert not torch.is_grad_enabled()
    assert state() == before and not net.training and len(net._forward_hooks) == 1
    hook.remove()
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    assert all(one.grad is None for one in net.parameters()) and torch.equal(images, digits[0])
    assert not any(tmp_path.iterdir()) and run.folder is None
    cell = run["fed_cdp", "cpl", 2]
    assert cell.defense_args["sigma"] == 6 and len(cell.victims) == 3 and cell.shared_weights
    assert cell.model.startswith("Sequential-") and cell.dataset.startswith("data-") and run.valid


def test_the_same_objects_give_the_same_numbers_also_from_two_threads(
    net: nn.Module, digits: tuple[Tensor, Tensor]
) -> None:
    found: dict[int, Any] = {}

    def call(number: int) -> None:
        found[number] = harness.evaluate(model=net, data=digits, defense="fed_cdp", **SMALL)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loader = DataLoader(TensorDataset(*digits), batch_size=7, shuffle=True)
    again = harness.evaluate(model=net, data=loader, defense=DEFENSES["fed_cdp"], **SMALL)
    assert found[0] == found[1] == again and [one.rmse for one in again.victims]
    with torch.no_grad():
        net[1].bias += 1  # pyright: ignore[reportOperatorIssue]
    assert harness.evaluate(model=net, data=digits, defense="fed_cdp", **SMALL) != again


def test_a_model_in_training_mode_stays_in_it(net: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    net.train()
    run = harness.evaluate(model=net, data=digits, defense="none", **SMALL)
    assert net.training
    net.eval()
    assert harness.evaluate(model=net, data=digits, defense="none", **SMALL) == run and not net.training


def test_pandas_is_asked_for_in_one_line(monkeypatch: pytest.MonkeyPatch, digits: tuple[Tensor, Tensor]) -> None:
    run = harness.evaluate(model="mlp", data=digits, defense="none", **SMALL)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="this needs pandas; pip install pandas"):
        run.to_pandas()


@dataclass(frozen=True)
class Mine(Defense):
    """Clips and noises an update."""

    sigma: float = 2.0

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [ClipUpdate(1.0, "whole"), GaussianNoise(self.sigma)]


def test_own_classes_stand_where_names_do(digits: tuple[Tensor, Tensor]) -> None:
    def small(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(image_shape[1] * image_shape[2], classes))

    attack = ATTACKS["cpl"](max_iterations=2)
    run = harness.evaluate(
        model=small, data=digits, defense=[Mine(sigma=3.0), Mine], attack=attack, tap="T1.out", victims=2
    )
    assert [cell.defense_args["sigma"] for cell in run.cells if cell.role == "cell"] == [3.0, 2.0]
    assert run.cells[0].model == "small-given" and "mine" not in DEFENSES
    with pytest.raises(UsageError, match="unknown defense 'mine'"):
        harness.evaluate(defense="mine")


def of_framework(kind: str, **attributes: Any) -> Any:
    """An object as a framework makes it: of a class of this name, with these attributes."""
    made = type(kind, (), {})()
    vars(made).update(attributes)
    return made


FIXED = {"noise_multiplier": 0.5, "clipping_norm": 3.0, "num_sampled_clients": 7}
LOCAL = {"clipping_norm": 1.0, "sensitivity": 2.0, "epsilon": 4.0, "delta": 1e-5}
OBJECTS = {
    "flower:LocalDpMod": (of_framework("LocalDpMod", **LOCAL), LOCAL),
    "flower:ServerSideFixedClipping": (
        of_framework("DifferentialPrivacyServerSideFixedClipping", strategy=object(), current_arrays={}, **FIXED), FIXED
    ),
    "flower:ClientSideFixedClipping": (
        of_framework("DifferentialPrivacyClientSideFixedClipping", strategy=object(), **FIXED), FIXED
    ),
    "opacus:PrivacyEngine": (
        of_framework("DPOptimizer", noise_multiplier=1.1, max_grad_norm=0.7, expected_batch_size=8),
        {"noise_multiplier": 1.1, "max_grad_norm": 0.7},
    ),
    "nvflare:PercentilePrivacy": (
        of_framework("PercentilePrivacy", percentile=20, gamma=0.5, logger=object()), {"percentile": 20, "gamma": 0.5}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_frameworks_are_read_for_their_settings(name: str) -> None:
    one, settings = OBJECTS[name]
    run = harness.evaluate(dataset="digits", model="mlp", defense=one, tap="T1.out", **SMALL)
    (cell,) = [cell for cell in run.cells if cell.role == "cell"]
    assert cell.defense == name and settings.items() <= cell.defense_args.items()


def test_the_object_of_a_run(net: nn.Module, digits: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    run = harness.evaluate(model=net, data=digits, defense=["none", "fed_cdp"], out=tmp_path / "run", **SMALL)
    read = harness.load(tmp_path / "run")
    assert read == run == pickle.loads(pickle.dumps(run)) and read.folder == tmp_path / "run"
    assert run.document.model_dump_json() == read.document.model_dump_json()
    table = run.to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table["defense"]) == ["none", "fed_cdp"]
    assert table.drop(columns="run").equals(read.to_pandas().drop(columns="run"))
    shown = repr(run)
    first, promise, head, *_ = shown.splitlines()
    assert first == "✖ LEAKS at 1 of 2 places." and promise.startswith("An observation, not a promise: ")
    assert (
        head.startswith("verdict") and "? fed_cdp: could not tell" in shown and max(map(len, shown.splitlines())) <= 80
    )
    assert run._repr_html_().count("<tr>") == 3 and run.verdict in ("leaks", "inconclusive")
    pictures = run.gallery()
    assert len(pictures) == 2 and "data:image/png" in pictures._repr_html_()
    assert pictures.save(tmp_path / "png")[0].read_bytes().startswith(b"\x89PNG")
    page = run.report(tmp_path / "page.html").read_text()
    assert "fed_cdp" in page and "data:image/" in page
    with pytest.raises(KeyError, match="there are: none, cpl, 2; fed_cdp, cpl, 2"):
        run["cpl"]
    with pytest.raises(UsageError, match="resume"):
        harness.evaluate(defense="none", resume=True)


@pytest.mark.parametrize("own", ["model", "defense", "attack"])
def test_a_run_of_code_that_may_have_changed_does_not_go_on(own: str, tmp_path: Path) -> None:
    """Such as a network whose function is edited between two cells of a notebook: its name is the same."""

    class Mine(DEFENSES["fed_cdp"]):
        pass

    class Own(ATTACKS["cpl"]):
        pass

    one = {"model": lambda shape, classes: torch.nn.Linear(64, classes), "defense": Mine(), "attack": Own()}[own]
    with pytest.raises(UsageError, match=f"the code of a given {own} changed"):
        harness.evaluate(**{"defense": "none"} | {own: one}, victims=2, out=tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield torch.zeros(1, 8, 8), torch.tensor(0)


class Mixing(nn.Module):
    """Network of one layer; an image's logits depend on the others of its batch, or on chance."""

    def __init__(self, outputs: int = 10, chance: float = 0.0) -> None:
        super().__init__()
        self.layer, self.chance = nn.Linear(64, outputs), chance

    def forward(self, images: Tensor) -> Tensor:
        made = self.layer(images.flatten(1))
        return made + self.chance * torch.randn_like(made) if self.chance else made - made.mean(0)


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


X, Y = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"data": DataLoader(TensorDataset(X[:0], Y[:0]))}, "no examples"),
    "endless": ({"data": DataLoader(Endless(), batch_size=64)}, "no end"),
    "no pairs": ({"data": DataLoader(TensorDataset(X))}, "must be"),
    "too few labels": ({"data": (X, Y[:3])}, "one label per image"),
    "normalised": ({"data": (X - 5, Y)}, "data"),
    "a table": ({"data": (X.flatten(1), Y)}, "shape"),
    "no data": ({"data": 3}, "data: give a name"),
    "both": ({"data": (X, Y), "dataset": "digits"}, "one thing"),
    "no model": ({"data": (X, Y), "model": 3}, "model: give a name"),
    "another shape": ({"data": (X, Y), "model": nn.Sequential(nn.Flatten(), nn.Linear(5, 2))}, "takes no images"),
    "a shape that a name has": ({"dataset": "digits", "model": nn.Linear(3, 2)}, "fails on images"),
    "too many classes": (
        {"dataset": "digits", "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 20))},
        "one logit per class",
    ),
    "mixing": ({"data": (X, Y), "model": Mixing()}, "mixes the examples of a batch"),
    "random": ({"data": (X, Y), "model": Mixing(chance=0.1)}, "two forward passes .* differ"),
    "cannot be copied": ({"data": (X, Y), "model": Broken()}, "cannot be copied"),
    "on no device": ({"data": (X, Y), "model": nn.Linear(64, 10, device="meta")}, "cannot be copied .*meta"),
    "dropout": ({"data": (X, Y), "model": nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))}, "dropout"),
    "no defense": ({"defense": 3}, "defense: give a name"),
    "an object's settings": ({"defense": DEFENSES["fed_cdp"](), "defense_args": {"sigma": 1.0}}, "leave defense_args"),
    "a framework's object": (
        {"defense": of_framework("LocalDpMod", **LOCAL), "defense_args": LOCAL},
        "leave defense_a",
    ),
    "an engine": ({"defense": of_framework("PrivacyEngine")}, "give the optimizer"),
    "an adaptive bound": (
        {"defense": of_framework("DifferentialPrivacyServerSideAdaptiveClipping")},
        "name flower:ServerSideAdaptive",
    ),
    "another version's": ({"defense": of_framework("DPOptimizer")}, "no noise_multiplier; name opacus:PrivacyEngine"),
    "no attack": ({"attack": nn.Linear(1, 1)}, "attack: give a name"),
}


@pytest.mark.parametrize(("given", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(
    given: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.functions.MOST_EXAMPLES", 1000)
    with pytest.raises(UsageError, match=said) as told:
        harness.evaluate(**{"defense": "none", "victims": 2, "attack": "cpl"} | given)
    assert "\n" not in str(told.value) and not any(tmp_path.iterdir())
