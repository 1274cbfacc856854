"""What the closed form of a vision transformer is worth under noise, alone and as the start of ``map``.

``python benchmarks/patches_start.py [VICTIMS] [STD...]`` prints one line per attack and level of Gaussian noise on all
coordinates of the gradient of one step: images within the strict rule, the median RMSE and seconds per victim. ``map``
runs at its defaults, but with known labels and one start, from the class mean and from the closed form. The victims are
the first ones of ``cifar10-sample`` on ``vit``, the levels 1e-5, 1e-4 and 1e-3 of a gradient whose root mean square is
about 0.05 on the patches' layer. The last line of a level is the prior's own best image: what the class mean is off.
"""

import harness  # noqa: F401

# isort: split
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from harness.attacks import Attack, run_attack
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.patches import Patches, closed_form
from harness.datasets.prior import Prior
from harness.evaluation.observe import Stage
from harness.experiment import cell_settings
from harness.observation import Observation
from harness.scoring.success import STRICT_RMSE

LEVELS = (1e-5, 1e-4, 1e-3)


class FromPatches(MaximumAPosteriori):
    """``map`` from the closed form, where that lies nearer to the prior than images do in the mean."""

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        """The closed form in the coordinates of the prior."""
        assert observation.prior is not None
        images = closed_form(observation).clamp(0, 1)
        labels = self.labels(observation)
        assert labels is not None
        rows = images.repeat_interleave(len(keys) // len(images), 0)
        return coordinates_of(observation.prior, rows, labels[:, 0].repeat_interleave(len(keys) // len(images), 0))


def coordinates_of(prior: Prior, images: Tensor, labels: Tensor) -> Tensor:
    """Where the prior places these images (R, D) of classes (R,)."""
    found, groups = [], prior.groups[labels]
    for image, label, group in zip(images, labels, groups, strict=True):
        off, along = image - prior.means[label], prior.directions[group]
        shares = off @ along
        found.append((off - shares @ along.T) / prior.rest[group] + (shares / prior.scales[group]) @ along.T)
    return torch.stack(found)


def line(name: str, std: float, images: Tensor, truth: Tensor, seconds: float) -> str:
    """One row of the table."""
    errors = (images.reshape(truth.shape) - truth).square().mean(1).sqrt()
    back = int((errors <= STRICT_RMSE).sum())
    return f"{std:8.0e} {name:24} {back:3} of {len(truth)} {float(errors.median()):8.4f} {seconds / len(truth):8.2f}"


def main(victims: int, levels: list[float]) -> None:
    """Prints the table."""
    print(f"{'std':>8} {'attack':24} {'success':>8} {'RMSE':>8} {'s/victim':>8}")
    common = {"dataset": "cifar10-sample", "model": "vit", "victims": victims, "prior": "auto", "labels": "known"}
    for std in levels:
        noise = {"applies_to": "gradient", "amount": std}
        scene = Stage(Path("no data root"), 64).set(
            cell_settings(**common, defense="noise", defense_args=noise, attack="map")
        )
        truth, seen = scene.truth.images.reshape(victims, -1), scene.observation
        attacks: dict[str, Attack] = {
            "patches": Patches(), "map from the closed form": FromPatches(label_starts=1),
            "map from the class mean": MaximumAPosteriori(label_starts=1),
        }  # fmt: skip
        for name, attack in attacks.items():
            began = time.perf_counter()
            made = run_attack(attack, seen.known_to(attack.tier), 64).images
            print(line(name, std, made, truth, time.perf_counter() - began), flush=True)
        assert seen.prior is not None
        means = seen.prior.means[scene.truth.labels.flatten()]
        print(line("the class mean itself", std, means, truth, 0.0), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 8, [float(one) for one in given[1:]] or list(LEVELS))
