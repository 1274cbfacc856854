"""Leakage by running statistics: GradInversion without them, with those of the model, with those that travelled.

Sources: Yin et al. 2021, "See through Gradients" (CVPR), section 3.3: the BatchNorm prior, with running statistics of
the model in the place of the batch's; Huang et al. 2021, "Evaluating Gradient Inversion Attacks and Defenses in
Federated Learning" (NeurIPS), section 3.1: what such attacks owe to knowing the batch's own.
"""

from pathlib import Path
from typing import Any

from harness.experiment import CellSettings, cell_settings
from harness.observation import UpdateModel
from harness.papers.grid import Comparison, at_hand, number
from harness.results import CellResult
from harness.results.files import sha256
from harness.study.runner import Request, TrainedRuns
from harness.training import TrainSettings, fitted, kept_model, train_settings

ROUNDS, QUICK_ROUNDS = (0, 2, 10, 20), (0, 20)
VICTIMS, QUICK_VICTIMS = 16, 4
ITERATIONS, QUICK_ITERATIONS = 2000, 300
BATCH, LEVEL = 4, 0.05

# Name, settings of the attack, and whether running statistics travel.
ARMS: dict[str, tuple[dict[str, Any], str]] = {
    "no prior": ({"batch_norm": 0.0, "first_batch_norm": 0.0}, "hidden"),
    "hidden": ({}, "hidden"),
    "sent": ({}, "sent"),
}


def federation(dataset: str, root: Path) -> TrainSettings:
    """ResNet-8, two of ten clients a round, one local pass each over what they hold."""
    whole = train_settings(
        dataset=dataset, model="resnet8", clients=10, clients_per_round=2, rounds=max(ROUNDS), local_steps=78,
        batch_size=64, split="iid", learning_rate=0.05, local_momentum=0.9,
    )  # fmt: skip
    return fitted(whole, root)


def running_statistics(request: Request) -> Comparison:
    """Attacks on rounds of a ResNet-8 on its way to be trained; ``--quick``: fewer victims, rounds and iterations."""
    dataset, line = at_hand("cifar10", request.data_root)
    assert dataset is not None  # at least the sample
    settings = federation(dataset, request.data_root)
    runs, title = TrainedRuns(request, keep=ROUNDS), f"ResNet-8 on {dataset}"
    victims, most = request.count(VICTIMS, QUICK_VICTIMS), QUICK_ITERATIONS if request.quick else ITERATIONS
    rows = []
    for done in request.dealt(QUICK_ROUNDS if request.quick else ROUNDS, "row"):
        curve = runs.curve(title, settings, every=2)
        model = kept_model(runs.folder(settings), done)
        common = {"round": done, "weights": str(model), "weights_hash": sha256(model)}
        common |= {"victims": victims, "dataset": dataset}
        cells = {arm: request.run.cell(_settings(request, common, most, *chosen)).cell for arm, chosen in ARMS.items()}
        rows.append(_row(done, curve.get(done), cells))
    request.require_whole()
    curve = runs.curve(title, settings, every=2)
    return Comparison(
        "GradInversion and BatchNorm's statistics on ResNet-8, CIFAR-10",
        [
            f"{victims} clients of {BATCH} images, one local step in training mode, labels known, no defense, "
            f"{most} iterations from one start, seeds {list(request.seeds)}",
            f"accuracy after training: {', '.join(f'{share:.1%} in round {done}' for done, share in curve.items())}",
            line,
        ],
        rows,
        [
            "lineup p: whether truths are nearer to reconstructions than look-alikes of their class are; RMSE is the "
            "median over images, PSNR the mean, both better for grey images than for wrong ones; strict: an RMSE of at "
            "most 0.1",
            "no prior: without the term; hidden: running statistics of the model that the client started from; sent: "
            "the batch's own, from running statistics that travelled",
            f"agrees: with statistics that travelled truths are told from look-alikes (p < {LEVEL}), and better than "
            "by either other (Huang et al.); in round 0 running statistics of the model are those of no data at all",
        ],
        against="the claim that knowing the batch's statistics helps",
    )  # fmt: skip


def _settings(
    request: Request, common: dict[str, Any], most: int, arguments: dict[str, Any], statistics: str
) -> CellSettings:
    first: UpdateModel = "first"
    return cell_settings(
        **common, model="resnet8", attack="gradinversion", batch_norm=statistics, tap="T1.out",
        attack_args={"restarts": 1, "max_iterations": most, **arguments}, batch_size=BATCH, update_model=first,
        labels="known", rounds=max(ROUNDS) + 1, learning_rate=0.05, seeds=request.seeds, device=request.device,
    )  # fmt: skip


def _row(done: int, accuracy: float | None, cells: dict[str, CellResult]) -> dict[str, Any]:
    found = {arm: cell.lineup.p_value for arm, cell in cells.items()}
    others = [p_value for arm, p_value in found.items() if arm != "sent"]
    return {
        "round": done, "accuracy": "-" if accuracy is None else f"{accuracy:.1%}",
        **{
            f"{arm}: lineup p, RMSE, PSNR, strict": f"{number(found[arm], 4)}, {number(cell.metrics['rmse'].median)}, "
            f"{number(cell.metrics['psnr'].mean, 1)}, {cell.asr['strict'].successes}/{cell.asr['strict'].n}"
            for arm, cell in cells.items()
        },
        "verdict": "agrees" if _tells_more(found["sent"], others) else "differs",
    }  # fmt: skip


def _tells_more(sent: float | None, others: list[float | None]) -> bool:
    """Return whether reconstructions tell the truths from look-alikes, and better than the others do."""
    return sent is not None and sent < LEVEL and all(other is None or sent < other for other in others)
