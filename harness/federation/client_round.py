"""A client's round under a defense, for many clients at once: the only loop over local steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN, LocalOptimizer, Remembered
from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.examples import ExampleGradients, GradientSource, NetworkGradients
from harness.federation.memory import RoundVariates
from harness.federation.recorders import Recorder
from harness.federation.taps import Tap


@dataclass(frozen=True)
class LocalTraining:
    """Result of the local steps of N clients.

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
    optimizer: LocalOptimizer = PLAIN,
    precision: torch.dtype = torch.float64,
    recorders: Sequence[Recorder] = (),
) -> LocalTraining:
    """Trains N clients for L local steps under a defense.

    Args:
        gradients: of the examples of each local step; a defense that reads the network takes ``NetworkGradients``.
        weights: (N, P), what each client receives and starts the round from.
        defense: which turns them into a direction.
        context: of the round, with these clients' keys and state; what they remember is left in it.
        steps: L.
        variates: SCAFFOLD's, with a row for each client; its correction is added to every direction.
        optimizer: of the local steps; not together with variates unless it is plain SGD.
        precision: in which directions are added up. In float64, dividing an update by the learning rate gives back
            the very gradient that was applied; float32 is what clients compute in, and faster.
        recorders: shown every step.

    Raises:
        UsageError: the defense reads a network, and the gradients come from none.
    """
    weights, examples_at = defense.received(weights, context), _examples(gradients, defense)
    total = path = moved = weights.new_zeros(weights.shape, dtype=precision)  # none is changed in place
    memory = Remembered()
    for step in range(steps):
        now = context.at_step(step)
        here = weights if step == 0 else (weights + moved).to(weights.dtype)
        direction = _stepped(examples_at, here, defense, now, recorders).to(precision)
        total = total + direction
        if not optimizer.is_plain:
            made_of_it, memory = optimizer.direction(direction, here.to(precision), memory)
            path = path + made_of_it
        taken = total if optimizer.is_plain else path
        moved = -now.learning_rate * (taken if variates is None else variates.followed(taken, step + 1))
    update = moved if variates is None else -context.learning_rate * total
    return LocalTraining(total / steps, update.double(), moved.double())


def first_step(
    gradients: GradientSource, weights: Tensor, defense: Defense, context: RoundContext, recorders: Sequence[Recorder]
) -> None:
    """Shows recorders the first local step of N clients, and plays no more of the round.

    Args and errors are those of :func:`train_locally`.
    """
    weights = defense.received(weights, context)
    _stepped(_examples(gradients, defense), weights, defense, context.at_step(0), recorders)


_Examples = Callable[[Tensor, RoundContext], tuple[ExampleGradients, RoundContext]]


def _stepped(
    examples_at: _Examples, weights: Tensor, defense: Defense, context: RoundContext, recorders: Sequence[Recorder]
) -> Tensor:
    """The direction (N, P) of a local step at these weights, which recorders have seen."""
    examples, now = examples_at(weights, context)
    made = defense.client_step(examples, now)
    for recorder in recorders:
        recorder.step(examples, made, now)
    return made.step


def _examples(gradients: GradientSource, defense: Defense) -> _Examples:
    """The example gradients of a step at weights (N, P), and the context in which operations may read their batch."""
    if not defense.needs_network:
        return lambda weights, context: (gradients(context.local_step, weights), context)
    if not isinstance(gradients, NetworkGradients):
        raise UsageError("the defense reads the network that clients train, which is not available here; use evaluate")

    def examples_at(weights: Tensor, context: RoundContext) -> tuple[ExampleGradients, RoundContext]:
        batch = defense.inputs(gradients.batch(context.local_step, weights), context)
        return gradients.gradients(batch), replace(context, batch=batch)

    return examples_at


def send(
    update: Tensor, defense: Defense, context: RoundContext, recorders: Sequence[Recorder] = (),
    written: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Return what leaves N clients (N, P) of their updates (N, P); what goes beside it is left in ``context.sent``.

    ``written``: what the numbers that travel make of a message, such as those of half precision.
    """
    message = defense.client_message(update, context)
    message = message if written is None else written(message)
    for recorder in recorders:
        recorder.read(Tap.UPDATE, update)
        recorder.read(Tap.SENT, message)
    return message
