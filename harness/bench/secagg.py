"""What secure aggregation costs each client per round as the number of clients grows, by both graphs."""

import statistics
from typing import Any

import numpy as np

from harness.mechanisms import numbers
from harness.secagg import Aborted, aggregate, failure_probability, open_session, recommended_degree

COLUMNS = (
    "clients", "graph", "neighbours", "dropped", "outcome", "keys ms", "shares ms", "masked ms", "unmasking ms",
    "client ms", "keys kB", "shares kB", "masked kB", "unmasking kB", "client kB", "server s",
)  # fmt: skip


def bench_secagg(
    clients: list[int], length: int, bits: int, dropped: float, most_complete: int
) -> list[dict[str, Any]]:
    """One aggregation per number of clients and graph, every party in this process on one core.

    Args:
        length: words per vector.
        dropped: share of the clients that leave, half of them before masking and half after.
        most_complete: the complete graph is measured up to that many clients; its cost grows with their square.

    Returns:
        A row per aggregation: a client's milliseconds (median) and kilobytes (sent and received, mean) per round, the
        server's seconds, and whether the sum was exact.
    """
    rows = []
    for count in clients:
        degree = recommended_degree(count)
        rows += [_row(count, None, length, bits, dropped)] if count <= most_complete else []
        rows += [_row(count, degree, length, bits, dropped)] if degree else []
    return rows


def _row(clients: int, degree: int | None, length: int, bits: int, dropped: float) -> dict[str, Any]:
    leaving = int(dropped * clients)
    # One half is enough for an honest server, and allows for most dropouts.
    threshold = max(2, (clients if degree is None else degree + 1) // 2 + 1)
    parties = open_session(clients, length, bits, degree, threshold, max(2, clients - leaving))
    order = numbers("bench", clients).permutation(clients)[:leaving].tolist()
    leaves = {client: 2 + turn % 2 for turn, client in enumerate(order)}
    vectors = numbers("vectors", clients).integers(0, 2**bits, (clients, length), parties.session.dtype)
    row: dict[str, Any] = {
        "clients": clients, "graph": "k-regular" if degree else "complete", "neighbours": degree or clients - 1,
        "threshold": threshold, "dropped": leaving,
        "chance to abort": failure_probability(clients, parties.session.degree, threshold, leaving),
    }  # fmt: skip
    try:
        result = aggregate(parties, vectors, leaves)
    except Aborted as abort:
        return row | {"outcome": "aborted", "reason": str(abort)}
    plain = vectors[list(result.survivors)].sum(axis=0, dtype=vectors.dtype) & parties.session.largest
    row["outcome"] = "exact" if np.array_equal(result.total, plain) else "WRONG"
    for cost in result.costs:
        row[f"{cost.name} ms"] = round(1e3 * statistics.median(cost.client_seconds), 2)
        row[f"{cost.name} kB"] = round((statistics.mean(cost.sent) + statistics.mean(cost.received)) / 1e3, 1)
    row["client ms"] = round(sum(row[f"{cost.name} ms"] for cost in result.costs), 1)
    row["client kB"] = round(sum(row[f"{cost.name} kB"] for cost in result.costs), 1)
    row["server s"] = round(sum(cost.server_seconds for cost in result.costs), 2)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, one line each below a line of titles."""
    lines = [COLUMNS, *([str(row.get(name, "")) for name in COLUMNS] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
