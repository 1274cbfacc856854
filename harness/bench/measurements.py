"""Measurements of attacks and of secure aggregation by ``harness bench``.

Of attacks: the batched against the sequential engine on the same victims, by throughput, memory, growth, and the same
outcomes.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from loky import cpu_count
from torch import Tensor

from harness.attacks import Reconstruction, reconstructing
from harness.base.limits import peak_memory
from harness.base.progress import progress
from harness.bench.engines import ONE_CORE, Bench, arithmetic_alone, pool_for, take_turns
from harness.evaluation.measure import measure
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.watching import work_of
from harness.experiment import CellSettings, cell_settings, usual_prior
from harness.parallel.worker_pool import WorkerPool
from harness.secagg import (
    Aborted,
    Aggregation,
    RoundCost,
    aggregate,
    failure_probability,
    numbers,
    open_session,
    recommended_degree,
)

GROWTH = (1, 4, 16, 64, 256, 1024)
MANY, MANY_ITERATIONS = 1000, 5
# Of its seconds the two engines have this share; then come what patience loses, growth and memory, as far as they get.
_ENGINES = 0.6
# Rows whose arithmetic is done together.
_TOGETHER = 32
LEFT_OUT = "left out, for want of --minutes"


def bench_attack(
    dataset: str, attack: str, victims: int, chunk: int, growth: int, seconds: float, device: str, data_root: Path,
    jobs: int | None,
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """Times both engines on undefended victims and compares what they find; gives every figure as soon as it is there.

    The engines take turns, since machines are noisy: the batched one attacks all victims, whose median counts, then the
    reference some of them, one by one. Both have the same cores: all of the machine, which the reference shares by
    threads or by processes, whichever is faster for it, and in a second ratio one core each. The reference gets
    as far as time allows, so its rate is that of its gradient evaluations: both engines do the same for a victim. The
    arithmetic alone is that of :mod:`harness.bench.engines` for as many evaluations, on many rows at once. Rates are
    victims per second, memory is the peak of all processes in MiB.

    Args:
        growth: most victims whose time by their number is taken; 0 for none.
        seconds: after which nothing more is begun; what was left out is said.
        jobs: processes that the batched engine's victims are dealt to; None for as many as ``harness evaluate`` takes.
    """
    settings = cell_settings(
        dataset=dataset, attack=attack, victims=victims, device=device, prior=usual_prior([attack])
    )
    stage = Stage(data_root, chunk)
    with pool_for(settings, stage, jobs) as everyone:
        yield from _figures(everyone, stage, settings, chunk, growth, seconds, data_root)


def _figures(
    everyone: WorkerPool, stage: Stage, settings: CellSettings, chunk: int, growth: int, seconds: float, data_root: Path
) -> Iterator[tuple[str, Any]]:
    ends, victims, device = time.monotonic() + seconds, settings.victims, settings.device
    scene = stage.set(settings)
    bench = Bench(everyone.attack, chunk, cpu_count())
    yield from {
        "dataset": settings.dataset, "attack": settings.attack, "device": _device_name(device),
        "processes": everyone.processes, "threads of each": torch.get_num_threads(),
    }.items()  # fmt: skip
    bench.timed(scene, settings, min(2 * everyone.processes, victims))  # warm-up
    turns = take_turns(bench, scene, settings, data_root, time.monotonic() + _ENGINES * seconds)
    spent, evaluations = median(turns.batched), turns.evaluations
    yield "victims", victims
    yield "batched victims/s", round(victims / spent, 3)
    best = min(turns.reference, key=lambda way: turns.reference[way])
    yield "reference victims/s", round(victims / (turns.reference[best] * evaluations), 3)
    yield "reference shares the machine by", best
    yield "victims of the reference", len(turns.made)
    yield "ratio, whole machine", round(turns.reference[best] * evaluations / spent, 2)
    yield "ratio, per core", round(turns.reference[ONE_CORE] * evaluations / median(turns.on_one_core), 2)
    alone = evaluations * arithmetic_alone(scene, min(_TOGETHER, victims), bench.cores)
    yield "arithmetic's share of batched", round(alone / spent, 3)
    yield "peak memory MiB (both engines)", _peak_memory(device, everyone)
    yield "ASR strict batched", _strict(scene, turns.last.images)
    yield "ASR strict batched, reference's", _strict(scene, turns.last.images[: len(turns.made)])
    yield "ASR strict reference", _strict(scene, turns.made)
    most = reconstructing(settings.build_attack()).max_iterations
    hopeless = len(_given_up(turns.last)) * most
    worst = spent / max(int(turns.last.iterations.sum()), 1)
    fits = time.monotonic() + hopeless * worst < ends
    yield "successes lost to patience", _lost_to_patience(bench, scene, settings, turns.last) if fits else LEFT_OUT
    if growth:
        yield from _growth(bench, stage, settings, growth, ends)
        yield from _many(bench, everyone, stage, settings, spent / evaluations, ends)


def _growth(
    bench: Bench, stage: Stage, settings: CellSettings, most: int, ends: float
) -> Iterator[tuple[str, float | str]]:
    """Wall-clock seconds for more and more victims, as many as there are."""
    counts = [count for count in GROWTH if count <= min(most, _there(stage, settings))]
    scene = stage.set(settings.model_copy(update={"victims": max(counts)}))
    seconds, before = 0.0, 1
    for count in counts:
        # Never faster than in proportion.
        if time.monotonic() + seconds * count / before >= ends:
            yield f"seconds for {count} victims", LEFT_OUT
            continue
        seconds, before = bench.timed(scene, settings, count)[0], count
        yield f"seconds for {count} victims", round(seconds, 2)


def _many(
    bench: Bench, everyone: WorkerPool, stage: Stage, settings: CellSettings, each: float, ends: float
) -> Iterator[tuple[str, int | str]]:
    """Peak memory of an attack on many victims; a few iterations reach it, since the history grows with them only once.

    L-BFGS keeps at most 100 past steps: five outer iterations fill it.
    """
    count = min(MANY, _there(stage, settings))
    few = settings.model_copy(update={"victims": count})
    attack = replace(reconstructing(settings.build_attack()), max_iterations=MANY_ITERATIONS)
    whole = reconstructing(settings.build_attack()).max_iterations
    if time.monotonic() + each * work_of(few) / whole * MANY_ITERATIONS >= ends:
        yield f"peak memory MiB ({count} victims)", LEFT_OUT
        return
    bench.engine(attack, stage.set(few).observation, bench.chunk, None)
    yield f"peak memory MiB ({count} victims)", _peak_memory(settings.device, everyone)


def _there(stage: Stage, settings: CellSettings) -> int:
    """Return how many victims there can be. Public examples are no victims."""
    return len(stage.split(settings).private.labels)


def _lost_to_patience(bench: Bench, scene: Scene, settings: CellSettings, patient: Reconstruction) -> int:
    """Victims given up as hopeless that the full number of iterations would have reconstructed."""
    attack, given_up = reconstructing(settings.build_attack()), _given_up(patient)
    if not attack.patience or len(given_up) == 0:
        return 0
    stubborn = replace(attack, patience=attack.max_iterations)
    made = bench.engine(stubborn, scene.observation.take(given_up), bench.chunk, None)
    return int(_successes(scene, scene.truth.images[given_up], made.images).sum())


def _given_up(patient: Reconstruction) -> Tensor:
    return (patient.stop_reason == 3).nonzero()[:, 0]


def _strict(scene: Scene, images: Tensor) -> str:
    successes = _successes(scene, scene.truth.images[: len(images)], images)
    return f"{successes.sum()}/{successes.size}"


def _successes(scene: Scene, truth: Tensor, images: Tensor) -> np.ndarray:
    measured = measure(scene.dataset, truth.flatten(0, 1), images.flatten(0, 1), "not asked for")
    return measured.success["strict"]


def _peak_memory(device: str, everyone: WorkerPool) -> int:
    if device != "cpu":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    return round((peak_memory() + sum(everyone.peaks.values())) / 2**20)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device != "cpu" else "cpu"


# --------------------------------------------------------------------------------------
# What secure aggregation costs each client per round as the number of clients grows, by graph and adversary.


_ROUNDS = ("keys", "shares", "receipts", "masked", "consent", "unmasking")
COLUMNS = (
    "clients", "graph", "neighbours", "dropped", "outcome", *(f"{name} ms" for name in _ROUNDS), "client ms",
    "ms unchecked", *(f"{name} kB" for name in _ROUNDS), "client kB", "kB unchecked", "server s",
)  # fmt: skip


def bench_secagg(
    clients: list[int], length: int, bits: int, dropped: float, most_complete: int
) -> list[dict[str, Any]]:
    """Two aggregations per number of clients and graph, every party in this process on one core.

    Args:
        length: words per vector.
        dropped: share of the clients that leave, half of them before masking and half after.
        most_complete: the complete graph is measured up to that many clients; its cost grows with their square.

    Returns:
        A row per number of clients and graph: a client's milliseconds (median) and kilobytes (sent and received, mean)
        per round, beside their sums without the check that the server tells all clients the same (``unchecked``), the
        server's seconds, and whether both sums were exact.
    """
    sizes: list[tuple[int, int | None]] = [(count, None) for count in clients if count <= most_complete]
    sizes += [(count, degree) for count in clients if (degree := recommended_degree(count))]
    sizes.sort(key=lambda size: clients.index(size[0]))
    rows = []
    with progress("secure aggregations", sum(_work(*size) for size in sizes)) as bar:
        for count, degree in sizes:
            rows.append(_row(count, degree, length, bits, dropped))
            bar.advance(_work(count, degree), f"{count} clients done")
    return rows


def _work(clients: int, degree: int | None) -> int:
    """Pairs of clients that share keys."""
    return clients * (degree or clients - 1)


def _row(clients: int, degree: int | None, length: int, bits: int, dropped: float) -> dict[str, Any]:
    leaving = int(dropped * clients)
    # One half is enough for an honest server, and allows for most dropouts.
    threshold = max(2, (clients if degree is None else degree + 1) // 2 + 1)
    order = numbers("bench", clients).permutation(clients)[:leaving].tolist()
    leaves = {client: 2 + turn % 2 for turn, client in enumerate(order)}
    vectors = numbers("vectors", clients).integers(
        0, 2**bits, (clients, length), np.uint32 if bits <= 32 else np.uint64
    )
    row: dict[str, Any] = {
        "clients": clients, "graph": "k-regular" if degree else "complete", "neighbours": degree or clients - 1,
        "threshold": threshold, "dropped": leaving,
        "chance to abort": failure_probability(clients, degree, threshold, leaving),
    }  # fmt: skip
    results = []
    for consistency in (False, True):
        parties = open_session(
            clients, length, bits, degree, threshold, max(2, clients - leaving), consistency=consistency
        )
        try:
            results.append(aggregate(parties, vectors, leaves))
        except Aborted as abort:
            return row | {"outcome": "aborted", "reason": str(abort)}
    plain, checked = results
    row["outcome"] = "exact" if all(_is_sum(result, vectors, bits) for result in results) else "WRONG"
    for cost in checked.costs:
        row[f"{cost.name} ms"] = round(_milliseconds(cost), 2)
        row[f"{cost.name} kB"] = round(_kilobytes(cost), 1)
    for column, one in (("client ms", checked), ("ms unchecked", plain)):
        row[column] = round(sum(map(_milliseconds, one.costs)), 1)
    for column, one in (("client kB", checked), ("kB unchecked", plain)):
        row[column] = round(sum(map(_kilobytes, one.costs)), 1)
    row["server s"] = round(sum(cost.server_seconds for cost in checked.costs), 2)
    return row


def _is_sum(result: Aggregation, vectors: np.ndarray, bits: int) -> bool:
    plain = vectors[list(result.survivors)].sum(axis=0, dtype=vectors.dtype) & vectors.dtype.type(2**bits - 1)
    return np.array_equal(result.total, plain)


def _milliseconds(cost: RoundCost) -> float:
    return 1e3 * statistics.median(cost.client_seconds)


def _kilobytes(cost: RoundCost) -> float:
    return (statistics.mean(cost.sent) + statistics.mean(cost.received)) / 1e3


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, one line each below a line of titles."""
    lines = [COLUMNS, *([str(row.get(name, "")) for name in COLUMNS] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
