"""``harness audit``: an empirical lower bound on epsilon, beside what is proven and what is claimed."""

import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.audit import DESIGNS, AuditResult, audit, audit_settings
from harness.audit.planted import audit_released, lower
from harness.audit.settings import AuditSettings
from harness.base.building import parse_assignments
from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.progress import counted
from harness.cli.app import DONE, app
from harness.cli.console import Copy, display
from harness.cli.grouping import Grouped
from harness.cli.options import (
    AssignmentsOption,
    DataRootOption,
    DeviceOption,
    JsonOption,
    numbers,
    split_lists,
    with_output,
)
from harness.datasets import data_root as find_data_root
from harness.defenses import DEFENSES
from harness.judging.plan import folders_of
from harness.judging.series import released_models
from harness.results.atomic import require_writable, write_atomic
from harness.results.environment import environment

_WIDTH = 160
_NUMBERS = ("right", "lower bound", "proven", "claimed")

_FOOTER = (
    "right: correct guesses. lower bound: on epsilon, from these guesses, each at the stated confidence; it is never a "
    "privacy guarantee. proven: epsilon by a theorem, for the sampler and steps of this run. claimed: by the paper's "
    "convention, or by --claimed-epsilon."
)

_Canary = Annotated[list[str] | None, typer.Option(help="together, alone, norm (all; for sums only together).")]
_Guesses = Annotated[
    int | None, typer.Option(help="Number of guesses, half of them 'in' (a fifth of the canaries, at most 600).")
]
_ClientsPerRound = Annotated[
    int | None,
    typer.Option(help="Clients that share the canaries; only their sum is observed (10 in a secure sum, else 1)."),
]
_Colluders = Annotated[
    int | None,
    typer.Option(
        help="Clients of the sum that reveal their messages (as many as it withstands; more are a planted fault)."
    ),
]
_View = Annotated[
    str | None, typer.Option(help="Observer: server, 'third party' or message; the strongest by default.")
]
_Planted = Annotated[
    list[Path] | None, typer.Option(help="Captures of a Flower job with canary_mod: audit its models. Repeated.")
]


