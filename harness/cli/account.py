"""``harness account``: what noise costs in privacy, by every accountant, each with its convention."""

from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.errors import UsageError
from harness.base.limits import MOST_STEPS
from harness.base.presence import percent_up
from harness.base.ranges import MOST_COUNT
from harness.cli.app import DONE, app
from harness.cli.console import Copy, tell
from harness.cli.grouping import Grouped
from harness.cli.options import JsonOption, split_lists, with_output
from harness.privacy.account import Row, account
from harness.privacy.accountant import asked_delta, choice
from harness.privacy.bayesian import DIRECTIONS
from harness.reports.training import print_bayesian
from harness.training import read_training, train_settings
from harness.training.bayesian import bayesian_of_run
from harness.training.norms import NormsFolder

_WIDTH, _BAYESIAN_WIDTH = 140, 120
_COLUMNS = (
    "accountant", "conversion", "epsilon", "delta", "delta_total", "mu", "told_apart", "sampler", "adjacency", "notes",
)  # fmt: skip
_IN_HEADLINE = ("sampler", "adjacency")
_HEADS = {"told_apart": "TPR at 1% FPR", "delta_total": "total delta"}
_TOLD = (
    "TPR at 1% FPR: the most that any membership inference attack reaches. mu: exact (Gaussian DP), without sampling "
    "only."
)
_ITS_OWN = ("training", "direction", "delta", "as_json")

_Delta = Annotated[float | None, typer.Option(help="In (0, 1); by default 1e-5, or that of the training run.")]
_Accountant = Annotated[list[str] | None, typer.Option(help="base, advanced, zcdp, rdp, pld; comma-separated, or all.")]
_Layers = Annotated[
    int, typer.Option(max=MOST_COUNT, help="Tensors that are clipped one by one: sigma / sqrt(layers).")
]
_Clients = Annotated[
    int,
    typer.Option(max=MOST_COUNT, help="Clients that add noise each; only the sum is observed: sigma * sqrt(clients)."),
]
_SigmaSchedule = Annotated[
    str | None, typer.Option(help="linear, staircase, exponential, cyclic, linear:sigma ..., or a file of sigmas.")
]
_TargetEpsilon = Annotated[
    float | None, typer.Option(help="Compute the steps within this epsilon; without --sigma, the sigma that it needs.")
]
_Training = Annotated[
    Path | None, typer.Option(help="Folder of a run trained with --bayesian: its Bayesian epsilons (BDP, not DP).")
]
_Direction = Annotated[str | None, typer.Option(help="With --training: max (as in the paper) or L; both by default.")]


