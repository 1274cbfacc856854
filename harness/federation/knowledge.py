"""Attacker's knowledge of a defense: the law of its noise, the coordinates it keeps, and its reconstruction limit."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from harness.base.coding import Coding
from harness.base.errors import UsageError
from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.privacy_facts import NO_NOISE, height
from harness.federation.taps import TAPS_OF_VARIATES, Hook, Tap
from harness.observation import Chosen, Noise
from harness.privacy import Limit, NoLimit

# The noise at a tap, from what each defense says of its own: what an attacker knows who knows the defense.
#
# Stages that follow each other add variances as long as the later ones only add to what they are given. Clipping or
# pruning what carries noise makes its law unknown.


def noise_at(
    defense: Defense, tap: Tap, context: RoundContext, steps: int = 1, looks: int = 1,
    shares: Sequence[float] | None = (),
) -> Noise | None:  # fmt: skip
    """The known noise on what an attacker matches; None where there is none.

    Args:
        defense: one, or a stack.
        tap: where it is read. An update read there is divided by minus the learning rate and the steps.
        context: of the round, for its learning rate, cohort, schedules and the scale of all noise.
        steps: L, local steps behind an update.
        looks: R, how many readings of the same, with noise of their own, were averaged.
        shares: weights of the steps in an update, 1 on average, or (): all alike. None where an update is no weighted
            sum of them, or not every coordinate of it is read: then nobody knows what noise on the steps is there.

    Raises:
        UsageError: deviations are declared that are not one for each coordinate.
    """
    if context.noise_scale == 0:
        return None
    found = _of_examples(defense, context) if tap is Tap.EXAMPLES else _along(defense, tap, context, steps, shares)
    if found is not None and isinstance(found.deviation, Tensor) and found.deviation.shape != (context.layout.total,):
        raise UsageError(
            f"noise is declared with deviations of shape {tuple(found.deviation.shape)}; give one number, or one for "
            f"each of the network's {context.layout.total} coordinates"
        )
    # Of what is changed after that, or before gradients are computed, no attacker has a model of all.
    if (defense.codes(tap) and defense.coding_at(tap) is None) or defense.changes_before_gradients:
        return Noise("unknown", None, unread=True, bare=True)
    if of_several(tap, context) and (defense.sparse_at(tap) or defense.codes(tap) or defense.cut_at(tap) is not None):
        return Noise("unknown", None, unread=True, bare=True)
    if found is not None and tap in TAPS_OF_VARIATES:
        found = replace(found, level=None)  # it follows the gradient, which variates hide there
    return None if found is None else found.averaged(looks).times(context.noise_scale)


def of_several(tap: Tap, context: RoundContext) -> bool:
    """Return whether a tap shows the mean of messages that were changed one by one, of each in another way."""
    return tap.of_round and context.cohort.clients_per_round > 1


def _of_examples(defense: Defense, context: RoundContext) -> Noise | None:
    own = (part.noise_of_examples(_scoped(context, name)) for name, part in defense.chain())
    return next((noise for noise in own if noise is not None), None)


def _along(
    defense: Defense, tap: Tap, context: RoundContext, steps: int, shares: Sequence[float] | None
) -> Noise | None:
    together = context.cohort.clients_per_round if tap.of_round or (tap.at_server and defense.sums_securely) else 1
    if together > 1:
        context = replace(context, clients=tuple(range(together)))
    total: Noise | None = None
    for hook in tap.noised_by:
        if hook is Hook.AGGREGATE:
            # Each client's would follow its own gradient.
            total = total and replace(total.averaged(together), level=total.level if together == 1 else None)
        for name, part in defense.chain():
            if total is not None and not part.only_adds(hook):
                total = total.changed(part.clipping_at(tap, context.learning_rate))
            own = _added(part, hook, tap, _scoped(context, name), steps, shares)
            if own is not None and hook is Hook.AGGREGATE:
                own = own.times(1 / together)  # on the sum, of which the mean is read
            total = total if own is None else own.plus(total)
    # Of a secure sum the mean is read: that of messages which each have noise of their own.
    return None if total is None else total if tap.of_round else total.averaged(together)


def _added(
    part: Defense, hook: Hook, tap: Tap, context: RoundContext, steps: int, shares: Sequence[float] | None
) -> Noise | None:
    """The noise of one part at a hook, in units of the gradient that is matched at the tap."""
    if hook is not Hook.CLIENT_STEP:
        own = part.noise_of(hook, context)
        return None if own is None else own.times(1 / (context.learning_rate * steps))
    count, total = steps if tap.of_update else 1, None
    for step in range(count):
        own = part.noise_of(hook, replace(context, local_step=step))
        if own is not None and shares and len(shares) == count:
            own = own.times(shares[step])
        total = total if own is None else own.plus(total)
    if total is not None and shares is None and tap.of_update:
        return replace(total.changed(None), unread=True)
    return None if total is None else total.times(1 / count)


def _scoped(context: RoundContext, name: str) -> RoundContext:
    return context.part(name) if name else context


# What is known of single coordinates of an update: which are sent, and how large they can be.


def carrying(
    defense: Defense, tap: Tap, context: RoundContext, noise: Noise | None, steps: int = 1, looks: int = 1
) -> Chosen | None:
    """Return which coordinates carry anything but noise, where noise covers that the others were left out.

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
    """Return the chosen coordinates with what is known of clips of the update that come after the choice of the part at
    a place."""
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


