"""Captures in a federation that runs on Flower: a mod for its clients, a wrapper for its server's strategy.

Source: Flower's message API (flwr 1.2x and later: ``ClientApp(mods=[...])``, ``Strategy.configure_train`` and
``aggregate_train``). Flower itself is not imported: whoever uses this has it.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UsageError
from harness.capture.loop import Round, is_by_hand, require_facts
from harness.capture.watch import Watch
from harness.judging.framework_defenses import declared_beside

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
# Secure aggregation, which leaves no array of what it has masked.
_MASKS = {"secaggplus_mod", "secagg_mod"}


def capture_mod(folder: Path | str, *, strict: bool = False, **facts: Any) -> Mod:
    """A client mod that keeps what the client got and what leaves it, a folder per round and client.

    How the client trains is read while it does (:class:`harness.capture.watch.Watch`), and its defense from the mods
    beside this one. Put it first among them, to see what really leaves the client after a privacy mod has had its way;
    but behind secure aggregation, which leaves no array of what it has masked.

    Args:
        folder: where captures go, on the client's machine.
        strict: raise what else is a line of the log, and the reason in ``capture.json``.
        facts: fields of :class:`CaptureRecord` that cannot be read; not ``framework``, ``client`` and ``round``. With a
            ``learning_rate`` all are given, and of the training nothing is read.

    Raises:
        UsageError, ValidationError: with ``strict``: a fact is out of range.
    """
    if strict:
        require_facts(facts)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith("train"):
            return call_next(message, context)  # which may hold anything
        number, client, before, problem = 0, "unknown", dict[str, np.ndarray](), ""
        try:
            number, client = _number(message), str(context.node_id)
            before = _arrays(message)
        except Exception as error:
            problem = str(error)
            if strict:
                raise
        if not before and not problem:
            return call_next(message, context)  # a stage of secure aggregation
        watching = nullcontext() if is_by_hand(facts) else Watch()
        with Round(_place(folder, number, client), strict) as round_, watching as watch:
            given = facts | {"framework": "flower", "client": client, "round": number}
            with round_.told():
                if problem:
                    raise UsageError(problem)
                require_facts(given)
                given = {"defense": _defense(call_next, message)} | given
            answer = call_next(message, context)
            with round_.told():
                if answer.has_error():
                    raise UsageError("its client answered with an error")
                if not round_.over:
                    round_.keep(watch, given, before, after=_sent(answer))
        return answer

    return mod


def capturing(strategy: Any, folder: Path | str, *, strict: bool = False, **facts: Any) -> Any:
    """Return the given strategy, which from now on keeps what reaches the server from every client of every round.

    Args:
        strategy: of Flower's message API; it is changed.
        folder, strict, facts: as for :func:`capture_mod`; of the clients' training nothing can be read here.
    """
    if strict:
        require_facts(facts)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    sent: dict[int, dict[str, np.ndarray]] = {}

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        sent.clear()
        with suppress(Exception):  # no model, which is said of each client
            sent[server_round] = _plain(arrays)
        return configure(server_round, arrays, config, grid)

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        kept = list(replies)
        for reply in kept:
            if not reply.has_error() and sent.get(server_round):
                client = str(reply.metadata.src_node_id)
                with Round(_place(folder, server_round, client), strict) as round_, round_.told():
                    origin = {"framework": "flower", "client": client, "round": server_round}
                    round_.keep(None, dict(facts) | origin, sent[server_round], after=_sent(reply))
        return aggregate(server_round, kept)

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train
    return strategy


def _place(folder: Path | str, number: int, client: str) -> Path:
    return Path(folder) / f"round-{number}-client-{client}"


def _defense(call_next: Callable[..., Any], message: Any) -> Any:
    """Return what the mods beside this one declare; None where none does.

    Raises:
        UsageError: one that stands before this mod, so that what leaves the client is something else.
    """
    config: dict[str, Any] = {}
    for record in message.content.config_records.values():
        config |= dict(record)
    outside = [declared_beside([one], config) for one in _before_us()]
    names = [one.name.rpartition(".")[2] for one in outside if one is not None]
    changing = [one for one in names if one not in _MASKS]
    if changing:
        raise UsageError(
            f"{changing[0]} stands before capture_mod, so that what leaves the client is not what is captured; put "
            "capture_mod first among the mods"
        )
    return declared_beside([*_before_us(), *_after_us(call_next)], config)


def _after_us(call_next: Any) -> Iterator[Any]:
    """Mods between this one and the app: Flower chains them by functions that hold a mod and what it calls."""
    while True:
        held = inspect.getclosurevars(call_next).nonlocals if inspect.isfunction(call_next) else {}
        if "_mod" not in held or "_ffn" not in held:
            return
        yield held["_mod"]
        call_next = held["_ffn"]


def _before_us() -> list[Any]:
    """Mods that called this one, outermost first, out of the frames of the same functions."""
    frame, found = sys._getframe(), list[Any]()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "new_ffn" and "_mod" in frame.f_locals:
            found.append(frame.f_locals["_mod"])
    return found[:0:-1]  # the innermost is this mod's own


def _sent(message: Any) -> dict[str, np.ndarray]:
    made = _arrays(message)
    if not made:
        raise UsageError(
            "what the client sent holds no model (secure aggregation has masked it); put capture_mod after the mod "
            "that masks"
        )
    return made


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


def _plain(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays by name; those of a bare list are numbered, as numpy does it."""
    return {
        f"arr_{name}" if str(name).isdecimal() else str(name): np.array(array.numpy()) for name, array in record.items()
    }
