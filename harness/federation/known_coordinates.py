"""What is known of single coordinates of an update: which are sent, and how large they can be."""

from dataclasses import replace

from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.taps import Hook, Tap
from harness.observation import Chosen, Noise


def carrying(
    defense: Defense, tap: Tap, context: RoundContext, noise: Noise | None, steps: int = 1, looks: int = 1
) -> Chosen | None:
    """Which coordinates carry anything but noise, where noise covers that the others were left out.

    None where nothing is left out, where nothing says which, and where no noise came after. Noise that came before has
    no level that anybody knows (:func:`noise_at`).

    Args:
        steps: L, local steps behind an update.
        looks: how many of what is read were averaged.
    """
    if noise is None or noise.deviation is None:
        return None
    chain = [part for _, part in defense.chain()]
    sparse = [(place, part.chosen_at(tap, context.layout)) for place, part in enumerate(chain) if part.sparse_at(tap)]
    known = [(place, one) for place, one in sparse if one is not None]
    if not known:
        return None
    place, fewest = min(known, key=lambda one: one[1].most)
    if fewest.most == context.layout.total and not fewest.least:
        return None
    choice = fewest.choice
    if choice == "largest" and (len(sparse) > 1 or _clips_tensors(chain[place + 1 :], tap, context)):
        choice = "unknown"  # the largest of what another part left, or not by the sizes that an attacker sees
    least = fewest.least / (context.learning_rate * steps)
    return replace(fewest, choice=choice, least=least, looks=looks)


def _clips_tensors(parts: list[Defense], tap: Tap, context: RoundContext) -> bool:
    """Whether one of these cuts every tensor of an update to a length of its own."""
    for part in parts:
        clipping = part.clipping_at(tap, context.learning_rate, context.server)
        if part.acts_at(Hook.CLIENT_MESSAGE) and clipping is not None and clipping.grouping == "layer":
            return True
    return False


def cut_at(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> float | None:
    """The magnitude at which coordinates were cut, in units of the gradient that is matched at a tap; None without."""
    bound = defense.cut_at(tap)
    return None if bound is None else bound / (context.learning_rate * steps)
