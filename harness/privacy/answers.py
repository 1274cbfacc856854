"""One question put to several accountants: a row each, with its convention, or with the reason why it has no answer."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.base.errors import UsageError
from harness.privacy.accountant import ACCOUNTANTS, Accountant, choice, make_accountant
from harness.privacy.budget import StopRule, rounds_within, sigma_for, steps_within
from harness.privacy.events import Event, compose
from harness.privacy.rdp import CONVERSIONS, Renyi

Row = dict[str, Any]

# Times the tighter bound from which a looser one is called so.
_LOOSE = 2.0

# From the largest epsilon to the smallest, as a table is read.
ORDER = ("base", "advanced", "zcdp", "rdp", "pld")


def chosen_accountants(
    names: Sequence[str],
    conversion: str | None = None,
    orders: str | None = None,
    formula: str | None = None,
    e0: str | None = None,
    exact: bool = False,
) -> list[Accountant]:
    """The named accountants, or all; ``rdp`` once per conversion unless one is asked for.

    The Mironov conversion takes the paper's orders and the improved one dense orders, unless ``orders`` says so.

    Raises:
        UsageError: unknown names or values.
    """
    if not names:
        raise UsageError(f"no accountant named; choose {', '.join(ORDER)}, or all")
    rules = (choice(conversion, CONVERSIONS, "conversion"),) if conversion else CONVERSIONS
    known = [*ORDER, *(name for name in ACCOUNTANTS if name not in ORDER)]
    wanted = known if "all" in names else [ACCOUNTANTS.resolve(name) for name in names]
    made: list[Accountant] = []
    for name in dict.fromkeys(wanted):
        if name != "rdp":
            made.append(make_accountant(name, formula=formula, e0=e0))
            continue
        for rule in rules:
            own = orders or ("paper" if rule == "mironov" else "dense")
            renyi = Renyi(conversion_rule=rule, orders=own)
            made.append(replace(renyi, grid=None) if exact or own == "paper" else renyi)
    return made


def spent(accountants: Iterable[Accountant], event: Event, delta: float) -> list[Row]:
    """Epsilon of an event; where Renyi and loss distributions differ, the looser bound is marked."""
    rows = _rows(accountants, lambda accountant: _row(accountant, event, delta))
    tight = next((row for row in rows if row["accountant"] == "pld" and row["epsilon"] is not None), None)
    if tight is None:
        return rows
    renyi = [row for row in rows if row["accountant"] == "rdp" and row["epsilon"] is not None]
    for row in renyi:
        if row["epsilon"] > _LOOSE * tight["epsilon"]:
            row["notes"].append("loose here: the pld row is a tighter bound of the same")
    if any(row["epsilon"] < tight["epsilon"] and not row["nominal"] for row in renyi):
        tight["notes"].append("the smallest rdp row is a tighter bound of the same: buckets add up over many steps")
    return rows


def delta_at(accountants: Iterable[Accountant], event: Event, epsilon: float) -> list[Row]:
    """Delta of an event at a fixed epsilon."""

    def answer(accountant: Accountant) -> Row:
        delta = accountant.delta(event, epsilon)
        inside = min(max(delta, 1e-300), 1 - 1e-15)  # 0 and 1 are answers, but no deltas to account with
        return _row(accountant, event, inside) | {"epsilon": epsilon, "delta": delta, "reason": None}

    return _rows(accountants, answer)


def rounds_lasting(
    accountants: Iterable[Accountant], rounds: Sequence[Event], target: float, delta: float, stop: StopRule
) -> list[Row]:
    """How many of the given rounds a target epsilon allows."""

    def answer(accountant: Accountant) -> Row:
        found = rounds_within(accountant, rounds, target, delta, stop)
        _refuse_if_exceeded(accountant, accountant.spending(rounds, delta)(1), target, "round")
        shown = _row(accountant, compose(rounds[: found.rounds]), delta)
        return shown | {"rounds": found.rounds, "exceeded": found.exceeded}

    return _rows(accountants, answer)


def steps_lasting(
    accountants: Iterable[Accountant], event_of: Callable[[int], Event], target: float, delta: float, stop: StopRule
) -> list[Row]:
    """How many equal steps a target epsilon allows."""

    def answer(accountant: Accountant) -> Row:
        _refuse_if_exceeded(accountant, accountant.epsilon(event_of(1), delta).epsilon, target, "step")
        found = steps_within(accountant, event_of, target, delta, stop)
        return _row(accountant, event_of(found.rounds), delta) | {"steps": found.rounds, "exceeded": found.exceeded}

    return _rows(accountants, answer)


def sigma_needed(
    accountants: Iterable[Accountant], event_of: Callable[[float], Event], target: float, delta: float
) -> list[Row]:
    """The noise multiplier that keeps to a target epsilon."""

    def answer(accountant: Accountant) -> Row:
        sigma = sigma_for(accountant, event_of, target, delta)
        return _row(accountant, event_of(sigma), delta) | {"sigma": sigma}

    return _rows(accountants, answer)


def _rows(accountants: Iterable[Accountant], answer: Callable[[Accountant], Row]) -> list[Row]:
    """A row per accountant; if none has an answer, the first one's mistake is the user's."""
    rows, mistakes = [], []
    for accountant in accountants:
        try:
            rows.append(answer(accountant) | {"orders": getattr(accountant, "orders", None)})
        except UsageError as mistake:
            mistakes.append(mistake)
            rows.append(_no_answer(accountant, str(mistake)))
    if len(mistakes) == len(rows):
        raise mistakes[-1]
    return rows


def _row(accountant: Accountant, event: Event, delta: float) -> Row:
    found = accountant.epsilon(event, delta)
    finite = math.isfinite(found.epsilon)
    return {
        "accountant": found.accountant, "conversion": found.conversion, "epsilon": found.epsilon if finite else None,
        "delta": found.delta, "delta_total": found.delta_total, "sampler": found.sampler,
        "adjacency": found.adjacency, "nominal": found.nominal, "notes": list(found.notes),
        "reason": None if finite else "no finite epsilon",
    }  # fmt: skip


def _no_answer(accountant: Accountant, reason: str) -> Row:
    return {
        "accountant": accountant.name, "conversion": accountant.conversion, "epsilon": None, "notes": [],
        "reason": reason, "orders": getattr(accountant, "orders", None),
    }  # fmt: skip


def _refuse_if_exceeded(accountant: Accountant, first: float, target: float, what: str) -> None:
    if first > target:
        raise UsageError(
            f"the budget {target:g} is already exceeded by the first {what} ({accountant.name}: {first:.4g}); raise "
            "--target-epsilon or add noise"
        )
