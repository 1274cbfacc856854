"""The picture of a cell: truth, reconstructions along the iterations, final."""

import numpy as np
import torch

from harness.evaluation.scored import Scored
from harness.reports.pictures import save_grid
from harness.results import CellResult, RunFolder

_SHOWN = 8


def save_cell_picture(folder: RunFolder, key: str, scored: Scored, cell: CellResult) -> None:
    """Writes the grid of the first images of a cell; batches are shown in their matched order."""
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
    rmse = scored.scores.metrics["rmse"][:shown]
    place = f"surface {cell.surface} ({cell.tap})" if cell.surface is not None else cell.tap
    save_grid(
        folder.picture(key),
        scene.truth.images[:shown_victims].flatten(0, 1)[:shown].numpy(),
        stages,
        matched(final),
        [f"RMSE {value:.3f}" for value in rmse],
        f"{cell.attack} against {cell.defense} at {place}, {cell.dataset}: {cell.verdict}",
    )
