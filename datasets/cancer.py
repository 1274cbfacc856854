"""Breast Cancer Wisconsin (Diagnostic) (Wolberg, Mangasarian, Street and Street, 1993), a table of 30 measurements."""

from pathlib import Path
from typing import cast

import numpy as np
import torch

from harness.base.columns import Columns
from harness.datasets.catalogue import Source, add
from harness.datasets.record import Dataset

_SOURCE = Source(
    origin="UCI Breast Cancer Wisconsin (Diagnostic), as bundled with scikit-learn",
    licence="CC BY 4.0",
    find=lambda root: Path("scikit-learn"),
    held_out=0.25,
    table=True,
)


@add("cancer", _SOURCE)
def load_cancer(root: Path) -> Dataset:
    """A table of 569 rows with 30 continuous columns, each scaled to [0, 1], and two classes."""
    # Imported here because scikit-learn takes longer to import than most commands to run.
    from sklearn import datasets
    from sklearn.utils import Bunch

    bunch = cast(Bunch, datasets.load_breast_cancer())  # not the pair that it returns on demand
    low, high = bunch.data.min(axis=0), bunch.data.max(axis=0)
    features = ((bunch.data - low) / (high - low)).astype(np.float32)
    return Dataset(
        name="cancer",
        images=torch.from_numpy(features)[:, None, None],
        labels=torch.from_numpy(bunch.target.astype(np.int64)),
        class_names=tuple(str(name) for name in bunch.target_names),
        origin=_SOURCE.origin,
        columns=Columns(tuple(str(name) for name in bunch.feature_names)),
        # The ranges that scikit-learn publishes beside the data are rounded; these are the data's own.
        fitted_to="the smallest and largest values of its own private rows, computed without noise",
    )
