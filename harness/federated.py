"""A client's round of federated training under a defense, for many clients at once, with taps."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.control_variates import RoundVariates
from harness.defenses import Defense, PerExample, RoundContext
from harness.errors import UsageError
from harness.layout import spread
from harness.models import RowModel


@dataclass(frozen=True)
class ClientRound:
    """What existed at each tap during one round of N clients.

    ``taps`` maps tap names to tensors: gradients (N, P) or per-example gradients (N, B, P) for T2 taps (of the first
    local step), updates W_L - W (N, P) in float64 for T1 and T0 taps. A tap the defense does not have is absent.
    """

    taps: dict[str, Tensor]


def run_client_round(
    model: RowModel,
    weights: Tensor,
    images: Tensor,
    labels: Tensor,
    defense: Defense,
    context: RoundContext,
    local_steps: int,
    together: int = 1,
    variates: RoundVariates | None = None,
) -> ClientRound:
    """Trains N clients for ``local_steps`` steps of plain SGD under a defense and passes the result to the server.

    A server that gets a secure sum of its clients' updates sees only their mean: the T0 taps then have one row for
    each ``together`` clients, which are one round's, and are absent for clients on their own.

    Args:
        model: the network.
        weights: (N, P), the weights each client starts the round from.
        images: (N, L*B, C, H, W); local step l uses examples l*B to (l+1)*B.
        labels: (N, L*B).
        defense: whose hooks are called.
        context: round, learning rate, cohort settings, random keys.
        local_steps: L.
        together: consecutive rows that are one round's clients.
        variates: SCAFFOLD's, with a row for each client. The taps after the local steps then show the update without
            the variates' part, and two more show the halves of the message.
    """
    taps: dict[str, Tensor] = {}
    batch = images.shape[1] // local_steps
    # Updates are kept in float64 so that dividing by the learning rate gives back the very gradient that was applied.
    update = torch.zeros_like(weights, dtype=torch.float64)
    for step in range(local_steps):
        now = replace(context, local_step=step)
        part = slice(step * batch, (step + 1) * batch)
        moved = update if variates is None else variates.moved(update, step, now.learning_rate)
        current = weights if step == 0 else (weights + moved).to(weights.dtype)
        per_example = PerExample(
            lambda w=current, p=part: model.per_example_gradients(w, images[:, p], labels[:, p]), model.layout.sizes
        )
        result = defense.client_step(per_example, now)
        if step == 0:
            taps |= _first_step_taps(per_example, result.step, result.clip_factors, result.examples)
        update = update - now.learning_rate * result.step.to(torch.float64)
    if variates is not None:
        taps["T1.delta_y"] = variates.moved(update, local_steps, context.learning_rate)
        taps["T1.delta_c"] = variates.change(update, local_steps, context.learning_rate)
    taps["T1.raw"] = update
    taps["T1.out"] = defense.client_message(update, context)
    received = taps["T1.out"]
    if defense.acts_at("sum_securely"):
        if together == 1 < context.cohort.clients_per_round:
            return ClientRound(taps)
        received = torch.stack([_mean_of_sum(defense, received, rows, context) for rows in _rounds(weights, together)])
    taps["T0.in"] = received
    taps["T0.post"] = defense.server_receive(received, context)
    return ClientRound(taps)


def _rounds(weights: Tensor, together: int) -> list[slice]:
    return [slice(first, first + together) for first in range(0, len(weights), together)]


def _mean_of_sum(defense: Defense, messages: Tensor, rows: slice, context: RoundContext) -> Tensor:
    """What the server makes of the secure sum of some rows' messages: their mean (P,)."""
    local = {name: values[rows] for name, values in context.local.items()}
    total = defense.sum_securely(messages[rows], replace(context, keys=context.keys[rows], local=local))
    return total / len(messages[rows])


def _first_step_taps(
    per_example: PerExample, step: Tensor, clip_factors: Tensor | None, examples: Tensor | None
) -> dict[str, Tensor]:
    gradients = per_example.materialise()
    taps = {"T2.raw": gradients, "T2.step": step}
    if clip_factors is not None:
        taps["T2.clip"] = gradients * spread(clip_factors, per_example.sizes)
    if examples is not None:
        taps["T2.examples"] = examples
    return taps


def read_tap(client_round: ClientRound, tap: str, defense_name: str) -> Tensor:
    """The tensor at a tap.

    Raises:
        UsageError: the defense has nothing there.
    """
    if tap not in client_round.taps:
        raise UsageError(f"defense {defense_name!r} has nothing at tap {tap!r}; choose T2.step or T2.raw instead")
    return client_round.taps[tap]
