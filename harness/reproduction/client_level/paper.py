"""Settings and numbers of two papers on protecting clients.

S003: Triastcyn and Faltings, "Federated Learning with Bayesian Differential Privacy", Tables I to IV.
S001: global differential privacy after Geyer, Klein and Nabi, "Differentially Private Federated Learning: A Client
Level Perspective"; our copy of S001 prints no numbers, those of Geyer et al. are recalled.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientLevel:
    """One row of Tables I to III: accuracies in percent, epsilons of DP and of BDP at ``delta``."""

    clients: int
    baseline: int
    dp: int
    bdp: int
    epsilon: float
    bayesian: float
    delta: float


# Dataset, split, rows.
CLIENT_TABLES: dict[str, tuple[str, str, tuple[ClientLevel, ...]]] = {
    "I": ("mnist", "shards", (
        ClientLevel(100, 97, 78, 88, 8, 4.0, 1e-3),
        ClientLevel(1000, 98, 95, 96, 3, 1.5, 1e-5),
        ClientLevel(10000, 99, 96, 97, 1, 0.6, 1e-6),
    )),
    "II": ("mnist", "iid", (
        ClientLevel(100, 97, 86, 92, 8, 2.0, 1e-3),
        ClientLevel(1000, 98, 97, 97, 3, 1.0, 1e-5),
        ClientLevel(10000, 99, 97, 98, 1, 0.5, 1e-6),
    )),
    "III": ("retina", "iid", (
        ClientLevel(100, 70, 60, 65, 8, 2.1, 1e-3),
        ClientLevel(1000, 71, 67, 68, 2, 0.5, 1e-5),
        ClientLevel(10000, 72, 68, 69, 1, 0.2, 1e-6),
    )),
}  # fmt: skip


@dataclass(frozen=True)
class JointLevel:
    """One row of Table IV: accuracies in percent, the client's epsilon at delta 1e-3."""

    data: str
    split: str
    baseline: int
    dp: int
    bdp: int
    client: float


JOINT_CLIENTS, INSTANCE_EPSILON, INSTANCE_DELTA, CLIENT_DELTA = 100, 0.1, 1e-5, 1e-3
JOINT_TABLE = (
    JointLevel("retina", "iid", 70, 42, 64, 1.0),
    JointLevel("mnist", "iid", 97, 15, 74, 2.0),
    JointLevel("mnist", "shards", 97, 12, 62, 4.0),
)


@dataclass(frozen=True)
class Geyer:
    """One row of Geyer et al.'s Table 1 as recalled: clients per round are its communication costs over its rounds."""

    clients: int
    per_round: int
    rounds: int
    accuracy: float
    max_delta: float


GEYER_EPSILON = 8.0
GEYER_TABLE = (
    Geyer(100, 50, 11, 0.78, 1e-3),
    Geyer(1000, 220, 54, 0.92, 1e-5),
    Geyer(10000, 508, 412, 0.96, 1e-6),
)
