"""Record in a capture's ``capture.json``: which client this was, how it trained, and under which defense."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from harness.base.building import one_line
from harness.base.columns import TableColumns, TableShape
from harness.base.errors import UsageError
from harness.base.kinds import IMAGES, ROWS, TEXTS, Kind
from harness.base.local_optimizer import (
    PLAIN,
    LocalOptimizer,
    optimizer_of,
    settle_rate,
    with_rate,
)
from harness.base.ranges import Count, CountOrNone, NonNegative, Positive
from harness.base.weight_groups import groups_of_tensors
from harness.base.words import BITS, TextShape
from harness.judging.framework_defenses import Declared
from harness.results.arrays import ENDINGS, FIX, FIX_TRUTH, StoredArrays, other_beside
from harness.results.atomic import remove_plain, write_atomic
from harness.results.files import (
    MOST_OF_A_DOCUMENT,
    MOST_OF_A_TOKENIZER,
    Absent,
    parse_json,
    read_bytes,
    read_stored,
    sha256,
)

#: The names of a capture's files: what it says, and arrays before and after the client's training.
FACTS, BEFORE, TRUTH, TOKENIZER = "capture.json", "before", "truth", "tokenizer.json"
#: The arrays of a truth, by what the data are; the first has a row for each example.
TRUTHS = {"images": ("images", "labels"), "text": ("tokens", "lengths", "labels")}
#: What the client sent, one of three: its model, the model's change, or the gradient of one step.
Sent = Literal["after", "update", "gradient"]
SENT: tuple[Sent, ...] = ("after", "update", "gradient")

#: Facts that texts alone have.
OF_TEXTS = ("vocabulary", "places", "tokenizer")
#: Of heavy-ball momentum whose coefficient nobody says.
MOMENTUM = "momentum"
# Frameworks whose first round is 1.
_FROM_ONE = {"flower", "flwr"}

_Side = Annotated[int, Field(ge=1, le=100_000)]


# Keys beside the optimizer that are part of how it steps.
_BESIDE = ("schedule", "accumulate", "accumulate_sum", "fedprox", "clip_grad_norm", "loss_scale")


# What somebody may say of a loss, of which none is played.
_LOSSES = ("label_smoothing", "class_weights")


def _three_sides(given: Any) -> Any:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 3:
        raise ValueError("write [channels, height, width], such as [1, 28, 28]")
    return given


def _coarser(given: Any) -> Any:
    """The numbers sent; those of float32 need no word."""
    return None if given == "float32" else given


def _usual(name: str) -> Any:
    return LocalOptimizer.model_fields[name].default


class OwnGroup(BaseModel):
    """Weights that the optimizer trained with a learning rate or a weight decay of their own.

    Attributes:
        parameters: names, as in the ``state_dict``.
        learning_rate, weight_decay: None for the optimizer's. A schedule scales all learning rates alike.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: Annotated[tuple[str, ...], Field(min_length=1)]
    learning_rate: Positive | None = None
    weight_decay: NonNegative | None = None


