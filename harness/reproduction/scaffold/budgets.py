"""S002's trade-offs under a fixed budget: local steps against rounds and noise, and the two sampling rates."""

from dataclasses import replace
from typing import Any

from harness.frontier.request import Request
from harness.papers.comparison import Comparison
from harness.papers.grid import grid
from harness.papers.ordering import AGREES, DIFFERS
from harness.reproduction.scaffold.methods import Federated, synthetic
from harness.reproduction.scaffold.runs import S002Runs, affordable

METHOD, BASELINE = "DP-SCAFFOLD", "DP-FedAvg"
DATA = ("logistic-5-5", "logistic-0-0")
TARGET = 3.0
TRADE_OFF = grid("dp-scaffold-tradeoff")
STEPS, USER_RATE = TRADE_OFF.facts["steps"], TRADE_OFF.facts["user_rate"]
SIGMAS = tuple(row["sigma"] for row in TRADE_OFF.printed() if row["target"] == TARGET)
QUICK_SIGMAS = SIGMAS[::2]

SAMPLING_TARGET = 5.0
USER_RATES, DATA_RATES, RATE_BESIDE = (0.05, 0.08, 0.1, 0.12), (0.05, 0.1, 0.2), 0.1
MOST_ROUNDS = 10_000
QUICK_ROUNDS = 100

_BUDGET = "T: the most rounds within the budget, by the paper's accounting (a claim towards a third party, no bound)"


def s002_tradeoff_accuracy(request: Request) -> Comparison:
    """Tables 1 and 4: accuracy after the rounds that a budget of epsilon 3 allows."""
    runs = S002Runs(request)
    data, sigmas = (DATA[:1], QUICK_SIGMAS) if request.quick else (DATA, SIGMAS)
    places = [(name, sigma) for name in data for sigma in sigmas]
    rows = [_trade_off(runs, *place) for place in request.dealt(places, "row")]
    request.require_whole()
    scaled = [f"left out by --quick: {DATA[1]}, every other sigma"] if request.quick else []
    return Comparison(
        f"S002, Tables 1 and 4: accuracy of {METHOD} within epsilon {TARGET:g} (rounds: accuracy)",
        [*runs.header(), f"{_BUDGET}; l = {USER_RATE:g}, s = 0.2", *scaled],
        rows,
        [
            "agrees: the best K is neither the smallest nor the largest. The paper's accuracies did not survive in our "
            "copy; this is what it says of them: too many local steps leave too few rounds, too few do not converge",
        ],
    )


def _trade_off(runs: S002Runs, data: str, sigma: float) -> dict[str, Any]:
    plain = synthetic(dataset=data, sigma=sigma, user_rate=USER_RATE)
    cells, found = {}, {}
    for steps in STEPS:
        here = replace(plain, steps=steps)
        here = replace(here, rounds=affordable(here, TARGET))
        made = runs.of(METHOD, here)
        cells[f"K={steps}"], found[steps] = f"{here.rounds}: {made}", made.mean
    best = max(found, key=found.__getitem__)
    inside = best not in (STEPS[0], STEPS[-1])
    return {"data": data, "σ": sigma, **cells, "best K": best, "verdict": AGREES if inside else DIFFERS}


def s002_sampling(request: Request) -> Comparison:
    """Figures 9 and 10: accuracy at a fixed budget by the share of users, and of records, that a step samples."""
    runs, most = S002Runs(request), QUICK_ROUNDS if request.quick else MOST_ROUNDS
    users = [_rates(runs, "l", synthetic(user_rate=rate), rate, most) for rate in request.dealt(USER_RATES, "row")]
    records = [
        _rates(runs, "s", synthetic(user_rate=RATE_BESIDE, data_rate=rate), rate, most)
        for rate in request.dealt(DATA_RATES, "other row")
    ]
    request.require_whole()
    scaled = [f"by --quick: at most {QUICK_ROUNDS} rounds, so that small rates spend less"] if request.quick else []
    return Comparison(
        f"S002, Figures 9 and 10: accuracy within epsilon {SAMPLING_TARGET:g} by sampling rate",
        [
            *runs.header(),
            f"{_BUDGET}; logistic-5-5, K=50, sigma {synthetic().sigma:g}; s = 0.2 where l varies, l = {RATE_BESIDE:g} "
            f"where s varies; the paper's own budget and rates did not survive in our copy",
            *scaled,
        ],
        [row for row, _ in users + records],
        [
            _best("l", users, min(USER_RATES), "smallest"),
            _best("s", records, max(DATA_RATES), "largest"),
            f"agrees: {METHOD} stands above {BASELINE}",
        ],
    )  # fmt: skip


def _rates(
    runs: S002Runs, name: str, federated: Federated, rate: float, most: int
) -> tuple[dict[str, Any], tuple[float, float]]:
    here = replace(federated, rounds=min(affordable(federated, SAMPLING_TARGET), most))
    private, baseline = runs.of(METHOD, here), runs.of(BASELINE, here)
    row = {
        "varied": name, "rate": rate, "T": here.rounds, METHOD: str(private), BASELINE: str(baseline),
        "gap, points": f"{100 * (private.mean - baseline.mean):+.1f}",
        "verdict": AGREES if private.mean > baseline.mean else DIFFERS,
    }  # fmt: skip
    return row, (rate, private.mean)


def _best(name: str, found: list[tuple[dict[str, Any], tuple[float, float]]], expected: float, word: str) -> str:
    rate, _ = max((point for _, point in found), key=lambda point: point[1])
    same = "as the paper finds" if rate == expected else f"where the paper finds the {word}"
    return f"{METHOD} is best with {name} = {rate:g}, {same}"
