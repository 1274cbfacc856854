"""A capture around a training loop refuses what it could not write before the training, not after it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.base.errors import UsageError
from harness.capture import captured
from harness.judging.capture import read_capture


@pytest.mark.parametrize(("dtype", "fits"), [(torch.bfloat16, False), (torch.float32, True), (torch.float16, True)])
def test_numbers_that_arrays_do_not_know_are_refused_before_the_training(
    tmp_path: Path, dtype: torch.dtype, fits: bool
) -> None:
    network, trained = nn.Linear(4, 2).to(dtype), False
    facts = {"model": "m:make", "image_shape": (1, 2, 2), "classes": 2, "learning_rate": 0.1, "batch_size": 1}
    try:
        with captured(network, tmp_path / "0", **facts):
            trained = True
    except UsageError as error:
        assert not fits and "train this client in float32" in str(error)
    assert trained == fits == (tmp_path / "0" / "after.npz").exists()


class Adapted(nn.Module):
    """As peft names them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 1, bias=False)})


def test_adapters_are_told_before_the_training_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not trained is read from the network."""
    facts = {"model": "m:make", "image_shape": (1, 2, 2), "classes": 2, "learning_rate": 0.1, "batch_size": 1}
    with captured(Adapted(), tmp_path / "0", **facts):
        said = capsys.readouterr().err
    assert "'lora_A.default.weight' is an adapter's weight: judge --checks-only" in said and said.count("\n") == 1
    kept = read_capture(tmp_path / "0")
    assert kept.record.frozen == ("layer.weight", "layer.bias") and "lora_A.default.weight" in kept.moved
