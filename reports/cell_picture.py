"""Pictures of a cell: truth, reconstructions along the iterations, final; guesses alone where no truth is kept."""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.base.columns import Columns
from harness.base.words import Words, tokens_of
from harness.evaluation.scores import Scored, Scores
from harness.reports import columns
from harness.reports.pictures import FRAME, MOST_ROWS, drawable, plain_text, require_alike, save_figure, save_grid
from harness.reports.text_picture import save_texts
from harness.results import CellResult, RunFolder

# The picture of a cell on a table: per victim a block of strips, truth above reconstructions, a cell per feature.

# All in inches.
_WIDTH, _STRIP, _GAP = 9.0, 0.17, 0.14
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.15, 1.45, 0.3, 0.55
_TITLE_LINE, _TITLE_LETTER = 0.19, 0.095


def save_strips(
    path: Path,
    truth: np.ndarray,
    stages: Sequence[tuple[str, np.ndarray]],
    captions: Sequence[str],
    title: str,
    columns: Columns,
) -> None:
    """Write a PNG with a block of strips per victim row, at most eight; dark is 1, light is 0.

    Args:
        path: where to write; it appears whole or not at all.
        truth: (n, F) in [0, 1], n >= 1.
        stages: reconstructions (n, F) with their labels; values outside [0, 1] are clamped, NaN is 0.
        captions: one per row, such as ``"RMSE 0.034"``.
        title: above the strips, broken over lines where it is long.
        columns: the schema; light lines separate its categorical columns.

    Raises:
        ValueError: shapes or the number of captions disagree.
        UsageError: the folder cannot be written.
    """
    strips = [("truth", truth), *stages]
    _check(strips, captions, columns)
    rows = min(len(truth), MOST_ROWS)
    lines = wrap(drawable(title), int((_WIDTH - 0.5) / _TITLE_LETTER))
    block, top = len(strips) * _STRIP, _TOP + _TITLE_LINE * len(lines)
    height = top + rows * (block + _GAP) - _GAP + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    heading = {"fontsize": 10.5, "fontweight": "bold", "va": "top", "ha": "left"}
    figure.text(0.25 / _WIDTH, 1 - 0.15 / height, "\n".join(lines), **heading, **plain_text())
    for row in range(rows):
        lower = height - top - row * (block + _GAP) - block
        place = (_LEFT / _WIDTH, lower / height, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, block / height)
        _draw(figure, place, np.stack([values[row] for _, values in strips]), [label for label, _ in strips], columns)
        where = ((_WIDTH - _RIGHT + 0.1) / _WIDTH, (lower + block / 2) / height)
        figure.text(*where, drawable(captions[row]), va="center", fontsize=8.5, **plain_text())
    legend = _legend(columns)
    figure.text(_LEFT / _WIDTH, 0.2 / height, drawable(legend), fontsize=8, va="bottom", **plain_text())
    save_figure(figure, path)


def _check(strips: Sequence[tuple[str, np.ndarray]], captions: Sequence[str], columns: Columns) -> None:
    shape = strips[0][1].shape
    if len(shape) != 2 or shape[0] < 1 or shape[1] != columns.width:
        raise ValueError(f"truth must be (n, {columns.width}) with n >= 1, not {shape}")
    require_alike(strips, captions, "rows")


