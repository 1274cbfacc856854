"""A defense whose clients change each other's rows gets no verdict, whoever is attacked together with whom."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.defenses import DEFENSES, Defense, RoundContext, validated_defense
from harness.errors import UsageError


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    @validated_defense
    class Mixing(Defense):
        def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
            return update - update.mean(0)

    @validated_defense
    class Apart(Defense):
        def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
            with torch.inference_mode():
                return update - update.mean(1, keepdim=True)

    @validated_defense
    class Forgetting(Defense):
        def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
            return update * (torch.rand_like(update) < 0.5)

    DEFENSES.aliases("none")  # what is installed is looked for before this is added
    for name, kind in (("mixing", Mixing), ("apart", Apart), ("forgetting", Forgetting)):
        monkeypatch.setitem(DEFENSES._entries, name, kind)


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
