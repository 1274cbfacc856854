"""Additive noise and gradient pruning: how much stops an attack, and what that much costs in accuracy.

Source: the sweeps of Wei et al. (section 2 and Figure 3) after Zhu et al. 2019: variance 0.01 is said to prevent
leakage on LFW at 10 points of accuracy; pruning to protect above 40% (MNIST), 50% (CIFAR10) and 80% (LFW).
"""

from collections.abc import Iterable
from typing import Any

from harness.experiment import cell_settings
from harness.reproduction.chance import CHANCE_NOTE
from harness.reproduction.comparison import Comparison, Request, number
from harness.reproduction.data import at_hand
from harness.reproduction.fed_acdp.accuracy import NOTES, Accuracies, Measured
from harness.reproduction.fed_acdp.table3 import WORDS
from harness.results import CellResult

# Fewer than 59 victims cannot show resilience.
VICTIMS, QUICK_VICTIMS = 100, 60
VARIANCES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
DATASETS: tuple[str, ...] = ("mnist", "cifar10", "lfw")
QUICK_NOISE = {"mnist": (0.0, 1e-4, 1e-3, 1e-2, 1e-1), "lfw": (1e-2,)}
QUICK_PRUNING = {"mnist": (0.0, 0.4, 0.6, 0.8, 0.9, 0.99)}
PROTECTS_FROM = {"mnist": 0.4, "cifar10": 0.5, "lfw": 0.8}
STOPS_FROM = {"lfw": 1e-2}


def sweep_noise(request: Request) -> Comparison:
    """Gaussian noise on the local step, attacked at the local step (T2.step)."""
    accuracies, levels = Accuracies(request), QUICK_NOISE if request.quick else dict.fromkeys(DATASETS, VARIANCES)
    rows = [
        _row(accuracies, data, "noise", "T2.step", "variance", level, STOPS_FROM.get(data),
             {"amount": level, "param": "var", "applies_to": "gradient"})
        for data, level in request.dealt(((data, level) for data in levels for level in levels[data]), "row")
    ]  # fmt: skip
    return _sweep(
        accuracies, levels, "Noise against leakage: Gaussian noise on every local step's gradient, no clipping", rows,
        "noise applies to gradients (variance per coordinate); noise on updates of the same variance is 1/learning "
        "rate = 20 times larger in gradient units; unclipped noise gives no privacy guarantee",
    )  # fmt: skip


def sweep_pruning(request: Request) -> Comparison:
    """Pruned updates, attacked as they leave the client (T1.out), by attackers who know what was pruned."""
    accuracies, levels = Accuracies(request), QUICK_PRUNING if request.quick else dict.fromkeys(DATASETS, SHARES)
    rows = [
        _row(accuracies, data, "pruning", "T1.out", "pruned", level, PROTECTS_FROM.get(data), {"threshold": level})
        for data, level in request.dealt(((data, level) for data in levels for level in levels[data]), "row")
    ]
    return _sweep(
        accuracies, levels, "Pruning against leakage: the smallest coordinates of each update are zeroed", rows,
        "pruned coordinates are known to the attacker and left out of its objective; the local step (type 2) is not "
        "touched by pruning; it gives no privacy guarantee",
    )  # fmt: skip


def _row(
    accuracies: Accuracies, data: str, defense: str, tap: str, title: str, level: float,
    protects_from: float | None, arguments: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    paper = "-" if protects_from is None else ("protects" if level >= protects_from else "leaks")
    request = accuracies.request
    dataset = at_hand(data, request.data_root)[0]
    cell, made = None, None
    if dataset is not None:
        settings = cell_settings(
            dataset=dataset, defense=defense, defense_args=arguments, attack="cpl", tap=tap, seeds=request.seeds,
            victims=request.count(VICTIMS, QUICK_VICTIMS), device=request.device,
        )  # fmt: skip
        cell, made = request.run.cell(settings).cell, accuracies.of(defense, data, defense_args=arguments)
    return _cells(data, title, level, paper, cell, made)


def _cells(
    data: str, title: str, level: float, paper: str, cell: CellResult | None, made: Measured | None
) -> dict[str, Any]:
    row = {"data": data, title: f"{level:g}", "paper": paper}
    if cell is None:
        return row | {"resilient": "-", "ASR strict": "-", "RMSE": "-", "accuracy": "-", "verdict": "not at hand"}
    strict, ours = (
        cell.asr["strict"],
        {"leaks": "leaks", "resilient": "protects"}.get(cell.verdict_alone, cell.verdict_alone),
    )
    verdict = "-" if paper == "-" else ("agrees" if ours == paper else "differs")
    return row | {
        "resilient": WORDS[cell.verdict_alone], "ASR strict": f"{strict.successes}/{strict.n}",
        "RMSE": number(cell.metrics["rmse"].mean), "accuracy": str(made), "verdict": verdict,
    }  # fmt: skip


def _sweep(
    accuracies: Accuracies, datasets: Iterable[str], title: str, rows: list[dict[str, Any]], note: str
) -> Comparison:
    request = accuracies.request
    request.require_whole()
    count = request.count(VICTIMS, QUICK_VICTIMS)
    left_out = ["left out by --quick: other datasets, and every other level"] if request.quick else []
    return Comparison(
        title,
        [
            f"CPL on {count} victims per level, batch 1, freshly initialised LeNet, seeds {list(request.seeds)}; "
            "accuracy of the accuracy network beside it",
            *accuracies.header(*datasets),
            *left_out,
        ],
        rows,
        ["resilient: Y resists, N leaks, ? inconclusive, the lineup verdict", note, NOTES[0], CHANCE_NOTE],
    )
