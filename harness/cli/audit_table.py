"""The tables of ``harness audit``."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.audit import DESIGNS, AuditResult

_NUMBERS = ("right", "lower bound", "proven", "claimed")

_FOOTER = (
    "lower bound: what the right guesses prove, each at the stated confidence on its own; it lies below the true "
    "epsilon and is never a privacy guarantee. proven: epsilon of the defense's statement for the very sampler and "
    "steps that ran, if a theorem covers it. claimed: by the paper's convention, or as named."
)


def print_audits(results: list[AuditResult], console: Console) -> None:
    """One row per audit, and what its words mean."""
    table = Table()
    for name in ("defense", "settings", "canaries", "unit", "view", "seed", *_NUMBERS, "verdict"):
        table.add_column(name, overflow="fold", no_wrap=name != "settings")
    for result in results:
        settings = ", ".join(f"{key}={value}" for key, value in result.defense_args.items())
        if result.noise_scale != 1:
            settings += f"{', ' if settings else ''}noise x{result.noise_scale:g}"
        if result.colluders:
            settings += f"{', ' if settings else ''}{result.colluders} collude"
        table.add_row(*map(Text, (
            result.defense, settings, f"{result.canaries} {result.design}", result.unit, result.view, str(result.seed),
            f"{result.correct}/{result.guesses}", *_numbers(result), result.verdict,
        )))  # fmt: skip
    console.print(table)
    for caption in dict.fromkeys(map(_caption, results)):
        console.print(Text(caption))
    for note in dict.fromkeys(f"{result.defense}: {result.notes}" for result in results):
        console.print(Text(note))
    for design in dict.fromkeys(result.design for result in results):
        console.print(Text(f"{design}: {DESIGNS[design]}"))
    console.print(Text(_FOOTER))


def _caption(result: AuditResult) -> str:
    sampling = "none" if result.sampler == "none" else f"{result.sampler} at rate {result.sampling_rate:.4g}"
    return (
        f"rounds {result.rounds}, clients per round {result.clients_per_round}, local steps {result.steps}, sampling "
        f"{sampling}, delta {result.delta:g}, confidence {result.confidence:.0%}; adjacency {result.adjacency}"
    )


def _numbers(result: AuditResult) -> list[str]:
    return [
        "-" if value is None else f"{value:.2f}"
        for value in (result.lower_bound, result.epsilon, result.claimed_epsilon)
    ]
