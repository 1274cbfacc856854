"""Captures on Flower, with stand-ins for its messages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from harness.base.errors import UsageError
from harness.capture.flower import capture_mod, capturing
from harness.judging.capture import read_capture

FACTS: dict[str, Any] = {
    "model": "logistic", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1, "batch_size": 1,
}  # fmt: skip


class Array:
    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values)

    def numpy(self) -> np.ndarray:
        return self.values


def message(values: list[float], name: str = "weight", kind: str = "train", error: bool = False, **more: Any) -> Any:
    records = {"arrays": {name: Array(values)}} | more
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


@pytest.mark.parametrize(("kind", "error"), [("evaluate", False), ("train", True)])
def test_only_what_was_trained_is_kept(tmp_path: Path, kind: str, error: bool) -> None:
    mod = capture_mod(tmp_path, **FACTS)
    mod(message([1.0], kind=kind), SimpleNamespace(node_id=5), lambda *_: message([2.0], error=error))
    assert not list(tmp_path.iterdir())


def test_what_is_no_training_passes_whatever_it_holds(tmp_path: Path) -> None:
    asked, answer = message([1.0], kind="query", more={}), message([2.0])
    assert capture_mod(tmp_path, **FACTS)(asked, SimpleNamespace(node_id=5), lambda *_: answer) is answer


@pytest.mark.parametrize(
    ("asked", "answered"),
    [({}, {}), ({"arrays": {}}, {}), ({"arrays": {"weight": Array([1.0])}}, {"arrays": {}}), ({}, {"arrays": {}})],
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


def test_several_models_in_a_message_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 sets of arrays"):
        capture_mod(tmp_path, **FACTS)(message([1.0], more={}), SimpleNamespace(node_id=5), lambda *_: None)


def test_a_mistake_is_told_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        capture_mod(tmp_path, **FACTS | {"batch_size": 0})


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
