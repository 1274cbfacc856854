"""A whole round of clients that are looked at one by one: local steps, what they send, what the server makes of it."""

from collections.abc import Sequence

from torch import Tensor

from harness.federation.client_round import send, train_locally
from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.examples import GradientSource
from harness.federation.recorders import Recorder
from harness.federation.server_round import means_of_sums, receive
from harness.federation.taps import Tap
from harness.federation.variates import RoundVariates


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
    """
    trained = train_locally(gradients, weights, defense, context, steps, variates=variates, recorders=recorders)
    if variates is not None:
        for recorder in recorders:
            recorder.read(Tap.DELTA_Y, trained.moved)
            recorder.read(Tap.DELTA_C, variates.change(trained.mean_step))
    message = send(trained.update, defense, context, recorders)
    if together is not None:
        if defense.sums_securely:
            message = means_of_sums(message, defense, context, together)
        receive(message, defense, context, recorders)
