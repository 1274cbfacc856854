"""The noise at a tap, from what each defense says of its own: what an attacker knows who knows the defense.

Stages that follow each other add variances as long as the later ones only add to what they are given. Clipping or
pruning what carries noise makes its law unknown.
"""

from dataclasses import replace

from torch import Tensor

from harness.base.errors import UsageError
from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.taps import TAPS_OF_VARIATES, Hook, Tap
from harness.observation import Noise


def noise_at(defense: Defense, tap: Tap, context: RoundContext, steps: int = 1, looks: int = 1) -> Noise | None:
    """The known noise on what an attacker matches; None where there is none.

    Args:
        defense: one, or a stack.
        tap: where it is read. An update read there is divided by minus the learning rate and the steps.
        context: of the round, for its learning rate, cohort, schedules and the scale of all noise.
        steps: L, local steps behind an update.
        looks: R, how many readings of the same, with noise of their own, were averaged.

    Raises:
        UsageError: deviations are declared that are not one for each coordinate.
    """
    if context.noise_scale == 0:
        return None
    found = _of_examples(defense, context) if tap is Tap.EXAMPLES else _along(defense, tap, context, steps)
    if found is not None and isinstance(found.deviation, Tensor) and found.deviation.shape != (context.layout.total,):
        raise UsageError(
            f"noise is declared with deviations of shape {tuple(found.deviation.shape)}; give one number, or one for "
            f"each of the network's {context.layout.total} coordinates"
        )
    if found is not None and tap in TAPS_OF_VARIATES:
        found = replace(found, level=None)  # it follows the gradient, which variates hide there
    return None if found is None else found.averaged(looks).times(context.noise_scale)


def _of_examples(defense: Defense, context: RoundContext) -> Noise | None:
    own = (part.noise_of_examples(_scoped(context, name)) for name, part in defense.chain())
    return next((noise for noise in own if noise is not None), None)


def _along(defense: Defense, tap: Tap, context: RoundContext, steps: int) -> Noise | None:
    together = context.cohort.clients_per_round if tap.at_server and defense.sums_securely else 1
    if together > 1:
        context = replace(context, clients=tuple(range(together)))
    total: Noise | None = None
    for hook in tap.noised_by:
        for name, part in defense.chain():
            if total is not None and not part.only_adds(hook):
                total = total.changed(part.clipping_at(tap, context.learning_rate))
            own = _added(part, hook, tap, _scoped(context, name), steps)
            total = total if own is None else own.plus(total)
    # Of a secure sum the mean is read: that of messages which each have noise of their own.
    return None if total is None else total.averaged(together)


def _added(part: Defense, hook: Hook, tap: Tap, context: RoundContext, steps: int) -> Noise | None:
    """The noise of one part at a hook, in units of the gradient that is matched at the tap."""
    if hook is not Hook.CLIENT_STEP:
        own = part.noise_of(hook, context)
        return None if own is None else own.times(1 / (context.learning_rate * steps))
    count, total = steps if tap.of_update else 1, None
    for step in range(count):
        own = part.noise_of(hook, replace(context, local_step=step))
        total = total if own is None else own.plus(total)
    return None if total is None else total.times(1 / count)


def _scoped(context: RoundContext, name: str) -> RoundContext:
    return context.part(name) if name else context
