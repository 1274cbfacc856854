"""Meaning of verdicts, surfaces and guarantees, in plain words."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.base.kinds import Kind, plural
from harness.experiment import reads_sums
from harness.reports import columns, text
from harness.results import CellResult, SummaryRow

Placed = CellResult | SummaryRow

# A symbol and a word beside every colour: colour is never the only carrier.
SYMBOLS = {
    "leaks": "✖", "resilient": "✔", "inconclusive": "?", "impossible": "–", "untried": "·", "invalid": "!",
    "skipped": "»", "identifies": "◎", "plausible": "≈",
}  # fmt: skip
WORDS = {
    "leaks": "LEAKS", "resilient": "resilient", "inconclusive": "undecided", "impossible": "not run",
    "skipped": "skipped", "untried": "not seen", "invalid": "invalid", "plausible": "plausible",
}  # fmt: skip


class Marked:
    """Something with a verdict, a symbol and a word for it."""

    kind: str

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.kind]

    @property
    def word(self) -> str:
        return WORDS[self.kind]


_MEANINGS = {
    "leaks": "the attack reconstructs private {many}, or its output is closer to the true {one} than to similar "
    "ones (p < 0.001), even if no eye sees it",
    "resilient": "no leak was found, the attack works without the defense, and at most 5% of victims can be "
    "reconstructed (95% confidence); an observation, not a promise",
    "inconclusive": "the evidence supports neither; the reason is beside it",
}


def meanings(kind: Kind) -> dict[str, str]:
    """Return what each verdict says of examples of a kind."""
    return {verdict: words.format(**asdict(kind)) for verdict, words in _MEANINGS.items()}


SURFACES = {2: "inside the client", 1: "on the way", 0: "at the server"}
PUBLISHED = "T0.agg"

GUARANTEES = {
    "none": "Nothing is promised: no theorem covers what ran.",
    "client-DP central": "The published models hardly reveal whether a client took part. The server itself sees "
    "everything.",
    "client-LDP": "A client's update is protected before it leaves the client, even against the server.",
    "sample-DP local view": "The client's messages hardly reveal whether one example was in the training data, even to "
    "the server.",
    "sample-DP": "The published models hardly reveal whether one example was in the training data.",
    "sample-DDP": "One example is protected in the sum of many clients, as long as enough of them are honest.",
    "BDP": "Holds on average over data drawn from an assumed distribution, not for every client.",
}


VAIN = "Nothing that counts: an epsilon above 10 lets any outcome become more than 20,000 times as likely."


def guarantee(tag: str) -> str:
    """Return what a guarantee tag says."""
    return GUARANTEES.get(tag, "An unknown tag; nothing can be said about it.")


def surface(cell: Placed) -> str:
    """The place a cell reads, for a table."""
    return f"{cell.surface} {SURFACES[cell.surface]}" if cell.surface is not None else text.safe(cell.tap, 20)


def where(cell: Placed) -> str:
    """Return the place a cell reads, in a sentence."""
    if cell.tap == PUBLISHED:
        return f"in the published model ({PUBLISHED})"
    return SURFACES[cell.surface] if cell.surface is not None else f"at {text.safe(cell.tap, 20)}"


def place(cell: Placed) -> str:
    """Return the place a cell reads, where it stands alone."""
    return where(cell) + (f" (surface {cell.surface})" if cell.surface is not None else "")


def setting(cell: Placed) -> str:
    """Return what a group of cells has in common; what is as usual goes without saying."""
    parts = [text.safe(cell.dataset, 40), text.safe(cell.model, 40), plural(cell.victims, "victim")]
    parts += [f"batch {cell.batch_size}"] if cell.batch_size > 1 else []
    parts += [f"{cell.local_steps} local steps ({cell.update_model})"] if cell.local_steps > 1 else []
    parts += [f"round {cell.round}"] if cell.round else []
    parts += [f"each seen {cell.observations} times"] if cell.observations > 1 else []
    parts += columns.options_of(cell)
    parts += [f"public: {columns.prior(cell.prior)}"] if cell.prior else []
    return " · ".join([*parts, f"seed {seeds(cell)}"])


def seeds(cell: Placed) -> str:
    """The first eight seeds."""
    return ", ".join(map(str, cell.seeds[:8])) + (", …" if len(cell.seeds) > 8 else "")


def summed(cell: Placed) -> int:
    """The clients behind one victim: of a round whose sum alone is read there; 1 where a victim is a client."""
    clients = cell.cohort.get("clients_per_round")
    if cell.settings.get("same_data") in ("cohorts", "replayed") or not reads_sums(cell.defense, cell.tap):
        return 1
    return clients if isinstance(clients, int) and clients else 1


def victims(count: int, together: int) -> str:
    """``4 clients``; of sums ``4 rounds of 10 clients each``."""
    return plural(count, "client") if together == 1 else f"{plural(count, 'round')} of {together} clients each"


def traces(p_value: float | None) -> str:
    """Return what goes on after the word of a leak that no image shows, so that its success may be 0%."""
    return "" if p_value is None else f", by traces (p {text.p_value(p_value)})"


def join(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def label(defense: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """A defense's name, and those of its arguments that are not the defaults."""
    return text.safe(defense, 60), text.arguments(defense, arguments)
