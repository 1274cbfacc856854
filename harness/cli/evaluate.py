"""``harness evaluate``: attack clients under a defense and say what leaks."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cli.app import DONE, INVALID, app
from harness.cli.options import cells_from, choose_device, merge
from harness.datasets import data_root as find_data_root
from harness.errors import UsageError
from harness.evaluation import Run, evaluate
from harness.reports.table import print_results
from harness.results import ResultDocument, RunFolder

Names = Annotated[list[str] | None, typer.Option(help="Comma-separated or repeated; every combination is a cell.")]
Assignments = Annotated[list[str] | None, typer.Option(help="[NAME.]key=value, repeated.")]


@app.command("evaluate")
def evaluate_command(
    defense: Names = None,
    attack: Names = None,
    dataset: Names = None,
    model: Names = None,
    surface: Annotated[list[str] | None, typer.Option(help="0 server, 1 update, 2 local step; all by default.")] = None,
    tap: Annotated[
        list[str] | None, typer.Option(help="A tap instead of a surface; see harness list surfaces.")
    ] = None,
    victims: Annotated[int | None, typer.Option(help="Victims per seed (64).")] = None,
    batch_size: Annotated[list[str] | None, typer.Option(help="Examples per local step (1).")] = None,
    distinct_labels: Annotated[bool, typer.Option("--distinct-labels", help="No label twice in a batch.")] = False,
    seed: Annotated[list[str] | None, typer.Option(help="Comma-separated; seeds are pooled (0).")] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in the federation (100).")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="Clients sampled per round (10).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training a noise schedule covers (100).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of local SGD (0.05).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Local steps before an update is sent (1).")] = None,
    steps_per_round: Annotated[
        int | None, typer.Option(help="Local steps of a round that epsilon counts (100).")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Share of a client's examples in a local step (1/steps per round).")
    ] = None,
    update_model: Annotated[str | None, typer.Option(help="first, avg or unroll.")] = None,
    round_: Annotated[
        list[str] | None, typer.Option("--round", help="Rounds of the trained model, with --training or --weights (0).")
    ] = None,
    training: Annotated[
        Path | None, typer.Option(help="Folder of a harness train run: its model, defense, data.")
    ] = None,
    observations: Annotated[
        list[str] | None, typer.Option(help="Times the same record is seen, with new noise each time (1).")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="State dictionary shared by all victims.")] = None,
    server_state: Annotated[
        str | None, typer.Option(help="What the server remembered by --round, beside --weights.")
    ] = None,
    variates: Annotated[
        str | None, typer.Option(help="SCAFFOLD's control variates by --round, beside --weights.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="inferred or known.")] = None,
    engine: Annotated[str | None, typer.Option(help="batched or reference.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.")] = None,
    defense_arg: Assignments = None,
    attack_arg: Assignments = None,
    preset: Annotated[str | None, typer.Option(help="A named set of options; see harness list presets.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of these options.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    chunk: Annotated[int, typer.Option(help="Victims attacked together; bounds memory.")] = 128,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    data_root: Annotated[Path | None, typer.Option(help="Folder of datasets.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Use what an earlier run left in the folder.")] = False,
    pictures: Annotated[bool, typer.Option(help="Draw a grid of reconstructions per cell.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result document and nothing else.")] = False,
) -> int:
    """Attack clients that train under a defense, at every surface, and judge what leaks."""
    given = {
        "defense": defense, "attack": attack, "dataset": dataset, "model": model, "surface": surface, "tap": tap,
        "victims": victims, "batch_size": batch_size, "distinct_labels": distinct_labels or None, "seed": seed,
        "clients": clients, "clients_per_round": clients_per_round, "rounds": rounds, "learning_rate": learning_rate,
        "local_steps": local_steps, "steps_per_round": steps_per_round, "sampling_rate": sampling_rate,
        "update_model": update_model, "round": round_, "training": training,
        "observations": observations, "weights": weights, "server_state": server_state, "variates": variates,
        "labels": labels, "engine": engine, "dtype": dtype, "defense_arg": defense_arg, "attack_arg": attack_arg,
    }  # fmt: skip
    if chunk < 1:
        raise UsageError("--chunk must be at least 1")
    where = choose_device(device)
    cells = [cell for options in merge(given, preset, config) for cell in cells_from(options, where)]
    folder = RunFolder(out)
    folder.prepare()
    document = evaluate(cells, Run(find_data_root(data_root), folder, chunk, resume, pictures))
    show(document, as_json, out)
    return DONE if document.valid else INVALID


def show(document: ResultDocument, as_json: bool, out: Path) -> None:
    """Prints a document: JSON alone on standard output, or the table."""
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        print_results(document, Console(), out)
