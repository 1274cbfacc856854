"""The noise at a tap, from what each defense says of its own: what an attacker knows who knows the defense.

Stages that follow each other add variances as long as the later ones only add to what they are given. Clipping or
pruning what carries noise makes its law unknown.
"""

import math

from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.taps import Hook, Tap
from harness.observation import Noise


def noise_at(defense: Defense, tap: Tap, context: RoundContext, steps: int = 1, looks: int = 1) -> Noise | None:
    """The known noise on what an attacker matches; None where there is none.

    Args:
        defense: one, or a stack.
        tap: where it is read. An update read there is divided by minus the learning rate and the steps.
        context: of the round, for its learning rate, cohort, schedules and the scale of all noise.
        steps: L, local steps behind an update.
        looks: R, how many readings of the same, with noise of their own, were averaged.
    """
    if context.noise_scale == 0:
        return None
    found = _of_examples(defense, context) if tap is Tap.EXAMPLES else _along(defense, tap, context, steps)
    if found is not None and found.law != "gaussian" and looks > 1:
        found = Noise("unknown", found.deviation)
    return None if found is None else found.times(context.noise_scale / math.sqrt(looks))


def _of_examples(defense: Defense, context: RoundContext) -> Noise | None:
    own = (part.noise_of_examples(_scoped(context, name)) for name, part in defense.chain())
    return next((noise for noise in own if noise is not None), None)


def _along(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> Noise | None:
    total: Noise | None = None
    for hook in tap.noised_by:
        for name, part in defense.chain():
            if total is not None and not part.only_adds(hook):
                total = Noise("unknown", None)
            own = part.noise_of(hook, _scoped(context, name))
            if own is not None:
                total = _in_gradient_units(own, hook, tap, context, steps).plus(total)
        if hook is Hook.SUM_SECURELY and total is not None and defense.sums_securely:
            # The mean of the messages of a round's clients, each with noise of its own.
            count = context.cohort.clients_per_round
            law = total.law if total.law == "gaussian" or count == 1 else "unknown"
            total = Noise(law, total.deviation).times(1 / math.sqrt(count))
    return total


def _in_gradient_units(noise: Noise, hook: Hook, tap: Tap, context: RoundContext, steps: int) -> Noise:
    if not tap.of_update:
        return noise
    if hook is not Hook.CLIENT_STEP:
        return noise.times(1 / (context.learning_rate * steps))
    law = noise.law if noise.law == "gaussian" or steps == 1 else "unknown"
    return Noise(law, noise.deviation).times(1 / math.sqrt(steps))


def _scoped(context: RoundContext, name: str) -> RoundContext:
    return context.part(name) if name else context
