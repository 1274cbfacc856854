"""Captures on Flower, with stand-ins for its messages."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from harness.base.errors import UsageError
from harness.capture.flower import capture_mod, capturing
from harness.judging.capture import read_capture
from harness.judging.framework_defenses import Declared, translated

FACTS: dict[str, Any] = {
    "model": "logistic", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1, "batch_size": 1,
}  # fmt: skip


class Array:
    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values)

    def numpy(self) -> np.ndarray:
        return self.values


def message(values: list[float], name: str = "weight", kind: str = "train", error: bool = False, **more: Any) -> Any:
    records = more if "arrays" in more else {"arrays": {name: Array(values)}} | more
    return SimpleNamespace(
        content=SimpleNamespace(array_records=records, config_records={"config": {"server-round": 3}}),
        metadata=SimpleNamespace(message_type=kind, group_id="", src_node_id=7), has_error=lambda: error,
    )  # fmt: skip


def test_a_client_keeps_what_it_got_and_what_leaves_it(tmp_path: Path) -> None:
    mod, context, answer = capture_mod(tmp_path, **FACTS), SimpleNamespace(node_id=5), message([3.0, 4.0])
    assert mod(message([1.0, 2.0]), context, lambda *_: answer) is answer
    kept = read_capture(tmp_path / "round-3-client-5")
    assert (kept.record.framework, kept.record.client, kept.record.round) == ("flower", "5", 3)
    assert kept.before["weight"].tolist() == [1.0, 2.0] and kept.moved["weight"].tolist() == [3.0, 4.0]
    assert kept.kind == "after" and kept.truth is None


def test_only_what_was_trained_is_kept(tmp_path: Path) -> None:
    mod = capture_mod(tmp_path, **FACTS)
    mod(message([1.0], kind="evaluate"), SimpleNamespace(node_id=5), lambda *_: message([2.0]))
    assert not list(tmp_path.iterdir())


def test_what_is_no_training_passes_whatever_it_holds(tmp_path: Path) -> None:
    asked, answer = message([1.0], kind="query", more={}), message([2.0])
    assert capture_mod(tmp_path, **FACTS)(asked, SimpleNamespace(node_id=5), lambda *_: answer) is answer


@pytest.mark.parametrize(
    ("asked", "answered"),
    [({}, {}), ({"arrays": {}}, {}), ({}, {"arrays": {}})],
)
def test_stages_of_secure_aggregation_pass(tmp_path: Path, asked: Any, answered: Any) -> None:
    given, answer = message([1.0]), message([2.0])
    given.content.array_records, answer.content.array_records = asked, answered
    assert capture_mod(tmp_path, **FACTS)(given, SimpleNamespace(node_id=5), lambda *_: answer) is answer
    assert not list(tmp_path.iterdir())


def test_bare_lists_are_numbered(tmp_path: Path) -> None:
    mod = capture_mod(tmp_path, **FACTS)
    mod(message([1.0], name="0"), SimpleNamespace(node_id=5), lambda *_: message([2.0], name="0"))
    assert set(read_capture(tmp_path / "round-3-client-5").before) == {"arr_0"}


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as problem:
        read_capture(folder / "round-3-client-5")
    return str(problem.value)


@pytest.mark.parametrize(
    ("facts", "asked", "answered", "said"),
    [
        ({}, {"more": {}}, {}, "2 sets of arrays"),
        ({"batch_size": 0}, {}, {}, "batch_size"),
        ({"learning": 1}, {}, {}, "learning"),
        ({}, {}, {"error": True}, "answered with an error"),
        ({}, {}, {"arrays": {}}, "put capture_mod after the mod that masks"),
    ],
)
def test_what_cannot_be_captured_is_one_line_and_the_round_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, facts: Any, asked: Any, answered: Any, said: str
) -> None:
    answer = message([2.0], **answered)
    mod, given, context = capture_mod(tmp_path, **FACTS | facts), message([1.0], **asked), SimpleNamespace(node_id=5)
    assert mod(given, context, lambda *_: answer) is answer
    (line,) = [one.getMessage() for one in caplog.records]
    assert said in line and said in refusal(tmp_path)


def test_strictly_a_mistake_is_told_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        capture_mod(tmp_path, strict=True, **FACTS | {"batch_size": 0})


def test_a_client_that_fails_fails_as_without_the_mod(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        capture_mod(tmp_path)(message([1.0]), SimpleNamespace(node_id=5), lambda *_: 1 // 0)
    assert "ZeroDivisionError" in refusal(tmp_path)


def chained(app: Callable[..., Any], mods: list[Any]) -> Callable[..., Any]:
    """As Flower does it (``make_ffn``)."""

    def wrap_ffn(_ffn: Callable[..., Any], _mod: Any) -> Callable[..., Any]:
        def new_ffn(message: Any, context: Any) -> Any:
            return _mod(message, context, _ffn)

        return new_ffn

    for mod in reversed(mods):
        app = wrap_ffn(app, mod)
    return app


class LocalDpMod:
    """As Flower's holds its arguments."""

    def __init__(self, **own: float) -> None:
        self.__dict__ |= own

    def __call__(self, message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
        return call_next(message, context)


class Rounding(LocalDpMod):
    """Somebody's own."""


def fixedclipping_mod(message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
    return call_next(message, context)


def adaptiveclipping_mod(message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
    return call_next(message, context)


def message_size_mod(message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
    return call_next(message, context)


def secaggplus_mod(message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
    return call_next(message, context)


LOCAL = LocalDpMod(clipping_norm=2.0, sensitivity=1.0, epsilon=3.0, delta=0.01)
ME: Any = "capture_mod"
NO = Declared(name="none")


@pytest.mark.parametrize(
    ("mods", "expected"),
    [
        ([ME], None),
        ([ME, message_size_mod], None),
        ([ME, LOCAL], {"clipping_norm": 2.0, "sensitivity": 1.0, "epsilon": 3.0, "delta": 0.01}),
        ([ME, message_size_mod, fixedclipping_mod], {"clipping_norm": 5.0, "noise_multiplier": 0.0}),
        ([ME, adaptiveclipping_mod], {"clipping_norm": 5.0, "noise_multiplier": 0.0}),
        ([secaggplus_mod, ME, fixedclipping_mod], {"clipping_norm": 5.0, "noise_multiplier": 0.0}),
        ([secaggplus_mod, message_size_mod, ME], NO),
    ],
)
def test_mods_beside_it_are_declared_with_their_arguments(tmp_path: Path, mods: list[Any], expected: Any) -> None:
    asked = message([1.0])
    asked.content.config_records["config"]["clipping_norm"] = 5.0  # as the server's wrapper sends it
    own = [capture_mod(tmp_path, strict=True, **FACTS) if one is ME else one for one in mods]
    chained(lambda *_: message([2.0]), own)(asked, SimpleNamespace(node_id=5))
    made = translated(read_capture(tmp_path / "round-3-client-5").record.defense)
    if isinstance(expected, dict):
        assert made is not None and made.name in ("flower:LocalDpMod", "flower:ClientSideFixedClipping")
        assert {name: made.settings[name] for name in expected} == pytest.approx(expected)
    else:
        assert made == expected


@pytest.mark.parametrize("beside", [[], [LOCAL]])
def test_mods_that_nobody_knows_are_recorded_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, beside: list[Any]
) -> None:
    monkeypatch.setattr("harness.judging.framework_defenses._TOLD", set())
    own = [capture_mod(tmp_path, strict=True, **FACTS), Rounding(places=3, to=[1]), *beside]
    chained(lambda *_: message([2.0]), own)(message([1.0]), SimpleNamespace(node_id=5))
    declared = read_capture(tmp_path / "round-3-client-5").record.defense
    assert declared is not None and declared.name.split(" + ")[0].endswith("Rounding")
    assert "{'places': 3}" in str(declared.settings)
    assert translated(declared) == translated(declared) == NO
    assert capsys.readouterr().err.count("Rounding") == 1


def test_a_mod_that_changes_what_was_captured_is_no_capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chained(lambda *_: message([2.0]), [LOCAL, capture_mod(tmp_path, **FACTS)])(
        message([1.0]), SimpleNamespace(node_id=5)
    )
    assert "put capture_mod first among the mods" in refusal(tmp_path) and len(caplog.records) == 1


class Net(nn.Module):
    """Of no arguments, as in Flower's quickstart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 5), nn.Linear(4 * 16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(nn.functional.relu(self.conv(images)).flatten(1))


def quickstart(asked: Any, context: Any) -> Any:
    """Builds network, loader and optimizer inside, as Flower's quickstart does."""
    torch.manual_seed(7)
    network = Net()
    network.load_state_dict({name: torch.tensor(one.numpy()) for name, one in asked.content.array_records["a"].items()})
    data = [{"img": torch.rand(3, 8, 8), "label": number % 10} for number in range(10)]
    loader, optimizer = DataLoader(data, 4, shuffle=True), SGD(network.parameters(), 0.01, momentum=0.9)
    network.train()
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch["img"]), batch["label"]).backward()
            optimizer.step()
    return of_arrays({name: one.numpy() for name, one in network.state_dict().items()})


def of_arrays(arrays: Any) -> Any:
    made = message([0.0])
    made.content.array_records = {"a": {name: Array(one) for name, one in arrays.items()}}
    return made


def test_one_line_captures_the_quickstart_and_changes_nothing_of_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    start = {name: one.numpy() for name, one in Net().state_dict().items()}
    plain, kept = (
        chained(quickstart, mods)(of_arrays(start), SimpleNamespace(node_id=5))
        for mods in ([], [capture_mod(tmp_path)])
    )
    capture = read_capture(tmp_path / "round-3-client-5")
    for name, one in kept.content.array_records["a"].items():
        assert np.array_equal(one.numpy(), plain.content.array_records["a"][name].numpy())
        assert np.array_equal(capture.moved[name], one.numpy()) and np.array_equal(capture.before[name], start[name])
    made = capture.record
    assert (made.model, made.image_shape, made.classes) == (f"{Net.__module__}:Net()", (3, 8, 8), 10)
    assert (made.optimizer, made.learning_rate) == ("sgd:momentum=0.9", 0.01)
    assert (made.examples, made.batch_size, made.epochs, made.local_steps) == (10, 4, 2, 6)
    assert (made.order, made.state, made.frozen, made.round) == ("reshuffled", "new", (), 3)


def with_its_head(arrays: dict[str, Any]) -> dict[str, Any]:
    return arrays


def without_its_head(arrays: dict[str, Any]) -> dict[str, Any]:
    """As in FedPer and FedRep (Arivazhagan et al., 2019; Collins et al., 2021)."""
    return {name: one for name, one in arrays.items() if not name.startswith("fc")}


def rounded(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: np.round(one, 1).astype("f4") for name, one in arrays.items()}


def mirrored(arrays: dict[str, Any]) -> dict[str, Any]:
    """Of the same norms."""
    return arrays | {"conv.weight": arrays["conv.weight"][::-1].copy()}


def in_bytes(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: (100 * one).astype("i1") for name, one in arrays.items()}


def coarser(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: one.astype("f2") for name, one in arrays.items()}


@pytest.mark.parametrize(
    ("reply", "mods", "said"),
    [
        (with_its_head, [], ""), (coarser, [], ""), (without_its_head, [], "its weight 'fc.weight' was trained and"),
        (rounded, [], "its weight 'conv.weight' was not sent as the last step left it"),
        (mirrored, [], "its weight 'conv.weight' was not sent as the last step left it"),
        (in_bytes, [], "its weight 'conv.weight' was not sent as"), (rounded, [fixedclipping_mod], ""),
    ],
)  # fmt: skip
def test_what_an_app_sends_is_held_against_what_it_trained(
    tmp_path: Path, reply: Callable[[dict[str, Any]], dict[str, Any]], mods: list[Any], said: str
) -> None:
    """Else a client whose app sends something else would stand accused."""

    def app(asked: Any, context: Any) -> Any:
        made = quickstart(asked, context).content.array_records["a"]
        return of_arrays(reply({name: one.numpy() for name, one in made.items()}))

    torch.manual_seed(1)
    start = {name: one.numpy() for name, one in Net().state_dict().items()}
    chained(app, [capture_mod(tmp_path), *mods])(of_arrays(start), SimpleNamespace(node_id=5))
    if said:
        assert said in refusal(tmp_path)
    else:
        assert read_capture(tmp_path / "round-3-client-5").record.local_steps == 6


def test_a_server_keeps_what_reaches_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    strategy = SimpleNamespace(
        configure_train=lambda *_: "messages", aggregate_train=lambda _, replies: seen.extend(replies) or "sum"
    )
    wrapped = capturing(strategy, tmp_path, **FACTS)
    assert wrapped.configure_train(2, {"weight": Array([1.0])}, None, None) == "messages"
    assert wrapped.aggregate_train(2, iter([message([2.0]), message([9.0], error=True)])) == "sum"
    assert len(seen) == 2  # the strategy still gets all of them
    kept = read_capture(tmp_path / "round-2-client-7")
    assert kept.before["weight"].tolist() == [1.0] and kept.moved["weight"].tolist() == [2.0]
    assert len(list(tmp_path.iterdir())) == 1
