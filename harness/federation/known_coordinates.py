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
    chain = defense.chain()
    sparse = [
        (place, part.chosen_at(tap, context.layout)) for place, (_, part) in enumerate(chain) if part.sparse_at(tap)
    ]
    known = [(place, one) for place, one in sparse if one is not None]
    if not known:
        return None
    place, fewest = min(known, key=lambda one: one[1].most)
    if fewest.most == context.layout.total and not fewest.least:
        return None
    told = replace(fewest, least=fewest.least / (context.learning_rate * steps), looks=looks)
    if told.choice != "largest":
        return told
    if len(sparse) > 1:
        return replace(told, choice="unknown")  # the largest of what another part left
    return _before_clips(told, place, defense, tap, context)


def _before_clips(chosen: Chosen, place: int, defense: Defense, tap: Tap, context: RoundContext) -> Chosen:
    """The same, with what is known of clips of the update that come after the choice of the part at a place."""
    after = []
    for number, (name, part) in enumerate(defense.chain()):
        scoped = context.part(name) if name else context
        clipping = part.clipping_at(tap, context.learning_rate, scoped.server)
        if clipping is not None and clipping.unit == "update":
            after.append(number > place or not part.acts_at(Hook.CLIENT_MESSAGE))
    if not any(after):
        return chosen
    whole = defense.clipping_at(tap, context.learning_rate, context.server)
    if all(after) and whole is not None and whole.unit == "update" and whole.bound is not None:
        return replace(chosen, clipped=True)
    # Where tensors are scaled each by its own, what was largest before need not look so.
    return replace(chosen, choice="unknown") if whole is None or whole.grouping == "layer" else chosen


def cut_at(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> float | None:
    """The magnitude at which coordinates were cut, in units of the gradient that is matched at a tap; None without."""
    bound = defense.cut_at(tap)
    return None if bound is None else bound / (context.learning_rate * steps)
