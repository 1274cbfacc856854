"""Table V: accuracy by clipping bound, on five datasets."""

from typing import Any

from harness.reproduction.comparison import Comparison, Request
from harness.reproduction.fed_acdp.accuracy import NOTES, Accuracies
from harness.reproduction.fed_acdp.paper_accuracy import BOUNDS_5, DATA, NON_PRIVATE, TABLE_5
from harness.reproduction.ordering import orders

METHODS = ("non-private", "Fed-SDP", "Fed-CDP", "Fed-αCDP")
QUICK_BOUNDS = (0.5, 4.0, 32.0)


def table5(request: Request) -> Comparison:
    """Table V; ``--quick`` runs three of its eight bounds."""
    accuracies, bounds = Accuracies(request), QUICK_BOUNDS if request.quick else BOUNDS_5
    places = [(data, bound) for data in DATA for bound in bounds]
    rows = [row for place in request.dealt(places, "group") for row in _group(accuracies, *place)]
    request.require_whole()
    left_out = [f"left out by --quick: all bounds but {', '.join(f'{bound:g}' for bound in bounds)}"]
    return Comparison(
        "Table V: accuracy by clipping bound C at sigma=6 (ours beside the paper's)",
        [*accuracies.header(*DATA), *(left_out if request.quick else [])],
        rows,
        [
            "the noise grows with C for Fed-SDP and Fed-CDP; Fed-αCDP's follows the observed norms and so does not",
            *NOTES,
        ],
    )


def _group(accuracies: Accuracies, data: str, bound: float) -> list[dict[str, Any]]:
    column = BOUNDS_5.index(bound)
    paper = {
        method: NON_PRIVATE[data] if method == "non-private" else TABLE_5[method, data][column] for method in METHODS
    }
    ours = {
        method: accuracies.of(method, data, defense_args={} if method == "non-private" else {"clip": bound})
        for method in METHODS
    }
    verdicts = orders(paper, ours)
    return [
        {"data": data, "C": bound, "method": method, "accuracy": str(ours[method] or "-"),
         "paper": f"{paper[method]:.3f}", "verdict": verdicts[method]}
        for method in METHODS
    ]  # fmt: skip
