"""Both attack engines on the same victims in turns, and the arithmetic of what they do alone.

Then seconds per victim and iteration of gradient matching on a network: ours, a plain loop, and the arithmetic alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from loky import cpu_count
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from harness.attacks import Attack, Reconstruction, reconstructing, run_reference
from harness.base.devices import with_threads
from harness.base.progress import progress
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings, usual_prior
from harness.models import build_module
from harness.models.batch_norm import trained_layers
from harness.models.side_by_side import side_by_side
from harness.parallel.processes import begin_workers, threads_per_job
from harness.parallel.worker_pool import WorkerPool, suitable_workers, worker_pool

# How long the convolutions and matrix products of a gradient match take alone, on tensors of the same shapes.

_ATEN = torch.ops.aten
_PLACES = {
    _ATEN.convolution.default: (0, 1),
    _ATEN.addmm.default: (1, 2),
    _ATEN.baddbmm.default: (1, 2),
} | dict.fromkeys((_ATEN.mm.default, _ATEN.bmm.default), (0, 1))
"""The two factors among the arguments of the operations that networks' layers become."""


@dataclass(frozen=True)
class Product:
    """One product of a forward pass.

    Attributes:
        left, right: its factors; the right one of a convolution is its kernel.
        geometry: a convolution's stride, padding, dilation, transposed, output padding and groups; None of matrices.
        trained: whether the right factor is a parameter, whose gradient is matched and which stays as it is.
    """

    left: Tensor
    right: Tensor
    geometry: tuple[Any, ...] | None
    trained: bool

    def passes(self) -> list[Callable[[], object]]:
        """All products of this shape in one iteration, on numbers of their own.

        Forward and backward are three: the output, and its derivatives by both factors. A second backward pass meets
        each of the two backward products with two cotangents, and the forward one again: twice the derivative by what
        depends on the images, for every product that it went into. A parameter needs none.
        """
        left, right = torch.randn_like(self.left), torch.randn_like(self.right)
        output, by_left, by_right = (
            self._matrices(left, right) if self.geometry is None else self._convolutions(left, right, self.geometry)
        )
        return [output] * 3 + [by_left] * 3 + [by_right] * (1 if self.trained else 3)

    def _matrices(self, left: Tensor, right: Tensor) -> tuple[Callable[[], object], ...]:
        above = left @ right
        return lambda: left @ right, lambda: above @ right.mT, lambda: left.mT @ above

    def _convolutions(self, left: Tensor, right: Tensor, geometry: tuple[Any, ...]) -> tuple[Callable[[], object], ...]:
        def forward() -> Tensor:
            return _ATEN.convolution(left, right, None, *geometry)

        def backward(by_left: bool) -> object:
            return _ATEN.convolution_backward(above, left, right, None, *geometry, [by_left, not by_left, False])

        above = forward()
        return forward, lambda: backward(True), lambda: backward(False)


class _Recorder(TorchDispatchMode):
    def __init__(self, parameters: set[int]) -> None:
        super().__init__()
        self.products: list[Product] = []
        self._parameters = parameters

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PLACES:
            left, right = (args[place] for place in _PLACES[func])
            trained = right.untyped_storage().data_ptr() in self._parameters
            geometry = tuple(args[3:9]) if func is _ATEN.convolution.default else None
            self.products.append(Product(left, right, geometry, trained))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def products_of(module: nn.Module, images: Tensor) -> list[Product]:
    """The convolutions and matrix products of a forward pass on images (B, C, H, W)."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    with sdpa_kernel(SDPBackend.MATH), _Recorder(parameters) as recorder:
        module(images)
    return recorder.products


@torch.no_grad()
def arithmetic(products: list[Product]) -> Callable[[], None]:
    """A function that computes all products of one iteration, and nothing else."""
    passes = [one for product in products for one in product.passes()]

    def run() -> None:
        for one in passes:
            one()

    return run


_TURNS = 4


@dataclass
class Turns:
    """Both engines on the same victims.

    Attributes:
        batched: seconds of all victims by all cores, one number a turn. on_one_core: the same of one core.
        last: what it made. evaluations: of a gradient, of all.
        reference: seconds per evaluation of the whole machine, by what shared it: threads of one process, or processes
            of one thread. made: images (R, n, C, H, W) of the first R victims.
    """

    batched: list[float]
    on_one_core: list[float]
    last: Reconstruction
    reference: dict[str, float]
    made: Tensor

    @property
    def evaluations(self) -> int:
        return int(self.last.evaluations.sum())


@contextmanager
def pool_for(settings: CellSettings, stage: Stage, jobs: int | None) -> Iterator[WorkerPool]:
    """The processes that attack a cell's victims; as many as ``harness evaluate`` takes, where none are named."""
    data = stage.dataset(settings.dataset, settings.model)
    count = suitable_workers([settings], data.image_shape, data.num_classes) if jobs is None else jobs
    with worker_pool(count, threads_per_job(count) if count > 1 else None, [settings]) as everyone:
        yield everyone