def coding_at(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> Coding | None:
    """The coarser form that numbers were written in, in units of the gradient that is matched at a tap."""
    coding = defense.coding_at(tap)
    # Sums have lengths of their own.
    if (
        coding is None
        or of_several(tap, context)
        or tap.unit == "example"
        or (coding.kind == "length" and tap.of_update and steps > 1)
    ):
        return None
    return coding.at(-context.learning_rate * steps if tap.of_update else 1.0, context.layout.shapes)


def cut_at(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> float | None:
    """The magnitude at which coordinates were cut, in units of the gradient that is matched at a tap; None without."""
    bound = defense.cut_at(tap)
    return None if bound is None or of_several(tap, context) else bound / (context.learning_rate * steps)


# The theorem that holds at a tap, from what each defense does at each stage (docs/accounting.md).
#
# Whatever comes after a stage that limits what can be reconstructed is post-processing: the limit stays. Whatever
# comes before it is its input, which it bounds.

_BEFORE = "it is read before any noise is added"
_SILENT = "its noise is switched off"
_LATER = "it is read before the defense acts"


def limit_at(defense: Defense, tap: Tap, context: RoundContext, steps: int = 1, looks: int = 1) -> Limit | NoLimit:
    """The smallest limit on what anybody who reads the tap, and knows all other examples, can reconstruct of one.

    Args:
        defense: one, or a stack.
        tap: what is read.
        context: of the round, for its learning rate, cohort, schedules and the scale of all noise.
        steps: L, local steps of the round; the example is in one of them, whose noise covers it in all that follow.
        looks: R, how often the same was read, with noise of its own.
    """
    if not tap.noised_by or context.noise_scale == 0:
        return NoLimit(_SILENT if tap.noised_by else _BEFORE)
    found = [(name, one) for name, part in defense.chain() for one in _limits(part, tap, _scoped(context, name), steps)]
    limits = [one for _, one in found if isinstance(one, Limit)]
    if limits:
        return min(limits, key=height).repeated(looks)
    reasons = dict.fromkeys(
        f"{name}: {one.reason}" if name else one.reason for name, one in found if isinstance(one, NoLimit)
    )
    return NoLimit("; ".join(reasons))


def _limits(part: Defense, tap: Tap, context: RoundContext, steps: int) -> list[Limit | NoLimit]:
    """One for each stage of a part that what is read has passed, or one reason why there is none."""
    if tap is Tap.EXAMPLES:
        return [part.reconstruction_limit_of_examples(context)]
    acting = [hook for hook in tap.noised_by if part.acts_at(hook)]
    if steps > 1 and Hook.SUM_SECURELY in acting:
        # From its second step on a client moves by its own noise, which no other client's hides.
        acting.remove(Hook.SUM_SECURELY)
    if not acting:
        return [NoLimit(_LATER if any(map(part.acts_at, Hook)) else NO_NOISE)]
    return [_worst(part, hook, context, steps if tap.of_update else 1) for hook in acting]


def _worst(part: Defense, hook: Hook, context: RoundContext, steps: int) -> Limit | NoLimit:
    """The limit of a stage; of a local step, that of the one which hides its examples least."""
    if hook is not Hook.CLIENT_STEP:
        return part.reconstruction_limit(hook, context)
    each = dict.fromkeys(part.reconstruction_limit(hook, replace(context, local_step=step)) for step in range(steps))
    return max(each, key=height)
