"""Tables of training runs: where they ended, and their rounds."""

from collections.abc import Sequence

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, epsilon, figure, make, words
from harness.training.records import TrainDocument

_MOST_ROUNDS = 40


def trained(run: RunData) -> tuple[str, str]:
    """The defense and arguments of a training run."""
    settings = run.training.settings if run.training else {}
    given = settings.get("defense_args")
    return wording.label(str(settings.get("defense", "?")), given if isinstance(given, dict) else {})


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
    return make("training", "Accuracy and epsilon of training runs", titles, rows)


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
                "round", "accuracy", "loss", "claimed epsilon", "noise", "gradient norm", "update norm", "seconds",
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
