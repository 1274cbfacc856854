"""The accuracy columns of the papers' tables: each federation they need, trained once.

Settings are those of Wei et al., Table II and section 7: N = 1000 clients, K = 100 of them per round, one local epoch,
C = 4, sigma = 6, learning rate 0.05, server learning rate 1. Nothing is tuned, not per table and not per cell;
the one choice made after a result is Adult's split, and the header says so.
"""

import logging
from dataclasses import dataclass
from typing import Any

from harness.papers.grid import at_hand, grid
from harness.papers.measured import Measured
from harness.study.runner import Request, TrainedRuns
from harness.training import TrainSettings, train_settings
from harness.training.chance import CHANCE_NOTE, chance_level

log = logging.getLogger(__name__)

#: The order of the columns of every table over datasets.
DATA = ("mnist", "cifar10", "lfw", "adult", "cancer")


@dataclass(frozen=True)
class PaperFederation:
    """One column of Table II: n examples per client, batch size B, rounds T; L = n / B local steps per round."""

    examples: int
    batch_size: int
    rounds: int

    @property
    def local_steps(self) -> int:
        """L, one local epoch."""
        return self.examples // self.batch_size


TABLE_2 = {
    "mnist": PaperFederation(500, 5, 100), "cifar10": PaperFederation(400, 4, 100), "lfw": PaperFederation(300, 3, 60),
    "adult": PaperFederation(300, 3, 10), "cancer": PaperFederation(400, 4, 3),
}  # fmt: skip

# Table V by method, dataset and C; without a defense no C matters.
TABLE_5: dict[tuple[str, str, float], float] = {
    (method, row["data"], row["clip"]): value
    for row in grid("table5").printed()
    for method, value in zip(grid("table5").facts["methods"], row["printed"], strict=True)
}
# Table VI is Table V at C = 4.
TABLE_6_ACCURACY = {(method, data): value for (method, data, clip), value in TABLE_5.items() if clip == 4.0}
NON_PRIVATE = {data: TABLE_6_ACCURACY["non-private", data] for data in DATA}

CLIENTS, PER_ROUND = 1000, 100
QUICK_CLIENTS, QUICK_PER_ROUND, QUICK_ROUNDS = 100, 5, 10
SAMPLE_STEPS = 20
MEASUREMENTS = 5
CODE_SIGMA = 0.5

# Shards of one class are known for the images the released scripts train on. The smallest classes of LFW and Cancer are
# smaller than a shard, and clients of one class each never learn Adult's two.
SPLITS = {"mnist": "shards", "cifar10": "shards"}

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "non-private": ("none", {}),
    "Fed-SDP": ("fed_sdp", {}),
    "Fed-CDP": ("fed_cdp", {}),
    "Fed-αCDP": ("fed_acdp", {}),
    "noise": ("noise", {}),
    "pruning": ("pruning", {}),
    "Quantile": ("quantile", {"unit": "example"}),
    "AdaClip": ("adaclip", {}),
    **{f"Fed-αCDP[σ] {policy}": ("fed_acdp", {"policy": policy}) for policy in ("linear", "staircase", "exponential")},
    "Fed-αCDP[σ] cyclic": ("fed_acdp", {"policy": "cyclic"}),
}

NOTES = [
    "accuracy: only trends count, the order of the methods, and never the equality of a cell: learning rate, "
    "initialisation, sampling and noise of the paper are unknown or contradict each other; nothing is tuned",
    "order, accuracy verdicts: agrees where the method stands above or below every other one of its group as printed",
    CHANCE_NOTE,
]
READINGS = [
    "run: sigma as printed (6; the released scripts have 0.5, shown where a column says so); noise std sigma*S on the "
    "sum of a batch, sigma*S/B on its mean (C=4, B=5: 4.8; the text's per-example noise gives 10.7, Algorithm 1 24)",
    "run: batches shuffled every round (the scripts keep one order), q = B/n (printed: B*K/|D|), Fed-SDP's noise on "
    "the sum at the server (the scripts multiply it by 0), decaying sigma by per-step epsilon (the printed formulas on "
    "sigma spend less), accuracy on the official test part (the scripts: the end of the training part)",
]


class Accuracies:
    """Trains what a table asks for, each run once and into its own folder; ``--resume`` uses finished ones."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._trained = TrainedRuns(request)
        if request.device == "cpu" and not request.quick:
            log.warning("full scale on a CPU takes hours to days; --quick takes minutes, --resume goes on")

    def of(self, method: str, data: str, share: float = 1.0, **changes: Any) -> Measured | None:
        """Accuracy of a method on the paper's dataset; None where the dataset is not at hand.

        Args:
            share: of the rounds after which it is taken, at the last measurement by then (the first if none was).
            changes: training settings instead of the paper's; ``defense_args`` add to the method's.
        """
        settings = self.settings(method, data, **changes)
        if settings is None:
            return None
        curve = self._curve(f"{method} on {data}", settings)
        level = chance_level(settings.dataset, settings.model, self.request.data_root)
        reached = [number for number in curve if number <= share * settings.rounds + 1e-9]
        accuracy = curve[max(reached or [min(curve)])] if curve else 0.0
        return Measured(accuracy, accuracy <= level, curve, settings.rounds)

    def settings(self, method: str, data: str, **changes: Any) -> TrainSettings | None:
        """The training settings of a cell; None where the dataset is not at hand."""
        name, paper = at_hand(data, self.request.data_root)[0], TABLE_2[data]
        if name is None:
            return None
        defense, arguments = METHODS[method]
        quick = self.request.quick
        values = {
            "dataset": name, "clients": QUICK_CLIENTS if quick else CLIENTS,
            "clients_per_round": QUICK_PER_ROUND if quick else PER_ROUND,
            "rounds": min(paper.rounds, QUICK_ROUNDS) if quick else paper.rounds,
            "local_steps": SAMPLE_STEPS if name.endswith("-sample") else paper.local_steps,
            "batch_size": paper.batch_size, "split": SPLITS.get(data, "iid"), "seed": self.request.seeds[0],
            "device": self.request.device,
        }  # fmt: skip
        values |= changes | {"defense": defense, "defense_args": arguments | changes.get("defense_args", {})}
        return train_settings(**values)

    def header(self, *datasets: str) -> list[str]:
        """Return what was run, what was scaled down, and on which data."""
        found = [at_hand(data, self.request.data_root)[1].replace("training split", "data") for data in datasets]
        scale = f"accuracy: N={CLIENTS} clients, K={PER_ROUND} per round, T rounds of L=100 steps, as in the paper"
        if self.request.quick:
            scale = (
                f"accuracy, scaled down by --quick: N={QUICK_CLIENTS} clients instead of {CLIENTS}, "
                f"K={QUICK_PER_ROUND} per round instead of {PER_ROUND}, at most {QUICK_ROUNDS} rounds instead of up to "
                "100; with fewer clients to average over, noise weighs more"
            )
        sample = f"bundled samples train with L={SAMPLE_STEPS} steps instead of 100"
        splits = "split: " + ", ".join(f"{data} {SPLITS.get(data, 'iid')}" for data in datasets)
        if "adult" in datasets:
            splits += "; Adult's was chosen after shards had left the non-private run at chance (0.761)"
        return [scale, *found, splits, *([sample] if any("bundled" in line for line in found) else []), *READINGS]

    def _curve(self, title: str, settings: TrainSettings) -> dict[int, float]:
        """Accuracy by round; empty where training diverged."""
        every = max(settings.rounds // MEASUREMENTS, 1) if self.request.quick else 1
        return self._trained.curve(title, settings, every)
