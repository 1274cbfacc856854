"""Batched against sequential attack engine on the same victims: throughput, memory, growth, and the same outcomes."""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from harness.attacks import Reconstruction, reconstructing, run_attack, run_reference
from harness.evaluation.measure import measure
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings, usual_prior
from harness.results import Rate
from harness.scoring import rate_of

GROWTH = (1, 4, 16, 64, 256)
MANY, MANY_ITERATIONS = 1000, 5
_TURNS = 4
_TRIED = 10  # victims that the reference's thread count is chosen on


def bench_attack(
    dataset: str, attack: str, victims: int, chunk: int, growth: bool, device: str, data_root: Path
) -> Iterator[tuple[str, Any]]:
    """Times both engines on undefended victims and compares what they find; gives every figure as soon as it is there.

    The reference engine is timed with every thread count up to the machine's and its best one is used for all
    victims. The engines take turns, since machines are noisy: the batched one attacks all victims before every part of
    the reference's, and its median counts. Rates are victims per second, memory is the process's peak in MiB.
    """
    settings = cell_settings(
        dataset=dataset, attack=attack, victims=victims, device=device, prior=usual_prior([attack])
    )
    stage = Stage(data_root, chunk)
    scene = stage.set(settings)
    threads = torch.get_num_threads()
    _batched(scene, settings, min(2, victims), chunk)  # warm-up
    yield from {"dataset": dataset, "attack": attack, "device": _device_name(device), "threads": threads}.items()
    best = min(
        range(1, threads + 1), key=lambda count: _reference(scene, settings, range(min(_TRIED, victims)), count)[0]
    )
    batched_seconds, reference_seconds, parts = [], 0.0, []
    for part in torch.arange(victims).chunk(_TURNS):
        torch.set_num_threads(threads)
        seconds, batched = _batched(scene, settings, victims, chunk)
        batched_seconds.append(seconds)
        seconds, made = _reference(scene, settings, part.tolist(), best)
        reference_seconds += seconds
        parts.append(made)
    torch.set_num_threads(threads)
    yield "batched victims/s", round(victims / median(batched_seconds), 3)
    yield "reference victims/s", round(victims / reference_seconds, 3)
    yield "reference threads", best
    yield "ratio", round(reference_seconds / median(batched_seconds), 2)
    yield "peak memory MiB (both engines)", _peak_memory(device)
    yield "ASR strict batched", _strict(scene, batched.images)
    yield "ASR strict reference", _strict(scene, torch.cat([made.images for made in parts]))
    yield "successes lost to patience", _lost_to_patience(scene, settings, chunk, batched)
    if growth:
        yield "seconds by victims", _growth(stage, settings, chunk)
        yield from _many(stage, settings, chunk, device).items()


def _batched(scene: Scene, settings: CellSettings, victims: int, chunk: int) -> tuple[float, Reconstruction]:
    seen = scene.observation.take(torch.arange(victims))
    began = time.perf_counter()
    made = run_attack(reconstructing(settings.build_attack()), seen, chunk)
    return time.perf_counter() - began, made


def _reference(
    scene: Scene, settings: CellSettings, victims: Sequence[int], threads: int
) -> tuple[float, Reconstruction]:
    torch.set_num_threads(threads)
    seen = scene.observation.take(torch.tensor(victims))
    began = time.perf_counter()
    made = run_reference(reconstructing(settings.build_attack()), seen)
    return time.perf_counter() - began, made


def _growth(stage: Stage, settings: CellSettings, chunk: int) -> dict[str, float]:
    """Wall-clock seconds for more and more victims, as many as there are."""
    counts = [count for count in GROWTH if count <= _there(stage, settings)]
    scene = stage.set(settings.model_copy(update={"victims": max(counts)}))
    return {str(count): round(_batched(scene, settings, count, chunk)[0], 2) for count in counts}


def _many(stage: Stage, settings: CellSettings, chunk: int, device: str) -> dict[str, Any]:
    """Peak memory of an attack on many victims; a few iterations reach it, since the history grows with them only once.

    L-BFGS keeps at most 100 past steps: five outer iterations fill it.
    """
    count = min(MANY, _there(stage, settings))
    scene = stage.set(settings.model_copy(update={"victims": count}))
    attack = replace(reconstructing(settings.build_attack()), max_iterations=MANY_ITERATIONS)
    run_attack(attack, scene.observation, chunk)
    return {"victims in memory test": count, "peak memory MiB (memory test)": _peak_memory(device)}


def _there(stage: Stage, settings: CellSettings) -> int:
    """How many victims there can be; what is public are none."""
    return len(stage.room(settings).private.labels)


def _lost_to_patience(scene: Scene, settings: CellSettings, chunk: int, patient: Reconstruction) -> int:
    """Victims given up as hopeless that the full number of iterations would have reconstructed."""
    attack = reconstructing(settings.build_attack())
    given_up = (patient.stop_reason == 3).nonzero()[:, 0]
    if not attack.patience or len(given_up) == 0:
        return 0
    stubborn = replace(attack, patience=attack.max_iterations)
    made = run_attack(stubborn, scene.observation.take(given_up), chunk)
    return _successes(scene, scene.truth.images[given_up], made.images).successes


def _strict(scene: Scene, images: Tensor) -> str:
    rate = _successes(scene, scene.truth.images[: len(images)], images)
    return f"{rate.successes}/{rate.n}"


def _successes(scene: Scene, truth: Tensor, images: Tensor) -> Rate:
    measured = measure(scene.dataset, truth.flatten(0, 1), images.flatten(0, 1), "not asked for")
    return rate_of(measured.success["strict"])


def _peak_memory(device: str) -> int:
    if device == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
