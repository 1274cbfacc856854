"""Check of the noise that research code declares: attackers told another level fail for no merit of the code."""

import torch
from scipy.stats import kstwo, laplace, norm, uniform
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.vectors import Layout, group_sums, spread
from harness.observation import Law, Noise, Observation

# Off by a tenth of the deviation and by so many standard errors; noise below that share of the gradient's root mean
# square is next to what rounding leaves.
_MATERIAL, _STANDARD_ERRORS, _ROUNDING = 0.1, 6.0, 1e-3
# Numbers of a tensor, or of a row, from which their noise has a level of its own to be seen; and of a tensor in a row,
# and how many of these, from which their levels can be compared with each other; by that share they may differ.
_MANY, _SOME, _CELLS, _UNEVEN, _FOLLOWING = 100, 30, 8, 0.01, 0.005
# Variance of the square of a number of variance 1, and of a squared standardised mean of some such squares.
_NORMAL, _OF_SQUARES, _OF_A_SQUARE = 2.0, {"laplace": 5.0, "unknown": 5.0}, 4.0
# By so much shares below a value differ from the declared law's, and so improbably, before it is another law; of so
# many numbers at most.
_ANOTHER_LAW, _IMPROBABLE, _JUDGED = 0.03, 1e-9, 2**20
ON_A_GRID = ("skellam", "poisson_binomial")
_OF_VARIANCE_ONE = {"laplace": laplace(scale=0.5**0.5), "uniform": uniform(-(3**0.5), 2 * 3**0.5)}


class WrongDeclaration(UsageError):
    """A defense adds other noise than its operations say."""


def require_declared(defense: str, tap: str, quiet: Observation, noisy: Observation, whole: bool = True) -> None:
    """Compares the noise on what is read with what is declared of it.

    Args:
        defense: its name. tap: where it is read.
        quiet: R rows without noise.
        noisy: the same with.
        whole: whether its size and law are compared too, which must be one look's after one step.

    Raises:
        WrongDeclaration: noise that is not declared, or that is not there, or is of another size or law.
    """
    added, declared = noisy.target - quiet.target, noisy.noise
    if not added.isfinite().all():
        raise UsageError(f"defense {defense!r} makes numbers that are not finite ({tap}); look for what it divides by")
    problem: str | None = None
    if declared is None:
        if added.any():
            problem = "adds noise of which it declares nothing there"
    elif declared.law == "unknown" and declared.deviation is None and not added.any():
        raise WrongDeclaration(
            f"defense {defense!r} adds no noise ({tap}), and its noise counts as unknown; let the operation say that "
            "there is none (Custom: adds=None)"
        )
    elif (known := _level(declared, quiet, noisy)) is not None:
        least, level = _ROUNDING * quiet.target.square().mean().sqrt(), known.to(added).expand_as(added)
        problem = _none(added, level, least) or (_off(added, level, least, quiet, noisy) if whole else None)
    if problem:
        raise WrongDeclaration(
            f"defense {defense!r} {problem} ({tap}); let the operation that adds it say its law and deviation "
            "(Custom: adds=)"
        )


def _level(declared: Noise, quiet: Observation, noisy: Observation) -> Tensor | None:
    """The deviation that is declared of rows, to who knows them without noise; None where nobody can say."""
    if noisy.level is not None:
        sizes = quiet.model.layout.sizes
        return spread(noisy.level.deviations(quiet.target, sizes), sizes)
    return None if declared.deviation is None else torch.as_tensor(declared.deviation)


def _none(added: Tensor, level: Tensor, least: Tensor) -> str | None:
    silent = level.square().mean().sqrt() > least and not added.any()
    return "adds none of the noise that it declares there" if silent else None


