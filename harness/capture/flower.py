"""Captures in a federation that runs on Flower: a mod for its clients, a wrapper for its server's strategy.

Source: Flower's message API (flwr 1.2x and later: ``ClientApp(mods=[...])``, ``Strategy.configure_train`` and
``aggregate_train``). Flower itself is not imported: whoever uses this has it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UsageError
from harness.judging.capture import CaptureRecord, write_capture

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]


def capture_mod(folder: Path | str, **facts: Any) -> Mod:
    """A client mod that keeps what the client got and what leaves it, a folder per round and client.

    It is the outermost of the mods that stand after it in the list: put it first to see what really leaves the client,
    after a privacy mod has had its way. Secure aggregation sends its keys and shares in messages without a model, which
    pass; of what it has masked no array is left to capture, so there the mod stands behind it.

    Args:
        folder: where captures go, on the client's machine.
        facts: the fields of :class:`CaptureRecord` but ``framework``, ``client`` and ``round``.
    """
    CaptureRecord(**facts)  # a mistake is told when the app starts, not in its first round

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith("train"):
            return call_next(message, context)  # which may hold anything
        before = _arrays(message)
        answer = call_next(message, context)
        if before and not answer.has_error():
            _write(Path(folder), _number(message), context.node_id, before, _arrays(answer), facts)
        return answer

    return mod


def capturing(strategy: Any, folder: Path | str, **facts: Any) -> Any:
    """The same strategy, which from now on keeps what reaches the server from every client of every round.

    Args:
        strategy: of Flower's message API; it is changed.
        folder, facts: as for :func:`capture_mod`.
    """
    CaptureRecord(**facts)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    sent: dict[int, dict[str, np.ndarray]] = {}

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        sent.clear()
        sent[server_round] = _plain(arrays)
        return configure(server_round, arrays, config, grid)

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        kept = list(replies)
        for reply in kept:
            if not reply.has_error() and sent.get(server_round):
                client = reply.metadata.src_node_id
                _write(Path(folder), server_round, client, sent[server_round], _arrays(reply), facts)
        return aggregate(server_round, kept)

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train
    return strategy


def _write(
    folder: Path, number: int, client: object, before: dict[str, np.ndarray], after: dict[str, np.ndarray],
    facts: dict[str, Any],
) -> None:  # fmt: skip
    if not after:
        return  # masked: the update left in another form
    record = CaptureRecord(**facts, framework="flower", client=str(client), round=number)
    write_capture(folder / f"round-{number}-client-{client}", record, before, after=after)


def _number(message: Any) -> int:
    """The round: newer servers say it in the configuration they send, older ones name the message's group by it."""
    for config in message.content.config_records.values():
        if isinstance(config.get("server-round"), int):
            return config["server-round"]
    group = str(message.metadata.group_id)
    return int(group) if group.isdecimal() else 0


def _arrays(message: Any) -> dict[str, np.ndarray]:
    """The model in a message; {} where it holds none, as in the stages of secure aggregation."""
    records = list(message.content.array_records.values())
    if not records:
        return {}
    if len(records) != 1:
        raise UsageError(f"a message with {len(records)} sets of arrays is no model; send one set")
    return _plain(records[0])


def _plain(record: Any) -> dict[str, np.ndarray]:
    """Arrays by name; those of a bare list are numbered, as numpy does it."""
    return {f"arr_{name}" if str(name).isdecimal() else str(name): array.numpy() for name, array in record.items()}
