"""S002's algorithms and federations as training settings (docs/defenses.md).

A local step's length is eta0 / max(1, K s): K local steps on a share s of a user's records are K s passes over them.
"""

from dataclasses import dataclass, replace
from typing import Any

from harness.papers.grid import grid
from harness.training import TrainSettings, train_settings

CLIP = 1.0

# Algorithm, local steps (None: as the experiment says; 0: one pass over the records), and whether steps are private.
METHODS: dict[str, tuple[str, int | None, bool]] = {
    f"{prefix}{name}": (algorithm, steps, bool(prefix))
    for prefix in ("", "DP-")
    for name, (algorithm, steps) in {
        "FedAvg": ("fedavg", None),
        "FedSGD": ("fedsgd", 1),
        "FedSGD one pass": ("fedavg", 0),
        "SCAFFOLD": ("scaffold", None),
        "SCAFFOLD-warm": ("scaffold-warm", None),
    }.items()
}


LOWEST = "logistic-0-0"
SYNTHETIC = ("logistic-0-0", "logistic-1-1", "logistic-5-5")
SIMILARITIES = (0.0, 0.1, 1.0)


@dataclass(frozen=True)
class Federated:
    """One of the paper's experiments.

    Attributes:
        family: synthetic, FEMNIST or MNIST. level: share of uniform labels of the last two (their similarity).
        steps, rounds: K local steps, T rounds (those that warm up included).
        user_rate, data_rate: l and s.
        sigma: noise multiplier of the private algorithms.
        records: training records that each user has.
    """

    family: str
    dataset: str
    sigma: float
    users: int
    records: int
    model: str = "logistic"
    split: str = "natural"
    level: float = 0.0
    steps: int = 50
    rounds: int = 400
    user_rate: float = 0.2
    data_rate: float = 0.2

    @property
    def title(self) -> str:
        """Data and heterogeneity."""
        return self.dataset if self.split == "natural" else f"{self.family}, {self.level:.0%} similar"

    def least_heterogeneous(self) -> "Federated":
        """The experiment's data with the lowest heterogeneity, at the paper's settings of most of its figures."""
        plain = replace(FAMILIES[self.family], dataset=self.dataset)
        return replace(plain, dataset=LOWEST) if self.split == "natural" else replace(plain, level=max(SIMILARITIES))

    def under(self, method: str) -> "Federated":
        """The same with the local steps that a method takes."""
        steps = METHODS[method][1]
        return self if steps is None else replace(self, steps=steps or round(1 / self.data_rate))

    def learning_rate(self, first: float) -> float:
        """A local step's length from eta0."""
        return first / max(1, round(self.steps * self.data_rate))

    def settings(self, method: str, first: float, seed: int, device: str = "cpu") -> TrainSettings:
        """A method's training settings with eta0 = ``first``."""
        algorithm, _, private = METHODS[method]
        here = self.under(method)
        return train_settings(
            dataset=here.dataset, model=here.model, algorithm=algorithm, clients=here.users,
            clients_per_round=round(here.user_rate * here.users), rounds=here.rounds, local_steps=here.steps,
            batch_size=round(here.data_rate * here.records), examples=here.records, split=here.split, level=here.level,
            batch_sampling="without-replacement", learning_rate=here.learning_rate(first),
            defense="dp_local" if private else "none",
            defense_args={"clip": CLIP, "sigma": here.sigma} if private else {},
            delta=1 / (here.users * here.records), seed=seed, device=device,
        )  # fmt: skip


def _facts(family: str) -> dict[str, Any]:
    users, records, sigma = grid("dp-scaffold-accounting").facts["data"][family]
    return {"family": family, "users": users, "records": records, "sigma": sigma}


FAMILIES: dict[str, Federated] = {
    "synthetic": Federated(**_facts("synthetic"), dataset=SYNTHETIC[-1]),
    "FEMNIST": Federated(**_facts("FEMNIST"), dataset="emnist", model="unit_logistic", split="similarity"),
    "MNIST": Federated(**_facts("MNIST"), dataset="mnist", model="pca_mlp", split="similarity", rounds=100),
}


def synthetic(**changes: Any) -> Federated:
    """The synthetic data's experiment, most heterogeneous unless said otherwise, with some settings changed."""
    return replace(FAMILIES["synthetic"], **changes)
