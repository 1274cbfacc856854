"""What compression hides from an attacker that knows it, and from one that does not, on the same victims.

``python benchmarks/compression.py [VICTIMS] [DATASET...]`` prints a line per dataset, network, compression and attack:
images within the strict rule with the 95% interval, the median RMSE and seconds per victim; then the paired difference
of ``intervals`` and the better plain attacker: victims that only one of them brings back, and the exact p-value of that
(McNemar). One example, one local step, the update as it is sent (surface 1), public data ``auto``. The networks are
LeNet and a linear model, ``--model NAME,...`` names others; ``--plain NAME,...`` names other plain attackers than
``cpl`` and ``inverting_gradients``; ``--form "QSGD 2",sign`` names some forms. MNIST and CIFAR-10 are read from
``HARNESS_DATA``.

``--rounds 1,4,16`` prints instead what ``intervals`` brings back of the same victims after so many rounds of error
feedback, and what an attacker makes of them that does not know of the feedback, on the first of the networks.
"""

import harness  # noqa: F401

# isort: split
import sys
import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import binomtest

from harness.attacks import ATTACKS, reconstructing
from harness.base.building import build
from harness.base.progress import progress
from harness.datasets import data_root
from harness.evaluation.attacking import in_one_process
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.watching import AttackForecast
from harness.experiment import CellSettings, cell_settings
from harness.scoring.success import clopper_pearson, image_strict

#: A name, the defense and its settings.
COMPRESSIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("int4", "quantization", {"bits": 4}),
    ("sign", "paper:signSGD", {}),
    ("top 1%", "paper:top-k", {"share": 0.01, "error_feedback": False}),
    ("int8", "quantization", {"bits": 8}),
    ("QSGD 4", "paper:QSGD", {"levels": 4}),
    ("QSGD 2", "paper:QSGD", {"levels": 2}),
)
#: The same with error feedback.
FEEDBACK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sign", "paper:signSGD", {"scaled": True, "error_feedback": True}),
    ("top 1%", "paper:top-k", {"share": 0.01, "error_feedback": True}),
)
#: Settings that the suite has for a plain attack, where they are not its defaults.
OF_SUITE = {"inverting_gradients": {"max_iterations": 1000}}


def brought_back(name: str, scene: Scene, settings: CellSettings) -> tuple[np.ndarray, float, float]:
    """Which victims (V,) an attack brings back, the median RMSE and seconds per victim."""
    attack = reconstructing(build(ATTACKS, name, OF_SUITE.get(name, {})))
    seen, began = scene.observation.known_to(attack.tier), time.perf_counter()
    with progress(f"{name} against {settings.defense}", seen.rows, "victims", at_most=True) as bar:
        watched = AttackForecast(None, bar, seen.rows, attack, settings)
        made = in_one_process(attack, seen, 128, watched).images.flatten(0, 1)
    seconds = time.perf_counter() - began
    truth = scene.truth.images.flatten(0, 1)
    errors = (made.clamp(0, 1) - truth).square().flatten(1).mean(1).sqrt()
    return image_strict(truth, made).numpy(), float(errors.median()), seconds / len(truth)


def main(victims: int, datasets: list[str], networks: list[str], plain: list[str], forms: list[str]) -> None:
    """Prints the table."""
    stage, asked = Stage(data_root(None), 64), [one for one in COMPRESSIONS if not forms or one[0] in forms]
    for dataset, network, (name, defense, settings) in product(datasets, networks, asked):
        cell = cell_settings(
            dataset=dataset, model=network, victims=victims, prior="auto", defense=defense,
            defense_args=settings, attack="map", tap="T1.out",
        )  # fmt: skip
        scene = stage.set(cell)
        place = f"{dataset:8} {network:8} {name:7}"
        found = dict[str, np.ndarray]()
        for attack in (*plain, "intervals"):
            found[attack], error, seconds = brought_back(attack, scene, cell)
            back = int(found[attack].sum())
            low, high = clopper_pearson(back, victims)
            print(
                f"{place} {attack:20} {back:3} of {victims} [{low:4.0%}-{high:4.0%}] RMSE {error:.3f} {seconds:6.2f} s",
                flush=True,
            )
        best = max(plain, key=lambda one: int(found[one].sum()))
        more = int((found["intervals"] & ~found[best]).sum())
        less = int((found[best] & ~found["intervals"]).sum())
        p = binomtest(more, more + less).pvalue if more + less else 1.0
        print(f"{place} intervals alone {more}, {best} alone {less}, p = {p:.2g}", flush=True)


def over_rounds(victims: int, datasets: list[str], network: str, rounds: list[int]) -> None:
    """Prints what error feedback tells over rounds."""
    stage = Stage(data_root(None), 64)
    for dataset in datasets:
        for name, defense, settings in FEEDBACK:
            for seen in rounds:
                cell = cell_settings(
                    dataset=dataset, model=network, victims=victims, prior="auto", defense=defense,
                    defense_args=settings, attack="intervals", tap="T1.out", rounds_seen=seen,
                )  # fmt: skip
                scene = stage.set(cell)
                coding = scene.observation.coding
                assert coding is not None
                unaware = replace(scene, observation=replace(scene.observation, coding=replace(coding, feedback=False)))
                for who, one in (("intervals", scene), ("unaware", unaware))[: 1 if seen == 1 else 2]:
                    back, error, seconds = brought_back("intervals", one, cell)
                    low, high = clopper_pearson(int(back.sum()), victims)
                    print(
                        f"{dataset:8} {name:7} R {seen:2} {who:10} {int(back.sum()):3} of {victims} "
                        f"[{low:4.0%}-{high:4.0%}] RMSE {error:.3f} {seconds:6.2f} s",
                        flush=True,
                    )


def option(arguments: list[str], name: str) -> tuple[list[str], list[str]]:
    """The values of an option, and the arguments without it."""
    if name not in arguments:
        return [], arguments
    place = arguments.index(name)
    return arguments[place + 1].split(","), arguments[:place] + arguments[place + 2 :]


if __name__ == "__main__":
    plain, given = option(sys.argv[1:], "--plain")
    networks, given = option(given, "--model")
    looks, given = option(given, "--rounds")
    forms, given = option(given, "--form")
    networks = networks or ["lenet", "logistic"]
    count, named = int(given[0]) if given else 64, given[1:] or ["mnist", "cifar10"]
    if looks:
        over_rounds(count, named, networks[0], [int(one) for one in looks])
    else:
        main(count, named, networks, plain or ["cpl", "inverting_gradients"], forms)
