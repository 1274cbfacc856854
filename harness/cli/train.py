"""``harness train``: what a defense costs in accuracy, round by round, and what it has spent by then."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.building import parse_assignments
from harness.cli.app import DONE, app
from harness.cli.options import choose_device, numbers
from harness.datasets import DATASETS
from harness.datasets import data_root as find_data_root
from harness.defenses import DEFENSES
from harness.errors import UsageError
from harness.reports.progress import progress
from harness.reports.training import print_training, save_curves
from harness.training import RoundRecord, TrainFolder, TrainOptions, fitted, train, train_settings


@app.command("train")
def train_command(
    defense: Annotated[str, typer.Option(help="See harness list defenses.")] = "none",
    dataset: Annotated[str, typer.Option(help="Trains on its train part, measures on its test part.")] = "mnist-sample",
    model: Annotated[str | None, typer.Option(help="cnn for images, mlp2 for tables by default.")] = None,
    clients: Annotated[int, typer.Option(help="N.")] = 100,
    clients_per_round: Annotated[int, typer.Option(help="K.")] = 10,
    rounds: Annotated[int, typer.Option(help="T.")] = 20,
    local_steps: Annotated[int, typer.Option(help="L, local steps per round.")] = 100,
    batch_size: Annotated[int, typer.Option(help="B, examples per local step.")] = 5,
    examples: Annotated[int | None, typer.Option(help="Per client; by default one local pass, L times B.")] = None,
    algorithm: Annotated[str, typer.Option(help="fedavg, fedsgd, scaffold or scaffold-warm.")] = "fedavg",
    split: Annotated[str, typer.Option(help="shards, iid, dirichlet, similarity, sorted or natural.")] = "shards",
    level: Annotated[float, typer.Option(help="Dirichlet concentration, or share of uniform labels.")] = 0.5,
    client_sampling: Annotated[str, typer.Option(help="fixed (K of N), poisson (rate K/N) or all.")] = "fixed",
    batch_sampling: Annotated[
        str, typer.Option(help="shuffle, partition, poisson or without-replacement.")
    ] = "shuffle",
    learning_rate: Annotated[float, typer.Option(help="Of local SGD.")] = 0.05,
    server_learning_rate: Annotated[float, typer.Option(help="Of the server's step.")] = 1.0,
    local_momentum: Annotated[float, typer.Option(help="Of local SGD, from zero every round.")] = 0.0,
    server_momentum: Annotated[float, typer.Option(help="Of the server's step.")] = 0.0,
    defense_arg: Annotated[list[str] | None, typer.Option(help="[NAME.]key=value, repeated.")] = None,
    target_epsilon: Annotated[float | None, typer.Option(help="Stop before the round that would exceed it.")] = None,
    budget: Annotated[str, typer.Option(help="Whether the target counts the valid or the claimed epsilon.")] = "valid",
    delta: Annotated[float, typer.Option(help="Of every epsilon.")] = 1e-5,
    seed: Annotated[int, typer.Option(help="Of splits, sampling, weights and noise.")] = 0,
    keep: Annotated[
        list[str] | None, typer.Option("--keep-rounds", help="Rounds whose model is kept, as 0,10,20.")
    ] = None,
    bayesian: Annotated[
        bool, typer.Option("--bayesian", help="Keep the norms of every round, for Bayesian accounting (BDP, not DP).")
    ] = False,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between two measurements of accuracy.")] = 1,
    chunk: Annotated[int, typer.Option(help="Clients trained together; bounds memory, changes no number.")] = 25,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, kept models and training.json.")] = Path("training"),
    data_root: Annotated[Path | None, typer.Option(help="Folder of datasets.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last finished round.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document and nothing else.")] = False,
) -> int:
    """Train a federation under a defense: accuracy, epsilon, noise and gradient norm per round."""
    if chunk < 2 or evaluate_every < 1:
        raise UsageError("--chunk must be at least 2 and --evaluate-every at least 1")
    kept = _kept_rounds(keep or [], rounds)
    name = DEFENSES.resolve(defense)
    settings = train_settings(
        dataset=dataset if dataset.endswith(".npz") else DATASETS.resolve(dataset), model=model, defense=name,
        defense_args=parse_assignments(defense_arg or [], [name], DEFENSES)[name], clients=clients,
        clients_per_round=clients_per_round, rounds=rounds, local_steps=local_steps, batch_size=batch_size,
        examples=examples, algorithm=algorithm, split=split, level=level, client_sampling=client_sampling,
        batch_sampling=batch_sampling, learning_rate=learning_rate, server_learning_rate=server_learning_rate,
        local_momentum=local_momentum, server_momentum=server_momentum,
        target_epsilon=target_epsilon, budget=budget, delta=delta, seed=seed, device=choose_device(device),
    )  # fmt: skip
    root = find_data_root(data_root)
    if (fitting := fitted(settings, root)) is not settings:
        few = f"{fitting.examples} examples per client, the most that {split} clients of {dataset} hold without repeats"
        typer.echo(f"{few}: {local_steps} local steps pass over them several times", err=True)
        settings = fitting
    with progress(f"training under {name} on {dataset}", rounds) as bar:

        def on_round(record: RoundRecord) -> None:
            bar.advance(1)

        options = TrainOptions(chunk, evaluate_every, kept, resume, bayesian, on_round)
        document = train(settings, root, TrainFolder(out), options)
    save_curves(document, out / "curves.png")
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        print_training(document, Console(), out)
    return DONE


def _kept_rounds(keep: list[str], rounds: int) -> tuple[int, ...]:
    kept = tuple(numbers(keep, "keep-rounds"))
    for number in kept:
        if not 0 <= number <= rounds:
            raise UsageError(f"--keep-rounds {number}: the run has models of rounds 0 to {rounds}; name one of them")
    return kept
