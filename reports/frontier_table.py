"""A frontier for people: what each level of noise costs, proves, and lets out; and the best of it in words."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.reports import columns, text
from harness.results.frontier import FrontierDocument, FrontierPoint
from harness.scoring.verdict import CONFIRMED_SUCCESSES

_NOTES = (
    "accuracy: of a model trained here with that defense and noise; with few test examples, a point or two is noise",
    "epsilon: proven for that very run, against whoever reads there, for the unit beside it; none: nothing is proven. "
    "Above 10 it promises nothing",
    "success: images (or rows) that the best attack brings back within an RMSE of 0.1, with its 95% interval",
    "at most: what no attacker whatever exceeds, by a theorem; none exists where the noise hides nothing provably",
)


def print_frontier(document: FrontierDocument, console: Console) -> None:
    """Prints the table, what the reader needs to know beside it, and the answers."""
    table = Table(title="How much noise is needed, and what it costs", title_justify="left")
    for name, justify in (
        ("data", "left"), ("defense", "left"), ("noise", "right"), ("tap", "left"), ("accuracy", "right"),
        ("epsilon", "right"), ("verdict", "left"), ("success [95%]", "right"), ("at most", "right"),
        ("best attack", "left"),
    ):  # fmt: skip
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for number, point in enumerate(document.points):
        last = number + 1 == len(document.points) or document.points[number + 1].dataset != point.dataset
        table.add_row(*_row(point, number in document.best), end_section=last)
    console.print(table)
    for line in (_federation(document), *_NOTES, *_reasons(document)):
        console.print(Text(f"- {line}"))
    for words, best in zip(document.answers, document.best, strict=True):
        proven = None if best is None else document.points[best].epsilon
        good = best is not None and (proven is None or proven <= text.MOST_EPSILON)
        console.print(Text(words, style="bold green" if good else "bold yellow"))
    if not document.valid:
        reason = text.safe(document.valid_reason or "a negative control failed", 300)
        console.print(Text(f"THE RUN IS INVALID, its verdicts must not be used: {reason}", style="bold red"))


def _row(point: FrontierPoint, best: bool) -> list[str | Text]:
    noise = "" if point.level is None else f"{point.setting} {point.level:g}"
    return [
        text.safe(point.dataset, 30), Text(text.safe(point.defense, 40) + " *" * best, style="bold" if best else ""),
        noise, point.tap, text.percent(point.accuracy), epsilon(point),
        columns.verdict_word(point.shown), text.rate(point.success), text.percent(point.ceiling)
        if point.ceiling is not None else "none exists", text.safe(point.strongest or "-", 24),
    ]  # fmt: skip


def epsilon(point: FrontierPoint) -> str:
    """The proven one with its unit, or ``none``."""
    return "none" if point.epsilon is None else f"{point.epsilon:.3g} ({text.safe(point.unit or '?', 12)})"


def _federation(document: FrontierDocument) -> str:
    own = document.settings
    weights = {
        "initial": "initial weights, a network for each victim",
        "trained": "the weights that the training ended with, one network for all victims",
    }[str(own["attacked"])]
    return (
        f"{own['model']}: {own['clients_per_round']} of {own['clients']} clients a round, {own['rounds']} rounds of "
        f"{own['local_steps']} steps of {own['batch_size']}; attacked: {weights}, {own['victims']} victims, one "
        f"example in one local step (the easiest case for an attacker), by {own['attacks']}"
    )


def _reasons(document: FrontierDocument) -> list[str]:
    """Why there is no epsilon, what leaks where no image shows it, and why nobody could tell, each once with its
    points."""
    found: dict[str, dict[str, None]] = {}
    for point in document.points:
        name = f"{point.defense} on {point.dataset}"
        if point.epsilon is None and point.setting is not None:
            found.setdefault(f"no epsilon: {point.epsilon_reason}", {})[name] = None
        at = f"{name}, {point.setting} {point.level:g}" if point.level is not None else name
        if point.verdict == "leaks" and point.success.successes < CONFIRMED_SUCCESSES:
            found.setdefault(f"leaks: {point.verdict_reason}", {})[at] = None
        if point.shown == "inconclusive":
            found.setdefault(f"undecided: {point.verdict_reason}", {})[at] = None
    return [text.safe(f"{reason} ({'; '.join(names)})", 900) for reason, names in found.items()]
