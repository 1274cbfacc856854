"""Time of drawing noise, next to ``torch.randn`` on one thread.

``python benchmarks/noise_speed.py [SECONDS]`` prints one line per case: numbers in a row, rows that are drawn together,
microseconds of processor time per row of both, and their ratio. Both run in turns for SECONDS per case (1 by default),
and the shortest time of each counts. The last column is one seeded torch generator per row, as version 0.1.7 drew. Run
it on an idle machine: other work slows down many short calls more than one long one.
"""

import sys
import time
from collections.abc import Callable

import torch

from harness.base.randomness import generator, normal_rows

CASES = [(size, rows) for rows in (64, 1) for size in (1_000, 2_000, 4_096, 7_850, 13_000, 100_000)]


def shortest(draws: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Least seconds of each; they run in turns."""
    least, ends = dict.fromkeys(draws, float("inf")), time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for name, draw in draws.items():
            began = time.thread_time()
            draw()
            least[name] = min(least[name], time.thread_time() - began)
    return least


def main(seconds: float) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    random, like = torch.Generator().manual_seed(0), torch.empty(0)
    print(f"{'numbers':>8} {'rows':>5} {'ours, us':>10} {'randn, us':>10} {'ratio':>6} {'0.1.7, us':>10}")
    for size, rows in CASES:
        keys = [("noise", 0, client, 0, 0, "client_step") for client in range(rows)]
        draws: dict[str, Callable[[], object]] = {
            "ours": lambda keys=keys, size=size: normal_rows(keys, (size,), like),
            "randn": lambda rows=rows, size=size: torch.randn(rows, size, generator=random),
            "before": lambda keys=keys, size=size: torch.stack(
                [torch.randn(size, generator=generator(*key)) for key in keys]
            ),
        }
        ours, theirs, before = (1e6 * one / rows for one in shortest(draws, seconds).values())
        print(f"{size:8} {rows:5} {ours:10.1f} {theirs:10.1f} {ours / theirs:6.2f} {before:10.1f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
