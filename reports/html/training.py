"""Tables of training runs: where they ended, and their rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from harness.base.errors import UsageError
from harness.experiment import usual_defense
from harness.reports import text
from harness.reports.columns import VERDICT_COLOURS
from harness.reports.html import chart, commands, wording
from harness.reports.html.chart import INK, Chart, inline
from harness.reports.html.places import Decided
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, epsilon, figure, make, words
from harness.results.record import without_non_finite
from harness.results.training import TrainDocument

_MOST_ROUNDS = 40


def trained(run: RunData) -> tuple[str, str]:
    """The defense and arguments of a training run."""
    settings = run.training.settings if run.training else {}
    return wording.label(str(settings.get("defense", "?")), _built(settings))


def best_epsilon(document: TrainDocument) -> tuple[float | None, float | None]:
    """(claimed, recomputed) epsilon against a third party, else against the first view that has one."""
    ordered = sorted(document.privacy, key=lambda statement: statement.view != "third party")
    claimed = next((one.claimed_epsilon for one in ordered if one.claimed_epsilon is not None), None)
    proven = next((one.epsilon for one in ordered if one.epsilon is not None), None)
    return claimed, proven


def training_table(runs: Sequence[RunData]) -> Table:
    """A row per training run."""
    titles = (
        Head("run"), Head("dataset", choice=True), Head("model"), Head("defense", choice=True),
        Head("arguments"), Head("clients"), Head("rounds", number=True), Head("accuracy", number=True),
        Head("claimed epsilon", number=True), Head("recomputed epsilon", number=True), Head("stopped", wide=True),
        Head("seconds", number=True),
    )  # fmt: skip
    rows = [_training(run, run.training) for run in runs if run.training is not None]
    return make("training", "Accuracy and epsilon of training runs", titles, rows, _AGAINST)


def _training(run: RunData, document: TrainDocument) -> tuple[Value, ...]:
    settings = document.settings
    claimed, proven = best_epsilon(document)
    per_round, clients = settings.get("clients_per_round", "?"), settings.get("clients", "?")
    return (
        words(run.name), words(settings.get("dataset"), 40), words(settings.get("model"), 40),
        *map(words, trained(run)), words(f"{per_round} of {clients}", 40),
        Value(str(len(document.rounds)), float(len(document.rounds))),
        Value(text.percent(document.accuracy), document.accuracy), figure(claimed), epsilon(proven),
        words(document.stopped, 200), figure(document.seconds, 1),
    )  # fmt: skip


def round_table(runs: Sequence[RunData]) -> Table:
    """A row per round, evenly spaced where a run is long."""
    titles = (
        Head("run", choice=True), Head("defense", choice=True),
        *(
            Head(title, number=True)
            for title in (
                "round", "accuracy", "loss", "claimed epsilon", "step noise", "gradient norm", "update norm",
                "seconds",
            )
        ),
    )  # fmt: skip
    rows = [
        (
            words(run.name), words(trained(run)[0]), Value(str(one.round), float(one.round)),
            Value(text.percent(one.accuracy), one.accuracy), figure(one.loss), figure(one.claimed_epsilon),
            figure(one.noise), figure(one.gradient_norm), figure(one.update_norm), figure(one.seconds, 1),
        )
        for run in runs
        if run.training is not None
        for one in spaced(run.training.rounds)
    ]  # fmt: skip
    return make(
        "rounds", "Rounds of training", titles, rows,
        f"At most {_MOST_ROUNDS} rounds of each run, evenly spaced; all are in its training.json.",
    )  # fmt: skip


def spaced(rounds: list) -> list:
    """At most forty rounds, the first and the last among them."""
    if len(rounds) <= _MOST_ROUNDS:
        return rounds
    return [rounds[round(step * (len(rounds) - 1) / (_MOST_ROUNDS - 1))] for step in range(_MOST_ROUNDS)]


# Figure: what a defense costs in accuracy, what it promises, and whether it leaked, in one plane.

_AGAINST = (
    "An epsilon is the one against a third party if there is one; the table What is promised has the server's and the "
    "other clients'."
)
NOTE = (
    "Each training run is a point: its accuracy against its epsilon. Filled: recomputed for what ran; hollow: as the "
    "paper's convention claims it; the column on the right has no epsilon at all. Shaded: above 10, which promises "
    f"nothing. {_AGAINST} Colour and sign say what the strongest attack did to the same defense, with the same "
    "settings, on the same dataset; the worst place counts."
)
_FALLBACK = "#7a828c"


@dataclass(frozen=True)
class _Measured:
    """A training run whose accuracy is known."""

    run: RunData
    training: TrainDocument
    accuracy: float

    @property
    def percent(self) -> float:
        """The accuracy within 0 to 100."""
        return 100 * min(1.0, max(0.0, self.accuracy))


def utility_chart(runs: Sequence[RunData], places: Sequence[Decided]) -> Chart | None:
    """Accuracy over epsilon; None without a training run that was measured."""
    trainings = [(run, run.training) for run in runs if run.training is not None]
    measured = [_Measured(run, made, made.accuracy) for run, made in trainings if made.accuracy is not None]
    if not measured:
        return None
    epsilons = [epsilon for one in measured for epsilon in map(_drawn, best_epsilon(one.training)) if epsilon]
    low, high = (min(epsilons) / 2, max(epsilons) * 2) if epsilons else (0.1, 10.0)
    nowhere = high * (high / low) ** 0.12
    figure, [panel] = chart.panels(0, 1, least=4.0)
    panel.set_position((0.08, 0.14, 0.9, 0.82))
    spoken, height = [], -100.0
    for one in sorted(measured, key=lambda one: one.accuracy):
        # Names one above the other where points lie close together.
        height = max(height + 6, one.percent)
        spoken.append(_point(panel, one, places, nowhere, height))
    panel.set_xscale("log")
    panel.set_xlim(low, nowhere * (high / low) ** 0.1)
    panel.set_ylim(-3, 103)
    if high > text.MOST_EPSILON:
        panel.axvspan(max(low, text.MOST_EPSILON), high, color=INK, alpha=0.07, lw=0)
    panel.axvline(high, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
    panel.set_yticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)])
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [tick for power in range(-3, 9) for step in steps if low <= (tick := step * 10.0**power) < 0.9 * high]
    names = [f"{'≤' * (tick <= text.LEAST_EPSILON)}{tick:g}" for tick in ticks]
    panel.set_xticks([*ticks, nowhere], [*names, "no epsilon"], parse_math=False)
    panel.minorticks_off()
    chart.say(panel, xlabel="epsilon (smaller promises more)", ylabel="test accuracy")
    title = "Accuracy, epsilon and leakage"
    made = tuple(commands.train_command(one.run) for one in measured[:12])
    return Chart(title, inline(figure, "utility", title, f"{'; '.join(spoken[:20])}."), NOTE, made)


def _drawn(epsilon: float | None) -> float | None:
    """An epsilon that a logarithmic axis can show."""
    return None if epsilon is None else min(max(epsilon, text.LEAST_EPSILON), 1e8)


def _point(panel: Axes, one: _Measured, places: Sequence[Decided], nowhere: float, height: float) -> str:
    """Draws a run and says it in words."""
    claimed, proven = best_epsilon(one.training)
    accuracy, kind = one.percent, leakage(one.run, places)
    colour = VERDICT_COLOURS.get(kind, _FALLBACK)
    place = _drawn(proven) or nowhere
    other = _drawn(claimed)
    if other is not None:
        panel.plot([other, place], [accuracy, accuracy], color=colour, linewidth=0.9, alpha=0.6)
        panel.plot([other], [accuracy], marker="o", markersize=8, markerfacecolor="none", color=colour)
    panel.plot([place], [accuracy], marker="o", markersize=8, color=colour, linestyle="none")
    name = " ".join(filter(None, trained(one.run)))
    sign = f"{wording.SYMBOLS[kind]} {wording.WORDS[kind]}" if kind else "not attacked"
    right = place == nowhere
    # Beside both points, and above the line between them where that is in the way.
    beside = place if right else max(place, other or place)
    above = 7 if right and other is not None else 0
    panel.annotate(
        f"{name[:40]}: {sign}", (beside, height), xytext=(-9 if right else 9, above), textcoords="offset points",
        fontsize=chart.SIZE, color=INK, parse_math=False, ha="right" if right else "left", va="center",
    )  # fmt: skip
    if height > accuracy:
        panel.plot([place, place], [accuracy, height], color=colour, linewidth=0.9)
    epsilons = f"claimed epsilon {text.number(claimed, 2)}, recomputed {text.number(proven, 2)}"
    return f"{name}: accuracy {text.percent(one.accuracy)}, {epsilons}, {sign}"


def leakage(run: RunData, places: Sequence[Decided]) -> str:
    """The worst verdict on the trained defense, with its settings, on its dataset; empty where it was not attacked."""
    settings = run.training.settings if run.training else {}
    named, own = (settings.get("defense"), settings.get("dataset")), _built(settings)
    found = {
        place.kind
        for place in places
        if (place.summary.defense, place.summary.dataset) == named
        and all(own.get(name, value) == value for name, value in place.summary.defense_args.items())
    }
    return next((kind for kind in ("invalid", "leaks", "inconclusive", "resilient") if kind in found), "")


def _built(settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of a trained defense, as documents have them; those that were given, of one not known here."""
    given = settings.get("defense_args")
    given = given if isinstance(given, dict) else {}
    try:
        made = usual_defense(str(settings.get("defense")), given)
    except UsageError:
        made = given
    return {"noise_scale": 1.0} | without_non_finite(made)
