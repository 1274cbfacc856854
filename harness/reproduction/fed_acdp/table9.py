"""Table IX: seconds per local iteration of one client, five methods on five datasets."""

from typing import Any

from harness.bench.train import IterationBench, Methods
from harness.frontier.request import Request
from harness.papers.comparison import Comparison
from harness.papers.data import at_hand
from harness.papers.ordering import AGREES, DIFFERS, NOT_AT_HAND
from harness.papers.paper_accuracy import DATA, TABLE_2, TABLE_9

METHODS: Methods = {
    "non-private": ("none", {}), "Fed-SDP": ("fed_sdp", {}), "Fed-CDP": ("fed_cdp", {}), "Fed-αCDP": ("fed_acdp", {}),
    "Fed-αCDP[σ]": ("fed_acdp", {"policy": "linear"}),
}  # fmt: skip
CLIENTS, REPEATS, QUICK_REPEATS = 10, 200, 15
TABLE_REPEATS = 10  # an iteration on tables is a hundred times shorter
TOLERANCE = 1.1


def table9(request: Request) -> Comparison:
    """Table IX: interleaved medians of one local iteration, per client."""
    repeats = QUICK_REPEATS if request.quick else REPEATS
    rows = [row for column, data in enumerate(DATA) for row in _rows(request, data, column, repeats)]
    return Comparison(
        "Table IX: milliseconds per local iteration and client (ours beside the paper's)",
        [
            f"one iteration of {CLIENTS} clients at once, divided by them; medians of {repeats} interleaved repeats, "
            f"{TABLE_REPEATS} times as many on tables ({REPEATS} without --quick); C=4, sigma=6; paper: one client, "
            "other hardware and another library",
            *[at_hand(data, request.data_root)[1] for data in DATA],
        ],
        rows,
        [
            "only ratios within a dataset compare; agrees: our ratio to non-private is at most the paper's and "
            f"{TOLERANCE - 1:.0%}, that is, the defense costs no more here than there",
            "on a busy machine iterations of a millisecond measure the others' work: look at tables on an idle one",
            "Fed-SDP acts once per round, not in a local iteration",
            "harness bench train measures one and a hundred clients beside a plain PyTorch loop",
        ],
    )


def measured(request: Request, data: str, methods: Methods, repeats: int) -> dict[str, float] | None:
    """Seconds per local iteration and client; None where the dataset is not at hand."""
    name = at_hand(data, request.data_root)[0]
    if name is None:
        return None
    bench = IterationBench(name, None, TABLE_2[data].batch_size, request.device, request.data_root)
    repeats *= TABLE_REPEATS if bench.data.columns else 1
    return {method: value / CLIENTS for method, value in bench.medians(methods, CLIENTS, repeats).items()}


def _rows(request: Request, data: str, column: int, repeats: int) -> list[dict[str, Any]]:
    ours, paper = measured(request, data, METHODS, repeats), {name: row[column] for name, row in TABLE_9.items()}
    return [_row(data, method, ours, paper) for method in METHODS]


def _row(data: str, method: str, ours: dict[str, float] | None, paper: dict[str, float]) -> dict[str, Any]:
    printed = paper[method] / paper["non-private"]
    ratio = ours[method] / ours["non-private"] if ours else None
    verdict = NOT_AT_HAND if ratio is None else (AGREES if ratio <= printed * TOLERANCE else DIFFERS)
    return {
        "data": data, "method": method, "ms": f"{1000 * ours[method]:.3f}" if ours else "-",
        "paper ms": f"{1000 * paper[method]:.1f}", "ratio": f"{ratio:.2f}" if ratio else "-",
        "paper ratio": f"{printed:.2f}", "verdict": verdict,
    }  # fmt: skip
