"""What an optimizer that was not made anew brought along from a client's round before.

After a round of one local step SGD's velocity is that round's update, divided by minus the learning rate. Whoever saw
the update can take its part out of the next one. After several steps their sum is known, and the velocity is not.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.local_optimizer import LocalOptimizer, optimizer_of
from harness.defenses import DEFENSES
from harness.judging.capture import MOMENTUM, Capture
from harness.judging.framework_defenses import translated

Earlier = Mapping[Path, Capture]
"""By the folder of a capture that of the round before."""
UpdateOf = Callable[[Capture], Tensor]
"""Reads how far a client came: (P,) float64."""

_MEND = "make a new optimizer for the captured round"


def earlier_of(captures: Sequence[Capture]) -> Earlier:
    """The rounds before, of captures whose optimizer remembered them.

    Raises:
        UsageError: one is not there, or does not tell what was remembered.
    """
    known = {(one.record.client, one.record.round): one for one in captures}
    found: dict[Path, Capture] = {}
    for capture in captures:
        record = capture.record
        if record.state == "new" or capture.kind == "gradient" or not _optimizer(capture).is_stateful:
            continue
        where = f"capture {str(capture.folder)!r}: its optimizer's state was carried over from round {record.round - 1}"
        before = known.get((record.client, record.round - 1))
        if before is None or before.kind == "gradient" or before.record.optimizer == MOMENTUM:
            raise UsageError(f"{where}, of which no update of client {record.client!r} is here; add it, or {_MEND}")
        defense = translated(before.record.defense)
        if before.record.local_steps > 1:
            raise UsageError(f"{where}, whose {before.record.local_steps} local steps do not tell it; {_MEND}")
        if defense is not None and build(DEFENSES, defense.name, defense.settings).changes_messages():
            raise UsageError(f"{where}, and {defense.name!r} hides it; {_MEND}")
        found[capture.folder] = before
    return found


def without_earlier(capture: Capture, update: Tensor, earlier: Earlier, update_of: UpdateOf) -> Tensor:
    """The update (P,) float64 that a client had sent, had its optimizer been new."""
    before = _velocity(capture, earlier, update_of)
    return update if before is None else _optimizer(capture).anew(update, capture.record.learning_rate, before)


def _velocity(capture: Capture, earlier: Earlier, update_of: UpdateOf) -> Tensor | None:
    """What a client's optimizer remembered at the beginning; None for nothing."""
    before = earlier.get(capture.folder)
    if before is None:
        return None
    return _optimizer(before).velocity(
        update_of(before), before.record.learning_rate, _velocity(before, earlier, update_of)
    )


def _optimizer(capture: Capture) -> LocalOptimizer:
    return optimizer_of(capture.record.optimizer)