class CaptureRecord(BaseModel):
    """The facts of a capture; the numbers are in the arrays beside it.

    Attributes:
        format: 2 of texts, 1 of all else.
        data: ``images``, rows of tables among them, or ``text``.
        model: ``module:factory``, called with ``image_shape`` and ``classes``, of texts with ``vocabulary``,
            ``places`` and ``classes``; or a model of this project.
        layers: digest of the layers of the client's network, by which the model is known to build it; None where the
            model was given.
        image_shape: (C, H, W); of texts it follows from the places.
        columns: of rows of a table, what their features mean; None where nobody says so, and of all else.
        vocabulary, places: of texts, how many token numbers there are, of which 0 fills the places behind a text's
            end, and the most tokens of a text.
        tokenizer: of texts, the name of a tokenizer.json beside the record; None where numbers stand for themselves.
        classes: K, of the network's output.
        learning_rate: of local training.
        local_steps: L, before the client sent.
        batch_size: B, examples in a batch; of Poisson batches, how many there really were.
        expected_batch_size: what a batch's sum was divided by, where that is not its own size (Poisson batches).
        epochs: E, passes over the client's ``examples`` in the local steps.
        drop_last: whether a pass leaves out the examples that fill no batch; None where nobody says.
        order: whether every pass takes the examples in the ``same`` order, or ``reshuffled``. Attackers, who do not
            know the order, take it to be the same in any case.
        frozen: names of parameters that were not trained.
        optimizer: of local training: a text as ``--optimizer`` takes it, or torch's arguments beside the ``name`` of
            its class, whose ``lr`` is the learning rate. ``momentum`` alone is of an unknown coefficient.
        schedule: the learning rate of each local step, as used; None where it is ``learning_rate`` in all. Some may be
            0, and then ``learning_rate`` is the first above.
        accumulate: batches k whose gradients made one local step: their mean, or with ``accumulate_sum`` their sum.
        fedprox: mu of FedProx.
        loss_scale: what the loss of a batch is of its mean cross-entropy: the batch's size, where ``reduction="sum"``.
        clip_grad_norm: C, down to which each step's gradient was scaled.
        groups: of weights with a learning rate or a weight decay of their own; others have the optimizer's.
        state: of the optimizer at the start: ``new``, or ``carried`` over from an earlier round: what that left is
            taken away where it is known (``harness/judging/parts.py``).
        computed_in: what autocast made the network compute in, where that is coarser than float32; rounding that nobody
            can play again then hides what the truth does not explain.
        dtype: of the numbers that were sent, where it is coarser than float32.
        examples: of the client, where it is known.
        clients, clients_per_round, rounds: of the federation, where the declared noise depends on them.
        defense: None where none is declared.
        framework, client, round: where it comes from, in the federation's own words.
        first_round: the number of its first round, 0 or 1; None for what its framework has: Flower counts from 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1, 2] = 1
    data: Literal["images", "text"] = "images"
    model: str
    layers: str | None = None
    image_shape: Annotated[tuple[_Side, _Side, _Side], BeforeValidator(_three_sides)]
    columns: TableColumns | None = None
    vocabulary: Annotated[int, Field(ge=3, le=2**BITS)] | None = None
    places: _Side | None = None
    tokenizer: str | None = None
    classes: Annotated[int, Field(ge=2, le=100_000)]
    learning_rate: Positive
    batch_size: Count
    expected_batch_size: Positive | None = None
    local_steps: Count = 1
    epochs: Count | None = None
    frozen: tuple[str, ...] = ()
    optimizer: str = "sgd"
    schedule: tuple[NonNegative, ...] | None = None
    accumulate: Count = 1
    accumulate_sum: bool = False
    fedprox: NonNegative = 0.0
    loss_scale: Positive = 1.0
    clip_grad_norm: Positive | None = None
    groups: tuple[OwnGroup, ...] = ()
    state: Literal["new", "carried"] = "new"
    dtype: Annotated[Literal["float16", "bfloat16"] | None, BeforeValidator(_coarser)] = None
    computed_in: Annotated[Literal["float16", "bfloat16"] | None, BeforeValidator(_coarser)] = None
    drop_last: bool | None = None
    order: Literal["same", "reshuffled"] | None = None
    examples: Count | None = None
    clients: Count | None = None
    clients_per_round: Count | None = None
    rounds: Count | None = None
    defense: Declared | None = None
    framework: str | None = None
    client: Annotated[str, Field(coerce_numbers_to_str=True, min_length=1)] | None = None
    round: CountOrNone = 0
    first_round: Literal[0, 1] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_a_loss_that_is_played(cls, given: Any) -> Any:
        """Attacks play the mean cross-entropy, and say so of what people may add to it."""
        named = next((name for name in _LOSSES if given.get(name)), None) if isinstance(given, Mapping) else None
        if named is not None:
            raise ValueError(f"{named} makes a loss that no attack plays; capture a round with the mean cross-entropy")
        return given

    @model_validator(mode="before")
    @classmethod
    def _of_one_kind(cls, given: Any) -> Any:
        """The shape of texts follows from their places; nothing of theirs stands in a record of images."""
        if not isinstance(given, Mapping):
            return given
        texts = given.get("data") == "text"
        named = [name for name in OF_TEXTS if given.get(name) is not None]
        if texts and given.get("format", 1) != 2:
            raise ValueError('a capture of texts is of format 2; add "format": 2')
        if not texts and (named or given.get("format") == 2):
            raise ValueError(f'{named[0] if named else "format 2"} is of texts; add "data": "text", or take it out')
        if not texts:
            return given
        if not {"vocabulary", "places"} <= set(named):
            raise ValueError("vocabulary and places of texts, which the network is made of, are missing; give both")
        name = given.get("tokenizer")
        if name is not None and (not isinstance(name, str) or Path(name).name != name):
            raise ValueError(f"tokenizer {name!r} is no name of a file in the capture's folder; put it there")
        shape = (1, BITS, given["places"])
        if given.get("columns") is not None:
            raise ValueError("columns are of tables, and the data are texts; take them out")
        if tuple(given.get("image_shape") or shape) != shape:
            raise ValueError("image_shape is of images, and the data are texts; take it out")
        return {**given, "image_shape": shape}

    @model_serializer(mode="wrap")
    def _as_its_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what the other kind of data has."""
        aside = {"image_shape", "columns"} if self.data == "text" else {"data", *OF_TEXTS}
        return {name: value for name, value in handler(self).items() if name not in aside}

    @property
    def kind(self) -> Kind:
        """The words for its examples."""
        return TEXTS if self.data == "text" else IMAGES if self.columns is None else ROWS

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one example, as networks are made of it."""
        if self.columns is not None:
            return TableShape(self.columns.as_columns)
        if self.vocabulary is None or self.places is None:
            return self.image_shape
        return TextShape(self.vocabulary, self.places)

    @model_validator(mode="before")
    @classmethod
    def _steps_of_passes(cls, given: Any) -> Any:
        """Steps that nobody gives follow from passes over the examples, where it is said whether all are in a pass."""
        if not isinstance(given, Mapping) or given.get("local_steps") is not None or given.get("expected_batch_size"):
            return given
        numbers = [given.get("epochs"), given.get("examples"), given.get("batch_size"), given.get("accumulate") or 1]
        if not all(type(one) is int and one > 0 for one in numbers):
            return given
        epochs, examples, size, each = numbers
        if examples % size and given.get("drop_last") is None:
            return given
        batches = epochs * (examples // size if given.get("drop_last") else -(-examples // size))
        return {**given, "local_steps": batches // each} if batches and not batches % each else given

    @model_validator(mode="before")
    @classmethod
    def _one_optimizer(cls, given: Any) -> Any:
        """Return what stands beside the optimizer joins its text, and stands beside it in any case; so does its
        ``lr``."""
        if not isinstance(given, Mapping):
            return given
        beside = {name: given[name] for name in _BESIDE if given.get(name) not in (None, _usual(name))}
        if given.get("optimizer", "") is None:
            given = {name: value for name, value in given.items() if name != "optimizer"}
        optimizer = given.get("optimizer", PLAIN.name)
        if optimizer == MOMENTUM or (not beside and "optimizer" not in given):
            if beside:
                raise ValueError(f'{next(iter(beside))} needs the optimizer\'s arguments: {{"name": "SGD", ...}}')
            return given
        try:
            made, rate = with_rate(optimizer)
            for name, value in beside.items():
                told = getattr(LocalOptimizer(**{"accumulate": 2, name: value}), name)
                if getattr(made, name) not in (_usual(name), told):
                    raise UsageError(f"{name} is {value} and in the optimizer {getattr(made, name)}; give one")
            facts = made.model_dump() | beside | ({} if rate is None else {"lr": rate})
            settled = settle_rate({**given, "optimizer": facts})
        except ValidationError as error:
            raise ValueError(one_line(error)) from error
        except UsageError as problem:
            raise ValueError(str(problem)) from problem
        return settled | {name: getattr(optimizer_of(settled["optimizer"]), name) for name in _BESIDE}

    @model_validator(mode="after")
    def _facts_agree(self) -> "CaptureRecord":
        if self.columns is not None:
            self.columns.require_shape(self.image_shape)
        named = [name for group in self.groups for name in group.parameters]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is in groups twice; leave it in one of them")
        if self.groups and self.optimizer == MOMENTUM:
            raise ValueError('groups need the optimizer\'s arguments: {"name": "SGD", ...}')
        if self.optimizer != MOMENTUM:
            optimizer_of(self.optimizer).require_steps(self.local_steps)
            optimizer_of(self.optimizer).require_rate(self.learning_rate, self.local_steps)
        if self.accumulate > 1 and self.expected_batch_size not in (None, self.batch_size):
            raise ValueError(
                f"accumulate {self.accumulate} does not say whether expected_batch_size {self.expected_batch_size:g} "
                f"divides a batch or a step; leave it out, give batch_size {self.step_size}, the examples of a whole "
                "step, and in expected_batch_size what divides their sum"
            )
        known = PLAIN if self.optimizer == MOMENTUM else optimizer_of(self.optimizer)
        alone = self.local_steps == 1 and self.client is not None and not self.groups
        told = known.name == "sgd" and known.momentum and alone
        if self.state == "carried" and not told and (self.optimizer == MOMENTUM or known.is_stateful):
            raise ValueError(
                f"the state of {known.name} was carried over from an earlier round; make a new optimizer for the "
                "captured round (known is that of SGD in rounds of one local step, with client and round)"
            )
        examples, size = self.examples, self.expected_batch_size or self.batch_size
        if examples is None:
            if (self.epochs or 1) > self.local_steps * self.accumulate:
                raise ValueError(
                    f"epochs {self.epochs} are as many local_steps at least; give local_steps, those of all"
                )
            return self
        if size > examples:
            raise ValueError(f"batch_size {size:g} is more than the client's {examples} examples; correct one of them")
        most, least = (self.epochs or 1) * math.ceil(examples / size), (self.epochs or 1) * math.floor(examples / size)
        batches = {most, least} if self.drop_last is None else {least} if self.drop_last else {most}
        if self.epochs is not None and self.local_steps * self.accumulate not in batches:
            made = f", {self.accumulate} of which make a step," if self.accumulate > 1 else ""
            less = f" (or {least} with drop_last)" if len(batches) > 1 else ""
            raise ValueError(
                f"epochs {self.epochs} over {examples} examples in batches of {size:g} are {max(batches)}{less} "
                f"{'batches' if made else 'local_steps'}{made or ','} and {self.local_steps} "
                f"{'local_steps ' if made else ''}are declared; correct one of them"
            )
        if self.accumulate > 1 and self.epochs is not None and self.local_steps * self.accumulate != least:
            raise ValueError(
                f"{examples} examples in batches of {size:g} leave a smaller one, which weighs otherwise where "
                f"{self.accumulate} make a step; train the captured round with drop_last"
            )
        return self

    @property
    def local_optimizer(self) -> LocalOptimizer | None:
        """The optimizer of the local steps; None where its momentum is not known, which a single step does not need."""
        if self.optimizer == MOMENTUM:
            return PLAIN if self.local_steps == 1 else None
        made, times = optimizer_of(self.optimizer), self.rate / self.learning_rate
        if made.schedule is None or times == 1:
            return made
        place = made.schedule.index(made.leading)
        return made.model_copy(
            update={
                "schedule": tuple(self.rate if step == place else one * times for step, one in enumerate(made.schedule))
            }
        )

    def with_groups(self, names: Sequence[str], sizes: Sequence[int]) -> "CaptureRecord":
        """Return a record whose optimizer knows where in these tensors its groups are.

        Raises:
            UsageError: a group names none of the tensors.
        """
        if not self.groups or self.optimizer == MOMENTUM:
            return self
        made = optimizer_of(self.optimizer)
        if made.groups:
            return self
        usual = self.learning_rate, made.weight_decay
        own = {
            name: (group.learning_rate or usual[0], usual[1] if group.weight_decay is None else group.weight_decay)
            for group in self.groups for name in group.parameters
        }  # fmt: skip
        groups = groups_of_tensors(names, sizes, usual, own)
        made = made.model_copy(update={"groups": groups, "weight_decay": 0.0})
        try:
            made.require_rate(self.learning_rate, self.local_steps)
        except ValueError as problem:
            raise UsageError(str(problem)) from problem
        return self.model_copy(update={"optimizer": made.text})

    @property
    def rate(self) -> float:
        """The learning rate of the mean over the examples that really were in a step."""
        return self.learning_rate * self.batch_size / (self.expected_batch_size or self.batch_size)

    @property
    def truths(self) -> int:
        """Examples behind the local steps, each as often as it was trained on."""
        return sum(self.step_sizes())

    def slots(self) -> list[int]:
        """Return the example in each place of L steps with B places each.

        A smaller last batch fills its places by turns, whose mean is its own where its size divides B.
        """
        starts = accumulate(self.step_sizes(), initial=0)
        return [
            start + place % size
            for start, size in zip(starts, self.step_sizes(), strict=False)
            for place in range(self.step_size)
        ]

    @property
    def passes(self) -> int:
        """Return how often the local steps take the same examples; 1 where batches are drawn, or fill no pass."""
        epochs = self.epochs or 1
        return 1 if self.expected_batch_size or self.local_steps % epochs else epochs

    @property
    def step_size(self) -> int:
        """Examples behind a local step: as many as its batches hold together."""
        return self.batch_size * self.accumulate

    def step_sizes(self) -> tuple[int, ...]:
        """Examples in each local step: a pass over the client's examples ends with those that are left."""
        passes, left = self.epochs or 1, (self.examples or 0) % self.batch_size
        steps = -(-(self.examples or 0) // self.batch_size)
        whole = self.drop_last or self.expected_batch_size or self.accumulate > 1
        if not left or whole or steps * passes != self.local_steps:
            return (self.step_size,) * self.local_steps
        return ((self.batch_size,) * (steps - 1) + (left,)) * passes

    @property
    def counted_from(self) -> int:
        """The number of the first round."""
        usual = 1 if (self.framework or "").lower() in _FROM_ONE else 0
        return usual if self.first_round is None else self.first_round

    @property
    def rounds_before(self) -> int:
        """Rounds that came before this one."""
        return max(0, self.round - self.counted_from)

    def first_is_missing(self, number: int) -> str:
        """Return a fix in words where the round that is missing would be number 0; "" of any other."""
        return ' (if rounds are counted from 1, give "first_round": 1)' if number == self.counted_from == 0 else ""


# Writes a capture: plain arrays and facts, nothing pickled.

Arrays = Mapping[str, Any]


def write_capture(
    folder: Path | str, record: "CaptureRecord | NotCaptured", before: Arrays, *, images: ArrayLike | None = None,
    labels: ArrayLike | None = None, tokens: ArrayLike | None = None, lengths: ArrayLike | None = None,
    tokenizer: Path | str | None = None, **sent: Arrays,
) -> Path:  # fmt: skip
    """Write what one client sent in one round, and return the folder.

    Args:
        folder: of its own; files of an earlier capture there are replaced.
        record: how the client trained; or why that is not known, with what is known.
        before: the model that the client started from, arrays or tensors named as in its ``state_dict()``.
        images, labels: the truth, (n, C, H, W) in [0, 1] and (n,) in the order trained; it stays with who writes it.
        tokens, lengths: the truth of texts in the place of images, (n, T) and (n,).
        tokenizer: of texts, the tokenizer.json that is copied beside a record which names it.
        sent: one of ``after``, ``update`` (after less before) and ``gradient`` (of a single step), named as ``before``.

    Raises:
        UsageError: not exactly one of the three was given, the truth is not whole, or the folder cannot be written.
    """
    folder = Path(folder)
    if len(sent) != 1 or not sent.keys() <= set(SENT):
        raise UsageError(f"a capture holds one of {', '.join(SENT)}, not {', '.join(sent) or 'none'}")
    given = {"images": images, "tokens": tokens, "lengths": lengths, "labels": labels}
    truth = {name: values for name, values in given.items() if values is not None}
    if truth and set(truth) not in map(set, TRUTHS.values()):
        raise UsageError(
            "the truth of a capture is images with their labels; give both or neither" if tokens is None
            else "the truth of texts is tokens with their lengths and labels; give all or none"
        )  # fmt: skip
    read = None if tokenizer is None else read_bytes(Path(tokenizer), MOST_OF_A_TOKENIZER)
    ((kind, moved),) = sent.items()
    # First: whatever happens now, nothing of an earlier capture stands beside this one.
    mark_not_captured(folder, UNFINISHED)
    write_atomic(folder / f"{BEFORE}.npz", _packed(before), "the capture's folder")
    write_atomic(folder / f"{kind}.npz", _packed(moved), "the capture's folder")
    if truth:
        write_atomic(folder / f"{TRUTH}.npz", _packed(truth), "the capture's folder")
    if read is not None:
        write_atomic(folder / TOKENIZER, read, "the capture's folder")
    # Last: a folder without it is no capture.
    write_atomic(folder / FACTS, record.model_dump_json(indent=1).encode(), "the capture's folder")
    return folder


#: Why a capture that was begun is none: what stands there until it is complete.
UNFINISHED = "its round did not end, or its process was killed before it did"


class NotCaptured(BaseModel):
    """Reason that stands in the place of a record where there is no capture.

    Beside it may stand what is known: whoever adds what is missing and takes the reason away has a capture.

    Attributes:
        not_captured: why, as a half-sentence; None in a record.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Any] = Field(init=False)

    not_captured: str | None = None


def mark_not_captured(folder: Path, reason: str) -> None:
    """Write why there is no capture in this folder, which ``judge`` then says; an earlier one's files go.

    Raises:
        OutputError: the folder cannot be written.
    """
    # First: where the disk is full or the process is killed, no earlier round is taken for this one.
    for stale in (FACTS, TOKENIZER, *(f"{stem}{end}" for stem in (BEFORE, TRUTH, *SENT) for end in ENDINGS)):
        remove_plain(folder / stale, "the capture's folder")
    said = NotCaptured(not_captured=reason).model_dump_json(indent=1)
    write_atomic(folder / FACTS, said.encode(), "the capture's folder")


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    plain: dict[str, Any] = {name: _plain(value) for name, value in arrays.items()}
    np.savez(buffer, **plain)
    return buffer.getvalue()


def _plain(value: Any) -> np.ndarray:
    """An array as it is, or what a tensor of torch holds, wherever it lies; bfloat16, which numpy lacks, in float32."""
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        value = value.float() if hasattr(value, "float") else value.astype("f4")
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


# Reads a capture, whoever wrote it: every file is checked, nothing in it is executed.


@dataclass(frozen=True)
class Capture:
    """Starting point of one client, and what it sent.

    Attributes:
        before, moved: arrays by the names of the ``state_dict``, read when asked for; ``kind`` says what ``moved`` is.
        truth: ``images`` (n, C, H, W) and ``labels`` (n,) as they stand in the file, of texts ``tokens`` (n, T),
            ``lengths`` (n,) and ``labels``; None where it was not kept.
        digest: of the files, in hexadecimal.
    """

    folder: Path
    record: CaptureRecord
    before: StoredArrays
    moved: StoredArrays
    kind: Sent
    truth: StoredArrays | None
    digest: str

    @property
    def truths(self) -> int:
        """Number of true examples; 0 where the truth was not kept."""
        shape = () if self.truth is None else self.truth.shapes[TRUTHS[self.record.data][0]]
        return shape[0] if shape else 0

    @property
    def tokenizer(self) -> Path | None:
        """Path of the tokenizer of texts; None where there is none."""
        return None if self.record.tokenizer is None else self.folder / self.record.tokenizer


def read_capture(folder: Path, truth: Path | None = None) -> Capture:
    """A capture's folder.

    Args:
        truth: a file of a truth's arrays instead of the folder's own.

    Raises:
        UsageError: a file is missing, damaged, or holds what it should not; one line that names the file and the fix.
    """
    facts = folder / FACTS
    if not folder.exists():
        raise UsageError(f"there is no folder {str(folder)!r}; check its path")
    try:
        state = read_stored(facts, NotCaptured, parse_json, "write it again", MOST_OF_A_DOCUMENT)
        if state.not_captured is not None:
            more = "add the fact and take not_captured away" if state.model_extra else "capture another round"
            raise UsageError(
                f"{str(folder)!r} was not captured because {state.not_captured}; leave it out of the command, or {more}"
            )
        record = read_stored(facts, CaptureRecord, parse_json, "correct it there", MOST_OF_A_DOCUMENT)
    except Absent as problem:
        raise UsageError(f"{str(folder)!r} is no capture (it has no {FACTS}); {FIX}") from problem
    present: list[Sent] = [kind for kind in SENT if any((folder / f"{kind}{end}").exists() for end in ENDINGS)]
    if len(present) != 1:
        found = " and ".join(present) or "none"
        raise UsageError(
            f"capture {str(folder)!r} must hold one of {', '.join(SENT)} as {' or '.join(ENDINGS)}, it has "
            f"{found}{other_beside(folder, *SENT)}"
        )
    before, moved, own = file_of(folder, BEFORE), file_of(folder, present[0]), truth or file_of(folder, TRUTH)
    known = StoredArrays(own, FIX_TRUTH) if truth or own.exists() else None
    if known is None and (other := sorted(folder.glob(f"{TRUTH}.*"))):
        raise UsageError(f"{str(other[0])!r} is of a kind that is not read; {FIX_TRUTH}, or take it away")
    if known is not None and (missing := next((name for name in TRUTHS[record.data] if name not in known), None)):
        raise UsageError(_incomplete(own, known, missing, record.data))
    found_before, found_moved = StoredArrays(before), StoredArrays(moved)
    files = [facts, before, moved, *([folder / record.tokenizer] if record.tokenizer else [])]
    digest = "-".join(sha256(path)[:16] for path in files)
    return Capture(folder, record, found_before, found_moved, present[0], known, digest)


def _incomplete(file: Path, truth: StoredArrays, missing: str, data: str) -> str:
    """Return what is said of a truth that lacks an array."""
    *most, last = TRUTHS[data]
    other = "text" if data == "images" else "images"
    if TRUTHS[other][0] in truth:
        what = {"images": "images", "text": "texts"}
        return f"{str(file)!r} is a truth of {what[other]}, and the capture is of {what[data]}; correct data in {FACTS}"
    whole = f"{', '.join(most)} and {last}"
    return f"{str(file)!r} has no array {missing!r}; a truth is {whole}"


def file_of(folder: Path, stem: str) -> Path:
    """The file of a capture's arrays, in one format or the other."""
    there = [path for path in (folder / f"{stem}{end}" for end in ENDINGS) if path.exists()]
    if len(there) > 1:
        raise UsageError(f"capture {str(folder)!r} holds {there[0].name} and {there[1].name}; keep one of them")
    return there[0] if there else folder / f"{stem}{ENDINGS[0]}"
