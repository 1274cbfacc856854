"""Whether what clients sent is what their truth gives, where a defense draws more than noise of one known level.

Such a defense is played several times on the truth. What was sent and what a play sends are draws of one law where
the truth is right, so their distance from the mean of the other plays, and how far they go in its direction, are
alike. Where only the coordinates that are sent are drawn, those that were sent have to be equal.

Source: the two-sided t-test for one more observation (Student 1908), of sums over many coordinates.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy.stats import t as student
from torch import Tensor

from harness.judging.evidence import LEVEL, Check

#: How often a defense is played.
PLAYS = 16
# Of a norm: what says nothing against a truth, and from which on a spread may hide that it is another client's.
UNLIKE, HIDES = 0.02, 0.5
#: The chance that a draw is called too far to be explained, where that accuses nobody and only withholds an estimate.
UNFIT = 1e-3


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a defense makes of V clients' truth, over several plays.

    Attributes:
        play: makes one, (V, P), by its number; always the same one, so that none is kept.
        leaves_out: whether zeros are coordinates that were not sent.
        middle: (V, P), the mean where it is known; None where it is that of the plays.
    """

    play: Callable[[int], Tensor]
    leaves_out: bool
    middle: Tensor | None

    @cached_property
    def _halves(self) -> list[tuple[Tensor, Tensor]]:
        """Of the first half of all plays and the second: their sum, and how many are known of each coordinate."""
        found = []
        for first in (0, PLAYS // 2):
            total = counts = torch.zeros(())
            for number in range(first, first + PLAYS // 2):
                made = self.play(number)
                total, counts = total + made, counts + self._known(made)
            found.append((total, counts))
        return found

    def _known(self, values: Tensor) -> Tensor:
        return (values != 0 if self.leaves_out else torch.ones_like(values)).to(values.dtype)

    def _mean(self, without: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean of all plays, or all but one, and of how many it is."""
        if self.middle is not None:
            return self.middle, torch.ones_like(self.middle)
        total, counts = (one + two for one, two in zip(*self._halves, strict=True))
        if without is not None:
            total, counts = total - without, counts - self._known(without)
        return total / counts.clamp_min(1), counts

    @property
    def mean(self) -> Tensor:
        """(V, P), of all plays."""
        return self._mean(None)[0]

    def apart(self, sent: Tensor, among: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Of what was sent, per coordinate that is compared: the distance from the mean (V,), how far it goes beyond
        the mean in its direction (V,), and the mean's norm there (V,); ``among``: it is one of the plays."""
        mean, counts = self._mean(sent if among else None)
        known = (counts > 0) * self._known(sent)
        left, mean = (sent - mean) * known, mean * known
        count, norm = known.sum(1).clamp_min(1) ** 0.5, mean.norm(dim=1)
        return left.norm(dim=1) / count, (left * mean).sum(1) / norm.clamp_min(1e-30) / count, norm / count

    def usual(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same three (R, V) of every play and the mean of the others."""
        others = [self.apart(self.play(number), among=True) for number in range(PLAYS)]
        spread, along, norm = (torch.stack(one) for one in zip(*others, strict=True))
        return spread, along, norm

    def signal(self, sent: Tensor) -> Tensor:
        """The squared norm (V,) of the mean on what is compared, without that of chance: two halves share none."""
        if self.middle is not None:
            return self.middle.square().mean(1)
        (one, known), (two, too) = self._halves
        both = (known > 0) * (too > 0) * self._known(sent)
        product = one / known.clamp_min(1) * (two / too.clamp_min(1)) * both
        return product.sum(1) / both.sum(1).clamp_min(1)


def check_of_draws(name: str, sent: Tensor, grain: Tensor, drawn: Drawn, noisy: bool) -> Check:
    """Return the check of what V clients sent (V, P).

    Args:
        grain: (V,), by how much a coordinate may be off by rounding.
        noisy: whether noise of a known law is declared, under which nobody sees more than this check does.
    """
    spread, along, norms = drawn.usual()
    found, beyond, norm = drawn.apart(sent)
    if not bool((norm > 0).all()):
        return cannot(name, "no coordinate that was sent is among those that the defense drew on it")
    most = student.isf(LEVEL / (4 * len(sent) + 2), PLAYS - 1) * (1 + 1 / PLAYS) ** 0.5
    slack = UNLIKE * norm + grain
    if drawn.middle is not None and bool((along.mean(0).abs() > most * along.std(0) + slack).any()):
        return check_of_draws(name, sent, grain, replace(drawn, middle=None), noisy)  # it is not their mean
    wide, far = most * spread.std(0) + slack, most * along.std(0) + slack
    distant = (found - spread.mean(0)).abs() > wide
    like = ~distant & ((beyond - along.mean(0)).abs() <= far)
    # All clients together, whose noise is their own, as attackers of many see them.
    each, all_of_them = (along / norms.clamp_min(1e-30)).mean(1), (beyond / norm).mean()
    like &= (all_of_them - each.mean()).abs() <= most * each.std() + (slack / norm).mean()
    worst = float((found / norm).max())
    said = f"what was sent differs from the mean of {PLAYS} draws of the defense on it by {worst:.2g} of its norm"
    usual = f"draws by {float((spread / norm).mean()):.2g}"
    if not bool(like.all()):
        usual += "" if bool(distant.any()) else ", and goes less or more in its direction than they do"
        if bool((spread.amax(0) <= slack).all()):
            mend = "check learning_rate, loss_scale, the optimizer, the truth's order and scale, each layer's mode"
            return Check(name, "violated", f"{said}, {usual}; {mend}")
        return cannot(name, f"{said}, {usual}")
    # So much less than a draw of the truth goes one of images that have nothing to do with it.
    if not noisy and bool((far > HIDES * drawn.signal(sent) / norm).any()):
        return cannot(name, f"{said}, {usual}: other examples may do so too")
    return Check(name, "holds", f"{said}, {usual}")


def cannot(name: str, said: str) -> Check:
    """Return a check that cannot tell, so that nothing may be called resilient."""
    return Check(name, "cannot tell", said, undecided=True)