def _now() -> float:
    """Seconds, once a GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Bench:
    """Means of a bench: the batched ``engine``, its ``chunk``, and the ``cores`` that both engines may use."""

    engine: Engine
    chunk: int
    cores: int

    def timed(self, scene: Scene, settings: CellSettings, victims: int) -> tuple[float, Reconstruction]:
        """Seconds of the batched engine for the first victims, and what it made."""
        return self._timed(self.engine, scene, settings, victims)

    def timed_on_one_core(self, scene: Scene, settings: CellSettings, victims: int) -> float:
        """Seconds of the batched engine, in one process with one thread."""
        with with_threads(1):
            return self._timed(in_one_process, scene, settings, victims)[0]

    def _timed(
        self, engine: Engine, scene: Scene, settings: CellSettings, victims: int
    ) -> tuple[float, Reconstruction]:
        seen = scene.observation.take(torch.arange(victims))
        began = _now()
        made = engine(reconstructing(settings.build_attack()), seen, self.chunk, None)
        return _now() - began, made


ONE_CORE = "1 thread"


def take_turns(bench: Bench, scene: Scene, settings: CellSettings, data_root: Path, ends: float) -> Turns:
    """Turns of both until ``ends`` by the monotonic clock; the first one of either is taken in any case.

    Both sides have the same cores: once all of the machine's, which the reference shares in the way that suits it
    best, and once a single one.
    """
    victims = scene.observation.rows
    ways = [ONE_CORE, *(f"{count} threads" for count in range(2, bench.cores + 1))]
    spent = {way: [0.0, 0.0] for way in ways}
    batches: list[tuple[float, Reconstruction]] = []
    single: list[float] = []
    made: list[Tensor] = []
    with progress("reference", victims, "victims", at_most=True) as bar:
        for part in torch.arange(victims).chunk(_TURNS):
            batches.append(bench.timed(scene, settings, victims))
            single.append(bench.timed_on_one_core(scene, settings, victims))
            for victim in part.tolist():
                for count, way in enumerate(ways, 1):
                    seconds, alone = _reference(scene, settings, [victim], count)
                    spent[way][0] += seconds
                    spent[way][1] += float(alone.evaluations.sum())
                    if count == 1:
                        made.append(alone.images)
                bar.advance(1)
                if time.monotonic() >= ends:
                    break
            if time.monotonic() + batches[-1][0] + single[-1] >= ends:
                break
    rates = {way: seconds / evaluations for way, (seconds, evaluations) in spent.items()}
    if bench.cores > 1 and settings.device == "cpu":
        rates[f"{bench.cores} processes"] = _in_processes(bench.cores, settings, data_root, len(made))
    return Turns([seconds for seconds, _ in batches], single, batches[-1][1], rates, torch.cat(made))


def _in_processes(cores: int, settings: CellSettings, data_root: Path, victims: int) -> float:
    """Seconds per evaluation of a machine whose every core attacks a victim of its own, one after another."""
    workers, share = begin_workers(cores, 1), max(victims // cores, 1)
    try:
        for count in (1, share):  # the first time processes load what they need
            futures = [workers.submit(_some, settings, data_root, count) for _ in range(cores)]
            found = [future.result() for future in futures]
    finally:
        workers.shutdown(kill_workers=True)
    return 1 / sum(evaluations / seconds for seconds, evaluations in found)


def _some(settings: CellSettings, data_root: Path, victims: int) -> tuple[float, float]:
    """Seconds and evaluations of the reference for the first victims, in a process of its own."""
    scene = Stage(data_root, victims).set(settings)
    seconds, made = _reference(scene, settings, range(min(victims, scene.observation.rows)), 1)
    return seconds, float(made.evaluations.sum())


def arithmetic_alone(scene: Scene, rows: int, cores: int) -> float:
    """Seconds that the arithmetic of one gradient evaluation of one victim takes, on many at once.

    By cores that share every operation, or take their own images each, whichever is faster.
    """
    seen = scene.observation
    images = scene.truth.images[:rows].flatten(0, 1).to(seen.target)
    products = arithmetic(products_of(seen.model.plain(seen.weights[0]), images))
    with with_threads(cores):
        return min(_seconds(products, apart, cores) for apart in (False, True)) / rows


def _seconds(work: Callable[[], object], apart: bool, cores: int) -> float:
    """Return the mean seconds of one ``work`` among many."""
    side_by_side(lambda _: work(), range(cores), apart)
    began, times = _now(), 0
    while times < _TURNS or _now() - began < 1.0:
        side_by_side(lambda _: work(), range(cores), apart)
        times += cores
    return (_now() - began) / times


def _reference(
    scene: Scene, settings: CellSettings, victims: Sequence[int], threads: int
) -> tuple[float, Reconstruction]:
    seen = scene.observation.take(torch.tensor(victims))
    with with_threads(threads):
        began = _now()
        made = run_reference(reconstructing(settings.build_attack()), seen)
        return _now() - began, made


_PASSES = 5
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
    with pool_for(settings, stage, jobs) as everyone:
        yield from _figures(everyone, stage, settings, iterations, chunk)


def _figures(
    everyone: WorkerPool, stage: Stage, settings: CellSettings, iterations: int, chunk: int
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
    for _ in range(_PASSES):
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
    data = stage.dataset(dataset, model)
    return _JOINT if trained_layers(build_module(model, data.image_shape, data.num_classes, seed=0)) else 1


def _contestants(everyone: WorkerPool, scene: Scene, attack: Attack, chunk: int) -> dict[str, Callable[[], float]]:
    """Return what is timed, by name; each returns the number of victims times iterations that it did."""
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


def _timed(work: Callable[[], float], everyone: WorkerPool) -> tuple[float, float]:
    """Seconds, and seconds of the processor, per victim and iteration."""
    began, spent = _now(), time.process_time() + everyone.seconds
    done = work()
    return (_now() - began) / done, (time.process_time() + everyone.seconds - spent) / done


def _rounded(seconds: float) -> float:
    """Return the seconds rounded to four significant digits."""
    return float(f"{seconds:.4g}")
