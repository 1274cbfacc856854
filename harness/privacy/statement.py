"""What privacy a run may claim: the paper's epsilon beside the one that holds for what ran, or none.

See docs/defenses.md and docs/accounting.md. A statement is a view's row in the result document.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, partial

from harness.base.errors import UsageError
from harness.privacy.accountant import choice, make_accountant
from harness.privacy.events import Event, GaussianRelease, MechanismRelease, ledger
from harness.privacy.rdp import Renyi
from harness.results.record import Statement

GUARANTEES = (
    "none", "client-DP central", "client-LDP", "sample-DP local view", "sample-DP", "sample-DDP", "BDP",
)  # fmt: skip

REPEATABLE = "repeatable: noise is known to whoever knows the seed"

# Composing thousands of distinct loss distributions takes seconds, adding Renyi curves does not.
_MOST_DISTRIBUTIONS = 64


def make_statement(
    view: str,
    guarantee: str,
    why: str,
    *,
    actual: Event | None = None,
    claimed: Event | None = None,
    delta: float = 1e-5,
    unit: str | None = None,
    schedule: str | None = None,
) -> Statement:
    """The statement for one view.

    Args:
        view: ``third party``, ``server`` or ``client``.
        guarantee: the tag a theorem covers for what ran; ``none`` where none does.
        why: one plain sentence for the tag; what limits the mechanisms of ``actual`` is added to it.
        actual: what this view sees, with effective sigmas and the sampler that ran; None without a guarantee.
        claimed: what the paper accounts for, with sigma as printed.
        delta: in (0, 1).
        unit: ``client`` or ``example``.
        schedule: the noise schedule in words.

    Raises:
        UsageError: an unknown tag, a tag for a release that nothing protects, or what the accountants refuse.
    """
    choice(guarantee, GUARANTEES, "guarantee")
    claim = None if claimed is None else claimed_epsilon(claimed, delta)
    stated = partial(Statement, view=view, claimed_epsilon=claim, unit=unit, schedule=schedule)
    if guarantee == "none" or actual is None:
        return stated(guarantee="none", notes=why)
    spent = ledger(actual)
    why = "; ".join([why, *dict.fromkeys(note for one in spent.mechanisms for note in one.mechanism.notes)])
    if spent.unprotected:
        raise UsageError(f"a guarantee {guarantee!r} cannot cover what is {spent.unprotected}; state none")
    value, conversion = valid_epsilon(actual, delta)
    if value is None:
        return stated(guarantee="none", notes=f"{why}; no finite epsilon")
    return stated(
        epsilon=value, delta=delta, adjacency=spent.adjacency, sampler=spent.sampler, conversion=conversion,
        guarantee=guarantee, notes=why,
    )  # fmt: skip


def without_guarantee(statement: Statement, why: str) -> Statement:
    """The statement where something that no mechanism covers was released too; what the paper claims stays beside."""
    return replace(
        statement, epsilon=None, delta=None, adjacency=None, sampler=None, conversion=None, guarantee="none", notes=why
    )


def what_holds(statements: Iterable[Statement], copies: int = 1, uncovered: str | None = None) -> list[Statement]:
    """Statements without the guarantees that the data take away.

    An example that a client holds in several ``copies`` enters its own steps as often, and no statement about an
    example covers that. ``uncovered`` says what of the model was computed from the private data without noise, in
    words; then nothing is covered.
    """
    repeated = f"a client holds an example up to {copies} times, and the noise is made for one; lower --examples"

    def why_not(one: Statement) -> str | None:
        if one.guarantee == "none":
            return None
        return uncovered or (repeated if copies > 1 and one.unit == "example" else None)

    return [one if (why := why_not(one)) is None else without_guarantee(one, why) for one in statements]


def repeatable(statements: Iterable[Statement]) -> list[Statement]:
    """The statements of a run whose noise follows from a public seed: its guarantees hold only for who lacks it."""
    return [one if one.guarantee == "none" else replace(one, notes=f"{one.notes}; {REPEATABLE}") for one in statements]


@lru_cache(maxsize=256)
def claimed_epsilon(event: Event, delta: float = 1e-5) -> float | None:
    """Epsilon as the papers print it: moments accountant, Mironov conversion, the orders of the released script.

    None where the event has no finite epsilon.
    """
    accountant = Renyi("mironov", "paper", grid=None)
    value = accountant.epsilon(event, delta).epsilon
    return value if math.isfinite(value) else None


@lru_cache(maxsize=256)
def valid_epsilon(event: Event, delta: float = 1e-5) -> tuple[float | None, str]:
    """The smallest epsilon our accountants prove for an event, and the convention behind it.

    The least of those that hold: Renyi curves with the improved conversion, and loss distributions where they apply
    (Gaussian noise). Their buckets add up over very many steps, so either may be the smaller. Poisson sampling under
    replace-one has a proof only by loss distributions.
    """
    spent, pld = ledger(event), make_accountant("pld")
    proven = not any(_only_by_distributions(release) for release in spent.releases)
    few = len(spent.releases) <= _MOST_DISTRIBUTIONS or not proven
    distribution = few and all(pld.covers(release) for release in spent.mechanisms)
    bounds = [pld.epsilon(event, delta)] if distribution else []
    if proven or not bounds:
        bounds.append(make_accountant("rdp").epsilon(event, delta))
    least = min(bounds, key=lambda one: one.epsilon)
    name = "PLD" if least.accountant == "pld" else f"RDP, {least.conversion}"
    return (least.epsilon if math.isfinite(least.epsilon) else None), name


def _only_by_distributions(release: GaussianRelease | MechanismRelease) -> bool:
    """Whether no Renyi curve is proven: Poisson samples, of units or of steps inside, under replace-one."""
    sampled = release.sampled or isinstance(release, MechanismRelease)
    return sampled and release.drawn == "poisson" and release.adjacency == "replace"
