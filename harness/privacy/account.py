"""Privacy cost of noise: epsilon, delta, how long a budget lasts, or how much noise it takes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import StrictBool

from harness.base.building import typed
from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.base.limits import forecast
from harness.base.presence import FALSE_ALARMS, told_apart, up
from harness.privacy import GaussianRelease, MechanismRelease, effective_sigma, skellam_sum
from harness.privacy.accountant import ACCOUNTANTS, Accountant, Epsilon, asked_delta, choice, make_accountant
from harness.privacy.budget import STOP_RULES, StopRule, rounds_within, sigma_for, steps_within
from harness.privacy.events import Event, compose
from harness.privacy.presence import exact_mu, told_by
from harness.privacy.rdp import CONVERSIONS, Renyi
from harness.privacy.schedules import schedule_rounds
from harness.secagg import SkellamGrid

# What `harness account` takes a step to be: sampling, adjacency, clipping, whose noise, and of which kind.


class Releases:
    """The sampling behind every step, and what one costs at a configured sigma.

    ``clients`` add their noise each and only the sum is seen; with more than one local step per sum, what is proven is
    each client's own noise (``harness.privacy.distributed_noise``).

    Raises:
        UsageError: a value is out of its range, or the combination has no analysis.
    """

    def __init__(
        self,
        rate: float | None,
        sampler: str | None,
        adjacency: str | None,
        layers: int,
        clients: int = 1,
        mechanism: str = "gaussian",
        bits: int = 32,
        dimensions: int = 10_000,
    ) -> None:
        if rate is None and sampler == "poisson":
            raise UsageError("a sampler needs a rate; add --sampling-rate 0.01")
        self.rate = 1.0 if rate is None else rate
        self.sampler: Any = sampler or ("none" if rate is None else "poisson")
        self.adjacency: Any = adjacency or ("replace" if self.sampler == "without-replacement" else "add/remove")
        self.layers = layers
        self.clients = clients
        self.mechanism = choice(mechanism, ("gaussian", "skellam"), "mechanism")
        self.bits, self.dimensions = bits, dimensions
        self._check()
        self.of(1.0, 1)  # tells of a mistake before anything is computed

    def _check(self) -> None:
        if self.clients < 1:
            raise UsageError(f"--clients must be at least 1, got {self.clients}; leave it out for one")
        if self.mechanism == "gaussian":
            return
        if self.adjacency != "add/remove" or self.layers != 1:
            raise UsageError(
                "skellam is analysed for whole vectors under add/remove; leave --layers and --adjacency out"
            )
        if not 2 <= self.bits <= 64 or self.dimensions < 1:
            raise UsageError("skellam needs a ring of 2 to 64 bits and at least 1 dimension; choose --bits 32")

    @property
    def accountants(self) -> list[str]:
        """Those that know the mechanism."""
        return ["all"] if self.mechanism == "gaussian" else ["rdp"]

    def of(self, sigma: float, steps: int) -> GaussianRelease | MechanismRelease:
        """So many steps at a configured sigma."""
        common = (self.rate, self.sampler, self.adjacency, steps)
        if self.mechanism == "gaussian":
            return GaussianRelease(self._effective(sigma), *common)
        grid = SkellamGrid(self.dimensions, 1.0, sigma, self.clients, self.bits)
        return MechanismRelease(skellam_sum(grid), *common)

    def _effective(self, sigma: float) -> float:
        return effective_sigma(sigma, self.layers, self.adjacency) * math.sqrt(self.clients)

    def settings(self) -> dict[str, Any]:
        """Return what was assumed, and by how much it scales a configured sigma."""
        skellam = {"bits": self.bits, "dimensions": self.dimensions} if self.mechanism == "skellam" else {}
        return {
            "mechanism": self.mechanism, **skellam, "sampling_rate": self.rate, "sampler": self.sampler,
            "adjacency": self.adjacency, "layers": self.layers, "clients": self.clients,
            "effective_sigma_per_sigma": self._effective(1.0),
        }  # fmt: skip


# One question put to several accountants: a row each, with its convention, or with the reason why it has no answer.

Row = dict[str, Any]

# Times the tighter bound from which a looser one is called so.
_LOOSE = 2.0

# Those with a delta for every epsilon of the same releases.
_CURVES = ("rdp", "pld")

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
    """Return how many of the given rounds a target epsilon allows."""

    def answer(accountant: Accountant) -> Row:
        found = rounds_within(accountant, rounds, target, delta, stop)
        _refuse_if_exceeded(accountant, accountant.spending(rounds, delta)(1), target, "round")
        shown = _row(accountant, compose(rounds[: found.rounds]), delta)
        return shown | {"rounds": found.rounds, "exceeded": found.exceeded}

    return _rows(accountants, answer)


def steps_lasting(
    accountants: Iterable[Accountant], event_of: Callable[[int], Event], target: float, delta: float, stop: StopRule
) -> list[Row]:
    """Return how many equal steps a target epsilon allows."""

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
    mu, told = _presence(accountant, event, found)
    return {
        "accountant": found.accountant, "conversion": found.conversion, "epsilon": found.epsilon if finite else None,
        "delta": found.delta, "delta_total": found.delta_total, "mu": mu, "told_apart": told, "sampler": found.sampler,
        "adjacency": found.adjacency, "nominal": found.nominal, "notes": list(found.notes),
        "reason": None if finite else "no finite epsilon",
    }  # fmt: skip


def _presence(accountant: Accountant, event: Event, found: Epsilon) -> tuple[float | None, float | None]:
    """(mu, the chance that a record's presence is told), as far as this accountant knows: its curve, or one point."""
    if not math.isfinite(found.epsilon):
        return None, None
    if found.nominal or accountant.name not in _CURVES:
        return None, told_apart(FALSE_ALARMS, epsilon=found.epsilon, delta=found.delta_total)
    mu = exact_mu(event) if accountant.name == "pld" else None
    return mu, told_by(accountant, event) if mu is None else told_apart(FALSE_ALARMS, mu=mu)


def _no_answer(accountant: Accountant, reason: str) -> Row:
    return {
        "accountant": accountant.name, "conversion": accountant.conversion, "epsilon": None, "notes": [],
        "reason": reason, "orders": getattr(accountant, "orders", None),
    }  # fmt: skip


def _refuse_if_exceeded(accountant: Accountant, first: float, target: float, what: str) -> None:
    if first > target:
        raise UsageError(
            f"the budget {target:g} is already exceeded by the first {what} ({accountant.name}: {up(first, 4)}); raise "
            "--target-epsilon or add noise"
        )


_MOST_EPSILON = 1e6
# As measured on two cores: of each accountant that groups the steps of a schedule, and of what convolves equal ones.
_SECONDS_PER_SIGMA, _SECONDS_PER_STEP = 3e-4, 2e-5


@typed
def account(
    *, sigma: float | None = None, sampling_rate: float | None = None, steps: int | None = None,
    delta: float | None = None, accountant: list[str] | None = None, conversion: str | None = None,
    orders: str | None = None, formula: str | None = None, e0: str | None = None, sampler: str | None = None,
    adjacency: str | None = None, layers: int = 1, clients: int = 1, mechanism: str = "gaussian", bits: int = 32,
    dimensions: int = 10_000, sigma_schedule: str | None = None, sigma_end: float | None = None,
    rounds: int | None = None, target_epsilon: float | None = None, stop: str = "filter",
    epsilon: float | None = None, exact: StrictBool = False,
) -> dict[str, Any]:  # fmt: skip
    """The document of ``harness account --json``: ``settings``, and in ``rows`` one answer per accountant.

    The arguments are the command's options.

    Raises:
        UsageError: a value is out of its range, two do not go together, or one is missing.
    """
    delta = asked_delta(1e-5 if delta is None else delta)
    _check_numbers(sigma, target_epsilon, epsilon)
    rule = choice(stop, STOP_RULES, "stop rule")
    releases = Releases(sampling_rate, sampler, adjacency, layers, clients, mechanism, bits, dimensions)
    accountants = chosen_accountants(
        releases.accountants if accountant is None else accountant, conversion, orders, formula, e0, exact
    )
    if sigma_schedule is not None:
        sigmas = schedule_rounds(sigma_schedule, sigma, sigma_end, rounds, steps)
        count = sum(map(len, sigmas))
        forecast(count * len(accountants) * _SECONDS_PER_SIGMA, f"accounting for {count} sigmas")
        events = [compose(releases.of(value, 1) for value in one) for one in sigmas]
        if target_epsilon is not None:
            rows = rounds_lasting(accountants, events, target_epsilon, delta, rule)
        else:
            rows = _cost(accountants, compose(events), delta, epsilon)
        asked = f"schedule {sigma_schedule}: {plural(len(sigmas), 'round')}, {plural(count, 'step')}"
        asked += f", sigma {sigmas[0][0]:.4g} to {sigmas[-1][-1]:.4g}"
    else:
        _refuse_schedule_options(sigma_end, rounds)
        asked = "" if sigma is None else f"sigma {sigma:g}"
        asked += "" if steps is None else f"{', ' if asked else ''}{plural(steps, 'step')}"
        if steps is not None and any(accountant.name == "pld" for accountant in accountants):
            forecast(steps * _SECONDS_PER_STEP, f"accounting for {steps} steps by their loss distribution")
        rows = _constant(accountants, releases, sigma, steps, target_epsilon, epsilon, delta, rule)
    settings = {"asked": asked, "target_epsilon": target_epsilon, **releases.settings()}
    return {"settings": settings, "rows": rows}


def _check_numbers(sigma: float | None, target: float | None, epsilon: float | None) -> None:
    if sigma is not None and not (math.isfinite(sigma) and sigma > 0):
        raise UsageError(f"--sigma must be above 0, got {sigma:g}; without noise no epsilon holds")
    if target is not None and epsilon is not None:
        raise UsageError("both --target-epsilon and --epsilon were given; choose one")
    for name, value in (("epsilon", epsilon), ("target-epsilon", target)):
        if value is not None and not 0 <= value <= _MOST_EPSILON:
            raise UsageError(f"--{name} must be at least 0 and at most {_MOST_EPSILON:g}, got {value:g}")


def _refuse_schedule_options(sigma_end: float | None, rounds: int | None) -> None:
    for name, value in (("--sigma-end", sigma_end), ("--rounds", rounds)):
        if value is not None:
            raise UsageError(f"{name} belongs to a schedule; add --sigma-schedule linear, or use --steps")


def _cost(accountants: list, event: Any, delta: float, epsilon: float | None) -> list[Row]:
    return spent(accountants, event, delta) if epsilon is None else delta_at(accountants, event, epsilon)


def _constant(
    accountants: list, releases: Releases, sigma: float | None, steps: int | None, target: float | None,
    epsilon: float | None, delta: float, stop: StopRule,
) -> list[Row]:  # fmt: skip
    """The answers for equal steps."""
    if sigma is None and target is None:
        raise UsageError("no noise named; add --sigma 6, --sigma-schedule linear, or --target-epsilon 1 to find it")
    if sigma is not None and target is not None:
        if steps is not None:
            raise UsageError("--sigma, --steps and --target-epsilon were all given; leave one out to compute it")
        return steps_lasting(accountants, lambda count: releases.of(sigma, count), target, delta, stop)
    if steps is None:
        raise UsageError("no number of steps; add --steps 10000")
    if target is not None:
        return sigma_needed(accountants, lambda value: releases.of(value, steps), target, delta)
    assert sigma is not None  # one of both was named
    return _cost(accountants, releases.of(sigma, steps), delta, epsilon)