def _off(added: Tensor, level: Tensor, least: Tensor, quiet: Observation, noisy: Observation) -> str | None:
    """Return how noise (R, P) differs from its level and law; None where it does not."""
    assert noisy.noise is not None
    there = noisy.target != 0 if noisy.sparse else torch.ones_like(added, dtype=torch.bool)
    if (added[there & (level == 0)].abs() > least).any():
        return "adds noise where it declares a deviation of zero"
    there = there & (level > least)
    scaled, layout, law = torch.where(there, added / level, 0.0).double(), noisy.model.layout, noisy.noise.law
    squares, expected = scaled.square(), _variance_of_squares(scaled, law)
    # Counts, sums of squares and of their squares (3, R, M): a level of the wrong kind may be right in the mean alone.
    sums = torch.stack([group_sums(one, layout.sizes) for one in (there.double(), squares, squares.square())])
    every = (sums.sum((1, 2))[:, None], 1), (sums.sum(1), _MANY), (sums.sum(2), _MANY)
    found = torch.cat([_off_by(part, expected, fewest) for part, fewest in every])
    wrong = (found != 1).nonzero().flatten().tolist()
    if not wrong:
        apart = slice(None, None, -(-there.numel() // _JUDGED))
        other = _of_another_law(scaled.flatten()[apart][there.flatten()[apart]], law)
        return other or _uneven(sums, expected) or _following(sums.sum(2), quiet.target.norm(dim=1), expected)
    tensors, rows = [f" in tensor {name!r}" for name in layout.names], len(added)
    where = ["", *tensors, *(f" in row {row} of {rows}" for row in range(rows))][wrong[0]]
    return f"adds {float(found[wrong[0]]):.3g} times the noise that it declares{where}"


def _variance_of_squares(scaled: Tensor, law: Law) -> float:
    """Return the variance of the squares of numbers of variance 1. On a grid with steps of g it is g^2 more, since all
    numbers may be 0 but a few of g."""
    steps = scaled[scaled != 0].abs() if law in ON_A_GRID else scaled[:0]
    return _OF_SQUARES.get(law, _NORMAL) + (float(steps.min()) ** 2 if len(steps) else 0.0)


def _off_by(sums: Tensor, expected: float, fewest: int) -> Tensor:
    """Return what deviations are (G,) times their level; 1 where they may be equal, or there are too few (3, G) to
    tell."""
    count, squares, fourth = sums[0].clamp(min=1), sums[1], sums[2]
    ratio = squares / count
    # Few values may look more alike than they are.
    error = ((fourth / count - ratio.square()).clamp(min=expected) / count).sqrt()
    off = ((ratio - 1).abs() > _STANDARD_ERRORS * error) & ((ratio.sqrt() - 1).abs() > _MATERIAL)
    return torch.where(off & (sums[0] >= fewest), ratio.sqrt(), 1.0)


def _of_another_law(values: Tensor, law: Law) -> str | None:
    """Return whether numbers (N,) of variance 1 are of another law: who is told of it takes the likelihood from it."""
    if law == "unknown" or not len(values):
        return None
    distance, chance = distance_from_law(values, law)
    wrong = distance > _ANOTHER_LAW and chance < _IMPROBABLE
    return f"adds noise that is not {law}, as it declares" if wrong else None


def _uneven(sums: Tensor, expected: float) -> str | None:
    """Return whether the level differs among tensors and rows by more than is declared, and than chance makes: each too
    little to be seen by itself, and all together enough to tell rows apart."""
    # The heavier the tail of squares, the more of them it takes until their mean is about normal.
    count, squares, fourth = sums[:, sums[0] >= _SOME * (expected / _NORMAL) ** 2]
    if len(count) < _CELLS:
        return None
    ratio = squares.sum() / count.sum()
    variance = (fourth.sum() / count.sum() / ratio.square() - 1).clamp(min=0.5)
    off, by_chance = (squares / count / ratio - 1).square(), variance / count
    error = (_OF_A_SQUARE / len(count)) ** 0.5
    beyond = max(0.0, float(((off - by_chance) * count).sum() / count.sum()))
    if float((off / by_chance).mean()) - 1 <= _STANDARD_ERRORS * error or beyond**0.5 / 2 <= _UNEVEN:
        return None
    return f"adds noise whose level varies by {beyond**0.5 / 2:.0%} among rows and tensors otherwise than it declares"


def _following(sums: Tensor, lengths: Tensor, expected: float) -> str | None:
    """Return whether levels of rows (3, R) go by the lengths (R,) of their gradients, by less than each of them
    shows."""
    count, squares, _ = sums
    if float(count.sum()) < _MANY:
        return None
    ratio = squares.sum() / count.sum()
    apart = lengths.double() - (lengths * count).sum() / count.sum()
    power = (count * apart.square()).sum().clamp_min(torch.finfo(torch.float64).tiny)
    slope = (apart * (squares - ratio * count)).sum() / power / ratio
    share = float(slope.abs() * (power / count.sum()).sqrt()) / 2
    if share <= _FOLLOWING or float(slope.abs() * (power / expected).sqrt()) <= _STANDARD_ERRORS:
        return None
    return f"adds noise whose level follows the length of the gradient, by {share:.1%}, otherwise than it declares"


def law_p_value(added: Tensor, declared: Noise, there: Tensor, layout: Layout) -> float | None:
    """The chance that noise of the declared law lies as far from it as this does, or farther; None of an unknown law.

    Where nobody knows the level, that of each row (and tensor) is estimated, which makes the distance smaller and the
    p-value larger: what is right passes more often than it need.

    Args:
        added: (..., P), the noise of each row.
        there: which of its coordinates count, booleans of the same shape.
        layout: of the P coordinates.
    """
    if declared.law == "unknown":
        return None
    level = (
        _levels(added, there, layout.groups(declared.grouping)) if declared.deviation is None else declared.deviation
    )
    return distance_from_law((added / level)[there], declared.law)[1]


def distance_from_law(values: Tensor, law: Law) -> tuple[float, float]:
    """Return how far numbers (N,) lie from a law of variance 1, and the chance that the law's own numbers lie as far,
    or farther.

    The distance is that of Kolmogorov and Smirnov, between the shares of numbers below a value and the law's. Laws on a
    grid are compared with the Gaussian that they come close to, and the share of the most frequent value is no part of
    the distance.
    """
    values = values.double().sort().values
    count = len(values)
    below = torch.as_tensor(_OF_VARIANCE_ONE.get(law, norm()).cdf(values.cpu()), dtype=torch.float64)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(steps[1:] - below, below - steps[:-1]).max())
    if law in ON_A_GRID:
        distance -= int(torch.unique_consecutive(values, return_counts=True)[1].max()) / count
    return distance, float(kstwo.sf(distance, count))


def _levels(added: Tensor, there: Tensor, groups: tuple[int, ...]) -> Tensor:
    """The root mean square of each row's group of coordinates, of those that are there: (..., P)."""
    squares = group_sums(added.square() * there, groups)
    return spread((squares / group_sums(there.double(), groups).clamp_min(1)).sqrt().clamp_min(1e-300), groups)
