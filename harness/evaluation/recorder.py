"""Watches an attack from the scorer's side: when each image was first reconstructed, and what it looked like.

The recorder holds the truth; the attack only calls it and gets nothing back.
"""

import torch
from torch import Tensor

from harness.scoring import Strict, image_strict, match

SNAPSHOT_ITERATIONS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
SNAPSHOT_IMAGES = 8


class AttackRecorder:
    """An observer for :func:`harness.attacks.run_attack`.

    Args:
        truth: (R, n, C, H, W), row for row what the observation hides.
        restarts: starts per row.
        strict: the dataset's strict success rule.
    """

    def __init__(self, truth: Tensor, restarts: int, strict: Strict = image_strict) -> None:
        self._truth, self._strict = truth, strict
        rows, examples = truth.shape[:2]
        self._first = torch.zeros(rows, restarts, examples, dtype=torch.long)
        self._shown = torch.arange(rows) < max(1, SNAPSHOT_IMAGES // examples)
        self._snapshots: dict[int, dict[tuple[int, int], Tensor]] = {}

    def __call__(self, victims: Tensor, restarts: Tensor, iteration: int, images: Tensor) -> None:
        images = images.cpu()
        waiting = (self._first[victims, restarts] == 0).any(1)
        if waiting.any():
            rows, starts = victims[waiting], restarts[waiting]
            reached = self._reached(self._truth[rows], images[waiting])
            earlier = self._first[rows, starts]
            self._first[rows, starts] = torch.where((earlier == 0) & reached, iteration, earlier)
        if iteration in SNAPSHOT_ITERATIONS:
            stage = self._snapshots.setdefault(iteration, {})
            for place in self._shown[victims].nonzero()[:, 0].tolist():
                stage[int(victims[place]), int(restarts[place])] = images[place].clone()

    def _reached(self, truth: Tensor, images: Tensor) -> Tensor:
        """Whether each true image (A, n) is reconstructed within the strict rule, after matching."""
        matched = images[torch.arange(len(images))[:, None], match(truth, images)]
        return self._strict(truth, matched)

    def take(self, rows: Tensor) -> "AttackRecorder":
        """One for some of the rows, as another process attacks them."""
        part = AttackRecorder(self._truth[rows], self._first.shape[1], self._strict)
        part._shown = self._shown[rows]
        return part

    def put(self, rows: Tensor, part: "AttackRecorder") -> None:
        """Takes over what one for these rows has seen."""
        self._first[rows] = part._first
        for iteration, stage in part._snapshots.items():
            seen = {(int(rows[row]), restart): images for (row, restart), images in stage.items()}
            self._snapshots.setdefault(iteration, {}).update(seen)

    def tau(self, restart: Tensor, cap: int) -> Tensor:
        """First strict iteration (R, n) of each image for the kept starts (R,); ``cap`` where there was none."""
        first = self._first[torch.arange(len(restart)), restart]
        return torch.where(first == 0, cap, first)

    def snapshots(self, restart: Tensor, final: Tensor) -> dict[int, Tensor]:
        """Images of the first rows along the iterations; a row that had stopped shows its final images (R, n, ...)."""
        rows = int(self._shown.sum())
        return {
            iteration: torch.stack([stage.get((row, int(restart[row])), final[row]) for row in range(rows)])
            for iteration, stage in sorted(self._snapshots.items())
        }
