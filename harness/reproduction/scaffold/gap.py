"""S002's main finding on its own: DP-SCAFFOLD above DP-FedAvg under heterogeneity, at the same epsilon."""

from harness.frontier.request import Request
from harness.papers.comparison import Comparison
from harness.reproduction.scaffold.accuracy import NOTES, QUICK_ROUNDS, gap, method_rows
from harness.reproduction.scaffold.methods import synthetic
from harness.reproduction.scaffold.runs import S002Runs

METHODS = ("DP-FedAvg", "DP-SCAFFOLD")


def s002_gap(request: Request) -> Comparison:
    """Trains the two methods of the gap, which two cores can at full scale; ``--quick``: one seed, fewer rounds."""
    federated = synthetic(rounds=QUICK_ROUNDS) if request.quick else synthetic()
    runs = S002Runs(request)
    made = {method: runs.of(method, federated) for method in request.dealt(METHODS, "row")}
    request.require_whole()
    scaled = [f"by --quick: T={QUICK_ROUNDS} rounds instead of {synthetic().rounds}"] if request.quick else []
    seeds = "; ".join(
        f"{method} {', '.join(f'{value or 0:.3f}' for value in one.values)}" for method, one in made.items()
    )
    return Comparison(
        f"S002: {METHODS[1]} beside {METHODS[0]} on {federated.title}, K={federated.steps}, T={federated.rounds}",
        [*runs.header(), f"l = s = 0.2, sigma {federated.sigma:g}", *scaled],
        method_rows(federated, made),
        [gap(federated, made, ("DP-",)), f"seed by seed: {seeds}", *NOTES],
    )