def _draw(
    figure: Figure, place: tuple[float, float, float, float], values: np.ndarray, labels: list[str], columns: Columns
) -> None:
    """One block: values (strips, F) as cells, and a line before each categorical column."""
    block = figure.add_axes(place)
    shown = np.clip(np.nan_to_num(values, nan=0.0), 0.0, 1.0)
    block.imshow(shown, cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest", aspect="auto")
    for group in columns.slices:
        block.axvline(group.start - 0.5, color="#d07020", linewidth=0.6)
    block.hlines(0.5, -0.5, columns.width - 0.5, color=FRAME, linewidth=0.8)
    block.set(xticks=[])
    block.set_yticks(range(len(labels)), [drawable(label) for label in labels], fontsize=7, **plain_text())
    block.tick_params(length=0)
    for edge in block.spines.values():
        edge.set(color=FRAME, linewidth=0.6)


def _legend(columns: Columns) -> str:
    """Return what stands from left to right, in one line."""
    parts = [f"{len(columns.continuous)} continuous columns"] if columns.continuous else []
    parts += [group.name for group in columns.groups]
    return "from left to right: " + ", ".join(parts)


_SHOWN = 8


def save_cell_picture(folder: RunFolder, scored: Scored, cell: CellResult) -> None:
    """Writes a picture of the first images, or table rows, of a cell; batches are shown in their matched order.

    There is none of an attack that reconstructs nothing.
    """
    if scored.record is None or not isinstance(scored.scores, Scores):
        return
    scene, shape = scored.scene, scored.scene.dataset.image_shape
    victims, images = scene.truth.labels.shape
    shown_victims = min(victims, max(1, _SHOWN // images))
    shown = min(_SHOWN, shown_victims * images)
    order = scored.scores.order[:shown_victims]
    rows = torch.arange(shown_victims)[:, None]

    def matched(made: torch.Tensor) -> np.ndarray:
        per_victim = made[: shown_victims * (made.shape[0] // max(shown_victims, 1))]
        grouped = per_victim.reshape(shown_victims, -1, *shape)
        return grouped[rows, order].flatten(0, 1)[:shown].numpy()

    observation_rows = scored.record.reconstruction.images.shape[0] // victims * shown_victims
    final = scored.record.reconstruction.images[:observation_rows]
    stages = [
        (f"iteration {iteration}", matched(made[:observation_rows]))
        for iteration, made in scored.record.snapshots.items()
        if made.shape[0] >= observation_rows
    ]
    stages.append(("final", matched(final)))
    truth = scene.truth.images[:shown_victims].flatten(0, 1)[:shown].numpy()
    place = f"surface {cell.surface} ({cell.tap})" if cell.surface is not None else cell.tap
    title = f"{columns.attacker(cell)} against {cell.defense} at {place}, {cell.dataset}: {cell.verdict_alone}"
    path, captions = folder.picture(cell.key or ""), _captions(scored.scores.metrics, shown)
    if scene.dataset.words is not None:
        right = [f"{value:.0%} of tokens" for value in scored.scores.metrics["tokens_right"][:shown]]
        true, made = (tokens_of(torch.from_numpy(images)).tolist() for images in (truth, stages[-1][1]))
        save_texts(path, true, made, scene.dataset.words, right, title)
    elif scene.dataset.columns is None:
        save_grid(path, truth, stages[:-1], stages[-1][1], captions, title)
    else:
        _save_table(path, truth, stages, captions, title, scene.dataset.columns)


def _captions(metrics: dict[str, np.ndarray], shown: int) -> list[str]:
    """Return what stands beside each image or row: its error, and of a table row how much of each kind is right."""
    captions = [f"RMSE {value:.3f}" for value in metrics["rmse"][:shown]]
    for name, words in (("continuous_rmse", "{:.2f} std"), ("categorical_accuracy", "{:.0%} of categories")):
        if name in metrics:
            captions = [f"{caption}\n{words.format(metrics[name][row])}" for row, caption in enumerate(captions)]
    return captions


def _save_table(
    path: Path,
    truth: np.ndarray,
    stages: list[tuple[str, np.ndarray]],
    captions: list[str],
    title: str,
    columns: Columns,
) -> None:
    """Strips of features; the last one is the final reconstruction as the nearest possible row."""
    strips = [(label, made.reshape(len(made), -1)) for label, made in stages]
    nearest = columns.project(torch.from_numpy(strips[-1][1])).numpy()
    save_strips(path, truth.reshape(len(truth), -1), [*strips, ("as a row", nearest)], captions, title, columns)


MOST_SHOWN = 24
_ACROSS, _TILE, _CAPTION, _TITLE = 8, 1.15, 0.4, 0.4  # in inches
_LETTERS = 16  # of a line above a tile


def save_guesses(
    path: Path, images: np.ndarray, captions: Sequence[str], title: str, words: Words | None = None
) -> None:  # fmt: skip
    """Write a PNG of the first images, or texts, at most 24, with what is said of each.

    Args:
        path: where to write; it appears whole or not at all.
        images: (n, C, H, W), n >= 1; values outside [0, 1] are clamped; C is 1 (grey) or 3 (red, green, blue).
        captions: one per image.
        words: of texts, what their numbers mean; None of images.

    Raises:
        UsageError: the folder cannot be written.
    """
    if words is not None:
        texts = tokens_of(torch.from_numpy(images[:MOST_SHOWN])).tolist()
        save_texts(path, None, texts, words, captions[:MOST_SHOWN], title)
        return
    shown = min(len(images), MOST_SHOWN)
    across, down = min(_ACROSS, shown), math.ceil(shown / _ACROSS)
    figure = Figure(
        figsize=(max(4.0, across * _TILE), down * (_TILE + _CAPTION) + _TITLE), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), fontsize=9, fontweight="bold", **plain_text())
    for tile, image, caption in zip(
        figure.subplots(down, across, squeeze=False).flatten(), images[:shown], captions[:shown], strict=False
    ):
        pixels = np.nan_to_num(image).clip(0, 1).transpose(1, 2, 0)
        tile.imshow(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
        tile.set_title(drawable("\n".join(wrap(caption, _LETTERS))), fontsize=7, **plain_text())
    for tile in figure.axes:
        tile.axis("off")
    save_figure(figure, path)
