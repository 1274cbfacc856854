"""Recorders that look at a round while it is played: what a tap shows is kept, or measured, here."""

from typing import Self

from torch import Tensor

from harness.base.errors import UsageError
from harness.base.vectors import spread
from harness.federation.context import RoundContext
from harness.federation.defense import LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.taps import Tap


class Recorder:
    """Sees every local step, and what is read at the taps after them; keeps nothing unless overridden."""

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        """A local step of N clients: what went into it and what the defense made of it."""

    def read(self, tap: Tap, values: Tensor) -> None:
        """Take in what a tap after the local steps shows: (N, P), or one row for the sum of several clients."""

    def reads(self, tap: Tap) -> bool:
        """Return whether it makes anything of that tap."""
        return True


class RoundRecorder(Recorder):
    """Sees a whole round, whose clients come in chunks: each has an own one, and these are added up in their order."""

    def for_chunk(self) -> Self:
        """One that has seen nothing yet."""
        raise NotImplementedError

    def add(self, chunk: Self) -> None:
        """Takes over what was seen of the next chunk."""
        raise NotImplementedError


class KeepTap(Recorder):
    """Keeps what one tap shows; of local steps, the first."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.shown: Tensor | None = None  # gradients or updates (N, P), or per-example gradients (N, B, P)

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        if context.local_step == 0 and not self._tap.of_update:
            self.shown = _of_step(self._tap, examples, made)

    def read(self, tap: Tap, values: Tensor) -> None:
        if tap is self._tap:
            self.shown = values

    def reads(self, tap: Tap) -> bool:
        return tap is self._tap

    def seen(self, defense_name: str) -> Tensor:
        """Gradients (N, P) or per-example gradients (N, B, P) of a local step, or updates (N, P).

        Raises:
            UsageError: the defense has nothing at this tap.
        """
        if self.shown is None:
            raise UsageError(
                f"defense {defense_name!r} has nothing at tap {str(self._tap)!r}; choose T2.step or T2.raw instead"
            )
        return self.shown


def _of_step(tap: Tap, examples: ExampleGradients, made: LocalStep) -> Tensor | None:
    """Return what a tap of the local step shows; None where the defense has nothing there."""
    if tap is Tap.RAW:
        return examples.materialise()
    if tap is Tap.CLIP:
        clipped = made.clip_factors
        return None if clipped is None else examples.materialise() * spread(clipped, examples.sizes)
    return made.examples if tap is Tap.EXAMPLES else made.step
