"""``harness train``: what a defense costs in accuracy, round by round, and what it has spent by then."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.base.building import parse_assignments
from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.progress import progress
from harness.cli.app import DONE, app, resumable
from harness.cli.console import display, note
from harness.cli.grouping import Grouped
from harness.cli.options import (
    AdapterRankOption,
    AssignmentsOption,
    DataRootOption,
    DeviceOption,
    ThreadsOption,
    TrainOnlyOption,
    chosen_jobs,
    numbers,
    options_of,
    with_output,
    with_pictures_as,
    with_tracking,
)
from harness.datasets import data_root as find_data_root
from harness.datasets import dataset_name, default_model
from harness.defenses import DEFENSES
from harness.models.adapters import trained_only
from harness.parallel.processes import Processes, threads_per_job
from harness.reports.training import print_training, save_curves
from harness.training import RoundRecord, TrainFolder, TrainOptions, TrainSettings, fitted, train, train_settings
from harness.training.bayesian import Notes
from harness.training.loop import require_rounds
from harness.training.rounds import chunks_of

_SETTINGS = [name for name in TrainSettings.model_fields if name not in ("defense_args", "seed", "device")]

_Keep = Annotated[list[str] | None, typer.Option("--keep-rounds", help="Rounds whose model is kept, such as 0,10,20.")]
_Bayesian = Annotated[
    bool, typer.Option("--bayesian", help="Keep the norms of every round, for Bayesian accounting (BDP, not DP).")
]
_Seed = Annotated[
    int | None,
    typer.Option(help=f"{TrainSettings.model_fields['seed'].description} Without it, these use a secret key."),
]
_Jobs = Annotated[
    int | None,
    typer.Option(help="Parallel processes for the clients of a round, each with its own copy of the data (1)."),
]


@app.command("train", cls=Grouped)
@with_output
@with_pictures_as
@with_tracking("train")
@options_of(TrainSettings, _SETTINGS)
def train_command(
    defense_arg: AssignmentsOption = None,
    train_only: TrainOnlyOption = None,
    adapter_rank: AdapterRankOption = None,
    keep: _Keep = None,
    bayesian: _Bayesian = False,
    seed: _Seed = None,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between two measurements of accuracy.")] = 1,
    chunk: Annotated[int, typer.Option(help="Clients trained together; limits memory, does not change results.")] = 25,
    jobs: _Jobs = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, kept models and training.json.")] = Path("training"),
    data_root: DataRootOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the folder's last finished round.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document and nothing else.")] = False,
    **chosen: Any,
) -> int:
    """Train a federation under a defense: accuracy, epsilon, noise and gradient norm per round."""
    if chunk < 2 or evaluate_every < 1:
        raise UsageError("--chunk must be at least 2 and --evaluate-every at least 1")
    kept, dataset = _kept_rounds(keep or [], chosen["rounds"]), chosen["dataset"]
    name = DEFENSES.resolve(chosen["defense"])
    named = [chosen["model"] or default_model(dataset_name(dataset))] if chosen["model"] or train_only else []
    chosen |= {
        "dataset": dataset_name(dataset), "defense": name,
        "model": next(iter(trained_only(named, train_only, adapter_rank)), None),
        "defense_args": parse_assignments(defense_arg or [], [name], DEFENSES)[name],
    }  # fmt: skip
    settings = train_settings(**chosen, seed=seed or 0, device=choose_device(device))
    root = find_data_root(data_root)
    notes: list[str] = []
    if (fitting := fitted(settings, root)) is not settings:
        few = f"{fitting.examples} examples per client, the most that {settings.split} clients of {dataset} hold"
        notes.append(f"{few} without repeats: {settings.local_steps} local steps pass over them several times")
        settings = fitting
    parallel = _spread(settings, root, chunk, jobs, threads, notes)
    with resumable(), progress(f"training under {name} on {dataset}", settings.rounds, "rounds") as bar:

        def on_round(record: RoundRecord) -> None:
            bar.reach(record.round)
            if record.round == 1 and (days := record.seconds * settings.rounds / 86_400) > 1:
                notes.append(f"about {days:.1f} days to go; stop it at any time, --resume goes on")
            while notes:
                note(notes.pop(0))

        taken = Notes if bayesian else None
        options = TrainOptions(chunk, evaluate_every, kept, resume, taken, parallel, on_round, secret=seed is None)
        document = train(settings, root, TrainFolder(out), options)
    save_curves(document, out / "curves.png")
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        display(lambda console: print_training(document, console, out))
    return DONE


def _spread(
    settings: TrainSettings, root: Path, chunk: int, jobs: int | None, threads: int | None, notes: list[str]
) -> Processes | None:
    """The processes that train a round's chunks; None where this one does. Raises UsageError."""
    chunks = chunks_of(settings, chunk)
    asked, (jobs, threads) = jobs, chosen_jobs(jobs, threads, lambda: 1, chunks)
    if asked is not None and jobs < asked:
        many = settings.clients_per_round
        notes.append(f"a round's {many} clients, {chunk} at a time, keep {jobs} of {asked} --jobs busy; lower --chunk")
    return Processes(jobs, threads or threads_per_job(jobs), root) if jobs > 1 else None


def _kept_rounds(keep: list[str], rounds: int) -> tuple[int, ...]:
    kept = tuple(numbers(keep, "keep-rounds"))
    require_rounds(kept, rounds)  # before data are loaded
    return kept
