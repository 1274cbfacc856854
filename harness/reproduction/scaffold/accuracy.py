"""S002, Figures 1 and 3 as a table: accuracy of every algorithm by heterogeneity and local steps."""

from dataclasses import replace
from typing import Any

from harness.frontier.request import Request
from harness.papers.chance import CHANCE_NOTE
from harness.papers.comparison import Comparison, number
from harness.papers.data import at_hand
from harness.papers.measured import SeededRuns
from harness.papers.ordering import NOT_AT_HAND, orders
from harness.privacy.systems import scaffold_epsilon
from harness.reproduction.scaffold.methods import FAMILIES, METHODS, SIMILARITIES, SYNTHETIC, Federated, synthetic
from harness.reproduction.scaffold.runs import S002Runs, accounted

QUICK_DATA = (SYNTHETIC[0], SYNTHETIC[-1])
# The other families' data.
IMAGES = {"FEMNIST": "emnist", "MNIST": "mnist"}
STEPS = (5, 10, 50, 100)
HEADLINE_STEPS = 50
QUICK_ROUNDS = 100
NOTES = [
    "agrees: SCAFFOLD, cold and warm, stands above FedAvg and FedSGD of the same privacy, and they below it. "
    "The paper prints curves and this order, no numbers",
    "ε: towards a third party as the paper has it (a claim, see s002-accounting), what is proven for it, and "
    "what is proven towards the server; rounds that warm up are among the T rounds",
]
# Shown at every number of local steps.
DRIFTING = ("FedAvg", "SCAFFOLD", "DP-FedAvg", "DP-SCAFFOLD")


def s002_accuracy(request: Request) -> Comparison:
    """Trains every algorithm at K = 50, and the two that differ most at other K on the most heterogeneous data."""
    runs, rows, gaps, missing = S002Runs(request), [], [], [] if request.quick else _missing(request)
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
        "S002, Figures 1 to 3: accuracy by algorithm, heterogeneity and local steps",
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
