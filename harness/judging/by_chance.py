"""Whether what clients sent is what their truth gives, where a defense draws more than noise of one known level.

Such a defense is played several times on the truth. What was sent and what a play sends are draws of one law where the
truth is right, so their distance from the mean of the other plays, and how far they go in its direction, are alike.
Where only the coordinates that are sent are drawn, those that were sent have to be equal.

Source: the two-sided t-test for one more observation (Student 1908), of sums over many coordinates.
"""

from dataclasses import dataclass, replace

import torch
from scipy.stats import t as student
from torch import Tensor

from harness.base.randomness import generator
from harness.judging.evidence import LEVEL, Check

#: How often a defense is played.
PLAYS = 16
# Of all plays, that are kept.
_NUMBERS = 2**25
# Of a norm: what says nothing against a truth, and from which on a spread may hide that it is another client's.
UNLIKE, HIDES = 0.02, 0.5


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a defense makes of V clients' truth, over several plays (R, V, P).

    Attributes:
        leaves_out: whether zeros are coordinates that were not sent.
        middle: (V, P), the mean where it is known; None where it is that of the plays.
    """

    plays: Tensor
    leaves_out: bool
    middle: Tensor | None

    def mean(self, without: int | None = None) -> tuple[Tensor, Tensor]:
        """The mean (V, P) of all plays, or all but one, and where it is known."""
        if self.middle is not None:
            return self.middle, torch.ones_like(self.middle, dtype=torch.bool)
        plays = self.plays if without is None else torch.cat([self.plays[:without], self.plays[without + 1 :]])
        counts = (plays != 0).sum(0) if self.leaves_out else torch.full_like(plays[0], len(plays))
        return plays.sum(0) / counts.clamp_min(1), counts > 0

    def apart(self, sent: Tensor, without: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Of what was sent, per coordinate that is compared: the distance from the mean (V,), how far it goes beyond
        the mean in its direction (V,), and the mean's norm there (V,)."""
        mean, known = self.mean(without)
        known = known & (sent != 0) if self.leaves_out else known
        left, mean = (sent - mean) * known, mean * known
        count, norm = known.sum(1).clamp_min(1) ** 0.5, mean.norm(dim=1)
        return left.norm(dim=1) / count, (left * mean).sum(1) / norm.clamp_min(1e-30) / count, norm / count

    def usual(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same three (R, V) of every play and the mean of the others."""
        others = [self.apart(play, without=number) for number, play in enumerate(self.plays)]
        spread, along, norm = (torch.stack(one) for one in zip(*others, strict=True))
        return spread, along, norm

    def signal(self, sent: Tensor) -> Tensor:
        """The squared norm (V,) of the mean on what is compared, without that of chance: two halves share none."""
        if self.middle is not None:
            return self.middle.square().mean(1)
        halves = [replace(self, plays=plays).mean() for plays in self.plays.chunk(2)]
        (one, known), (two, too) = halves
        known = known & too & (sent != 0) if self.leaves_out else known
        return (one * two * known).sum(1) / known.sum(1).clamp_min(1)


def check_of_draws(name: str, sent: Tensor, grain: Tensor, drawn: Drawn, noisy: bool) -> Check:
    """Return the check of what V clients sent (V, P).

    Args:
        grain: (V,), by how much a coordinate may be off by rounding.
        noisy: whether noise of a known law is declared, under which nobody sees more than this check does.
    """
    spread, along, norms = drawn.usual()
    found, beyond, norm = drawn.apart(sent)
    if not bool((norm > 0).all()):
        return _cannot(name, "no coordinate that was sent is among those that the defense drew on it")
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
        return _cannot(name, f"{said}, {usual}")
    # So much less than a draw of the truth goes one of images that have nothing to do with it.
    if not noisy and bool((far > HIDES * drawn.signal(sent) / norm).any()):
        return _cannot(name, f"{said}, {usual}: other images may do so too")
    return Check(name, "holds", f"{said}, {usual}")


def some_of(clients: int, parameters: int) -> Tensor:
    """Return the coordinates that are compared: all, or as many as memory holds of all plays."""
    most = max(1, _NUMBERS // (PLAYS * clients))
    return torch.randperm(parameters, generator=generator("some coordinates"))[:most].sort().values


def _cannot(name: str, said: str) -> Check:
    return Check(name, "cannot tell", said, undecided=True)
