"""Captures that are judged together: clients of one network that trained alike."""

import hashlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN, UpdateReading, reading_of
from harness.base.vectors import Layout
from harness.base.words import Words
from harness.defenses import DEFENSES
from harness.evaluation.cohorts import Recovered
from harness.judging.capture import Capture, CaptureRecord
from harness.judging.framework_defenses import Declared, draws_batches, is_known, translated
from harness.judging.parts import (
    Earlier,
    earlier_of,
    fitted_arrays,
    fixed_values,
    foreign_layout,
    foreign_values,
    frozen_names,
    half_of,
    trained_network,
    without_earlier,
)
from harness.judging.truths import as_drawn, clips_examples, goes_by_size, tell_smaller, truth_of, words_of_captures
from harness.models.batch_norm import STATISTICS, Buffers, RunningStatistics, trained_layers

_OWN = {"client", "round", "framework", "examples", "format", "state", "order"}
# What follows from how many examples a client has: captures that differ in it are judged in groups.
OF_DATA = {"batch_size", "expected_batch_size", "local_steps", "epochs"}

# What weight decay that nobody declares may add to a step, of the largest there is.
_LARGER = 0.05

Sampling = Literal["fixed", "unknown", "poisson"]
"""How many examples are behind a step: as many as are declared (``fixed``); perhaps another number, drawn by Poisson
sampling, and nobody says so (``unknown``); certainly a drawn one, and only this or the expected one is declared
(``poisson``)."""


