"""The picture of a cell: truth, reconstructions along the iterations, final."""

from pathlib import Path

import numpy as np
import torch

from harness.datasets.columns import Columns
from harness.evaluation.scores import Scored, Scores
from harness.reports.pictures import save_grid
from harness.reports.strips import save_strips
from harness.results import CellResult, RunFolder

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
    title = f"{cell.attack} against {cell.defense} at {place}, {cell.dataset}: {cell.verdict_alone}"
    path, captions = folder.picture(cell.key or ""), _captions(scored.scores.metrics, shown)
    if scene.dataset.columns is None:
        save_grid(path, truth, stages[:-1], stages[-1][1], captions, title)
    else:
        _save_table(path, truth, stages, captions, title, scene.dataset.columns)


def _captions(metrics: dict[str, np.ndarray], shown: int) -> list[str]:
    """What stands beside each image or row: its error, and of a table row how much of each kind is right."""
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
