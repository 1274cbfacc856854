"""The synthetic heterogeneous logistic data of DP-SCAFFOLD: every user has its own features and its own true model.

Source: Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data" (AISTATS 2022),
appendix D.2, after Li et al. 2020 (FedProx). ``alpha`` spreads the users' models, ``beta`` their features.

Features are standardised over all users, on training records. Standardised user by user, they would lose the users'
centres, all that tells one user from another, and no common model could do better than 15% on any of these data. The
released script's option of that name scales by single records and keeps the centres. ``alpha`` moves no label: as
printed it shifts all classes alike, as released it scales them alike.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch

from harness.base.columns import Columns
from harness.base.randomness import derive_seed
from harness.datasets.catalogue import Source, add
from harness.datasets.record import Dataset

USERS, EXAMPLES, FEATURES, CLASSES, HELD_OUT = 100, 5000, 40, 10, 1000
_LABEL_NOISE = 0.05


@cache
def _users(alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Features (users, examples, 40), standardised and of unit length, and labels (users, examples)."""
    random = np.random.default_rng(derive_seed("logistic", repr(alpha), repr(beta)))
    deviations = np.arange(1, FEATURES + 1) ** -0.6
    features = np.empty((USERS, EXAMPLES, FEATURES), dtype=np.float32)
    labels = np.empty((USERS, EXAMPLES), dtype=np.int64)
    for user in range(USERS):
        centre = random.normal(random.normal(0, np.sqrt(beta), FEATURES), 1)
        drawn = random.normal(centre, deviations, (EXAMPLES, FEATURES))
        weights = random.normal(random.normal(0, np.sqrt(alpha)), 1, (FEATURES, CLASSES))
        biases = random.normal(random.normal(0, np.sqrt(alpha)), 1, CLASSES)
        labels[user] = (drawn @ weights + biases).argmax(axis=1)
        wrong = random.random(EXAMPLES) < _LABEL_NOISE
        labels[user][wrong] = random.integers(CLASSES, size=wrong.sum())
        features[user] = drawn
    training = features[:, : EXAMPLES - HELD_OUT]
    features = (features - training.mean(axis=(0, 1), dtype=float)) / training.std(axis=(0, 1), dtype=float)
    return (features / np.linalg.norm(features, axis=2, keepdims=True)).astype(np.float32), labels


def _part(name: str, alpha: float, beta: float, test: bool) -> Dataset:
    features, labels = _users(alpha, beta)
    kept = slice(EXAMPLES - HELD_OUT, None) if test else slice(0, EXAMPLES - HELD_OUT)
    count = labels[:, kept].shape[1]
    return Dataset(
        name=name,
        images=torch.from_numpy(features[:, kept].reshape(-1, 1, 1, FEATURES)),
        labels=torch.from_numpy(labels[:, kept].reshape(-1)),
        class_names=tuple(str(label) for label in range(CLASSES)),
        origin=f"synthetic logistic users, alpha={alpha:g}, beta={beta:g}",
        columns=Columns(tuple(f"x{place + 1}" for place in range(FEATURES))),
        clients=torch.arange(USERS).repeat_interleave(count),
        fitted_to="the means and spreads of all users' private records, computed without noise",
    )


def _register(alpha: float, beta: float) -> None:
    name = f"logistic-{alpha:g}-{beta:g}"
    source = Source(
        origin=f"generated; 100 users of 5,000 rows, 40 features, alpha={alpha:g}, beta={beta:g}",
        licence="generated, none",
        find=lambda root: Path("generated"),
        test=lambda root: _part(name, alpha, beta, test=True),
        table=True,
    )

    @add(name, source)
    def load(root: Path) -> Dataset:
        """Generated: 100 heterogeneous users with 40 features and ten classes, for ``--split natural``."""
        return _part(name, alpha, beta, test=False)


for _level in (0.0, 1.0, 5.0):
    _register(_level, _level)
