"""A client's round on made-up batches, read at every tap."""

from torch import Tensor

from harness.federation.context import RoundContext
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.recorders import KeepTap, Recorder
from harness.federation.taps import Tap
from harness.federation.variates import RoundVariates
from harness.federation.whole_round import play_round
from harness.models import RowModel
from harness.models.example_gradients import MaterialisedGradients


class _KeepAll(Recorder):
    """Keeps what every tap shows."""

    def __init__(self) -> None:
        self.taps: dict[Tap, Tensor] = {}

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        for tap in Tap:
            one = KeepTap(tap)
            one.step(examples, made, context)
            if one.shown is not None:
                self.taps[tap] = one.shown

    def read(self, tap: Tap, values: Tensor) -> None:
        self.taps[tap] = values


def play_taps(
    model: RowModel,
    weights: Tensor,
    images: Tensor,
    labels: Tensor,
    defense: Defense,
    context: RoundContext,
    steps: int = 1,
    together: int | None = 1,
    variates: RoundVariates | None = None,
    times: float = 1.0,
) -> dict[Tap, Tensor]:
    """Return the observation of every tap in one round; a tap the defense does not have is left out.

    Args:
        model: the network.
        weights: (N, P), what each client starts from.
        images: (N, L*B, C, H, W); local step l uses examples l*B to (l+1)*B. labels: (N, L*B).
        defense, context, together, variates: see :func:`harness.federation.whole_round.play_round`.
        steps: L.
        times: what all gradients are multiplied by.
    """
    batch, keep = images.shape[1] // steps, _KeepAll()

    def gradients(step: int, now: Tensor) -> ExampleGradients:
        part = slice(step * batch, (step + 1) * batch)
        made = model.per_example_gradients(now, images[:, part], labels[:, part])
        return MaterialisedGradients(made * times, model.layout.sizes)

    play_round(gradients, weights, defense, context, steps, [keep], together=together, variates=variates)
    return keep.taps
