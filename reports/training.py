"""A training run for people: a table of rounds, what was spent, curves, and Bayesian epsilons.

Beside Bayesian epsilons stands everything that keeps them from being read as differential privacy.
"""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.kinds import plural
from harness.reports import text
from harness.reports.pictures import save_figure
from harness.results.training import RoundRecord, TrainDocument

_WARNING = (
    "BDP is not differential privacy: it depends on the distribution of the data that was seen, holds for typical "
    "records or clients only, and protects no outlier."
)
_DIRECTIONS = {"max": "max (paper)", "L": "L"}


def print_bayesian(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints rows of :class:`harness.training.bayesian.Bayesian`, and below them what each number assumes."""
    table = Table("level", "direction", "BDP epsilon", "total delta", "samples", "moments epsilon", "its status")
    for row in rows:
        least, most = row["samples"]
        table.add_row(
            row["level"], _DIRECTIONS[row["direction"]], f"{row['epsilon']:.4g}", f"{row['delta_total']:.3g}",
            str(least) if least == most else f"{least}-{most}", f"{row['moments_epsilon']:.4g}",
            row["moments_guarantee"],
        )  # fmt: skip
    console.print(table)
    console.print(Text(_WARNING, style="bold"))
    console.print(Text("BDP assumes that " + "; that ".join(rows[0]["assumptions"]) + "."))
    console.print(Text(
        "Moments epsilon: same noise, every contribution as large as clipping allows, add/remove, the same "
        "orders, Mironov conversion. No estimate of a Bayesian cost exceeds that of the largest contribution."
    ))  # fmt: skip
    for level, conditions in {row["level"]: row["conditions"] for row in rows}.items():
        for condition in conditions:
            met = "met" if condition["met"] else "NOT met by this run, so its moments epsilon is nominal"
            console.print(Text(f"{level}: assumes that {condition['text']}: {met}."))


_MOST_ROWS = 25


def print_training(document: TrainDocument, console: Console, folder: Path) -> None:
    """Prints what was trained, at most 25 rounds of it, and the privacy statements."""
    settings = document.settings
    console.print(
        f"{settings['dataset']} | {settings['defense']} | {settings['algorithm']} | "
        f"{plural(settings['clients'], 'client')}, {settings['clients_per_round']} per round "
        f"({settings['client_sampling']}), L={plural(settings['local_steps'], 'step')} of {settings['batch_size']} "
        f"({settings['batch_sampling']}) | "
        f"split {settings['split']} | seed {settings['seed']}{', noise from a secret key' if document.secret else ''}"
    )
    console.print(
        f"{document.train_examples} training and {document.test_examples} test examples, {document.parameters} "
        f"parameters; each example is held by {document.overlap:.2f} clients on average"
    )
    heads = ("round", "accuracy", "loss", "claimed epsilon", "step noise", "gradient norm", "update norm", "sec")
    table = Table(*heads, show_edge=False, pad_edge=False)  # narrow: a number that is cut is another number
    shown = _shown(document.rounds)
    for record in shown:
        large = (record.loss or 0) >= 1000
        table.add_row(
            str(record.round), _number(record.accuracy, ".4f"), _number(record.loss, ".3g" if large else ".3f"),
            _number(record.claimed_epsilon, ".3f"), _number(record.noise, ".3g"), _number(record.gradient_norm, ".3g"),
            _number(record.update_norm, ".3g"), f"{record.seconds:.2f}",
        )  # fmt: skip
    console.print(table)
    if hidden := len(document.rounds) - len(shown):
        console.print(f"{hidden} of {len(document.rounds)} rounds are not shown; training.json has all")
    if document.stopped:
        console.print(f"stopped: {document.stopped}")
    console.print(document.units)
    for one in document.privacy:
        console.print(
            f"{one.view}: claimed epsilon {_number(one.claimed_epsilon, '.3f')}, valid "
            f"{_number(one.epsilon, '.3f')}{text.too_large(one.epsilon)}{text.told(one)} ({one.guarantee}): {one.notes}"
        )
    for careless in dict.fromkeys(filter(None, map(document.careless, document.privacy))):
        console.print(f"warning: {careless}; lower --delta")
    if document.bayesian:
        print_bayesian(document.bayesian, console)
    console.print(f"Files: {folder} (training.json, checkpoint.pt, curves.png, models)")


def save_curves(document: TrainDocument, path: Path) -> None:
    """Draws accuracy over the rounds, and below it the norms and the noise that explain it."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    measured = [record for record in document.rounds if record.accuracy is not None]
    top.plot([r.round for r in measured], [r.accuracy for r in measured], color="#1b6ca8", marker="o", markersize=3)
    top.set(
        ylabel="test accuracy", ylim=(0, 1), title=f"{document.settings['defense']}, {document.settings['dataset']}"
    )
    top.grid(alpha=0.3)
    claims = [(r.round, r.claimed_epsilon) for r in measured if r.claimed_epsilon is not None]
    if claims:
        right = top.twinx()
        right.plot(*zip(*claims, strict=True), color="#b04a2f", linestyle="--")
        right.set_ylabel("claimed epsilon (dashed)", color="#b04a2f")
    for name, label, colour in (
        ("gradient_norm", "per-example gradient norm", "#2e7d4f"),
        ("update_norm", "update norm", "#7a4ea3"),
        ("noise", "noise std on a step", "#b04a2f"),
    ):
        points = [(r.round, getattr(r, name)) for r in document.rounds if getattr(r, name)]
        if points:
            bottom.plot(*zip(*points, strict=True), label=label, color=colour)
    bottom.set(xlabel="round", yscale="log")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.grid(alpha=0.3)
    if bottom.lines:
        bottom.legend(frameon=False)
    save_figure(figure, path, 110)


def _shown(rounds: list[RoundRecord]) -> list[RoundRecord]:
    """Every round, or evenly spaced ones with the first and the last."""
    if len(rounds) <= _MOST_ROWS:
        return rounds
    places = {round(step * (len(rounds) - 1) / (_MOST_ROWS - 1)) for step in range(_MOST_ROWS)}
    return [rounds[place] for place in sorted(places)]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