@app.command("account", cls=Grouped)
@with_output
def account_command(
    context: typer.Context,
    sigma: Annotated[float | None, typer.Option(help="Noise std over the clipping bound, on the sum.")] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Share of records or clients in a step, in (0, 1].")
    ] = None,
    steps: Annotated[int | None, typer.Option(max=MOST_STEPS, help="Number of noisy releases.")] = None,
    delta: _Delta = None,
    accountant: _Accountant = None,
    conversion: Annotated[
        str | None, typer.Option(help="Conversion of rdp: mironov or improved; both by default.")
    ] = None,
    orders: Annotated[str | None, typer.Option(help="Orders of rdp: paper or dense.")] = None,
    formula: Annotated[str | None, typer.Option(help="Formula of advanced: drv, kov or optimal.")] = None,
    e0: Annotated[
        str | None, typer.Option(help="Step epsilon of base and advanced: exact, or rounded to three decimals.")
    ] = None,
    sampler: Annotated[str | None, typer.Option(help="poisson, without-replacement or none.")] = None,
    adjacency: Annotated[str | None, typer.Option(help="add/remove, or replace (twice the sensitivity).")] = None,
    layers: _Layers = 1,
    clients: _Clients = 1,
    mechanism: Annotated[str, typer.Option(help="gaussian, or skellam: integers in a ring (rdp).")] = "gaussian",
    bits: Annotated[int, typer.Option(help="Bits of skellam's ring.")] = 32,
    dimensions: Annotated[int, typer.Option(max=10**12, help="Length of skellam's vectors.")] = 10_000,
    sigma_schedule: _SigmaSchedule = None,
    sigma_end: Annotated[
        float | None, typer.Option(help="Last sigma of a schedule such as linear:sigma (4.85).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(max=MOST_STEPS, help="Rounds of the schedule (100).")] = None,
    target_epsilon: _TargetEpsilon = None,
    stop: Annotated[
        str, typer.Option(help="filter: last round within --target-epsilon; paper: first beyond it.")
    ] = "filter",
    epsilon: Annotated[float | None, typer.Option(help="Fix epsilon and compute delta.")] = None,
    training: _Training = None,
    direction: _Direction = None,
    exact: Annotated[bool, typer.Option("--exact", help="Do not round a schedule's sigmas in rdp (slower).")] = False,
    as_json: JsonOption = False,
) -> int:
    """Compute the privacy cost of noise: epsilon, delta, steps within a budget, or the noise it needs."""
    if training is not None:
        refuse_other_options(context)
        show_bayesian(training, delta, direction, as_json)
        return DONE
    if direction is not None:
        raise UsageError("--direction belongs to Bayesian accounting; add --training FOLDER, or leave it out")
    document = unwrap(account)(
        sigma=sigma, sampling_rate=sampling_rate, steps=steps, delta=delta,
        accountant=None if accountant is None else split_lists(accountant), conversion=conversion, orders=orders,
        formula=formula, e0=e0, sampler=sampler, adjacency=adjacency, layers=layers, clients=clients,
        mechanism=mechanism, bits=bits, dimensions=dimensions, sigma_schedule=sigma_schedule, sigma_end=sigma_end,
        rounds=rounds, target_epsilon=target_epsilon, stop=stop, epsilon=epsilon, exact=exact,
    )  # fmt: skip
    settings, rows = document["settings"], document["rows"]
    tell({"settings": settings, "rows": rows}, as_json, lambda console: _print(console, settings, rows), _WIDTH)
    return DONE


def _print(console: Console, settings: dict[str, Any], rows: list[Row]) -> None:
    console.print(Text(_headline(settings)))
    extra = [name for name in ("sigma", "steps", "rounds") if any(name in row for row in rows)]
    said = [name for name in _IN_HEADLINE if all(row.get(name) == settings[name] for row in rows)]
    said = [] if isinstance(console, Copy) else said  # files keep their columns
    names = [name for name in (*_COLUMNS[:2], *extra, *_COLUMNS[2:]) if name not in said]
    table = Table()
    for name in names:
        table.add_column(_HEADS.get(name, name.replace("_", " ")), overflow="fold")
    for row in rows:
        cells = [_cell(row, name) for name in names]
        table.add_row(*map(Text, cells), style="dim" if row.get("nominal") else "")
    console.print(table)
    console.print(Text(_TOLD))
    console.print(Text("nominal: no theorem covers the number as stated. Never compare rows of different conversions."))


def _headline(settings: dict[str, Any]) -> str:
    parts = [settings["asked"], f"sampling {settings['sampler']} at rate {settings['sampling_rate']:g}"]
    parts.append(f"{settings['adjacency']} adjacency")
    scale = settings["effective_sigma_per_sigma"]
    if settings["mechanism"] == "skellam":
        parts.append(f"Skellam noise on {settings['dimensions']} dimensions in a ring of {settings['bits']} bits")
    if settings["clients"] > 1:
        parts.append(f"sum of {settings['clients']} clients, one local step per sum")
    if settings["layers"] > 1:
        parts.append(f"{settings['layers']} clipped layers")
    if scale != 1:
        parts.append(f"effective sigma = {scale:.4g} x sigma")
    if settings["target_epsilon"] is not None:
        parts.append(f"target epsilon {settings['target_epsilon']:g}")
    return "; ".join(part for part in parts if part)


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if name == "conversion" and row.get("orders"):
        return f"{value}, {row['orders']} orders"
    if name == "notes":
        # The conversion's column names the orders already.
        notes = [note for note in row.get(name, ()) if note != f"{row.get('orders')} orders"]
        return "; ".join(filter(None, [row.get("reason"), *notes])).replace("delta_total", _HEADS["delta_total"])
    if name == "rounds" and row.get("exceeded") is False:
        return f">={value}"
    if name == "told_apart" and value is not None:
        return percent_up(value)
    if isinstance(value, float):
        # Neither a row of zeros, which would promise all, nor hundreds of digits.
        fits = not value or 5e-5 <= abs(value) < 1e9
        return f"{value:.3g}" if name.startswith("delta") or not fits else f"{value:.4f}"
    return "-" if value is None else str(value)


def refuse_other_options(context: typer.Context) -> None:
    """Noise and sampling are the run's own.

    Raises:
        UsageError: the command line names any of them.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in _ITS_OWN}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} does not go with --training, whose run has its own noise; leave one of them out")


def show_bayesian(folder: Path, delta: float | None, direction: str | None, as_json: bool) -> None:
    """Prints the Bayesian epsilons of a run beside the moments accountant's.

    Raises:
        UsageError: no run in the folder, one that took no notes, or a value out of range.
    """
    document = read_training(folder)
    settings = train_settings(**document.settings)
    norms, noise = NormsFolder(folder, settings).read(len(document.rounds))
    delta = settings.delta if delta is None else asked_delta(delta)
    directions = DIRECTIONS if direction is None else (choice(direction, DIRECTIONS, "direction"),)
    rows = [one.row() for one in bayesian_of_run(settings, noise, norms, document.overlap, delta, directions)]
    shown = {"settings": document.settings, "rows": rows}
    tell(shown, as_json, lambda console: print_bayesian(rows, console), _BAYESIAN_WIDTH)
