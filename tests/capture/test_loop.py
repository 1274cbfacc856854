"""A capture around a training loop refuses what it could not write before the training, not after it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.capture import captured
from harness.errors import UsageError


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


def test_adapters_are_refused_before_the_training(tmp_path: Path) -> None:
    facts = {"model": "m:make", "image_shape": (1, 2, 2), "classes": 2, "learning_rate": 0.1, "batch_size": 1}
    with (
        pytest.raises(UsageError, match=r"'lora_A.default.weight' is an adapter's weight.*requires_grad_"),
        captured(Adapted(), tmp_path / "0", **facts),
    ):
        pytest.fail("the training began")
