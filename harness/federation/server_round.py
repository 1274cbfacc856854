"""A round at the server: messages are transformed one by one, added up, or summed securely, and applied."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.base.local_optimizer import PLAIN, LocalOptimizer
from harness.federation.client_round import send, train_locally
from harness.federation.context import RoundContext, State
from harness.federation.defense import Defense
from harness.federation.examples import GradientSource
from harness.federation.memory import RoundVariates
from harness.federation.recorders import Recorder
from harness.federation.taps import Tap


def receive(message: Tensor, defense: Defense, context: RoundContext, recorders: Sequence[Recorder] = ()) -> Tensor:
    """Return what the server makes of each of N messages (N, P) that arrive, before they are added up."""
    received = defense.server_receive(message, context)
    for recorder in recorders:
        recorder.read(Tap.ARRIVED, message)
        recorder.read(Tap.RECEIVED, received)
    return received


def means_of_sums(messages: Tensor, defense: Defense, context: RoundContext, together: int) -> Tensor:
    """Return what a server that gets secure sums has of several rounds' messages (R * K, P): their means (R, P).

    ``together`` is K: so many consecutive rows are one round's clients.
    """
    rounds = [slice(first, first + together) for first in range(0, len(messages), together)]
    return torch.stack([defense.sum_securely(messages[rows], context.rows(rows)) / together for rows in rounds])


def published_of(received: Tensor, defense: Defense, context: RoundContext, together: int) -> Tensor:
    """Return what the servers of several rounds apply (R, P), each a federation of its own, with noise of its own.

    Args:
        received: (R * K, P), what they have of each client, or (R, P) the means of secure sums.
        defense: under which they train.
        context: of all R * K clients.
        together: K.
    """
    made = []
    for number in range(len(context.keys) // together):
        rows = slice(number * together, (number + 1) * together)
        own = context.rows(rows)
        total = received[number] * together if defense.sums_securely else received[rows].double().sum(0)
        sent = {name: values.sum(0) for name, values in own.sent.items()}
        alone = replace(own, keys=((federation_of(own.keys[0]),),), server=dict(context.server), sent=sent)
        made.append(defense.aggregate(total, alone))
    return torch.stack(made)


def federation_of(key: tuple[int | str, ...]) -> str:
    """The name of the federation whose first client has a key, which says that it is the first or does not."""
    return " ".join(map(str, key)).replace(" client 0", "")


class ServerRound:
    """One round's messages, which come in chunks of clients: added as they come, or kept for a secure sum of all."""

    def __init__(self, defense: Defense, parameters: int, device: torch.device | None = None) -> None:
        self._defense, self._secure = defense, defense.sums_securely
        self._total = torch.zeros(parameters, dtype=torch.float64, device=device)
        self._messages: list[Tensor] = [self._total.new_zeros(0, parameters)]
        self._keys: list[tuple[int | str, ...]] = []
        self._local: dict[str, list[Tensor]] = defaultdict(list)
        self._sent: State = {}

    def add(
        self, received: Tensor, context: RoundContext, present: Tensor | None = None, reporting: Tensor | None = None
    ) -> None:
        """Takes in what the server has of N clients (N, P), and what they sent beside it.

        Args:
            received: (N, P).
            context: of these clients, with what they remember of the round and sent.
            present: (N,), who takes part; None for everybody.
            reporting: (N,), who of them also sends what goes beside the message; None for everybody.
        """
        taking = list(range(len(received))) if present is None else present.nonzero()[:, 0].tolist()
        if self._secure:
            self._messages.append(received[taking])
            self._keys += [context.keys[row] for row in taking]
            for name, values in context.local.items():
                self._local[name].append(values[taking])
        # One client after the other, so that no sum depends on the chunks.
        for row in taking:
            if not self._secure:
                self._total += received[row]
            counts = 1 if reporting is None or reporting[row] else 0
            for name, values in context.sent.items():
                self._sent[name] = self._sent.get(name, 0) + values[row] * counts

    def aggregate(self, context: RoundContext) -> Tensor:
        """Return what the server applies (P,); ``context`` is that of the round, whoever took part.

        Raises:
            UsageError: a secure sum of these messages is impossible.
        """
        total = self._total
        if self._secure:
            local = {name: torch.cat(parts) for name, parts in self._local.items()}
            everybody = replace(context, keys=tuple(self._keys) or context.keys, local=local)
            total = self._defense.sum_securely(torch.cat(self._messages), everybody)
        return self._defense.aggregate(total, replace(context, sent=self._sent))


def as_weights(update: Tensor, weights: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return what is left of an update (N, P) where it is sent as weights: in their own precision, and then in
    ``dtype``."""
    after = (weights.double() + update).to(weights.dtype)
    return (after if dtype is None else after.to(dtype)).double() - weights.double()


# A whole round of clients that are looked at one by one: local steps, what they send, what the server makes of it.


def play_round(
    gradients: GradientSource,
    weights: Tensor,
    defense: Defense,
    context: RoundContext,
    steps: int,
    recorders: Sequence[Recorder],
    *,
    together: int | None = 1,
    variates: RoundVariates | None = None,
    optimizer: LocalOptimizer = PLAIN,
    sent_as: torch.dtype | None = None,
) -> None:
    """Plays the round of N clients for recorders to look at.

    Args:
        gradients: of the examples of each local step.
        weights: (N, P), what each client starts from.
        defense: under which they train.
        context: of the round, with these clients' keys and state.
        steps: L, local steps.
        recorders: shown every tap that the defense has.
        together: consecutive rows that are one round's clients. Of these a server that gets secure sums has their mean
            only, one row. None ends the round before the server.
        variates: SCAFFOLD's, with a row for each client. Taps from T1.raw on then show updates without the variates'
            part, as somebody who knows them reads them, and two more show the halves of what is sent.
        optimizer: of the local steps. Where it is not plain SGD, an update is the difference of the weights after and
            before in their own dtype, as a capture has it: rounding ends what can be read of tiny gradients.
        sent_as: what the weights of a client travel in, where that is coarser than they are.
    """
    trained = train_locally(
        gradients, weights, defense, context, steps, variates=variates, optimizer=optimizer, recorders=recorders
    )
    update = trained.update
    if not optimizer.is_plain:
        update = as_weights(update, weights)
    if variates is not None:
        for recorder in recorders:
            recorder.read(Tap.DELTA_Y, trained.moved)
            recorder.read(Tap.DELTA_C, variates.change(trained.mean_step))
    written = None if sent_as is None else partial(as_weights, weights=weights, dtype=sent_as)
    message = send(update, defense, context, recorders, written)
    if together is not None:
        if defense.sums_securely:
            message = means_of_sums(message, defense, context, together)
        received = receive(message, defense, context, recorders)
        if reading := [one for one in recorders if one.reads(Tap.PUBLISHED)]:
            published = published_of(received, defense, context, together)
            for recorder in reading:
                recorder.read(Tap.PUBLISHED, published)
