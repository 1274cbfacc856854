"""What attacks have in common that compute their images and descend no loss."""

from typing import ClassVar, Literal

from torch import Tensor

from harness.attacks.attack import Attack, Count, Dummy, validated_attack
from harness.observation import Observation


@validated_attack
class ClosedForm(Attack):
    """An author writes ``solved``; there is one candidate, and nothing to choose."""

    max_iterations: Count = 1
    box: Literal[False] = False
    closed_form: ClassVar[bool] = True
    dealt: ClassVar[bool] = False

    def solved(self, observation: Observation) -> Tensor:
        """The images (R, n*D); what is no number becomes 0. No row may depend on the others.

        Raises:
            UsageError: it is impossible for what was read.
        """
        raise NotImplementedError

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        return self.solved(observation).nan_to_num(0.0, 0.0, 0.0)

    def effort(self, observation: Observation) -> int:
        """The gradient that was read is what it is computed from."""
        return 1

    def matching(self, observation: Observation, dummy: Dummy) -> Tensor:
        """0 for every candidate: there is one, and an author need not say how well it fits. No number where what was
        read is none."""
        return 0.0 * (dummy.images.flatten(1).sum(1) + observation.target.sum(1))
