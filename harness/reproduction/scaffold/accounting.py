"""S002's accounting: DP-SCAFFOLD's epsilons, and how many rounds a target allows."""

from dataclasses import replace
from typing import Any

from harness.privacy import steps_within
from harness.privacy.systems import Scaffold, scaffold_accountant, scaffold_epsilon, scaffold_event
from harness.privacy.systems.scaffold import Mode, Viewer
from harness.reproduction.comparison import Comparison, Request, number
from harness.reproduction.ordering import AGREES, DIFFERS
from harness.reproduction.scaffold.paper import (
    S002_CAPTIONS,
    S002_CELLS,
    S002_DATA,
    TRADE_OFF,
    TRADE_OFF_STEPS,
    TRADE_OFF_USER_RATE,
)

_CONVENTION = (
    "paper mode: sampling without replacement of records and of users, replace-one, orders 2 to 128, Mironov "
    "conversion, delta = 1/(users * records)"
)
_COLUMNS: tuple[tuple[Viewer, int], ...] = (("third party", 100), ("third party", 400), ("server", 400))
_WHAT_HOLDS = (
    "tight: Poisson sampling of records, add/remove, users' sampling by joint convexity, improved conversion",
    "proven: tight, but only a user's own noise counts, since its steps depend on its own model and control variate, "
    "which no other user's noise hides",
    "the paper's value is no bound towards a third party: the theorem on samples of units is applied to users, though "
    "leaving a user out is no neighbour of changing one of its records",
)


def s002_accounting(request: Request) -> Comparison:
    """Epsilon towards a third party (T = 100, 400) and towards the server (T = 400)."""
    cells: list[tuple[str, Viewer, int, int, float]] = [
        (data, viewer, steps, rounds, value)
        for (data, steps), values in S002_CELLS.items()
        for (viewer, rounds), value in zip(_COLUMNS, values, strict=True)
    ]
    return Comparison(
        "S002: epsilon of DP-SCAFFOLD and DP-FedAvg (ours beside the reference)",
        [_CONVENTION, "user rate l = 0.2, data rate s = 0.2"],
        [_cell(*cell) for cell in cells],
        [
            "agrees: within 0.01 of the reference, recomputed independently by the released script's method; "
            "of the paper's own numbers only three captions are known, column 'caption'",
            *_WHAT_HOLDS,
        ],
        against="the reference",
    )


def _cell(data: str, viewer: Viewer, steps: int, rounds: int, reference: float) -> dict[str, Any]:
    users, records, sigma = S002_DATA[data]
    run = Scaffold(sigma, users, records, steps, rounds)
    ours = scaffold_epsilon(run, viewer, "paper")
    caption = S002_CAPTIONS.get((data, steps, rounds)) if viewer == "third party" else None
    return {
        "data": data, "view": viewer, "K": steps, "T": rounds, "σ": sigma, "ε": number(ours, 2),
        "reference": number(reference, 2), "caption": "-" if caption is None else caption,
        "tight": number(scaffold_epsilon(run, viewer, "tight")),
        "proven": number(scaffold_epsilon(run, viewer, "proven")),
        "verdict": AGREES if abs(ours - reference) < 0.01 else DIFFERS,
    }  # fmt: skip


def s002_tradeoff(request: Request) -> Comparison:
    """Table 1's second number in each cell: the most rounds that keep to a target epsilon."""
    return Comparison(
        "S002, Table 1: most rounds T at a target epsilon (ours / reference)",
        [_CONVENTION, f"synthetic data, user rate l = {TRADE_OFF_USER_RATE:g}, data rate s = 0.2"],
        [_row(target, sigma) for target, sigma in TRADE_OFF],
        [
            "agrees: every cell is the reference's. The paper's rates and rounds did not survive in our copy: the "
            "reference is recomputed independently, and l = 0.05 the only rate with such numbers of rounds",
            "the paper's bound does not vanish with the noise, so more of it soon stops helping: 80 and 160 differ by "
            "a round at most",
            *_WHAT_HOLDS,
        ],
        against="the reference",
    )


def _row(target: float, sigma: float) -> dict[str, Any]:
    reference = TRADE_OFF[target, sigma]
    ours = [most_rounds(target, sigma, steps) for steps in TRADE_OFF_STEPS]
    return {
        "target ε": target, "σ": sigma,
        **{
            f"K={steps}": f"{one} / {other}"
            for steps, one, other in zip(TRADE_OFF_STEPS, ours, reference, strict=True)
        },
        "proven, K=40": most_rounds(target, sigma, 40, "proven"),
        "verdict": AGREES if tuple(ours) == reference else DIFFERS,
    }  # fmt: skip


def most_rounds(target: float, sigma: float, steps: int, mode: Mode = "paper") -> int:
    """The last round at which a third party's epsilon is within the target."""
    users, records, _ = S002_DATA["synthetic"]
    run = Scaffold(sigma, users, records, steps, 1, TRADE_OFF_USER_RATE)
    return steps_within(
        scaffold_accountant(mode),
        lambda rounds: scaffold_event(replace(run, rounds=rounds), "third party", mode),
        target,
        run.delta,
        "filter",
    ).rounds
