"""A defense whose clients change each other's rows gets no verdict, whoever is attacked together with whom."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.defenses import DEFENSES, Cohort, Custom, Defense, Operation, RoundContext, validated_defense


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixing(update: Tensor, context: RoundContext) -> Tensor:
        return update - update.mean(0)

    def apart(update: Tensor, context: RoundContext) -> Tensor:
        with torch.inference_mode():
            return update - update.mean(1, keepdim=True)

    def forgetting(update: Tensor, context: RoundContext) -> Tensor:
        return update * (torch.rand_like(update) < 0.5)

    def kind(function: Callable[[Tensor, RoundContext], Tensor]) -> type[Defense]:
        @validated_defense
        class Own(Defense):
            def operations(self, cohort: Cohort) -> list[Operation]:
                return [Custom(function, adds=None)]

        return Own

    DEFENSES.aliases("none")  # what is installed is looked for before this is added
    for function in (mixing, apart, forgetting):
        monkeypatch.setitem(DEFENSES._entries, function.__name__, kind(function))


@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_a_mixing_defense_is_named(own: None, small: Any, tmp_path: Path, chunk: int) -> None:
    cell = small.cell(defense="mixing", tap="T1.out")
    with pytest.raises(UsageError, match="lets clients change each other"):
        small.play([cell], tmp_path, chunk=chunk)


def test_one_that_does_not_repeat_is_named(own: None, small: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'forgetting' does not repeat what it did"):
        small.play([small.cell(defense="forgetting", tap="T1.out")], tmp_path)


def test_one_that_leaves_them_alone_is_judged(own: None, small: Any, tmp_path: Path) -> None:
    (cell,) = [
        one for one in small.play([small.cell(defense="apart", tap="T0.post")], tmp_path).cells if not one.control
    ]
    assert cell.not_applicable_reason is None
