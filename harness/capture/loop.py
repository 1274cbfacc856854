"""A capture around a training loop of one's own, and the folder that a capture is made in.

Whatever goes wrong with a capture is told in a line of the log and in its folder; the training goes on.
"""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.base.building import one_line
from harness.base.errors import UsageError, in_one_line
from harness.base.layers import random_layer
from harness.base.local_optimizer import arguments_of, with_rate
from harness.base.normalising import scaling_of
from harness.base.vectors import REAL
from harness.base.words import PAD
from harness.capture.optimizers import facts_of
from harness.capture.passes import are_tokens
from harness.capture.watch import Watch, random_said
from harness.judging.capture import (
    OF_TEXTS,
    TOKENIZER,
    UNFINISHED,
    Arrays,
    CaptureRecord,
    NotCaptured,
    mark_not_captured,
    write_capture,
)

log = logging.getLogger("harness.capture")
# Parts of the names that peft, transformers and their like give the weights of adapters.
_ADAPTERS = {"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "adapter", "adapters", "prompt_encoder"}
# What is read while the network trains, with values that agree with all others.
_READ_LATER: dict[str, Any] = {"image_shape": (1, 1, 1), "classes": 2, "learning_rate": 1.0, "batch_size": 1}
# What the network and the optimizer are called is nobody's mistake, and what is frozen may be more than what is still.
_MAY_DIFFER = {"model", "optimizer", "frozen", "learning_rate"}
# What a record says of a training that has nothing of the kind.
_USUAL = {name: CaptureRecord.model_fields[name].default for name in (
    "accumulate", "clip_grad_norm", "fedprox", "loss_scale", "schedule",
)}  # fmt: skip
_OF_STEPS = {"local_steps", "epochs", "examples", "drop_last", "schedule"}


class Watched:
    """The round that is being captured."""

    def __init__(self) -> None:
        self.images: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.lengths: list[Tensor] = []

    def batch(self, images: Any, labels: Any, lengths: Any = None) -> None:
        """Keep what a step trains on, (B, C, H, W) in [0, 1] and (B,), as the operator's own truth.

        Of texts these are token numbers (B, T), and where a text ends: behind its last number but 0, unless that is
        said by ``lengths`` (B,). Tensors, arrays or lists; what is none of these is told, and there is no truth.
        """
        try:
            self._keep(*(None if one is None else torch.as_tensor(one) for one in (images, labels, lengths)))
        except Exception as error:
            log.warning("harness: a batch of the truth was not kept (%s); give images and labels", in_one_line(error))

    def _keep(self, images: Tensor | None, labels: Tensor | None, lengths: Tensor | None) -> None:
        if images is None or labels is None or len(images) != len(labels):
            raise UsageError("as many labels as images are needed")
        self.images.append(images.detach().cpu().clone())
        self.labels.append(labels.detach().cpu().clone())
        if are_tokens(images):
            places = torch.arange(1, images.shape[1] + 1)
            ends = (self.images[-1] != PAD).long().mul(places).amax(1) if lengths is None else lengths
            self.lengths.append(ends.detach().cpu().clone())

    @property
    def truth(self) -> dict[str, Any]:
        """Images and labels of all batches, or tokens, lengths and labels; {} where none was kept."""
        labels = {"labels": torch.cat(self.labels)} if self.labels else {}
        if not self.lengths:
            return {"images": torch.cat(self.images)} | labels if self.images else {}
        most = max(one.shape[1] for one in self.images)
        wide = [torch.nn.functional.pad(one, (0, most - one.shape[1]), value=PAD) for one in self.images]
        return {"tokens": torch.cat(wide), "lengths": torch.cat(self.lengths)} | labels


class Round:
    """Context of one client's round, in a folder of its own from its beginning to its end.

    Until it is complete, ``capture.json`` says why it is not. What goes wrong is told in one line, once.

    Args:
        strict: raise instead.
    """

    def __init__(self, folder: Path | str, strict: bool = False) -> None:
        self.folder, self.over, self._strict, self._own = Path(folder), False, strict, False
        self._doubt = ""
        self._lock = FileLock(self.folder / ".lock", blocking=False, thread_local=False)

    def __enter__(self) -> "Round":
        with self.told():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise UsageError(
                    f"its folder {str(self.folder)!r} cannot be made ({problem.strerror}); name another"
                ) from problem
            try:
                self._lock.acquire()
            except Timeout as problem:
                raise UsageError(
                    f"another client is being captured in {str(self.folder)!r}; give each a folder of its own"
                ) from problem
            except OSError as problem:
                raise UsageError(
                    f"its folder {str(self.folder)!r} cannot be written ({problem.strerror}); name another"
                ) from problem
            self._own = True
            mark_not_captured(self.folder, UNFINISHED)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.fail(f"its training ended with an error ({in_one_line(error)})")
        with suppress(Exception):
            if self._own:
                (self.folder / ".lock").unlink()  # while it is held: nobody else's goes
            self._lock.release()

    def fail(self, reason: str) -> None:
        """Say that there is no capture."""
        if self.over:
            return
        self.over = True
        if self._own:
            with suppress(Exception):
                mark_not_captured(self.folder, reason)
        self._tell(reason)

    def doubt(self, reason: str) -> None:
        """Say now why there will be no capture that can be judged; the arrays are kept all the same.

        Raises:
            UsageError: with ``strict``.
        """
        if self._strict:
            raise UsageError(reason)
        self._tell(reason)
        self._doubt = reason

    @contextmanager
    def told(self) -> Iterator[None]:
        """Block whose errors end the capture, and nothing else."""
        try:
            yield
        except Exception as error:
            reason = one_line(error) if isinstance(error, ValidationError) else str(error)
            self.fail(reason if isinstance(error, ValidationError | UsageError) else in_one_line(error))
            if self._strict:
                raise

    def keep(
        self, watch: Watch | None, given: Mapping[str, Any], before: Arrays, truth: Mapping[str, Any] | None = None,
        **sent: Arrays,
    ) -> None:  # fmt: skip
        """Write the capture; where a fact is missing, with the reason in the place of a record that can be judged.

        Args:
            watch: what was seen; facts that are ``given`` are not asked of it.
            sent: as for :func:`write_capture`.
        """
        with self.told():
            if self.over:
                return
            ((kind, moved),) = sent.items()
            given, tokenizer = _with_tokenizer(given)
            seen = _dtype_of(moved) | ({} if watch is None else _with_rate_of(given, watch.facts(moved)))
            if watch is not None:
                known = {name: one for name, one in moved.items() if name in before}
                after = moved if kind == "after" else {name: before[name] + one for name, one in known.items()}
                watch.look_at_reply(after, before, kept=given.get("defense") is None)
            _tell_of_contradictions(given, seen | ({} if watch is None else _usual_of(watch, seen)))
            problems = [*([] if watch is None else _problems(watch, given)), *_not_read(moved)]
            if "model" in given:
                seen.pop("layers", None)
            record = _record_of(seen | dict(given), problems)
            kept = truth or {} if watch is None else watch.of_steps(truth or {}, moved)
            kept = _in_01(kept, getattr(record, "model", None))
            record = record if isinstance(record, NotCaptured) else _ordered(record, kept)
            named: dict[str, Any] = {**kept, **sent}
            write_capture(self.folder, record, before, tokenizer=tokenizer, **named)
            self.over = True
            if isinstance(record, NotCaptured):
                if record.not_captured != self._doubt:
                    self._tell(str(record.not_captured))
                if self._strict:
                    raise UsageError(str(record.not_captured))

    def _tell(self, reason: str) -> None:
        if not self._strict:  # who catches it has the reason
            log.warning("harness: %r is not captured because %s", str(self.folder), reason)


def _ordered(record: CaptureRecord, truth: Mapping[str, Any]) -> CaptureRecord:
    """The record that says whether passes over the truth, which was kept as it was trained on, are all alike."""
    if record.order is not None or not truth:
        return record
    values = torch.as_tensor(next(iter(truth.values())))
    passes = values.split(max(1, len(values) // (record.epochs or 1)))
    alike = all(torch.equal(one, passes[0]) for one in passes)
    return record.model_copy(update={"order": "same" if alike else "reshuffled"})


def _with_tokenizer(given: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """Facts that call a tokenizer as it is called in the capture's folder, and its path; None where there is none."""
    path = given.get("tokenizer")
    return ({**given}, None) if path is None else ({**given, "tokenizer": TOKENIZER}, Path(path))


def _problems(watch: Watch, given: Mapping[str, Any]) -> list[str]:
    """Return what keeps a training from being captured; what is merely taken for granted is told."""
    for note in watch.told:
        log.warning("harness: %s", note)
    doubts = [(fact, doubt) for fact, doubt in watch.unsure.items() if fact not in given]
    if doubts:
        log.warning("harness: %s; give %s if it is not so", "; ".join(doubt for _, doubt in doubts),
                    " and ".join(fact for fact, _ in doubts))  # fmt: skip
    if watch.scaled is not None and "model" in given and "normalised(" not in given["model"]:
        log.warning("harness: its images are scaled before its network takes them; give the model as %s+%s, unless its "
                    "network scales them", given["model"], watch.scaled)  # fmt: skip
    problems = list(watch.problems)
    for facts, reason in watch.unlike.items():
        fact = next((one for one in facts if given.get(one) is not None), None)
        if fact is None:
            problems.append(reason)
        else:
            # A factory that was named says nothing of what is done before it.
            whole = "+normalised(" in reason and "+normalised(" not in given[fact]
            told = reason if whole else reason.partition(";")[0]
            level = logging.INFO if fact == "fedprox" else logging.WARNING  # which is then as it should be
            log.log(level, "harness: %s is given as %s, and %s", fact, given[fact], told)
    return problems


def _complex(weights: Arrays) -> str | None:
    """Return why complex weights are not captured; None where there are none."""
    name = next((name for name, one in weights.items() if torch.as_tensor(one).is_complex()), None)
    return None if name is None else f"its weight {name!r} is complex; {REAL}"


def _not_read(sent: Arrays) -> list[str]:
    """The problem of complex numbers, and of those that are none, which only the end of a training shows."""
    if unreal := _complex(sent):
        return [unreal]
    bad = [name for name, one in sent.items() if not torch.as_tensor(one).isfinite().all()]
    return [f"{bad[0]!r} holds NaN or infinity: its training diverged; capture another round"] if bad else []


def _dtype_of(sent: Arrays) -> dict[str, Any]:
    """The numbers sent, where all of them are coarser than float32."""
    found = {str(one.dtype).rpartition(".")[2] for one in sent.values() if "float" in str(one.dtype)}
    return {"dtype": found.pop()} if found in ({"float16"}, {"bfloat16"}) else {}


def _record_of(facts: Mapping[str, Any], problems: Sequence[str]) -> CaptureRecord | NotCaptured:
    """The record of a capture, or what keeps these facts from being one."""
    facts = {"format": 1, **of_their_kind(facts)}
    try:
        record = CaptureRecord(**facts)
    except ValidationError as error:
        missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
        if problems and missing == ["batch_size"]:  # sizes that nobody can give as one
            return NotCaptured(not_captured="; ".join(problems), **facts)
        asked = (
            f"{' and '.join(missing)} could not be read from its training; give {'it' if len(missing) == 1 else 'them'}"
        )
        # What went wrong is why something is missing; where steps were of no one optimizer, all is.
        unsaid = problems and (not missing or "learning_rate" in missing)
        reason = "; ".join([*problems, *([] if unsaid else [asked if missing else one_line(error)])])
        return NotCaptured(not_captured=reason, **facts)
    # What was not seen but given is no problem; a training that is of no known law is.
    return NotCaptured(not_captured="; ".join(problems), **facts) if problems else record


def _with_rate_of(given: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was seen, with the learning rate of an optimizer that is given without one."""
    rate = seen.get("optimizer", {}).get("lr")
    bare = "optimizer" in given and rate and with_rate(given["optimizer"])[1] is None
    return {**seen} | ({"learning_rate": rate} if bare else {})


def _in_01(truth: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """Images as they are before a network's scaling, if they are given as behind it."""
    scaling, images = scaling_of(model or ""), truth.get("images")
    if scaling is None or images is None or (images.min() >= 0 and images.max() <= 1):
        return dict(truth)
    mean, deviation = (torch.tensor(one)[:, None, None] for one in scaling)
    return {**truth, "images": (images * deviation + mean).clamp(0, 1)}


def _usual_of(watch: Watch, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that are not in what was seen because the training had nothing of the kind."""
    doubtful = {fact for facts in watch.unlike for fact in facts} | watch.unsure.keys()
    return {name: one for name, one in _USUAL.items() if "local_steps" in seen and name not in seen.keys() | doubtful}


def _tell_of_contradictions(given: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Warn of given facts that were otherwise in the training. What is given counts; whoever gives it should know that
    it was not so."""
    for name in given.keys() & seen.keys() - _MAY_DIFFER:
        if _tuple_of(given[name]) != _tuple_of(seen[name]):
            had = "none" if seen[name] is None else seen[name]
            log.warning("harness: %s is given as %s, and the training had %s", name, given[name], had)
    if "optimizer" not in given or "optimizer" not in seen:
        return
    with suppress(UsageError):  # of no known class, which is told
        (said, rate), (had, used) = with_rate(given["optimizer"]), with_rate(seen["optimizer"])
        unlike = [one for one in arguments_of(had.name) if getattr(said, one) != getattr(had, one)]
        if said.name != had.name or unlike or rate not in (None, used):
            kept = f"{had.text} with lr={used:g}"
            log.warning("harness: optimizer is given as %s, and the training had %s", given["optimizer"], kept)


def _tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@contextmanager
def captured(
    network: nn.Module, folder: Path | str, optimizer: Optimizer | str | Mapping[str, Any] | None = None,
    scheduler: Any = None, loader: Any = None, *, strict: bool = False, **facts: Any,
) -> Iterator[Watched]:  # fmt: skip
    """Context of a client's local training: keeps the network before and after it, and how it was trained.

    ::

        with captured(network, "captures/3", optimizer, loader=loader):
            for images, labels in loader:
                ...

    Read from the training, unless they are given: optimizer, learning rates as used, steps really taken, batch size,
    number of examples, passes, frozen parameters, image shape, classes, and a network whose class takes no arguments.
    With a ``learning_rate`` and no optimizer object all are given, and nothing is read but what is frozen. Of a network
    that takes token numbers (B, T), ``vocabulary`` and ``places`` are given, and where it has a tokenizer the path of
    its tokenizer.json as ``tokenizer``.

    Args:
        folder: of this client and round alone.
        optimizer: of the local steps; also one that is only built inside. Or what it is, in a record's terms.
        scheduler: of the optimizer's learning rate.
        loader: of the batches, like torch's ``DataLoader``; the one in use is found too.
        strict: raise what else is a line of the log, and the reason in ``capture.json``.
        facts: fields of :class:`CaptureRecord`.

    Raises:
        UsageError: with ``strict``: the training cannot be judged, or the folder cannot be written.
        ValidationError: with ``strict``: a fact is missing or out of range.
    """
    watched, given = Watched(), dict(facts)
    by_hand = is_by_hand(facts) and not isinstance(optimizer, Optimizer)
    if isinstance(optimizer, str | Mapping):
        given["optimizer"] = optimizer
    with Round(folder, strict) as round_:
        before: dict[str, Tensor] = {}
        with round_.told():
            _require_possible(network, optimizer, scheduler, given)
            before = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
            _tell_of_adapters(network)
            layer = random_layer(network)
            if layer is not None and by_hand:
                log.warning("harness: %s", random_said(layer))
            elif layer is not None:
                round_.doubt(random_said(layer))
        with nullcontext() if by_hand or round_.over else Watch(network, loader) as watch:
            yield watched
        if by_hand:
            given = {"frozen": tuple(name for name, one in network.named_parameters() if not one.requires_grad)} | given
        with round_.told():
            round_.keep(watch, given, before, watched.truth, after=network.state_dict())


def _require_possible(network: nn.Module, optimizer: object, scheduler: Any, given: Mapping[str, Any]) -> None:
    """Check whether a capture can be judged, as far as that is known before the training.

    Raises:
        UsageError: it cannot. ValidationError: a fact is missing or out of range.
    """
    if unreal := _complex(dict(network.named_parameters())):
        raise UsageError(unreal)
    known: dict[str, Any] = {}
    if isinstance(optimizer, Optimizer):
        own: Any = getattr(optimizer, "original_optimizer", optimizer)  # inside Opacus's
        known["optimizer"] = {name: one for name, one in facts_of(own).items() if name != "lr" or one}  # warm-up
        if any(own.state.values()):
            known["state"] = "carried"
            if max(given.get("local_steps") or 1, given.get("epochs") or 1) > 1:
                raise UsageError(
                    "the optimizer's state was carried over from an earlier round, which several local steps do not "
                    "tell; make a new optimizer for the captured round"
                )
        if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise UsageError("the scheduler is of another optimizer; give the one whose learning rate it sets")
        if getattr(scheduler, "cycle_momentum", False):
            raise UsageError("the scheduler changes more than the learning rate; give it cycle_momentum=False")
    require_facts(known | dict(given), by_hand=is_by_hand(given) and not isinstance(optimizer, Optimizer))


def of_their_kind(given: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with the format that they are of: a vocabulary or places are of texts."""
    texts = any(given.get(name) is not None for name in OF_TEXTS)
    return ({"format": 2, "data": "text"} if texts else {}) | dict(given)


def is_by_hand(given: Mapping[str, Any]) -> bool:
    """Return whether all facts of a capture are given, and none is to be read."""
    return "learning_rate" in given


def require_facts(given: Mapping[str, Any], by_hand: bool | None = None) -> None:
    """Check whether these facts can be of a capture whose other facts are read while the network trains.

    Args:
        by_hand: whether they are all; by default where a learning rate is among them.

    Raises:
        UsageError, ValidationError: one is unknown or out of range.
    """
    given = of_their_kind(_with_tokenizer(given)[0])
    if is_by_hand(given) if by_hand is None else by_hand:
        CaptureRecord(**given)
        return
    known: dict[str, Any] = {"model": "read"} | {name: one for name, one in given.items() if name not in _OF_STEPS}
    known = ({"accumulate": 2} if known.get("accumulate_sum") else {}) | known
    rate = with_rate(known["optimizer"])[1] if "optimizer" in known else None
    later = {name: one for name, one in _READ_LATER.items() if name != "image_shape" or "data" not in known}
    known = later | ({} if rate is None else {"learning_rate": rate}) | known
    CaptureRecord(**known)


def _tell_of_adapters(network: nn.Module) -> None:
    """Before the training: a library puts them into a network, and perhaps no factory of it builds them again."""
    named = [name for name, one in network.named_parameters() if one.requires_grad and _ADAPTERS & set(name.split("."))]
    if named:
        sys.stderr.write(
            f"harness: {named[0]!r} is an adapter's weight: judge --checks-only reads it as it is; to attack it too, "
            "let the factory that model names put the adapters in\n"
        )
