"""Captures in a federation that runs on NVIDIA FLARE: one filter of what a client sends.

Source: NVFlare's filters (nvflare 2.6 and later, ``apis/filter.py``), which its recipes and jobs add to clients, and
its events, which every filter is told. This file needs NVFlare, which whoever uses it has.
"""

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DataKind, from_shareable  # pyright: ignore[reportMissingImports]
from nvflare.apis.event_type import EventType  # pyright: ignore[reportMissingImports]
from nvflare.apis.filter import Filter  # pyright: ignore[reportMissingImports]
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode  # pyright: ignore[reportMissingImports]
from nvflare.apis.fl_context import FLContext  # pyright: ignore[reportMissingImports]
from nvflare.apis.shareable import Shareable  # pyright: ignore[reportMissingImports]

from harness.base.errors import UsageError
from harness.capture.loop import Round, is_by_hand, require_facts
from harness.capture.watch import Watch
from harness.judging.capture import Sent
from harness.judging.framework_defenses import declared_beside

_KINDS: dict[str, Sent] = {DataKind.WEIGHTS: "after", DataKind.WEIGHT_DIFF: "update"}
_LOCK = threading.Lock()


@dataclass
class _Open:
    """A client's round that is under way."""

    round: Round
    watch: Watch | None
    given: dict[str, Any]
    before: dict[str, Any]
    contexts: ExitStack


# By client; of the whole process, since a job may add one filter to each way.
_OPEN: dict[str, _Open] = {}


class CaptureFilter(Filter):
    """Keeps what a client gets and what leaves it, a folder per round and client; what passes it is left as it is.

    Add it to the client's output as the last filter, to see what really leaves the client. How the client trains is
    read while it does, where its script runs in the client's process (as NVFlare has it without
    ``launch_external_process``), and its defense from the filters before this one.

    Args:
        folder: where captures go, on the client's machine.
        facts: fields of :class:`CaptureRecord` that cannot be read; not ``framework``, ``client`` and ``round``. With a
            ``learning_rate`` all are given, and of the training nothing is read.
        strict: raise what else is a line of the log, and the reason in ``capture.json``.
    """

    def __init__(self, folder: str, facts: dict[str, Any] | None = None, strict: bool = False) -> None:
        super().__init__()
        if strict:
            require_facts(facts or {})
        # NVFlare makes it again elsewhere from attributes of these names.
        self.folder, self.facts, self.strict = folder, facts, strict

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Handle an event: NVFlare calls this with everything that happens."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            self._begin(fl_ctx)
        elif event_type in (EventType.ABORT_TASK, EventType.END_RUN):
            self._end(fl_ctx.get_identity_name())

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return what NVFlare calls with every result."""
        client = fl_ctx.get_identity_name()
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN or client not in _OPEN:
            return shareable
        mine = _OPEN[client]
        try:
            with mine.round.told():
                if not mine.round.over:
                    self._keep(mine, shareable)
        finally:
            self._end(client)
        return shareable

    def _begin(self, fl_ctx: FLContext) -> None:
        task, client = fl_ctx.get_prop(FLContextKey.TASK_DATA), fl_ctx.get_identity_name()
        if "train" not in str(fl_ctx.get_prop(FLContextKey.TASK_NAME)) or not isinstance(task, Shareable):
            return
        number, contexts = _number(task), ExitStack()
        place = Path(self.folder) / f"round-{number}-client-{client}"
        with _LOCK:
            if client in _OPEN and _OPEN[client].round.folder == place:
                return  # another filter of the same job
            self._end(client)
            mine = _Open(Round(place, self.strict), None, {}, {}, contexts)
            contexts.enter_context(mine.round)
            others = bool(_OPEN)
            _OPEN[client] = mine
        with mine.round.told():
            mine.given = (self.facts or {}) | {"framework": "nvflare", "client": client or None, "round": number}
            require_facts(mine.given)
            mine.before = _arrays(from_shareable(task).data)
            if is_by_hand(mine.given):
                return
            if others:
                raise UsageError("another client trains in the same process; run each in one of its own")
            mine.watch = contexts.enter_context(Watch(everywhere=True))

    def _keep(self, mine: _Open, shareable: Shareable) -> None:
        if shareable.get_return_code() != ReturnCode.OK:
            raise UsageError(f"its task ended with {shareable.get_return_code()}")
        content = from_shareable(shareable)
        if content.data_kind not in _KINDS:
            raise UsageError(f"what it sent is of kind {content.data_kind}, not {' or '.join(sorted(_KINDS))}")
        given = {"defense": declared_beside(self._filters_before())} | mine.given
        sent: dict[str, Any] = {_KINDS[content.data_kind]: _arrays(content.data)}
        mine.round.keep(mine.watch, given, mine.before, **sent)

    def _filters_before(self) -> list[Any]:
        """Filters whose results this one is given, out of the frame that calls one after the other.

        Raises:
            UsageError: one comes after it.
        """
        frame = sys._getframe()
        while frame is not None and "filter_list" not in frame.f_locals:
            frame = frame.f_back
        chain = [] if frame is None else list(frame.f_locals["filter_list"])
        place = next((place for place, one in enumerate(chain) if one is self), len(chain))
        after = [one for one in chain[place + 1 :] if not isinstance(one, CaptureFilter)]
        if after:
            raise UsageError(
                f"{type(after[0]).__name__} comes after CaptureFilter, so that what leaves the client is not what is "
                "captured; add CaptureFilter last"
            )
        return [one for one in chain[:place] if not isinstance(one, CaptureFilter)]

    def _end(self, client: str) -> None:
        mine = _OPEN.pop(client, None)
        if mine is None:
            return
        with suppress(Exception):
            mine.round.fail("its round ended without a result")
        mine.contexts.close()


def _number(task: Shareable) -> int:
    number = task.get_header("current_round")
    return number if isinstance(number, int) and number >= 0 else 0


def _arrays(data: Mapping[str, Any]) -> dict[str, Any]:
    """Copies, which nothing that the client does changes."""
    return {
        str(name): one.detach().cpu().clone() if hasattr(one, "detach") else np.array(one) for name, one in data.items()
    }
