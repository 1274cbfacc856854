"""Whether a defense adds the noise that it declares: attackers who are told another level fail for no merit of it."""

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.observation import Noise, Observation
from harness.vectors.layout import group_sums, spread

# Off by a tenth of the deviation and by so many standard errors; noise below that share of the gradient's root mean
# square is next to what rounding leaves.
_MATERIAL, _STANDARD_ERRORS, _ROUNDING = 0.1, 6.0, 1e-3
# Numbers of a tensor, or of a row, from which their noise has a level of its own to be seen; and of a tensor in a row,
# and how many of these, from which their levels can be compared with each other; by that share they may differ.
_MANY, _SOME, _CELLS, _UNEVEN = 100, 30, 8, 0.02
# Variance of a squared standardised mean square: 2 of many normal numbers, twice that of 30 with heavier tails.
_OF_A_SQUARE = 4.0


class WrongDeclaration(UsageError):
    """A defense adds other noise than its ``noise_of`` says."""


def require_declared(defense: str, tap: str, quiet: Observation, noisy: Observation) -> None:
    """Compares the noise on what is read with what is declared of it.

    Args:
        defense: its name. tap: where it is read.
        quiet: R rows without noise.
        noisy: the same with.

    Raises:
        WrongDeclaration: noise that is not declared, or that is not there, or is of another size.
    """
    added, declared = noisy.target - quiet.target, noisy.noise
    if not added.isfinite().all():
        raise UsageError(f"defense {defense!r} makes numbers that are not finite ({tap}); look for what it divides by")
    problem: str | None = None
    if declared is None:
        if added.any():
            problem = "adds noise of which it declares nothing there"
    elif (known := _level(declared, quiet, noisy)) is not None:
        least, level = _ROUNDING * quiet.target.square().mean().sqrt(), known.to(added).expand_as(added)
        problem = _none(added, level, least) or (None if noisy.local_steps > 1 else _off(added, level, least, noisy))
    if problem:
        raise WrongDeclaration(
            f"defense {defense!r} {problem} ({tap}); let noise_of() name the hook that adds it, and its deviation"
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


def _off(added: Tensor, level: Tensor, least: Tensor, noisy: Observation) -> str | None:
    """How noise (R, P) differs from its level; of one step, since after several it has moved the gradients too."""
    there = noisy.target != 0 if noisy.sparse else torch.ones_like(added, dtype=torch.bool)
    if (added[there & (level == 0)].abs() > least).any():
        return "adds noise where it declares a deviation of zero"
    there = there & (level > least)
    squares = torch.where(there, added / level, 0.0).double().square()
    layout = noisy.model.layout
    # Counts, sums of squares and of their squares (3, R, M): a level of the wrong kind may be right in the mean alone.
    sums = torch.stack([group_sums(one, layout.sizes) for one in (there.double(), squares, squares.square())])
    found = torch.cat([_off_by(sums.sum((1, 2))[:, None]), _off_by(sums.sum(1), _MANY), _off_by(sums.sum(2), _MANY)])
    wrong = (found != 1).nonzero().flatten().tolist()
    if not wrong:
        return _uneven(sums)
    tensors, rows = [f" in tensor {name!r}" for name in layout.names], len(added)
    where = ["", *tensors, *(f" in row {row} of {rows}" for row in range(rows))][wrong[0]]
    return f"adds {float(found[wrong[0]]):.3g} times the noise that it declares{where}"


def _off_by(sums: Tensor, fewest: int = 1) -> Tensor:
    """What deviations are (G,) times their level; 1 where they may be equal, or there are too few (3, G) to tell."""
    count, squares, fourth = sums[0].clamp(min=1), sums[1], sums[2]
    ratio = squares / count
    # Of the square of a normal variable the variance is 2; few values may look more alike than they are.
    error = ((fourth / count - ratio.square()).clamp(min=2) / count).sqrt()
    off = ((ratio - 1).abs() > _STANDARD_ERRORS * error) & ((ratio.sqrt() - 1).abs() > _MATERIAL)
    return torch.where(off & (sums[0] >= fewest), ratio.sqrt(), 1.0)


def _uneven(sums: Tensor) -> str | None:
    """Whether the level differs among tensors and rows by more than is declared, and than chance makes: each too little
    to be seen by itself, and all together enough to tell rows apart."""
    count, squares, fourth = sums[:, sums[0] >= _SOME]
    if len(count) < _CELLS:
        return None
    ratio = squares.sum() / count.sum()
    variance = (fourth.sum() / count.sum() / ratio.square() - 1).clamp(min=0.5)
    off, expected = (squares / count / ratio - 1).square(), variance / count
    error = (_OF_A_SQUARE / len(count)) ** 0.5
    beyond = max(0.0, float(((off - expected) * count).sum() / count.sum()))
    if float((off / expected).mean()) - 1 <= _STANDARD_ERRORS * error or beyond**0.5 / 2 <= _UNEVEN:
        return None
    return f"adds noise whose level varies by {beyond**0.5 / 2:.0%} among rows and tensors otherwise than it declares"
