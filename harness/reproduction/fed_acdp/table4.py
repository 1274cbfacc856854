"""Table IV: accuracy on MNIST by number of clients and share of them per round."""

from typing import Any

from harness.reproduction.comparison import Comparison, Request
from harness.reproduction.fed_acdp.accuracy import CODE_SIGMA, NOTES, Accuracies, Measured
from harness.reproduction.fed_acdp.paper_accuracy import SHARES_4, TABLE_4
from harness.reproduction.ordering import below_non_private, orders

METHODS = ("non-private", "Fed-SDP", "Fed-CDP", "Fed-αCDP")
SIZES = (100, 1000, 10000)
QUICK_SIZES, QUICK_SHARES = (100,), (0.05, 0.1)


def table4(request: Request) -> Comparison:
    """Table IV; ``--quick`` runs its columns N=100 with 5 and 10 clients per round."""
    accuracies = Accuracies(request)
    sizes, shares = (QUICK_SIZES, QUICK_SHARES) if request.quick else (SIZES, SHARES_4)
    columns = [
        (clients, share, sigma)
        for clients in sizes
        for share in shares
        for sigma in ((6.0, CODE_SIGMA) if clients == 100 else (6.0,))
    ]
    groups = [_group(accuracies, *column) for column in request.dealt(columns, "column")]
    request.require_whole()
    left_out = ["left out by --quick: N=1000 and N=10000, and 20% and 50% of the clients"] if request.quick else []
    return Comparison(
        "Table IV: accuracy on MNIST by clients N and clients per round K (ours beside the paper's)",
        [*accuracies.header("mnist"), "N and K of this table are those of its rows", *left_out],
        [row for group, _ in groups for row in group],
        [*[line for _, line in groups], *NOTES],
    )


def _group(accuracies: Accuracies, clients: int, share: float, sigma: float) -> tuple[list[dict[str, Any]], str]:
    """One column of the paper's table at one sigma: its rows, and whether the non-private one is above the others."""
    per_round = round(clients * share)
    paper = {method: TABLE_4[method, clients][SHARES_4.index(share)] for method in METHODS}
    ours: dict[str, Measured | None] = {
        method: accuracies.of(
            method, "mnist", clients=clients, clients_per_round=per_round,
            defense_args={} if method == "non-private" else {"sigma": sigma},
        )
        for method in METHODS
    }  # fmt: skip
    verdicts = orders(paper, ours)
    rows = [
        {"N": clients, "K": per_round, "σ": "-" if method == "non-private" else sigma, "method": method,
         "accuracy": str(ours[method] or "-"), "paper": f"{paper[method]:.3f}", "verdict": verdicts[method]}
        for method in METHODS
    ]  # fmt: skip
    return rows, below_non_private(f"N={clients}, K={per_round}, σ={sigma:g}", ours)
