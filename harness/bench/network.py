"""Seconds per victim and iteration of gradient matching on a network: ours, a plain loop, the arithmetic alone."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from loky import cpu_count

from harness.attacks import Attack, reconstructing, run_reference
from harness.base.devices import with_threads
from harness.bench.engines import arithmetic, crew_for, products_of
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings, usual_prior
from harness.models import build_module
from harness.models.batch_norm import trained_layers
from harness.models.side_by_side import side_by_side
from harness.parallel.crew import Crew

_TURNS = 5
_JOINT = 4  # images of a batch that is normalised as a whole, where no number is asked for

OURS, PLAIN, ALONE = "ours", "plain autograd loop", "arithmetic alone"


def bench_network(
    dataset: str, model: str, attack: str, victims: int, batch_size: int | None, iterations: int, chunk: int,
    device: str, data_root: Path, jobs: int | None,
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """Times gradient matching against undefended victims with known labels; gives every figure as soon as it is there.

    Three do the same iterations in turns, since machines are noisy, and medians count: the batched engine; the
    sequential reference, which is a loop of plain autograd over the plain network with PyTorch's own optimizer; and
    the convolutions and matrix products that an iteration consists of (:mod:`harness.bench.engines`). An iteration
    is one gradient evaluation. "CPU s" are seconds of all threads together, which other work on the machine moves less.
    The plain loop's threads share every operation, as PyTorch has it; those of the arithmetic alone take their own
    victims where the engine's do, or its processes.

    Args:
        jobs: processes that the batched engine's victims are dealt to; None for as many as ``harness evaluate`` takes.

    Raises:
        UsageError: the attack reconstructs nothing, or one of the engines does not have it.
    """
    stage = Stage(data_root, chunk)
    settings = cell_settings(
        dataset=dataset, model=model, attack=attack, victims=victims, labels="known", device=device,
        batch_size=batch_size or _usual_batch(stage, dataset, model), prior=usual_prior([attack]),
    )  # fmt: skip
    with crew_for(settings, stage, jobs) as everyone:
        yield from _figures(everyone, stage, settings, iterations, chunk)


def _figures(
    everyone: Crew, stage: Stage, settings: CellSettings, iterations: int, chunk: int
) -> Iterator[tuple[str, Any]]:
    matched = _comparable(reconstructing(settings.build_attack()), iterations)
    scene = stage.set(settings)
    yield from {
        "dataset": settings.dataset, "model": settings.model, "parameters": scene.observation.model.layout.total,
        "attack": settings.attack, "victims": settings.victims, "batch size": settings.batch_size,
        "iterations": iterations, "device": settings.device, "processes": everyone.processes,
        "threads of each": torch.get_num_threads(),
    }.items()  # fmt: skip
    spent: dict[str, list[tuple[float, float]]] = {}
    contestants = _contestants(everyone, scene, matched, chunk)
    for name, work in contestants.items():
        _timed(work, everyone)  # warm-up
        spent[name] = []
    for _ in range(_TURNS):
        for name, work in contestants.items():
            spent[name].append(_timed(work, everyone))
    for name, turns in spent.items():
        yield f"{name}: s", _rounded(median(wall for wall, _ in turns))
        yield f"{name}: CPU s", _rounded(median(processor for _, processor in turns))
    for other in (PLAIN, ALONE):
        for number, unit in enumerate(("s", "CPU s")):
            ratios = [mine[number] / theirs[number] for mine, theirs in zip(spent[OURS], spent[other], strict=True)]
            yield f"{OURS} / {other}: {unit}", round(median(ratios), 2)


def _comparable(attack: Attack, iterations: int) -> Attack:
    """So many iterations of an attack; starts that pull at each other, which the plain loop has not, are let go."""
    alone = {"group": 0.0} if hasattr(attack, "group") else {}
    return replace(attack, max_iterations=iterations, **alone)


def _usual_batch(stage: Stage, dataset: str, model: str) -> int:
    data = stage.dataset(dataset)
    return _JOINT if trained_layers(build_module(model, data.image_shape, data.num_classes, seed=0)) else 1


def _contestants(everyone: Crew, scene: Scene, attack: Attack, chunk: int) -> dict[str, Callable[[], float]]:
    """What is timed, by name; each returns the number of victims times iterations that it did."""
    seen = scene.observation
    first = scene.truth.images[0].to(seen.target)
    alone = arithmetic(products_of(seen.model.plain(seen.weights[0]), first))

    def products() -> float:
        iterations = range(seen.rows * attack.max_iterations)
        apart = seen.model.evaluates_alone or everyone.processes > 1
        side_by_side(lambda _: alone(), iterations, apart)
        return float(len(iterations))

    return {
        OURS: lambda: float(everyone.attack(attack, seen, chunk).evaluations.sum()),
        PLAIN: _with_all_cores(lambda: float(run_reference(attack, seen).evaluations.sum())),
        ALONE: _with_all_cores(products),
    }


def _with_all_cores(work: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        with with_threads(cpu_count()):
            return work()

    return run


def _timed(work: Callable[[], float], everyone: Crew) -> tuple[float, float]:
    """Seconds, and seconds of the processor, per victim and iteration."""
    began, spent = time.perf_counter(), time.process_time() + everyone.seconds
    done = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / done, (time.process_time() + everyone.seconds - spent) / done


def _rounded(seconds: float) -> float:
    """To four significant digits."""
    return float(f"{seconds:.4g}")
