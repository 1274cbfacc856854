"""Table VIII: rounds until a decaying noise scale has spent the fixed one's epsilon, and the accuracy by then."""

from typing import Any

from harness.defenses.schedules import Policy
from harness.frontier.request import Request
from harness.papers.accuracy import NOTES, Accuracies
from harness.papers.comparison import Comparison, number
from harness.papers.ordering import AGREES
from harness.papers.paper_accuracy import DATA, TABLE_8_ACCURACY
from harness.privacy import compose, make_accountant, rounds_within
from harness.reproduction.fed_acdp.accounting import (
    CONVENTION,
    IRREPRODUCIBLE,
    PLD_NOTE,
    decaying_rounds,
    epsilon_of,
    moments_accountant,
)
from harness.reproduction.fed_acdp.accuracy_columns import accuracy_columns, with_accuracy
from harness.reproduction.fed_acdp.paper_accounting import DELTA, ROUNDS, TABLE_8, TARGET_8

# Beside the decaying ones.
FIXED = ("Fed-CDP", "Fed-αCDP")


def table8(request: Request) -> Comparison:
    """Table VIII: accounting columns at the paper's settings, accuracy columns of our own runs."""
    accuracies = Accuracies(request)
    runs = [(_decaying(policy), data) for policy, data in TABLE_8]
    runs += [(fixed, data) for fixed in FIXED for data in DATA]
    for method, data in request.dealt(runs, "run"):
        accuracies.of(method, data)
    request.require_whole()
    accounted = table8_accounting()
    return Comparison(
        "Table VIII: rounds at a target epsilon under decaying noise (ours beside the paper's)",
        [
            CONVENTION,
            "schedules: the per-step epsilons of the released script, sigma 15 to about 4",
            *accuracies.header(*DATA),
        ],
        with_accuracy(accounted, [_columns(accuracies, row) for row in accounted]),
        [
            "accuracy: at the last measurement before this row's rounds (of T) are over, in the same share of our own "
            "rounds; beside it Fed-CDP and Fed-αCDP with fixed noise after all rounds; verdict is of the rounds",
            "rounds: the first after which the target is exceeded (of T where it never is); a privacy filter stops one "
            "earlier, 'filter'",
            "printed σ: epsilon after all T rounds of the printed formulas on sigma, 15 to 4.85, which exceed no "
            "target on the images; the paper's rounds need the script's",
            "cyclic: neither the printed formula (its noise nearly vanishes) nor ours with a floor of 4.85 gives the "
            "paper's rounds; its parameters are not known. LFW and Adult: the script's schedule is for 100 rounds, and "
            "stretching it to 60 or 10 does not give the paper's rounds either",
            PLD_NOTE + ", after the rounds of this row",
            *NOTES,
        ],
    )


def _columns(accuracies: Accuracies, row: dict[str, Any]) -> dict[str, Any]:
    policy, data = row["policy"], row["data"]
    made = accuracies.of(_decaying(policy), data, share=row["filter"] / row["T"])
    return accuracy_columns(made, TABLE_8_ACCURACY[policy, data]) | {
        name: str(accuracies.of(name, data) or "-") for name in FIXED
    }


def _decaying(policy: Policy) -> str:
    return f"Fed-αCDP[σ] {policy}"


def table8_accounting() -> list[dict[str, Any]]:
    """One row per policy and dataset."""
    return [_row(policy, data, paper) for (policy, data), paper in TABLE_8.items()]


def _row(policy: Policy, data: str, paper: int) -> dict[str, Any]:
    rounds, target = decaying_rounds(policy, data), TARGET_8[data]
    stop = rounds_within(moments_accountant(), rounds, target, DELTA)
    spent = compose(rounds[: stop.rounds])
    printed = epsilon_of(moments_accountant(), compose(decaying_rounds(policy, data, "sigma")))
    return {
        "policy": policy, "data": data, "target ε": target, "T": ROUNDS[data],
        "rounds": stop.rounds if stop.exceeded else f">{ROUNDS[data]}", "paper rounds": paper,
        "filter": stop.rounds - stop.exceeded, "ε": number(stop.epsilon),
        "PLD": number(epsilon_of(make_accountant("pld"), spent)), "printed σ": number(printed),
        "verdict": AGREES if stop.exceeded and stop.rounds == paper else IRREPRODUCIBLE,
    }  # fmt: skip
