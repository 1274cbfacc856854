"""A client's round under a defense, for many clients at once: the only loop over local steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.examples import GradientSource
from harness.federation.own_hooks import rows_by, step_by
from harness.federation.recorders import Recorder
from harness.federation.taps import Hook, Tap
from harness.federation.variates import RoundVariates


@dataclass(frozen=True)
class LocalTraining:
    """Where N clients came in their local steps.

    Attributes:
        mean_step: (N, P), mean of the local steps' directions, as the defense made them.
        update: (N, P) float64, W_L - W as far as these directions made it.
        moved: (N, P) float64, W_L - W; more than ``update`` where control variates took part.
    """

    mean_step: Tensor
    update: Tensor
    moved: Tensor


def train_locally(
    gradients: GradientSource,
    weights: Tensor,
    defense: Defense,
    context: RoundContext,
    steps: int,
    *,
    variates: RoundVariates | None = None,
    momentum: float = 0.0,
    precision: torch.dtype = torch.float64,
    recorders: Sequence[Recorder] = (),
) -> LocalTraining:
    """Trains N clients for L steps of SGD under a defense.

    Args:
        gradients: of the examples of each local step.
        weights: (N, P), what each client starts the round from.
        defense: whose ``client_step`` turns them into a direction.
        context: of the round, with these clients' keys and state; what they remember is left in it.
        steps: L.
        variates: SCAFFOLD's, with a row for each client; its correction is added to every direction.
        momentum: heavy-ball, in [0, 1), from zero in every round; not together with variates.
        precision: in which directions are added up. In float64, dividing an update by the learning rate gives back
            the very gradient that was applied; float32 is what clients compute in, and faster.
        recorders: shown every step.
    """
    total = velocity = path = moved = weights.new_zeros(weights.shape, dtype=precision)  # none is changed in place
    for step in range(steps):
        now = context.at_step(step)
        examples = gradients(step, weights if step == 0 else (weights + moved).to(weights.dtype))
        made = step_by(defense, examples, now, weights)
        for recorder in recorders:
            recorder.step(examples, made, now)
        direction = made.step.to(precision)
        total = total + direction
        if momentum:
            velocity = momentum * velocity + direction
            path = path + velocity
        taken = path if momentum else total
        moved = -now.learning_rate * (taken if variates is None else variates.followed(taken, step + 1))
    update = moved if variates is None else -context.learning_rate * total
    return LocalTraining(total / steps, update.double(), moved.double())


def send(update: Tensor, defense: Defense, context: RoundContext, recorders: Sequence[Recorder] = ()) -> Tensor:
    """What leaves N clients (N, P) of their updates (N, P); what goes beside it is left in ``context.sent``."""
    message = rows_by(Hook.CLIENT_MESSAGE, defense.client_message, update, context)
    for recorder in recorders:
        recorder.read(Tap.UPDATE, update)
        recorder.read(Tap.SENT, message)
    return message
