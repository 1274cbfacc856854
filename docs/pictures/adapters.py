"""What the gradients of adapters give away, by their rank and how long they were trained: the tables of the page.

    python docs/pictures/adapters.py FOLDER [ATTACK,ATTACK]

Trains and evaluates into FOLDER, by all attacks or by those named. What is there is used, so stop it any time. ``map``
takes hours.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from harness.attacks.token_layers import candidates_at, layers_of, readings
from harness.base.words import PAD, tokens_of
from harness.cli import run
from harness.datasets import Dataset, load_dataset
from harness.models import RowModel
from harness.results import CellResult, ResultDocument
from harness.training import kept_model

RANKS, WIDTHS = (1, 4, 16, 64), {384: "text_transformer", 64: "text_transformer_64"}
ROUNDS, BATCHES = (0, 1, 5, 20), (1, 4)
#: How many victims each attack has, by the size of a batch; only identify is applicable to several texts.
ATTACKS = {"span": {1: 16}, "decode": {1: 16}, "map": {1: 4}, "identify": {1: 16, 4: 16}}
VICTIMS = 16
#: 20 clients with notes of all topics, 5 of them in each round, take 5 steps of 8 notes.
TRAINING = "--clients 20 --clients-per-round 5 --local-steps 5 --batch-size 8 --split iid --rounds 20 --seed 0"
#: Up to which share of its length a vector outside of a span counts as in it; a span of more than that share of all
#: words at all places tells none.
_WITHIN, _MOST = 1e-2, 0.1

Cells = dict[int, CellResult]


def main(folder: Path, attacks: Sequence[str]) -> None:
    for width in WIDTHS:
        for rank in RANKS:
            _train(folder, width, rank)
    for attack in attacks:
        for batch, victims in ATTACKS[attack].items():
            cells = {
                (width, rank): _evaluated(folder, width, rank, attack, batch, victims)
                for width in WIDTHS for rank in RANKS
            }  # fmt: skip
            _print(f"{attack}, batch {batch}", lambda at, done: _said(cells[at][done]))  # noqa: B023
    _print("span of all used words at their places, batch 4", lambda at, done: _pairs(folder, *at, done))
    _print_sizes(load_dataset("notes", folder))


def _print(title: str, said: Callable[[tuple[int, int], int], str]) -> None:
    """A table by width and rank, and by rounds of training."""
    rows = [["width, rank", "first step", *(f"after {done}" for done in ROUNDS[1:])], ["---"] * (1 + len(ROUNDS))]
    for width in WIDTHS:
        rows += [[f"{width}, {rank}", *(said((width, rank), done) for done in ROUNDS)] for rank in RANKS]
    print(f"\n{title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows), flush=True)


def _train(folder: Path, width: int, rank: int) -> None:
    out = _folder_of_training(folder, width, rank)
    adapted = ["--dataset", "notes", "--model", WIDTHS[width], "--train-only", "adapters", "--adapter-rank", str(rank)]
    kept = ["--keep-rounds", ",".join(map(str, ROUNDS)), "--out", str(out), "--resume"]
    _require(run(["train", *adapted, *TRAINING.split(), *kept]), out)


def _evaluated(folder: Path, width: int, rank: int, attack: str, batch: int, victims: int) -> Cells:
    """The cells of adapters of one rank on one network, by their rounds of training."""
    out = folder / f"{WIDTHS[width]}-{rank}-{attack}-{batch}"
    line = ["--training", str(_folder_of_training(folder, width, rank)), "--round", ",".join(map(str, ROUNDS))]
    line += ["--attack", attack, "--batch-size", str(batch), "--victims", str(victims)]
    line += ["--defense", "none", "--surface", "2", "--prior", "auto", "--no-pictures", "--out", str(out), "--resume"]
    _require(run(["evaluate", *line]), out)
    document = ResultDocument.model_validate_json((out / "results.json").read_text())
    return {one.round or 0: one for one in document.cells if one.role == "cell"}


def _folder_of_training(folder: Path, width: int, rank: int) -> Path:
    return folder / f"{WIDTHS[width]}-{rank}-training"


def _require(code: int, folder: Path) -> None:
    if code:
        raise SystemExit(f"{folder} has no results")


def _said(cell: CellResult) -> str:
    """How many texts came back, and which share of their tokens; of an identifier how many examples were told."""
    if cell.not_applicable_reason:
        return "not applicable"
    if cell.identified is not None:
        return f"{round((cell.identified.rate or 0.0) * cell.identified.n)} of {cell.identified.n}"
    whole, right = cell.asr["strict"], cell.metrics["tokens_right"].mean
    return f"{whole.successes} of {whole.n}; {right:.0%}"


def _batches(notes: Dataset) -> torch.Tensor:
    """Which notes are in each of as many batches of 4 as there are victims."""
    order = torch.randperm(len(notes.labels), generator=torch.Generator().manual_seed(0))
    return order[: 4 * VICTIMS].unflatten(0, (VICTIMS, 4))


def _print_sizes(notes: Dataset) -> None:
    """How many different pairs of a word and a place a batch of 4 has."""
    batches = tokens_of(notes.images[_batches(notes)]).tolist()
    sizes = [len({(place, word) for text in texts for place, word in enumerate(text) if word}) for texts in batches]
    print(f"\nwords at places of a batch of 4: {min(sizes)} to {max(sizes)}")


def _pairs(folder: Path, width: int, rank: int, done: int) -> str:
    """In how many batches all words that were used lie in a span, and how many words at a place do in the median."""
    notes = load_dataset("notes", folder)
    model = RowModel(f"{WIDTHS[width]}+adapters({rank})", notes.image_shape, notes.num_classes)
    weights = model.load_weights(Path(kept_model(_folder_of_training(folder, width, rank), done)))
    chosen = _batches(notes)
    gradients = model.gradient(weights.expand(VICTIMS, -1), notes.images[chosen], notes.labels[chosen])
    layers, parts = layers_of(model), model.layout.split(gradients)
    vectors = cache(lambda source: candidates_at(model, source, weights))
    places = torch.arange(notes.image_shape[-1])
    all_there, counts = 0, []
    for row, texts in enumerate(tokens_of(notes.images[chosen])):
        told = [one.off(vectors) for one in readings(layers, {one.weight: parts[one.weight][row] for one in layers})]
        near = [off < _WITHIN for off in told if off is not None and (off < _WITHIN).double().mean() < _MOST]
        hits = [one for one in near if bool((one[texts, places.expand_as(texts)] | (texts == PAD)).all())]
        all_there += bool(hits)
        counts += [min(int(one.sum()) for one in hits)] if hits else []
    return f"{all_there} of {VICTIMS}" + (f"; {int(torch.tensor(counts).median())}" if counts else "")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(",") if len(sys.argv) > 2 else list(ATTACKS))