@app.command("audit", cls=Grouped)
@with_output
def audit_command(
    defense: Annotated[list[str] | None, typer.Option(help="Comma-separated or repeated.")] = None,
    defense_arg: AssignmentsOption = None,
    canary: _Canary = None,
    canaries: Annotated[int, typer.Option(help="Number of canaries; each takes part with probability 1/2.")] = 1000,
    others: Annotated[
        int, typer.Option(help="Real examples (clients) in the same batch, with --canary together.")
    ] = 32,
    guesses: _Guesses = None,
    rounds: Annotated[int, typer.Option(help="Rounds of the audited run.")] = 1,
    steps: Annotated[int, typer.Option(help="Local steps per round.")] = 10,
    sampling_rate: Annotated[float, typer.Option(help="Share of the units in a step or round; Poisson below 1.")] = 1.0,
    clients_per_round: _ClientsPerRound = None,
    colluders: _Colluders = None,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of local SGD.")] = 0.05,
    delta: Annotated[float, typer.Option(help="Delta, in (0, 1).")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Confidence of each bound.")] = 0.95,
    seed: Annotated[
        list[str] | None, typer.Option(help="Random seeds, comma-separated; one bound for each (0).")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Dataset of the real examples.")] = "mnist-sample",
    model: Annotated[str | None, typer.Option(help="The network whose gradients are audited.")] = None,
    view: _View = None,
    noise_scale: Annotated[float, typer.Option(help="Planted fault: multiply all noise, but do not declare it.")] = 1.0,
    claimed_epsilon: Annotated[
        float | None, typer.Option(help="Test this epsilon instead of the defense's own claim.")
    ] = None,
    planted: _Planted = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON document to this file too.")] = None,
    device: DeviceOption = "auto",
    data_root: DataRootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compute a lower bound on epsilon by guessing which canaries were in the training of one run."""
    if planted:
        if defense:
            raise UsageError("--planted audits a job that ran, with the defense that it had; drop --defense")
        return _audit_planted(planted, seed, canaries, guesses, delta, confidence, claimed_epsilon, out, as_json)
    root = find_data_root(data_root)
    common = {
        "canaries": canaries, "others": others, "guesses": guesses, "rounds": rounds, "steps": steps,
        "sampling_rate": sampling_rate, "learning_rate": learning_rate, "delta": delta, "confidence": confidence,
        "dataset": dataset, "model": model, "view": view, "noise_scale": noise_scale,
        "claimed_epsilon": claimed_epsilon, "clients_per_round": clients_per_round, "colluders": colluders,
    }  # fmt: skip
    seeds = numbers(seed or ["0"], "seed")
    chosen = _combinations(defense or [], defense_arg or [], split_lists(canary or DESIGNS), seeds, common)
    if not canary:
        # In a sum, every canary alone costs a federation of its own.
        chosen = [one for one in chosen if one.design == "together" or one.clients_per_round == 1 or not one.sums]
    _require_writable(out)
    place = choose_device(device)
    results = [audit(settings, root, place) for settings in counted(chosen, "audit")]
    document = {"environment": environment(place), "audits": [result.row() for result in results]}
    _deliver(document, out, as_json)
    if not as_json:
        display(lambda console: print_audits(results, console), _WIDTH)
    return DONE


def _audit_planted(
    captures: list[Path], seed: list[str] | None, canaries: int, guesses: int | None, delta: float, confidence: float,
    epsilon: float | None, out: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Audits the models that a job with canary clients gave out, of the rounds that were captured."""
    seeds = numbers(seed or [], "seed")
    if len(seeds) != 1:
        raise UsageError("--planted needs the seed of canary_mod; add --seed with that number")
    _require_writable(out)
    models = released_models(folders_of(captures))
    found = audit_released(models, seeds[0], canaries, guesses, delta, confidence, epsilon)
    _deliver(found.record(), out, as_json)
    if not as_json:
        for line in found.lines():
            print(line)
    return DONE


def _combinations(
    defenses: list[str], assignments: list[str], designs: list[str], seeds: list[int], common: dict[str, Any]
) -> list[AuditSettings]:
    """Every defense with every kind of canary and every seed."""
    if not split_lists(defenses):
        raise UsageError("no defense named; add --defense fed_acdp (harness list defenses shows all)")
    names = [DEFENSES.resolve(name) for name in split_lists(defenses)]
    arguments = parse_assignments(assignments, names, DEFENSES)
    return [
        audit_settings(defense=name, defense_args=arguments[name], design=design, seed=seed, **common)
        for name, design, seed in itertools.product(names, designs, seeds)
    ]


def _require_writable(out: Path | None) -> None:
    """Before anything is computed that would be lost."""
    if out is not None:
        require_writable(out)


def _deliver(document: dict[str, Any], out: Path | None, as_json: bool) -> None:
    text = json.dumps(document, indent=1) + "\n"
    if out is not None:
        write_atomic(out, text.encode())
    if as_json:
        sys.stdout.write(text)


def print_audits(results: list[AuditResult], console: Console) -> None:
    """One row per audit, and what its words mean."""
    table = Table()
    own = ["settings"] if isinstance(console, Copy) else []  # only files have room for them
    for name in ("defense", *own, "canaries", "unit", "view", "seed", *_NUMBERS, "verdict"):
        table.add_column(name, overflow="fold", no_wrap=True)
    for result in results:
        table.add_row(*map(Text, (
            result.defense, *(_set(result) for _ in own), f"{result.canaries} {result.design}", result.unit,
            result.view, str(result.seed), f"{result.correct}/{result.guesses}", *_numbers(result), result.verdict,
        )))  # fmt: skip
    console.print(table)
    for caption in dict.fromkeys(map(_caption, results)):
        console.print(Text(caption))
    for note in dict.fromkeys(f"{_named(result)}: {result.notes}" for result in results):
        console.print(Text(note))
    for design in dict.fromkeys(result.design for result in results):
        console.print(Text(f"{design}: {DESIGNS[design]}"))
    console.print(Text(_FOOTER))


def _set(result: AuditResult) -> str:
    """Return what was set of the defense."""
    said = [f"{key}={value}" for key, value in result.defense_args.items()]
    said += [f"noise x{result.noise_scale:g}"] if result.noise_scale != 1 else []
    said += [f"{result.colluders} collude"] if result.colluders else []
    return ", ".join(said)


def _named(result: AuditResult) -> str:
    return f"{result.defense} ({said})" if (said := _set(result)) else result.defense


def _caption(result: AuditResult) -> str:
    sampling = "none" if result.sampler == "none" else f"{result.sampler} at rate {result.sampling_rate:.4g}"
    return (
        f"rounds {result.rounds}, clients per round {result.clients_per_round}, local steps {result.steps}, sampling "
        f"{sampling}, delta {result.delta:g}, confidence {result.confidence:.0%}; adjacency {result.adjacency}"
    )


def _numbers(result: AuditResult) -> list[str]:
    stated = ("-" if value is None else f"{value:.2f}" for value in (result.epsilon, result.claimed_epsilon))
    return [lower(result.lower_bound), *stated]
