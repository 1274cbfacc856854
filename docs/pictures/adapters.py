"""What the gradients of adapters give away, by their rank and how long they were trained: the table of the page.

python docs/pictures/adapters.py FOLDER   # trains and evaluates into FOLDER; what is there is used, so stop it any time
"""

import sys
from pathlib import Path

from harness.cli import run
from harness.results import CellResult, ResultDocument

RANKS, WIDTHS = (1, 4, 16, 64), {384: "text_transformer", 64: "text_transformer_64"}
ROUNDS, BATCHES, ATTACKS = (0, 1, 5, 20), (1, 4), ("span", "identify")
VICTIMS = 16
#: 20 clients with notes of all topics, 5 of them in each round, take 5 steps of 8 notes.
TRAINING = "--clients 20 --clients-per-round 5 --local-steps 5 --batch-size 8 --split iid --rounds 20 --seed 0"
HEAD = ("width", "rank", "rounds", *(f"{attack}, batch {batch}" for batch in BATCHES for attack in ATTACKS))


def main(folder: Path) -> None:
    rows = []
    for width, model in WIDTHS.items():
        for rank in RANKS:
            cells = _evaluated(folder, model, rank)
            for rounds in ROUNDS:
                said = [_said(cells[rounds, batch, attack]) for batch in BATCHES for attack in ATTACKS]
                rows.append((str(width), str(rank), str(rounds), *said))
    print("\n".join(f"| {' | '.join(row)} |" for row in (HEAD, ["---"] * len(HEAD), *rows)))


def _evaluated(folder: Path, model: str, rank: int) -> dict[tuple[int, int, str], CellResult]:
    """The cells of adapters of one rank on one network, by their rounds of training, batch and attack."""
    trained, out = folder / f"{model}-{rank}-training", folder / f"{model}-{rank}"
    adapted = ["--dataset", "notes", "--model", model, "--train-only", "adapters", "--adapter-rank", str(rank)]
    kept = ["--keep-rounds", ",".join(map(str, ROUNDS)), "--out", str(trained), "--resume"]
    _require(run(["train", *adapted, *TRAINING.split(), *kept]), trained)
    listed = {"attack": ATTACKS, "round": ROUNDS, "batch-size": BATCHES}
    line = [part for name, values in listed.items() for part in (f"--{name}", ",".join(map(str, values)))]
    line += ["--defense", "none", "--surface", "2", "--victims", str(VICTIMS), "--prior", "auto"]
    _require(run(["evaluate", "--training", str(trained), *line, "--no-pictures", "--out", str(out), "--resume"]), out)
    document = ResultDocument.model_validate_json((out / "results.json").read_text())
    found = [cell for cell in document.cells if cell.role == "cell"]
    return {(one.settings["round"], one.settings["batch_size"], one.attack): one for one in found}


def _require(code: int, folder: Path) -> None:
    if code:
        raise SystemExit(f"{folder} has no results")


def _said(cell: CellResult) -> str:
    """How many texts came back, and which share of their tokens; of an identifier how many victims were told."""
    if cell.not_applicable_reason:
        return "not applicable"
    if cell.identified is not None:
        return f"{round((cell.identified.rate or 0.0) * cell.identified.n)} of {cell.identified.n}"
    whole, right = cell.asr["strict"], cell.metrics["tokens_right"].mean
    return f"{whole.successes} of {whole.n}; {right:.0%}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
