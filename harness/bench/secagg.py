"""What secure aggregation costs each client per round as the number of clients grows, by graph and adversary."""

import statistics
from typing import Any

import numpy as np

from harness.base.progress import progress
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
