"""What compression hides from an attacker that knows it, and from one that does not, on the same victims.

``python benchmarks/compression.py [VICTIMS] [DATASET...]`` prints a line per dataset, compression and attack: images
within the strict rule with the 95% interval, the median RMSE and seconds per victim; then the paired difference of
``intervals`` and the better plain attacker: victims that only one of them brings back, and the exact p-value of that
(McNemar). LeNet, one example, one local step, the update as it is sent (surface 1), public data ``auto``.
``--plain NAME,...`` names other plain attackers than ``cpl``. MNIST and CIFAR-10 are read from ``HARNESS_DATA``.
"""

import harness  # noqa: F401

# isort: split
import sys
import time
from typing import Any

import numpy as np
from scipy.stats import binomtest

from harness.attacks import ATTACKS, reconstructing, run_attack
from harness.base.building import build
from harness.datasets import data_root
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings

from harness.scoring.success import clopper_pearson, image_strict

#: A name, the defense and its settings.
COMPRESSIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("int4", "quantization", {"bits": 4}),
    ("sign", "paper:signSGD", {}),
    ("top 1%", "paper:top-k", {"share": 0.01, "error_feedback": False}),
    ("int8", "quantization", {"bits": 8}),
)
#: Settings that the suite has for a plain attack, where they are not its defaults.
OF_SUITE = {"inverting_gradients": {"max_iterations": 1000}}


def brought_back(name: str, scene: Scene) -> tuple[np.ndarray, float, float]:
    """Which victims (V,) an attack brings back, the median RMSE and seconds per victim."""
    attack = reconstructing(build(ATTACKS, name, OF_SUITE.get(name, {})))
    began = time.perf_counter()
    made = run_attack(attack, scene.observation.known_to(attack.tier)).images.flatten(0, 1)
    seconds = time.perf_counter() - began
    truth = scene.truth.images.flatten(0, 1)
    errors = (made.clamp(0, 1) - truth).square().flatten(1).mean(1).sqrt()
    return image_strict(truth, made).numpy(), float(errors.median()), seconds / len(truth)


def main(victims: int, datasets: list[str], plain: list[str]) -> None:
    """Prints the table."""
    stage = Stage(data_root(None), 64)
    for dataset in datasets:
        for name, defense, settings in COMPRESSIONS:
            scene = stage.set(
                cell_settings(
                    dataset=dataset, model="lenet", victims=victims, prior="auto", defense=defense,
                    defense_args=settings, attack="map", tap="T1.out",
                )
            )  # fmt: skip
            found = dict[str, np.ndarray]()
            for attack in (*plain, "intervals"):
                found[attack], error, seconds = brought_back(attack, scene)
                back = int(found[attack].sum())
                low, high = clopper_pearson(back, victims)
                print(
                    f"{dataset:8} {name:7} {attack:20} {back:3} of {victims} [{low:4.0%}-{high:4.0%}] "
                    f"RMSE {error:.3f} {seconds:6.2f} s",
                    flush=True,
                )
            best = max(plain, key=lambda one: int(found[one].sum()))
            more = int((found["intervals"] & ~found[best]).sum())
            less = int((found[best] & ~found["intervals"]).sum())
            p = binomtest(more, more + less).pvalue if more + less else 1.0
            print(f"{dataset:8} {name:7} intervals alone {more}, {best} alone {less}, p = {p:.2g}", flush=True)


if __name__ == "__main__":
    arguments, chosen = sys.argv[1:], ["cpl"]
    if "--plain" in arguments:
        place = arguments.index("--plain")
        chosen = arguments[place + 1].split(",")
        arguments = arguments[:place] + arguments[place + 2 :]
    count = int(arguments[0]) if arguments else 64
    main(count, arguments[1:] or ["mnist", "cifar10"], chosen)