@dataclass(frozen=True, eq=False)
class CapturedClients:
    """V clients of one federation.

    Attributes:
        record: what they have in common; of the rest it is the first one's.
        before: (V, P), what each started from; ``buffers`` beside it, the same for all.
        normalised: whether the network normalises batches as a whole; ``running`` then are the running statistics that
            came back, by name, (V, channels); {} where they did not.
        target: (V, P), the gradient to match: a gradient, or an update divided by minus the learning rate and, for
            ``avg``, the steps.
        of_update: whether an update was captured, and not a gradient.
        images, labels: (V, n, C, H, W) and (V, n), the truth; None where it was not kept.
        grain: (V,), the coarsest step of the floats that ``target`` was read from, in its units.
        moved_buffers: names of buffers that some client sent back with other numbers, and how far each client moved
            each, (V, size) in units of ``target``; empty for those of which nothing moved.
        counted: of buffers of whole numbers, such as counts of batches, how far each client moved each, (V, size).
        rounds: how many came before those in which they were captured, each once, in order; ``at`` (V,) of each.
        later: the same clients in later rounds, row by row, where an attacker has several of each.
        recovered: of clients of whom only sums are seen, what those are worth; ``target`` is then what they tell, and
            ``later`` are all rounds, with the clients of each and what those sent.
        unsent: weights that were not sent, and of which nobody says that they were not trained.
        remembered: what the declared defense lets each client remember of earlier rounds, by name, (V, ...).
        digest: of all files, in hexadecimal.
        layout: of ``before`` and ``target``: the parameters that were trained and sent.
        sampling: how the number of examples behind a step is known.
        names: of the clients, as the captures have them; () where they are nobody's.
        words: of texts, what their numbers mean; None where nobody says so, and of all else.
        not_known: the defense that is declared and that nobody here knows, so that none is played; None of any other.
        foreign: whether ``layout`` is that of the files, since the factory's network lacks some of the tensors.
    """

    record: CaptureRecord
    before: Tensor
    buffers: Buffers
    normalised: bool
    running: Buffers
    target: Tensor
    of_update: bool
    images: Tensor | None
    labels: Tensor | None
    grain: Tensor
    moved_buffers: Buffers
    rounds: tuple[int, ...]
    digest: str
    layout: Layout
    sampling: Sampling = "fixed"
    foreign: bool = False
    names: tuple[str | None, ...] = ()
    not_known: str | None = None
    words: Words | None = None
    counted: Buffers = field(default_factory=dict)
    at: tuple[int, ...] = ()
    later: tuple["CapturedClients", ...] = ()
    recovered: Recovered | None = None
    remembered: Buffers = field(default_factory=dict)
    unsent: tuple[str, ...] = ()

    @property
    def owners(self) -> Tensor | None:
        """(V,), which client each is, by its name; None where all are different ones, as those without a name are."""
        named = [name if name is not None else number for number, name in enumerate(self.names)]
        known = {name: place for place, name in enumerate(dict.fromkeys(named))}
        return torch.tensor([known[name] for name in named]) if len(known) < len(named) else None

    @property
    def clients(self) -> int:
        """V."""
        return len(self.target)

    def number(self, at: int) -> int:
        """The federation's own number of the round that so many came before."""
        return at + self.record.round - self.record.rounds_before

    def first(self, count: int) -> "CapturedClients":
        """Return the first ``count`` of these clients; all of them where there are no more."""
        if count >= self.clients:
            return self
        found = self.take(list(range(count)))
        told = self.recovered and self.recovered.first(count)
        later = self.later if told else tuple(one.first(count) for one in self.later)
        return replace(found, later=later, recovered=told, digest=f"{self.digest} first {count}")

    def take(self, rows: Sequence[int]) -> "CapturedClients":
        """Those clients alone, in that order, without later rounds."""

        def of(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[list(rows)]

        whole = {name: of(getattr(self, name)) for name in ("before", "target", "images", "labels", "grain")}
        named = {
            name: {own: values[list(rows)] for own, values in getattr(self, name).items()}
            for name in ("running", "moved_buffers", "counted", "remembered")
        }
        told = {
            name: tuple(getattr(self, name)[row] for row in rows) for name in ("names", "at") if getattr(self, name)
        }
        digest = hashlib.sha256(f"{self.digest} {list(rows)}".encode()).hexdigest()
        return replace(self, **whole, **named, **told, later=(), recovered=None, digest=digest)  # pyright: ignore

    @property
    def examples(self) -> int:
        """n, places for examples behind what one client sent: a smaller last batch fills its places by turns."""
        return self.record.step_size * (self.record.local_steps if self.of_update else 1)

    @property
    def sums(self) -> bool:
        """Return whether what was sent is a sum of gradients, each coordinate as exact as the others."""
        if not self.of_update:
            return True
        reading = update_reading(self.record, self.record.defense)
        return reading.shares is not None and reading.adaptive is None

    @property
    def trained_on(self) -> int:
        """Examples behind what one client sent, each as often as it was trained on."""
        return self.record.truths if self.of_update else self.record.step_size

    @property
    def distinct(self) -> int:
        """Examples behind what one client sent, each once."""
        return self.trained_on // (self.record.passes if self.of_update else 1)


def federations(captures: Sequence[Capture], attacked: bool = True) -> list[CapturedClients]:
    """Captures as the clients of one federation, in groups of clients whose batches are of the same sizes.

    Args:
        captures: of one network, trained alike but for how many examples each client has.
        attacked: whether gradients are read from what was sent, and not only the marks of a defense of it.

    Raises:
        UsageError: they trained differently, do not fit their network, one of them is there twice, or what was sent is
            no gradient of a loss.
    """
    drawn = [replace(capture, record=as_drawn(capture)) for capture in captures]
    tell_smaller(captures, drawn)
    _require_alike(drawn, attacked)
    groups: dict[object, list[Capture]] = {}
    for capture in drawn:
        record = capture.record
        sizes = record.step_sizes() if capture.kind != "gradient" else record.batch_size
        alike = sizes, record.batch_size, record.expected_batch_size, record.learning_rate, _sampling(capture)
        groups.setdefault(alike, []).append(capture)
    known: dict[bytes, Path] = {}
    earlier = earlier_of(drawn)
    found = [_together(group, attacked, earlier) for group in groups.values()]
    for group, clients in zip(groups.values(), found, strict=True):
        _require_different(group, clients, known)
    return found


def gathered(captures: Sequence[Capture], attacked: bool = True) -> CapturedClients:
    """Captures whose batches are all of the same sizes; see :func:`federations`."""
    (clients,) = federations(captures, attacked)
    return clients


def _together(captures: Sequence[Capture], attacked: bool, earlier: Earlier) -> CapturedClients:
    first = captures[0]
    record, sampling = first.record, _sampling(first)
    defense = translated(record.defense)
    if record.loss_scale != 1 and goes_by_size(record):
        # Of other optimizers, and of a gradient, another rate is no multiple of what was sent.
        plain = (record.local_optimizer or PLAIN).model_copy(update={"loss_scale": 1.0}).is_plain
        rate = f"learning_rate {record.learning_rate * record.loss_scale:g} without loss_scale"
        other = f", or, if what the defense made is multiplied, give {rate}" * (plain and first.kind != "gradient")
        raise UsageError(
            f"capture {str(first.folder)!r}: whether loss_scale {record.loss_scale:g} is in gradients before the "
            f"defense's clip or noise is not said; capture a round with the mean{other}"
        )
    if attacked or defense is None or not _is_of_updates(defense):
        _require_gradients(first)
    module, model, unsent = trained_network(captures)
    foreign = None if attacked else foreign_layout(captures, module)
    layout = foreign or Layout.of(module)
    record = record.with_groups(layout.names, layout.sizes)
    captures = [replace(one, record=one.record.with_groups(layout.names, layout.sizes)) for one in captures]
    half = half_of(captures, module) if not foreign and record.dtype is None else None
    if half is not None:
        record = record.model_copy(update={"dtype": half})
        captures = [replace(one, record=one.record.model_copy(update={"dtype": half})) for one in captures]
    # A change that is sent in half precision is not as coarse as weights are.
    dtype = record.dtype if first.kind == "after" else None
    record = record.model_copy(update={"defense": defense, "model": model, "dtype": dtype})
    states = [] if foreign else _states(captures, module, fixed_values(record, module, attacked))
    parts = [
        _client(capture, module, layout, state, defense, earlier)
        for capture, state in zip(captures, states or [None] * len(captures), strict=True)
    ]
    if half is not None:
        sys.stderr.write(f"harness: all weights that were sent are numbers of {half}: they are taken to be sent so\n")
    names = {name for part in parts for name in part[3] if bool(part[3][name].any())}
    moved = {name: torch.stack([part[3][name] for part in parts]) for name in sorted(names)}
    whole = {name for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
    counted = {name: moved.pop(name) for name in sorted(names & whole)}
    running = {} if foreign or _counts_others(counted, record) else _running(captures, states, module)
    words = words_of_captures(captures) if attacked else None
    known = [truth_of(capture, words) for capture in captures if attacked and capture.truth is not None]
    return CapturedClients(
        record, torch.stack([part[0] for part in parts]),
        _shared_buffers(captures, states, module) if attacked else {},
        bool(trained_layers(module)), running,
        torch.stack([part[1] for part in parts]), first.kind != "gradient",
        torch.stack([images for images, _ in known]) if known else None,
        torch.stack([labels for _, labels in known]) if known else None,
        torch.tensor([part[2] for part in parts], dtype=torch.float64), moved,
        tuple(sorted({capture.record.rounds_before for capture in captures})),
        hashlib.sha256(" ".join(capture.digest for capture in captures).encode()).hexdigest(),
        layout, sampling, foreign is not None, tuple(capture.record.client for capture in captures),
        None if first.record.defense is None or is_known(first.record.defense) else first.record.defense.name,
        words, counted, tuple(capture.record.rounds_before for capture in captures), unsent=unsent,
    )  # fmt: skip


def _sampling(capture: Capture) -> Sampling:
    """Return how the number of examples behind a step is known."""
    record = capture.record
    if record.expected_batch_size or not clips_examples(record):
        return "fixed"
    drawn = draws_batches(record.defense)
    if drawn is not None:
        return "poisson" if drawn else "fixed"
    return "unknown" if capture.truth is None else "fixed"


def require_same_facts(captures: Sequence[Capture], may_differ: Collection[str] = OF_DATA) -> None:
    """Captures are of clients that trained alike, but for facts that may differ. Raises UsageError."""
    first = captures[0]
    for other in captures[1:]:
        if other.kind != first.kind:
            raise UsageError(
                f"{str(first.folder)!r} holds {first.kind}, {str(other.folder)!r} {other.kind}; judge them separately"
            )
        ours, theirs = (one.record.model_dump(exclude={*_OWN, *may_differ}) for one in (first, other))
        for dumped, record in ((ours, first.record), (theirs, other.record)):
            if record.columns is not None:  # whose order is that of the features
                dumped["columns"]["categories"] = tuple(record.columns.categories.items())
        differing = _first_apart(ours, theirs)
        if differing:
            name, here, there = differing
            raise UsageError(
                f"captures differ in {name}: {here!r} in {str(first.folder)!r}, {there!r} in {str(other.folder)!r}; "
                "judge them separately"
            )


def _first_apart(ours: Any, theirs: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The first fact in which two records differ, by its name, and both values; None where they are alike."""
    if ours == theirs:
        return None
    if isinstance(ours, dict) and isinstance(theirs, dict):
        each = (_first_apart(ours.get(own), theirs.get(own), f"{name}.{own}".strip(".")) for own in ours | theirs)
    elif isinstance(ours, tuple) and isinstance(theirs, tuple):
        each = (_first_apart(*both, name) for both in zip_longest(ours, theirs))
    else:
        return name, ours, theirs
    return next(filter(None, each))


def _require_alike(captures: Sequence[Capture], attacked: bool) -> None:
    # Rounds of a client whose optimizer lives on belong together, and between them its rate may follow a schedule.
    lives = any(capture.record.state == "carried" for capture in captures)
    require_same_facts(captures, OF_DATA | ({"learning_rate"} if lives else set()))
    without = [capture for capture in captures if capture.truth is None]
    if 0 < len(without) < len(captures) and not attacked:
        sys.stderr.write(
            f"harness: {len(without)} of {len(captures)} captures have no truth: the updates of all are checked, and "
            "batch_size is taken as it is declared where there is none\n"
        )
    elif 0 < len(without) < len(captures):
        raise UsageError(f"capture {str(without[0].folder)!r} has no truth and others have; judge them separately")


def _require_different(captures: Sequence[Capture], clients: CapturedClients, known: dict[bytes, Path]) -> None:
    """Each is counted as a client of its own, so none may be there twice, whatever its files are called.

    ``known``: where others' numbers were found; these captures' join them.
    """
    truth = [] if clients.images is None or clients.labels is None else [clients.images, clients.labels]
    for row, capture in enumerate(captures):
        numbers = b"".join(values[row].numpy().tobytes() for values in (clients.before, clients.target, *truth))
        first = known.setdefault(hashlib.sha256(numbers).digest(), capture.folder)
        if first is not capture.folder:
            raise UsageError(
                f"captures {str(first)!r} and {str(capture.folder)!r} hold the same update, which would count as two "
                "clients; leave one of them out"
            )


def _is_of_updates(defense: Declared) -> bool:
    """Return whether it clips updates, and so is seen whatever optimizer they come from."""
    return defense.name == "fed_sdp"


def update_reading(record: CaptureRecord, defense: Declared | None) -> UpdateReading:
    """Return how an update of such clients becomes the gradient to match.

    An update of unknown momentum is read as plain SGD's.
    """
    optimizer = record.local_optimizer or PLAIN
    changed = defense is not None and build(DEFENSES, defense.name, defense.settings).changes_messages()
    return reading_of(optimizer, record.local_steps, record.rate, changed, record.dtype)


def is_readable(capture: Capture) -> bool:
    """Return whether what was sent is a gradient, or an update that an optimizer can be played to."""
    return capture.kind == "gradient" or capture.record.local_optimizer is not None


def _require_gradients(capture: Capture) -> None:
    record = capture.record
    if is_readable(capture):
        return
    raise UsageError(
        f"what a client sends after {record.local_steps} steps of momentum depends on its coefficient; give it, as "
        '"optimizer": {"name": "SGD", "momentum": 0.9}'
    )


def _states(captures: Sequence[Capture], module: nn.Module, fixed: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    statistics = {
        name: value for name, value in module.state_dict().items()
        if name.rpartition(".")[0] in trained_layers(module) and name.rpartition(".")[2] in STATISTICS
    }  # fmt: skip
    states = []
    for capture in captures:
        sent = fitted_arrays(capture.moved, module, whole=False) if statistics else {}
        # In training nothing is computed from running statistics: they may be missing where they do not come back.
        still = {name: value for name, value in statistics.items() if name not in sent}
        states.append(fitted_arrays(capture.before, module, whole=True, fixed=still | fixed))
    return states


def _client(
    capture: Capture, module: nn.Module, layout: Layout, state: dict[str, Tensor] | None, defense: Declared | None,
    earlier: Earlier,
) -> tuple[Tensor, Tensor, float, Buffers]:  # fmt: skip
    """Return what a client started from, the gradient to match, its grain, and how far the buffers that it sent
    moved."""
    folder, record = capture.folder, capture.record
    if state is None:
        before, moved, sent = *foreign_values(capture, layout), dict[str, Tensor]()
    else:
        sent = fitted_arrays(capture.moved, module, whole=False)
        _require_frozen(capture, module, state, sent, defense)
        before, moved = layout.flatten(state), layout.flatten(sent)
    _require_values(capture, moved)
    coarse = torch.finfo(getattr(torch, record.dtype or "float32"))
    grain = max(capture.moved.grain, coarse.eps * float(moved.abs().max()))
    if capture.kind == "gradient":
        times = record.learning_rate / record.rate / (record.local_optimizer or PLAIN).gain
        return before.float(), (moved * times).float(), grain * times, {}
    # In float64: a small step is the difference of numbers that are nearly alike.
    update = moved.double() - before.double() if capture.kind == "after" else moved.double()
    if capture.kind == "after" or _of_weights(update, before):
        grain = max(grain, capture.before.grain)
    if capture.folder in earlier:
        update = without_earlier(capture, update, earlier, lambda one: _moved(one, module, layout, state is None))
        grain *= 2
    reading = update_reading(record, defense)
    # Where rates differ, the smallest leaves the coarsest numbers.
    scale = reading.rate * record.local_steps
    grain /= min([1.0, *(factor for _, factor, _ in reading.groups)])
    _require_steps(capture, reading, update, before, grain)
    seen = reading.gradient(update[None], before[None])[0].float() + 0.0
    if not seen.isfinite().all():
        raise UsageError(
            f"capture {str(folder)!r}: what was sent is too large for a gradient: the client's training diverged, or "
            "learning_rate is wrong; capture another round"
        )
    if not seen.any():
        raise UsageError(f"capture {str(folder)!r}: the client sent what it got; check that it trained in between")
    buffers = {} if state is None else _moved_buffers(capture, module, state, sent, scale)
    return before.float(), seen, grain / scale, buffers


def _of_weights(update: Tensor, before: Tensor) -> bool:
    """Return whether an update (P,) is the difference of weights in float32, whose rounding is then in it."""
    after, small = before.double() + update, update.abs() < before.abs() / 2
    return bool(small.any()) and bool((after.float() == after)[small].all())


def _require_steps(capture: Capture, reading: UpdateReading, update: Tensor, before: Tensor, grain: float) -> None:
    """The first step of Adam and its like is of a known size at most, whatever the data are."""
    if reading.adaptive is None:
        return
    most = reading.largest(update[None], before[None], grain)
    if most > 1 + _LARGER:
        record = capture.record
        raise UsageError(
            f"capture {str(capture.folder)!r}: its step is up to {most:.3g} times as large as {record.optimizer} takes "
            f"with learning_rate {record.learning_rate:g}; correct one of them, or say that its state was carried over"
        )


def _moved(capture: Capture, module: nn.Module, layout: Layout, foreign: bool) -> Tensor:
    """Return how far a client came (P,), in float64; its gradient where that was captured."""
    if foreign:
        before, moved = foreign_values(capture, layout)
    else:
        files = (capture.before, capture.moved)
        before, moved = (layout.flatten(fitted_arrays(one, module, whole=False)).double() for one in files)
    return moved - before if capture.kind == "after" else moved


def _require_frozen(
    capture: Capture, module: nn.Module, before: dict[str, Tensor], sent: dict[str, Tensor], defense: Declared | None
) -> None:
    """Raise UsageError where a tensor that is declared frozen was trained.

    Nothing is checked under a defense of updates, which may have put noise on all that is sent.
    """
    if defense is not None and _is_of_updates(defense):
        return
    for name in sorted(frozen_names(capture, module) & sent.keys() & before.keys()):
        still = before[name] if capture.kind == "after" else torch.zeros_like(sent[name])
        if not torch.equal(sent[name], still):
            raise UsageError(
                f"capture {str(capture.folder)!r}: {name!r} is declared frozen and was sent with other numbers; take "
                "it out of frozen, or check the training"
            )


def _require_values(capture: Capture, sent: Tensor) -> None:
    """Codes of a quantiser may be stored as floats; signs and counts are codes too."""
    moved = sent[sent != 0]
    if moved.numel() > 1 and bool((moved == moved.round()).all()):
        raise UsageError(
            f"{str(capture.moved.path)!r} holds whole numbers only, up to {float(moved.abs().max()):.4g}: codes of a "
            "quantiser and no values; capture what the server makes of them: codes times their scale, as floats"
        )


def _moved_buffers(
    capture: Capture, module: nn.Module, before: dict[str, Tensor], sent: dict[str, Tensor], scale: float
) -> Buffers:
    """Return what moved of the buffers that travel: statistics divided as the weights are, counts as they are."""
    moved = {}
    for name, buffer in module.named_buffers():
        if name in sent:
            still = torch.zeros_like(before[name]) if capture.kind == "update" else before[name]
            unit = -scale if buffer.is_floating_point() else 1.0
            moved[name] = (sent[name].double() - still.double()).flatten() / unit
    return moved


def _shared_buffers(
    captures: Sequence[Capture], states: Sequence[dict[str, Tensor]], module: nn.Module
) -> dict[str, Tensor]:
    own_to_each, still = _followed(module), dict(module.named_buffers())
    names = [name for name, _ in module.named_buffers() if name.rpartition(".")[0] not in own_to_each]
    found: dict[str, Tensor] = {}
    for capture, state in zip(captures, states, strict=True):
        own = still | state  # buffers that are not persistent are in no state_dict()
        differing = next((name for name in names if found and not torch.equal(found[name], own[name])), None)
        if differing:
            raise UsageError(
                f"what the network does not train, such as {differing!r}, is other in {str(capture.folder)!r} than in "
                f"{str(captures[0].folder)!r}; judge them separately"
            )
        # Each client may keep its own running statistics: in training nothing is computed from them.
        found = {name: found.get(name, own[name]) for name in still}
    return found


def _followed(module: nn.Module) -> dict[str, float]:
    """Layers that normalise batches and keep a running average of their statistics, with the weight of the newest."""
    layers = trained_layers(module).items()
    return {
        name: layer.momentum for name, layer in layers if layer.momentum is not None and layer.running_mean is not None
    }


def _counts_others(counted: Buffers, record: CaptureRecord) -> bool:
    """Return whether layers normalised other batches than those of the steps, such as one without a gradient: then
    running statistics are of those too, and nobody tells which."""
    batches = record.local_steps * record.accumulate
    for name, moved in counted.items():
        others = moved[moved != batches]
        if name.rpartition(".")[2] == "num_batches_tracked" and len(others):
            sys.stderr.write(
                f"harness: {name} counts {float(others[0]):g} batches, and the steps took {batches}: running "
                "statistics are of others too, and are not read; call eval() for passes that are no training\n"
            )
            return True
    return False


def _running(captures: Sequence[Capture], states: Sequence[dict[str, Tensor]], module: nn.Module) -> Buffers:
    """Return what became of the running statistics at each client; {} where not every capture holds them, or none
    moved."""
    whole = RunningStatistics(trained_layers(module), 1).buffers
    names = [name for name, values in whole.items() if values.is_floating_point()]
    if not names or captures[0].kind == "gradient":
        return {}
    rows, first = list[dict[str, Tensor]](), None
    for capture, before in zip(captures, states, strict=True):
        moved = fitted_arrays(capture.moved, module, whole=False)
        if not moved.keys() >= set(names):
            return {}
        if capture.kind == "update":
            moved = {name: before[name] + moved[name] for name in names}
        if all(torch.equal(moved[name], before[name]) for name in names):
            return {}
        if first is None:
            first = before
        # What a client's own beginning leaves in them is known: in its place stands what the first client began with.
        left = {layer: (1 - newest) ** capture.record.local_steps for layer, newest in _followed(module).items()}
        kept = {name: left.get(name.rpartition(".")[0], 0.0) for name in names}
        rows.append({name: moved[name] + kept[name] * (first[name] - before[name]) for name in names})
    return {name: torch.stack([row[name] for row in rows]) for name in names}


def names_of(folders: Sequence[Path]) -> str:
    """Return what the captures are called in a result: the folder, or how many."""
    return f"capture {folders[0].resolve().name}" if len(folders) == 1 else f"{len(folders)} captures"
