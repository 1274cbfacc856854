"""Blind: guesses the mean of public examples of the class, without the gradient. A control for success by chance.

Labels are inferred as other attacks infer them; the gradient is used for nothing else.
"""

from typing import ClassVar

from torch import Tensor

from harness.attacks.attack import ATTACKS, Attack, ClosedForm, Count, Dummy, validated_attack
from harness.attacks.attacker import Reads
from harness.base.errors import UsageError
from harness.observation import Observation, Tier


@ATTACKS.register("blind")
@validated_attack
class Blind(Attack):
    """Every image is as good a match as any other, so none but the start is ever looked at."""

    max_iterations: Count = 1
    tier: ClassVar[Tier] = "informed"
    reads: ClassVar[Reads] = "anything"

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        """Zeros (R, n*D), distances from the class means.

        Raises:
            UsageError: there are no public data.
        """
        if observation.prior is None:
            raise UsageError("attack 'blind' needs public data; use --prior auto")
        return observation.target.new_zeros(len(keys), observation.examples * observation.prior.means.shape[1])

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        assert labels is not None and observation.prior is not None
        images = observation.prior.means[labels] + position.view(*labels.shape, -1)
        return Dummy(images.reshape(*labels.shape, *observation.model.image_shape), labels)

    def distance(self, observation: Observation, candidate: Tensor) -> Tensor:
        """0 for every candidate; no number where what was read is none."""
        return 0.0 * (candidate - observation.target).sum(1)

    # It takes no gradient, which a text does not have.
    matching = ClosedForm.matching
