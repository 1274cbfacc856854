"""Captures in a federation that runs on NVIDIA FLARE: a filter that stands on both ways of a client's tasks.

Source: NVFlare's filters (nvflare 2.6 and later, ``apis/filter.py``), which its recipes and jobs add to clients. This
file needs NVFlare, which whoever uses it has.
"""

from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DataKind, from_shareable  # pyright: ignore[reportMissingImports]
from nvflare.apis.filter import Filter  # pyright: ignore[reportMissingImports]
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode  # pyright: ignore[reportMissingImports]
from nvflare.apis.fl_context import FLContext  # pyright: ignore[reportMissingImports]
from nvflare.apis.shareable import Shareable  # pyright: ignore[reportMissingImports]

from harness.judging.capture import Arrays, CaptureRecord, Sent, write_capture

# The round and the model that a client was last sent, by its name: NVFlare makes one filter for each way.
_GOT: dict[str, tuple[int, Arrays]] = {}
_KINDS: dict[str, Sent] = {DataKind.WEIGHTS: "after", DataKind.WEIGHT_DIFF: "update"}


class CaptureFilter(Filter):
    """Keeps what a client gets and what leaves it, a folder per round and client.

    Add one to the client's input and one to its output; there as the last filter, to see what really leaves the client.

    Args:
        folder: where captures go, on the client's machine.
        facts: the fields of :class:`CaptureRecord` but ``framework``, ``client`` and ``round``.
    """

    def __init__(self, folder: str, facts: dict[str, Any]) -> None:
        super().__init__()
        CaptureRecord(**facts)  # a mistake is told when the job is made, not in its first round
        # NVFlare makes it again elsewhere from attributes of these names.
        self.folder, self.facts = folder, facts

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """What NVFlare calls with every task and every result; it is passed on as it is."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        try:
            content = from_shareable(shareable)
        except ValueError:
            return shareable  # no task on a model
        kind, client = _KINDS.get(content.data_kind), fl_ctx.get_identity_name()
        if kind is None:
            return shareable
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            _GOT[client] = int(shareable.get_header("current_round") or 0), dict(content.data)
        elif client in _GOT:
            number, before = _GOT.pop(client)
            record = CaptureRecord(**self.facts, framework="nvflare", client=client, round=number)
            folder = Path(self.folder) / f"round-{number}-client-{client}"
            sent: dict[str, Any] = {kind: dict(content.data)}
            write_capture(folder, record, before, **sent)
        return shareable
