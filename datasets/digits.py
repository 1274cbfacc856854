"""The 8x8 digits that come with scikit-learn (Alpaydin and Kaynak, 1998)."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from harness.datasets.catalogue import Source, add
from harness.datasets.record import Dataset

if TYPE_CHECKING:
    from sklearn.utils import Bunch

_SOURCE = Source(
    origin="UCI Optical Recognition of Handwritten Digits, test split, as bundled with scikit-learn",
    licence="CC BY 4.0",
    find=lambda root: Path("scikit-learn"),
)


@add("digits", _SOURCE)
def load_digits(root: Path) -> Dataset:
    """1,797 grey images (1, 8, 8) of ten digits; the pixels count 0 to 16 and are divided by 16."""
    bunch = _bundled()
    return Dataset(
        name="digits",
        images=torch.from_numpy((bunch.images[:, None] / 16).astype(np.float32)),
        labels=torch.from_numpy(bunch.target.astype(np.int64)),
        class_names=tuple(str(digit) for digit in bunch.target_names),
        origin=_SOURCE.origin,
    )


@cache
def _bundled() -> "Bunch":
    """As the package holds them; reading its text takes longer than a small attack."""
    # Imported here because scikit-learn takes longer to import than most commands to run.
    from sklearn import datasets

    return cast("Bunch", datasets.load_digits())  # not the pair that it returns on demand
