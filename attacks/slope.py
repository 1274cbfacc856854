"""Slope: the gradient of the likelihood at class means, as an image, where noise makes all else improbable.

Strong noise draws the most probable image (``map``) to the mean of its class, from which all images of the class are
about as far. The slope of the likelihood at the class means still points to the victim's own. It is handed out at full
strength around the middle of [0, 1], so that distances to it go by the slope and not by how much ink an image has. The
classes are weighed by the probability of what was read, over public examples of each: by the whole gradient under the
known clip and noise, not by the bias of the last layer alone.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.among import Others, example_gradients, likely_labels, others_at, public_at, require_several
from harness.attacks.attack import ClosedForm
from harness.attacks.attacker import ATTACKS, validated_attack
from harness.attacks.candidates import drawn_of_class, gradient_of, in_parts
from harness.attacks.labels import infer_labels
from harness.attacks.residual import FLOOR, negative_log_likelihood, unread_level
from harness.base.ranges import Positive
from harness.observation import Observation, Tier

_CORNER = 0.1


@ATTACKS.register("slope")
@validated_attack
class Slope(ClosedForm):
    """``strength``: root mean square of the slope in the image. ``draws``: gradients for all classes together."""

    strength: Positive = 0.3
    draws: Annotated[int, Field(ge=1, le=10_000)] = 320
    tier: ClassVar[Tier] = "informed"
    reads_level: ClassVar[bool] = True
    several: ClassVar[bool] = True

    def labels(self, observation: Observation) -> Tensor | None:
        if observation.examples > 1:
            return self._labels_of_several(observation)
        if observation.labels is not None:
            return observation.labels
        return in_parts("slope", observation, self._likely).argmax(1, keepdim=True)

    def solved(self, observation: Observation) -> Tensor:
        if observation.examples > 1:
            return self._of_several(observation)
        return self._drawn(in_parts("slope", observation, self._slope))

    def _drawn(self, slope: Tensor) -> Tensor:
        """Images (R, D) of slopes (R, D)."""
        length = slope.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(slope.dtype).tiny)
        return (0.5 + self.strength * slope / length).clamp(0, 1)

    def _labels_of_several(self, observation: Observation) -> Tensor:
        require_several("slope", observation)
        if observation.labels is not None:
            return infer_labels(observation, "auto")
        likely = [likely_labels(seen, public_at(seen)) for seen in _one_by_one(observation)]
        return observation.in_places(torch.stack(likely))

    def _of_several(self, observation: Observation) -> Tensor:
        """One image (R, n*D) for each of the labels: of one example among the others, at the mean of its class."""
        require_several("slope", observation)
        made, known = [], None if observation.labels is None else infer_labels(observation, "auto")
        for row, seen in enumerate(_one_by_one(observation)):
            labels = likely_labels(seen, public_at(seen)) if known is None else known[row]
            present, place = labels.unique(return_inverse=True)
            slopes = [_slope_among(seen, others_at(seen, label), label) for label in present.tolist()]
            made.append(self._drawn(torch.stack(slopes))[place].flatten())
        return torch.stack(made).to(observation.target)

    def effort(self, observation: Observation) -> int:
        classes = observation.model.classes
        return classes * (2 * self._draws_of_class(classes) + 1)

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        return unread_level(observation)  # an image at full strength is none that the noise could be measured from

    def _draws_of_class(self, classes: int) -> int:
        return max(1, self.draws // classes)

    def _likely(self, seen: Observation) -> Tensor:
        """Log-probabilities (R, K) of what was read under each class, up to a constant of each row."""
        classes = seen.model.classes
        if seen.labels is not None:
            known = torch.arange(classes, device=seen.labels.device) == seen.labels
            return torch.where(known, 0.0, -torch.inf).double()
        count, found = self._draws_of_class(classes), []
        for label in range(classes):
            images = drawn_of_class(seen, label, count, "slope")
            with torch.no_grad():
                each = [
                    -_negative_log_likelihood(seen, image.expand(seen.rows, -1), label, differentiable=False)
                    for image in images
                ]
            found.append(torch.stack(each, 1).logsumexp(1))
        return torch.stack(found, 1)

    def _slope(self, seen: Observation) -> Tensor:
        """Return the derivative of the log-likelihood at the class means, each weighed by how probable its class is:
        (R, D)."""
        weights, total = self._likely(seen).softmax(1), torch.zeros(1)
        assert seen.prior is not None
        for label in range(seen.model.classes):
            mean = seen.prior.means[label].to(seen.target).expand(seen.rows, -1).clone().requires_grad_(True)
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(-_negative_log_likelihood(seen, mean, label).sum(), mean)
            total = total.to(slope) + weights[:, label, None].to(slope) * slope
        return total


def _one_by_one(observation: Observation) -> Iterator[Observation]:
    """Its rows."""
    return (observation.take(row[None]) for row in torch.arange(observation.rows, device=observation.target.device))


def _slope_among(seen: Observation, others: Others, label: int) -> Tensor:
    """Return the derivative (D,) of the log-likelihood at a class mean (D,), as one example among the others."""
    assert seen.prior is not None
    mean = seen.prior.means[label].to(seen.target).expand(1, -1).clone().requires_grad_(True)
    with torch.enable_grad():
        made = example_gradients(seen, mean, torch.tensor([label]), differentiable=True)
        (slope,) = torch.autograd.grad((made * others.slope(made.detach())).sum(), mean)
    return slope[0]


def _negative_log_likelihood(seen: Observation, images: Tensor, label: int, differentiable: bool = True) -> Tensor:
    """Negative log-likelihood (R,) of what was read, had images (R, D) of a class been behind it."""
    return negative_log_likelihood(
        seen, gradient_of(seen, images, label, differentiable), FLOOR, _CORNER, lead=True, sharp=True
    )
