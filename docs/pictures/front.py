"""The picture of the front page, from a run: what eight clients sent, what came back, and the verdict over all 64.

python docs/pictures/front.py FOLDER   # evaluates into FOLDER (three minutes; what is there is used), writes front.png
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness import evaluate
from harness.datasets import data_root, divide, load_dataset
from harness.scoring.verdict import traces_p

SHOWN = 8  # the first victims, whoever they are
INK, FAINT = "#1b1f24", "#57606a"
COLOURS = {"leaks": "#b3261e", "resilient": "#1a7f37", "inconclusive": "#6e5494"}


class Row(NamedTuple):
    """A defense and who attacks it."""

    title: str
    about: str
    defense: str
    sigma: float | None
    attack: str
    labels: str = "inferred"


ROWS = [
    Row("no defense", "attack: cpl", "none", None, "cpl"),
    Row("Fed-CDP, σ = 0.01", "cpl, ignorant of the noise", "fed_cdp", 0.01, "cpl"),
    Row("Fed-CDP, σ = 0.01", "map, which knows the noise", "fed_cdp", 0.01, "map"),
    # Behind it labels cannot be inferred, so that who has to infer them is not fit to find anything.
    Row(
        "Fed-CDP, σ = 6",
        "map, which knows noise and labels:\nit finds the average of each class",
        "fed_cdp",
        6.0,
        "map",
        "known",
    ),
]


def main(folder: Path) -> None:
    truth = np.empty(0)
    strips: list[tuple[Row, np.ndarray, Any]] = []
    for row in ROWS:
        out = folder / f"{row.defense}-{row.sigma}"
        settings = {} if row.sigma is None else {"sigma": row.sigma}
        both = ["cpl", "map"]  # public data for both, so that they meet the same clients
        document = evaluate(
            defense=row.defense, attack=both, defense_args=settings, labels=row.labels, out=out, resume=True
        )
        cell = next(cell for cell in document.cells if cell.role == "cell" and cell.attack == row.attack)
        truth, made = _images(out, cell.key)
        strips.append((row, made, cell))
    file = Path(__file__).with_name("front.png")
    _draw(truth, strips).savefig(file, dpi=160, metadata={"Software": None})


def _images(run: Path, cell: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The first victims' images (n, H, W), and what was made of them: the arrays whose errors are those of the cell."""
    lines = map(json.loads, (run / "victims.jsonl").read_text().splitlines())
    victims = [line for line in lines if line["cell"] == cell]
    name, root = victims[0]["dataset"], data_root(None)
    private = divide(load_dataset(name, root), name, "auto", root).private
    truth = private.images[[victim["dataset_index"] for victim in victims]].numpy()[:, 0]
    for file in sorted((run / "reconstructions").glob("*.npz")):
        made = np.load(file)["images"][:, 0, 0].clip(0, 1)
        if len(made) == len(truth):
            errors = np.sqrt(((made - truth) ** 2).mean((1, 2)))
            if np.allclose(errors, [victim["rmse"] for victim in victims], atol=1e-5):
                return truth[:SHOWN], made[:SHOWN]
    raise SystemExit(f"{run} has no reconstructions of cell {cell}")


def _draw(truth: np.ndarray, strips: list[tuple[Row, np.ndarray, Any]]) -> Figure:
    """Inches: a line of text at the left, eight images, the verdict at the right; the truth above, apart."""
    left, image, gap, right, height, apart = 2.55, 0.62, 0.07, 2.6, 0.78, 0.16
    size = left + SHOWN * (image + gap) + right, 0.32 + (1 + len(strips)) * height + apart
    figure = Figure(figsize=size, facecolor="white")
    FigureCanvasAgg(figure)

    def place(number: int) -> float:
        """The lower edge of a strip."""
        return size[1] - 0.2 - number * height - image - (apart if number else 0)

    def write(x: float, y: float, words: str, **style: Any) -> None:
        figure.text(x / size[0], y / size[1], words, va="center", **{"color": INK, "fontsize": 10.5} | style)

    def strip(number: int, images: np.ndarray) -> None:
        for column, pixels in enumerate(images):
            corner = left + column * (image + gap), place(number)
            box = corner[0] / size[0], corner[1] / size[1], image / size[0], image / size[1]
            axes = figure.add_axes(box)
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color("#8c959f")

    write(0.2, place(0) + 0.42, "private images", fontweight="bold")
    write(0.2, place(0) + 0.2, "one of each client, never sent", fontsize=8.5, color=FAINT)
    write(left + SHOWN * (image + gap) + 0.15, place(0) + 0.31, "verdict over 64 clients", fontsize=8.5, color=FAINT)
    strip(0, truth)
    for number, (row, made, cell) in enumerate(strips, 1):
        middle, verdict = place(number) + image / 2, left + SHOWN * (image + gap) + 0.15
        write(0.2, middle + 0.11, row.title, fontweight="bold")
        write(0.2, middle - 0.11 - 0.07 * row.about.count("\n"), row.about, fontsize=8.5, color=FAINT)
        strip(number, made)
        pill = {"boxstyle": "round,pad=0.35", "facecolor": COLOURS[cell.verdict_alone], "edgecolor": "none"}
        write(verdict + 0.08, middle + 0.12, cell.verdict_alone, color="white", fontweight="bold", bbox=pill)
        rate, traces = cell.asr["strict"], traces_p(cell)
        why = "" if traces is None else f"; traces, {'p < 0.001' if traces < 0.001 else f'p = {traces:.3f}'}"
        write(verdict, middle - 0.2, f"{rate.successes} of {rate.n} come back{why}", fontsize=8.5, color=FAINT)
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]))
