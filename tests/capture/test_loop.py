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
