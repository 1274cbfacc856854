"""What is known of single coordinates of an update: which are sent, and how large they can be."""

from dataclasses import replace

from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.taps import Tap
from harness.observation import Chosen, Noise


def carrying(
    defense: Defense, tap: Tap, context: RoundContext, noise: Noise | None, looks: int = 1, corrected: bool = False
) -> Chosen | None:
    """Which coordinates carry anything but noise, where noise covers that the others were left out.

    None where nothing is left out, where nothing bounds how many are not, and where no noise came after. Noise that
    came before has no level that anybody knows (:func:`noise_at`).

    Args:
        looks: how many of what is read were averaged; where chance chooses, each is of other coordinates.
        corrected: whether what is sent is a gradient and something else beside it, which decides too.
    """
    if noise is None or noise.deviation is None:
        return None
    parts = [part.chosen_at(tap, context.layout) for _, part in defense.chain() if part.sparse_at(tap)]
    fewest = min((one for one in parts if one is not None), key=lambda one: one.most, default=None)
    if fewest is None or fewest.most == context.layout.total:
        return None
    # What the second of two parts leaves out is the smallest of what the first left, whatever that is.
    known = replace(fewest, largest=fewest.largest and len(parts) == 1 and not corrected)
    return known if known.largest or looks == 1 else None


def cut_at(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> float | None:
    """The magnitude at which coordinates were cut, in units of the gradient that is matched at a tap; None without."""
    bound = defense.cut_at(tap)
    return None if bound is None else bound / (context.learning_rate * steps)
