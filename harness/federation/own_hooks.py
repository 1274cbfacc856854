"""What a defense's own method makes of rows, looked at as it comes: somebody else may have written it."""

from collections.abc import Callable

from torch import Tensor

from harness.errors import UsageError
from harness.federation.context import RoundContext
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.taps import Hook


def step_by(defense: Defense, examples: ExampleGradients, context: RoundContext, like: Tensor) -> LocalStep:
    """The defense's ``client_step`` of N clients, whose weights (N, P) are ``like``.

    Raises:
        UsageError: it gives something else than a step (N, P).
    """
    made: object = defense.client_step(examples, context)
    if not isinstance(made, LocalStep):
        raise UsageError(f"{Hook.CLIENT_STEP} returns a {type(made).__name__}; let it return a LocalStep")
    _require_rows(Hook.CLIENT_STEP, made.step, like)
    return made


def rows_by(
    hook: Hook, method: Callable[[Tensor, RoundContext], Tensor], given: Tensor, context: RoundContext
) -> Tensor:
    """What a defense's method makes of N clients' rows (N, P).

    Raises:
        UsageError: it changes what it was given, which is read at the tap before it; or gives something else than rows.
    """
    before = _version(given)
    made = method(given, context)
    if _version(given) != before:
        raise UsageError(f"{hook} changes what it is given in place, which others still read; work on a copy")
    _require_rows(hook, made, given)
    return made


def _version(rows: Tensor) -> int | None:
    """Grows with every change in place; None where torch does not count, for what was made for inference alone."""
    return None if rows.is_inference() else rows._version


def _require_rows(hook: Hook, made: object, like: Tensor) -> None:
    if not isinstance(made, Tensor) or made.shape != like.shape or not made.is_floating_point():
        is_tensor = isinstance(made, Tensor)
        what = f"a tensor {tuple(made.shape)} of {made.dtype}" if is_tensor else f"a {type(made).__name__}"
        rows = f"{tuple(like.shape)}, a row of floating-point numbers for each client"
        raise UsageError(f"{hook} returns {what}; let it return a tensor {rows}")
