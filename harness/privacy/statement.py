"""What privacy a run may claim: the paper's epsilon beside the one that holds for what ran, or none.

Spec: defenses, section 17; accounting, sections 2 and 8. A statement is a view's row in the result document.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from harness.errors import UsageError
from harness.privacy.accountant import choice, make_accountant
from harness.privacy.events import Event, ledger
from harness.privacy.rdp import Renyi

GUARANTEES = (
    "none", "client-DP central", "client-LDP", "sample-DP local view", "sample-DP", "sample-DDP", "BDP",
)  # fmt: skip

# Composing thousands of distinct loss distributions takes seconds, adding Renyi curves does not.
_MOST_DISTRIBUTIONS = 64


@dataclass(frozen=True)
class Statement:
    """A privacy statement for one view; the fields are those of the result document's ``privacy`` rows.

    Attributes:
        claimed_epsilon: by the paper's convention (moments accountant, Mironov conversion, the paper's orders, sigma
            as printed), whether or not it holds; None where no paper claims one.
        epsilon: what holds for what ran; None where nothing does.
        conversion: the convention behind ``epsilon``.
        notes: one plain sentence why.
    """

    view: str
    claimed_epsilon: float | None
    epsilon: float | None
    delta: float | None
    unit: str | None
    adjacency: str | None
    sampler: str | None
    conversion: str | None
    schedule: str | None
    guarantee: str
    notes: str

    def row(self) -> dict[str, Any]:
        """The statement as plain values."""
        return asdict(self)


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
        why: one plain sentence for the tag.
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
    if guarantee == "none" or actual is None:
        return Statement(view, claim, None, None, unit, None, None, None, schedule, "none", why)
    spent = ledger(actual)
    if spent.unprotected:
        raise UsageError(f"a guarantee {guarantee!r} cannot cover what is {spent.unprotected}; state none")
    value, conversion = valid_epsilon(actual, delta)
    if value is None:
        return Statement(view, claim, None, None, unit, None, None, None, schedule, "none", f"{why}; no finite epsilon")
    return Statement(
        view, claim, value, delta, unit, spent.adjacency, spent.sampler, conversion, schedule, guarantee, why
    )


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

    Loss distributions where they apply (Gaussian noise), else Renyi curves with the improved conversion. Poisson
    sampling under replace-one has a proof only by loss distributions.
    """
    spent = ledger(event)
    kinds = {(release.sampler, release.adjacency) for release in spent.releases if release.sampled}
    without_replacement = any(sampler == "without-replacement" for sampler, _ in kinds)
    few = len(spent.releases) <= _MOST_DISTRIBUTIONS
    gaussian = not spent.mechanisms
    distribution = gaussian and not without_replacement and (few or ("poisson", "replace") in kinds)
    found = make_accountant("pld" if distribution else "rdp").epsilon(event, delta)
    name = "PLD" if distribution else f"RDP, {found.conversion}"
    return (found.epsilon if math.isfinite(found.epsilon) else None), name
