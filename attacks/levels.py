"""Levels: an image from the norms of a gradient's tensors, where noise hides their directions.

Noise whose level follows the private gradient gives its norm away, however large it is: of P coordinates the level is
read off to a share of 1 / sqrt(2P). Public examples of each class are put in the victim's place; the sizes that what
was read would have are regressed on, which is the image of least mean square error, and the classes are weighed by how
probable the sizes are. Without noise sizes are norms, and read off exactly.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.attack import ClosedForm
from harness.attacks.attacker import ATTACKS, validated_attack
from harness.attacks.candidates import drawn_of_class, gradient_of, in_parts
from harness.attacks.residual import explained
from harness.base.errors import UsageError
from harness.base.ranges import Positive
from harness.base.vectors import group_sums
from harness.observation import Observation, Tier

_TINY, _RIDGE = 1e-30, 1e-6
# Of fewer draws of a class no covariance is to be had.
_FEWEST = 16


@ATTACKS.register("levels")
@validated_attack
class Levels(ClosedForm):
    """``draws``: gradients for all classes together, and no fewer than 16 of each. ``amplify``: how much further from
    its class mean an image is put than the regression has it, which few numbers hardly move."""

    draws: Annotated[int, Field(ge=1, le=10_000)] = 320
    amplify: Positive = 16.0
    tier: ClassVar[Tier] = "informed"
    reads_level: ClassVar[bool] = True

    def labels(self, observation: Observation) -> Tensor | None:
        if observation.labels is not None:
            return observation.labels
        return in_parts("levels", observation, lambda seen: self._told(seen)[1]).argmax(1, keepdim=True)

    def solved(self, observation: Observation) -> Tensor:
        return in_parts("levels", observation, lambda seen: self._told(seen)[0]).clamp(0, 1)

    def effort(self, observation: Observation) -> int:
        return observation.model.classes * self._draws_of_class(observation.model.classes)

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        return "this attack reads how long tensors are and nothing else: to withstand it is to hide that alone"

    def _draws_of_class(self, classes: int) -> int:
        return max(_FEWEST, self.draws // classes)

    def _told(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """The image (R, D) that the sizes tell of, over classes weighed by how probable they are, and the
        log-probability of each class (R, K), up to a constant of each row. One class is held at a time."""
        _require_sizes(seen)
        read, classes = _logs(_powers(seen, seen.target)), seen.model.classes
        image, total, likely = torch.zeros(1).double(), torch.full((1,), -torch.inf).double(), []
        for label in range(classes):
            drawn = drawn_of_class(seen, label, self._draws_of_class(classes), "levels").clamp(0, 1)
            told = [_lengths(seen, _read_of(seen, one.expand(seen.rows, -1), label)) for one in drawn]
            lengths, errors = (torch.stack(part, 1) for part in zip(*told, strict=True))
            of_class, density = _regressed(drawn.double(), lengths, errors.mean(1), read)
            mean = drawn.double().mean(0)
            likely.append(density if seen.labels is None else density.where(seen.labels[:, 0] == label, -torch.inf))
            total = torch.logaddexp(total.to(density), likely[-1])
            share = (likely[-1] - total).exp().nan_to_num(0.0)[:, None]
            further = mean + self.amplify * (of_class - mean) - image.to(density)
            image = image.to(density) + torch.where(share > 0, share * further, 0.0)
        return image.to(seen.target), torch.stack(likely, 1)


def _require_sizes(seen: Observation) -> None:
    if seen.certainty is not None:
        raise UsageError(
            f"attack 'levels' reads lengths of gradients, and steps of {seen.optimizer.text} have the same for all; "
            "use another attack"
        )
    exact = seen.coding is not None and seen.coding.kind == "length"
    if seen.noise is not None and seen.level is None and not exact:
        raise UsageError(
            "attack 'levels' reads how the noise's level follows the gradient, and here it follows none or nobody can "
            "say how; use another attack"
        )


def _read_of(seen: Observation, images: Tensor, label: int) -> Tensor:
    """Return what would be read (R, P), noise apart, of images (R, D) of a class."""
    return explained(seen, gradient_of(seen, images, label, differentiable=False))


def _powers(seen: Observation, gradients: Tensor) -> Tensor:
    """Sums of squares of each tensor's coordinates (R, M), float64."""
    return group_sums(gradients.double().square(), seen.model.layout.sizes)


def _logs(powers: Tensor) -> Tensor:
    return (powers + _TINY).log() / 2


def _lengths(seen: Observation, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithms (R, M) of the lengths that tensors of these gradients would be read with, and how much they vary:
    a sum of squares of signals of power G and P variances V has the mean G + P V and the variance 2 P V^2 + 4 G V."""
    powers, sizes = _powers(seen, gradients), seen.model.layout.sizes
    if seen.level is None:
        return _logs(powers), torch.zeros_like(powers)
    variances, counts = seen.level.deviations(gradients, sizes).square(), torch.tensor(sizes, device=powers.device)
    mean = powers + counts * variances
    return _logs(mean), (2 * counts * variances.square() + 4 * powers * variances) / (2 * mean + _TINY).square()


def _regressed(images: Tensor, lengths: Tensor, errors: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
    """The image (R, D) of least mean square error given lengths, and the log-density (R,) of these, as of a Gaussian.

    Args:
        images: (N, D) of one class. lengths: (R, N, M), those of each image in each row. errors: (R, M), their variance
            by noise. read: (R, M).
    """
    apart, off = lengths - lengths.mean(1, keepdim=True), read - lengths.mean(1)
    spread = apart.mT @ apart / (len(images) - 1) + torch.diag_embed(errors + _RIDGE)
    solved = torch.linalg.solve_ex(spread, off[..., None]).result[..., 0]
    across = torch.einsum("nd,rnm->rdm", images - images.mean(0), apart) / (len(images) - 1)
    density = -((off * solved).sum(1) + torch.linalg.slogdet(spread).logabsdet) / 2
    return images.mean(0) + torch.einsum("rdm,rm->rd", across, solved), density
