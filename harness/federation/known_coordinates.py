"""What is known of single coordinates of an update: how many are sent, and how large they can be."""

from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.taps import Tap
from harness.observation import Noise


def carrying(defense: Defense, tap: Tap, context: RoundContext, noise: Noise | None) -> int | None:
    """How many coordinates carry anything but noise at most, where noise covers that the others were left out.

    None where nothing is left out, where nothing bounds how many are not, and where no noise came after. Noise that
    came before has no level that anybody knows (:func:`noise_at`).
    """
    if noise is None or noise.deviation is None:
        return None
    sent = [part.most_sent(tap, context.layout) for _, part in defense.chain() if part.sparse_at(tap)]
    fewest = min((count for count in sent if count is not None), default=context.layout.total)
    return fewest if fewest < context.layout.total else None


def cut_at(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> float | None:
    """The magnitude at which coordinates were cut, in units of the gradient that is matched at a tap; None without."""
    bound = defense.cut_at(tap)
    return None if bound is None else bound / (context.learning_rate * steps)
