"""DP-SCAFFOLD's figures and trade-offs as tables: accuracy by algorithm and heterogeneity, and under a fixed budget."""

from dataclasses import replace
from typing import Any

from harness.papers.dp_scaffold import (
    FAMILIES,
    METHODS,
    SIMILARITIES,
    SYNTHETIC,
    Federated,
    ScaffoldRuns,
    accounted,
    affordable,
    synthetic,
)
from harness.papers.grid import Comparison, at_hand, grid, number
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, SeededRuns, orders
from harness.privacy.scaffold import scaffold_epsilon
from harness.study.runner import Request
from harness.training.chance import CHANCE_NOTE

QUICK_DATA = (SYNTHETIC[0], SYNTHETIC[-1])
# The other families' data.
IMAGES = {"FEMNIST": "emnist", "MNIST": "mnist"}
STEPS = (5, 10, 50, 100)
HEADLINE_STEPS = 50
QUICK_ROUNDS = 100
NOTES = [
    "agrees: SCAFFOLD, cold and warm, stands above FedAvg and FedSGD of the same privacy, and they below it. "
    "The paper prints curves and this order, no numbers",
    "ε: towards a third party as the paper has it (a claim, see dp-scaffold-accounting), what is proven for it, and "
    "what is proven towards the server; rounds that warm up are among the T rounds",
]
# Shown at every number of local steps.
DRIFTING = ("FedAvg", "SCAFFOLD", "DP-FedAvg", "DP-SCAFFOLD")


def scaffold_accuracy(request: Request) -> Comparison:
    """Trains every algorithm at K = 50, and the two that differ most at other K on the most heterogeneous data."""
    runs, rows, gaps, missing = ScaffoldRuns(request), [], [], [] if request.quick else _missing(request)
    groups = _groups(request)
    pairs = [(method, federated) for federated, methods in groups for method in methods]
    found = {pair: runs.of(*pair) for pair in request.dealt(pairs, "row")}
    request.require_whole()
    for federated, methods in groups:
        made = {method: found[method, federated] for method in methods}
        rows += method_rows(federated, made)
        gaps.append(gap(federated, made))
    scale = f"by --quick: T={QUICK_ROUNDS} rounds instead of {synthetic().rounds}; left out: logistic-1-1, other K, "
    scaled = (
        [scale + "FEMNIST, MNIST"]
        if request.quick
        else [at_hand(data, request.data_root)[1] for data in IMAGES.values()]
    )
    sigmas = ", ".join(f"{one.sigma:g} ({name})" for name, one in FAMILIES.items())
    return Comparison(
        "DP-SCAFFOLD, Figures 1 to 3: accuracy by algorithm, heterogeneity and local steps",
        [*runs.header(), f"l = s = 0.2, sigma {sigmas}", *scaled],
        rows + missing,
        [
            *gaps,
            *NOTES,
            "FedSGD takes one local step (the text), FedSGD one pass 1/s of them (the released code)",
            CHANCE_NOTE,
        ],
    )


def _groups(request: Request) -> list[tuple[Federated, list[str]]]:
    if request.quick:
        return [(synthetic(dataset=data, rounds=QUICK_ROUNDS), list(METHODS)) for data in QUICK_DATA]
    everything = [synthetic(dataset=data) for data in SYNTHETIC]
    for family, data in _images(request).items():
        everything += [replace(FAMILIES[family], dataset=data, level=level) for level in SIMILARITIES if data]
    other = [synthetic(steps=steps) for steps in STEPS if steps != HEADLINE_STEPS]
    return [(one, list(METHODS)) for one in everything] + [(one, list(DRIFTING)) for one in other]


def _images(request: Request) -> dict[str, str | None]:
    """Data by family; a bundled sample is too small for so many users."""
    found = {family: at_hand(data, request.data_root)[0] for family, data in IMAGES.items()}
    return {family: None if data is None or data.endswith("-sample") else data for family, data in found.items()}


def _missing(request: Request) -> list[dict[str, Any]]:
    empty = dict.fromkeys(("paper's ε", "proven ε", "proven, server"), "-")
    return [
        {"data": family, "method": "all", "K": HEADLINE_STEPS, "T": FAMILIES[family].rounds, "accuracy": "-"}
        | empty
        | {"verdict": NOT_AT_HAND}
        for family, data in _images(request).items()
        if data is None
    ]


def method_rows(federated: Federated, made: dict[str, SeededRuns]) -> list[dict[str, Any]]:
    """A row for each method of a federation, with what it costs and its place in the order."""
    verdicts: dict[str, str] = {}
    for private in (False, True):
        group = {
            method: one.measured(federated.rounds) for method, one in made.items() if METHODS[method][2] == private
        }
        verdicts |= orders({method: float("SCAFFOLD" in method) for method in group}, group)
    return [
        {
            "data": federated.title, "method": method, "K": federated.under(method).steps, "T": federated.rounds,
            "accuracy": str(one), **_epsilons(method, federated), "verdict": verdicts[method],
        }
        for method, one in made.items()
    ]  # fmt: skip


def _epsilons(method: str, federated: Federated) -> dict[str, str]:
    run = accounted(method, federated)
    if run is None:
        return {"paper's ε": "-", "proven ε": "-", "proven, server": "-"}
    return {
        "paper's ε": number(scaffold_epsilon(run, "third party", "paper"), 2),
        "proven ε": number(scaffold_epsilon(run, "third party", "proven")),
        "proven, server": number(scaffold_epsilon(run, "server", "proven")),
    }


