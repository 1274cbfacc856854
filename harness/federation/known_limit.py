"""The theorem that holds at a tap, from what each defense does at each stage (docs/accounting.md).

Whatever comes after a stage that limits what can be reconstructed is post-processing: the limit stays. Whatever comes
before it is its input, which it bounds.
"""

from dataclasses import replace

from harness.federation.clipped_noise import NO_NOISE, height
from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.taps import Hook, Tap
from harness.privacy import Limit, NoLimit

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


def _scoped(context: RoundContext, name: str) -> RoundContext:
    return context.part(name) if name else context
