"""Which site sent an update: whether what sites send in several rounds tells them apart, with no name beside it.

Whoever reads updates without names, as behind a relay or a shuffler, may still put those of one site together. A
permutation test says whether they can (:func:`harness.scoring.membership.site_test`).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.base.errors import UsageError
from harness.judging.capture import Capture
from harness.scoring.membership import Numbers, SitesTold, site_test
from harness.scoring.success import clopper_pearson

#: Orders of the sites within rounds that the found one is compared with.
PERMUTATIONS = 999
_SMALL = 0.01


@dataclass(frozen=True)
class Sites:
    """What updates of several rounds tell of the sites that sent them.

    Attributes:
        names: of the S sites. rounds: the R rounds, in order.
        told: the test. least: what its p-value can be at least, with so many sites and rounds.
    """

    names: tuple[str, ...]
    rounds: tuple[int, ...]
    told: SitesTold
    least: float

    def lines(self) -> list[str]:
        """In words."""
        told = self.told
        low, high = clopper_pearson(told.right, told.updates)
        lines = [
            f"sites: {len(self.names)} in {len(self.rounds)} rounds",
            f"updates that go to their own site by its updates of the other rounds: {told.right} of {told.updates} "
            f"({told.right / told.updates:.0%}, 95% {low:.0%} to {high:.0%}, by chance {told.chance:.0%})",
            f"permutation test: p = {told.p:.3g}",
        ]
        if self.least > _SMALL:
            lines.append(f"so few rounds cannot show more than p = {self.least:.2g}; capture more of them")
        elif told.p <= _SMALL:
            lines.append("updates tell which site sent them")
        return lines

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def judge_sites(captures: Sequence[Capture], permutations: int = PERMUTATIONS, seed: int = 0) -> Sites:
    """Test whether the captured updates tell which site sent them; the captures' clients are the sites.

    Raises:
        UsageError: a site is not named, or missing in a round, or there are too few of either.
    """
    placed = dict[tuple[int, str], Capture]()
    for one in captures:
        name, number = one.record.client, one.record.round
        if name is None:
            raise UsageError(f'capture {str(one.folder)!r} names no site; add "client" to its capture.json')
        if (number, name) in placed:
            raise UsageError(f"site {name!r} has two captures of round {number}; leave one of them out")
        placed[number, name] = one
    rounds, names = tuple(sorted({number for number, _ in placed})), tuple(sorted({name for _, name in placed}))
    for number in rounds:
        for name in names:
            if (number, name) not in placed:
                raise UsageError(f"round {number} has no capture of site {name!r}; leave that round or that site out")
    if min(len(rounds), len(names)) < 2:
        raise UsageError(
            f"{len(rounds)} round(s) of {len(names)} site(s) tell no site; name captures of two and more of both"
        )
    sent = np.stack([np.stack([_update(placed[number, name]) for name in names]) for number in rounds])
    told = site_test(sent, permutations, seed)
    return Sites(names, rounds, told, max(1 / (1 + permutations), math.factorial(len(names)) ** (1.0 - len(rounds))))


def _update(capture: Capture) -> Numbers:
    """All numbers (P,) that a client sent, less those that it got; a gradient as it is.

    Raises:
        UsageError: they are of another size than those it got, or not finite.
    """
    parts = []
    for name in sorted(capture.moved):
        sent = np.asarray(capture.moved[name], dtype=np.float64)
        if capture.kind == "after":
            got = np.asarray(capture.before[name]) if name in capture.before else None
            if got is None or got.shape != sent.shape:
                raise UsageError(f"capture {str(capture.folder)!r}: {name!r} is not what the client got; capture again")
            sent = sent - got
        parts.append(sent.ravel())
    made = np.concatenate(parts) if parts else np.zeros(0)
    if not np.isfinite(made).all():
        raise UsageError(f"capture {str(capture.folder)!r} has numbers that are not finite; leave its round out")
    return made