def gap(federated: Federated, made: dict[str, SeededRuns], prefixes: tuple[str, ...] = ("", "DP-")) -> str:
    """By how many points SCAFFOLD stands from FedAvg, without and with privacy, as one line."""

    def points(prefix: str) -> str:
        return f"{100 * (made[f'{prefix}SCAFFOLD'].mean - made[f'{prefix}FedAvg'].mean):+.1f}"

    stands = ", ".join(f"{prefix}SCAFFOLD stands {points(prefix)} from {prefix}FedAvg" for prefix in prefixes)
    return f"{federated.title}, K={federated.steps}, accuracy points: {stands}"


_OF_THE_GAP = ("DP-FedAvg", "DP-SCAFFOLD")


def scaffold_gap(request: Request) -> Comparison:
    """Trains the two methods of the gap, which two cores can at full scale; ``--quick``: one seed, fewer rounds."""
    federated = synthetic(rounds=QUICK_ROUNDS) if request.quick else synthetic()
    runs = ScaffoldRuns(request)
    made = {method: runs.of(method, federated) for method in request.dealt(_OF_THE_GAP, "row")}
    request.require_whole()
    scaled = [f"by --quick: T={QUICK_ROUNDS} rounds instead of {synthetic().rounds}"] if request.quick else []
    seeds = "; ".join(
        f"{method} {', '.join(f'{value or 0:.3f}' for value in one.values)}" for method, one in made.items()
    )
    return Comparison(
        f"{_OF_THE_GAP[1]} beside {_OF_THE_GAP[0]} on {federated.title}, K={federated.steps}, T={federated.rounds}",
        [*runs.header(), f"l = s = 0.2, sigma {federated.sigma:g}", *scaled],
        method_rows(federated, made),
        [gap(federated, made, ("DP-",)), f"seed by seed: {seeds}", *NOTES],
    )


METHOD, BASELINE = "DP-SCAFFOLD", "DP-FedAvg"
DATA = ("logistic-5-5", "logistic-0-0")
TARGET = 3.0
TRADE_OFF = grid("dp-scaffold-tradeoff")
TRADE_OFF_STEPS, USER_RATE = TRADE_OFF.facts["steps"], TRADE_OFF.facts["user_rate"]
SIGMAS = tuple(row["sigma"] for row in TRADE_OFF.printed() if row["target"] == TARGET)
QUICK_SIGMAS = SIGMAS[::2]

SAMPLING_TARGET = 5.0
USER_RATES, DATA_RATES, RATE_BESIDE = (0.05, 0.08, 0.1, 0.12), (0.05, 0.1, 0.2), 0.1
MOST_ROUNDS = 10_000

_BUDGET = "T: the most rounds within the budget, by the paper's accounting (a claim towards a third party, no bound)"


def scaffold_tradeoff_accuracy(request: Request) -> Comparison:
    """Tables 1 and 4: accuracy after the rounds that a budget of epsilon 3 allows."""
    runs = ScaffoldRuns(request)
    data, sigmas = (DATA[:1], QUICK_SIGMAS) if request.quick else (DATA, SIGMAS)
    places = [(name, sigma) for name in data for sigma in sigmas]
    rows = [_trade_off(runs, *place) for place in request.dealt(places, "row")]
    request.require_whole()
    scaled = [f"left out by --quick: {DATA[1]}, every other sigma"] if request.quick else []
    return Comparison(
        f"DP-SCAFFOLD, Tables 1 and 4: accuracy of {METHOD} within epsilon {TARGET:g} (rounds: accuracy)",
        [*runs.header(), f"{_BUDGET}; l = {USER_RATE:g}, s = 0.2", *scaled],
        rows,
        [
            "agrees: the best K is neither the smallest nor the largest. The paper's accuracies did not survive in our "
            "copy; this is what it says of them: too many local steps leave too few rounds, too few do not converge",
        ],
    )


def _trade_off(runs: ScaffoldRuns, data: str, sigma: float) -> dict[str, Any]:
    plain = synthetic(dataset=data, sigma=sigma, user_rate=USER_RATE)
    cells, found = {}, {}
    for steps in TRADE_OFF_STEPS:
        here = replace(plain, steps=steps)
        here = replace(here, rounds=affordable(here, TARGET))
        made = runs.of(METHOD, here)
        cells[f"K={steps}"], found[steps] = f"{here.rounds}: {made}", made.mean
    best = max(found, key=found.__getitem__)
    inside = best not in (TRADE_OFF_STEPS[0], TRADE_OFF_STEPS[-1])
    return {"data": data, "σ": sigma, **cells, "best K": best, "verdict": AGREES if inside else DIFFERS}


def scaffold_sampling(request: Request) -> Comparison:
    """Figures 9 and 10: accuracy at a fixed budget by the share of users, and of records, that a step samples."""
    runs, most = ScaffoldRuns(request), QUICK_ROUNDS if request.quick else MOST_ROUNDS
    users = [_rates(runs, "l", synthetic(user_rate=rate), rate, most) for rate in request.dealt(USER_RATES, "row")]
    records = [
        _rates(runs, "s", synthetic(user_rate=RATE_BESIDE, data_rate=rate), rate, most)
        for rate in request.dealt(DATA_RATES, "other row")
    ]
    request.require_whole()
    scaled = [f"by --quick: at most {QUICK_ROUNDS} rounds, so that small rates spend less"] if request.quick else []
    return Comparison(
        f"DP-SCAFFOLD, Figures 9 and 10: accuracy within epsilon {SAMPLING_TARGET:g} by sampling rate",
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
    runs: ScaffoldRuns, name: str, federated: Federated, rate: float, most: int
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
