"""Captures that are judged together: clients of one network that trained alike."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from harness.capture.reading import Capture
from harness.capture.record import CaptureRecord, Declared
from harness.datasets import Dataset
from harness.datasets.files import DataFile
from harness.datasets.record import build_dataset
from harness.defenses import DEFENSES
from harness.errors import UsageError
from harness.extensions.building import build
from harness.federation.taps import Tap
from harness.judging.fitting import fitted_arrays
from harness.judging.frameworks import translated
from harness.models.batch_norm import Buffers, RunningStatistics, trained_layers
from harness.models.networks import build_module
from harness.vectors.layout import Layout

_OWN = {"client", "round", "framework", "examples", "format"}


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
        rounds: how many came before those in which they were captured, each once, in order.
        digest: of all files, in hexadecimal.
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

    @property
    def clients(self) -> int:
        """V."""
        return len(self.target)

    @property
    def examples(self) -> int:
        """n, examples behind what one client sent."""
        return self.record.batch_size * (self.record.local_steps if self.of_update else 1)


def gathered(captures: Sequence[Capture], attacked: bool = True) -> CapturedClients:
    """Captures as the clients of one federation; their defense is declared in this project's terms.

    Args:
        captures: of one network, trained alike.
        attacked: whether gradients are read from what was sent, and not only the marks of a defense of it.

    Raises:
        UsageError: they trained differently, do not fit their network, one of them is there twice, or what was sent is
            no gradient of a loss.
    """
    captures = [replace(capture, record=_as_drawn(capture)) for capture in captures]
    first = captures[0]
    _require_alike(captures)
    defense = translated(first.record.defense)
    if attacked or defense is None or not _is_of_updates(defense):
        _require_gradients(first)
    module = build_module(first.record.model, first.record.image_shape, first.record.classes, seed=0)
    layout = Layout.of(module)
    parts = [_client(capture, module, layout) for capture in captures]
    names = {name for part in parts for name in part[3] if bool(part[3][name].any())}
    moved = {name: torch.stack([part[3][name] for part in parts]) for name in sorted(names)}
    buffers = _shared_buffers(captures, module)
    known = [_truth(capture) for capture in captures if capture.truth is not None]
    if 0 < len(known) < len(captures):
        without = next(capture for capture in captures if capture.truth is None)
        raise UsageError(f"capture {str(without.folder)!r} has no truth and others have; judge them apart")
    clients = CapturedClients(
        first.record.model_copy(update={"defense": defense}), torch.stack([part[0] for part in parts]), buffers,
        bool(trained_layers(module)), _running(captures, module), torch.stack([part[1] for part in parts]),
        first.kind != "gradient",
        torch.stack([images for images, _ in known]) if known else None,
        torch.stack([labels for _, labels in known]) if known else None,
        torch.tensor([part[2] for part in parts], dtype=torch.float64), moved,
        tuple(sorted({capture.record.rounds_before for capture in captures})),
        hashlib.sha256(" ".join(capture.digest for capture in captures).encode()).hexdigest(),
    )  # fmt: skip
    _require_different(captures, clients)
    return clients


def _as_drawn(capture: Capture) -> CaptureRecord:
    """What a capture says; where the truth is another number of examples than the batch of a single step under a clip
    of each, the batch was drawn (Poisson), and ``batch_size`` is what was expected."""
    record, truth = capture.record, capture.truth
    one_step = capture.kind == "gradient" or record.local_steps == 1
    if truth is None or record.defense is None or record.expected_batch_size or not one_step:
        return record
    declared, count = translated(record.defense), (truth.shapes["images"] or (0,))[0]
    if declared is None:
        return record
    defense = build(DEFENSES, declared.name, declared.settings)
    clipping = defense.clipping_at(Tap.STEP, record.learning_rate)
    if count in (0, record.batch_size) or clipping is None or clipping.unit != "example":
        return record
    return record.model_copy(update={"batch_size": count, "expected_batch_size": float(record.batch_size)})


def _require_alike(captures: Sequence[Capture]) -> None:
    first = captures[0]
    for other in captures[1:]:
        if other.kind != first.kind:
            raise UsageError(
                f"{str(first.folder)!r} holds {first.kind}, {str(other.folder)!r} {other.kind}; judge them apart"
            )
        ours, theirs = (one.record.model_dump(exclude=_OWN) for one in (first, other))
        differing = next((name for name in ours if ours[name] != theirs[name]), None)
        if differing:
            raise UsageError(
                f"captures differ in {differing}: {ours[differing]!r} in {str(first.folder)!r}, {theirs[differing]!r} "
                f"in {str(other.folder)!r}; judge them apart"
            )


def _require_different(captures: Sequence[Capture], clients: CapturedClients) -> None:
    """Each is counted as a client of its own, so none may be there twice, whatever its files are called."""
    truth = [] if clients.images is None or clients.labels is None else [clients.images, clients.labels]
    known: dict[bytes, Path] = {}
    for row, capture in enumerate(captures):
        numbers = b"".join(values[row].numpy().tobytes() for values in (clients.before, clients.target, *truth))
        first = known.setdefault(hashlib.sha256(numbers).digest(), capture.folder)
        if first is not capture.folder:
            raise UsageError(
                f"captures {str(first)!r} and {str(capture.folder)!r} hold the same update, which would count as two "
                "clients; leave one of them out"
            )


def _is_of_updates(defense: Declared) -> bool:
    """Whether it clips updates, and so is seen whatever optimizer they come from."""
    return defense.name == "fed_sdp"


def _require_gradients(capture: Capture) -> None:
    record = capture.record
    if capture.kind == "gradient" or record.optimizer == "sgd":
        return
    if record.optimizer == "momentum" and record.local_steps == 1:
        return  # whose first step is that of plain SGD
    raise UsageError(
        f"what a client sends after {record.local_steps} step(s) of {record.optimizer} is no sum of gradients; capture "
        "the gradient of one step (gradient.npz), or train the captured round with plain SGD"
    )


def _client(capture: Capture, module: nn.Module, layout: Layout) -> tuple[Tensor, Tensor, float, Buffers]:
    """What a client started from, the gradient to match, its grain, and how far the buffers that it sent moved."""
    folder, record = capture.folder, capture.record
    state = fitted_arrays(capture.before, module, whole=True)
    sent = fitted_arrays(capture.moved, module, whole=False)
    _require_frozen(capture, state, sent)
    before, moved = layout.flatten(state), layout.flatten(sent)
    _require_values(capture, moved)
    grain = max(capture.moved.grain, torch.finfo(moved.dtype).eps * float(moved.abs().max()))
    if capture.kind == "gradient":
        times = record.learning_rate / record.rate
        return before, moved * times, grain * times, {}
    # In float64: a small step is the difference of numbers that are nearly alike.
    update = moved.double() - before.double() if capture.kind == "after" else moved.double()
    if capture.kind == "after":
        grain = max(grain, capture.before.grain)
    scale = record.rate * record.local_steps
    seen = (update / -scale).to(before.dtype) + 0.0
    if not seen.isfinite().all():
        raise UsageError(
            f"capture {str(folder)!r}: what was sent is too large for a gradient: the client's training diverged, or "
            "learning_rate is wrong; capture another round"
        )
    if not seen.any():
        raise UsageError(f"capture {str(folder)!r}: the client sent what it got; check that it trained in between")
    return before, seen, grain / scale, _moved_buffers(capture, module, state, sent, scale)


def _require_frozen(capture: Capture, before: dict[str, Tensor], sent: dict[str, Tensor]) -> None:
    """What is declared to be frozen exists, and was not trained."""
    for name in capture.record.frozen:
        if name not in sent:
            raise UsageError(f"capture {str(capture.folder)!r}: frozen {name!r} is no parameter of the network")
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
    """Statistics that travel, divided as the weights are: those of numbers, where counts of batches tell nothing."""
    names = [name for name, buffer in module.named_buffers() if buffer.is_floating_point() and name in sent]
    still = {name: torch.zeros_like(before[name]) if capture.kind == "update" else before[name] for name in names}
    return {name: (sent[name].double() - still[name].double()).flatten() / -scale for name in names}


def _shared_buffers(captures: Sequence[Capture], module: nn.Module) -> dict[str, Tensor]:
    own_to_each = _followed(module)
    names = [name for name, _ in module.named_buffers() if name.rpartition(".")[0] not in own_to_each]
    found: dict[str, Tensor] = {}
    for capture in captures:
        own = fitted_arrays(capture.before, module, whole=True)
        if found and any(not torch.equal(found[name], own[name]) for name in names):
            raise UsageError(
                f"the network's buffers in {str(capture.folder)!r} are others than in {str(captures[0].folder)!r}; "
                "judge captures of different rounds apart"
            )
        # Each client may keep its own running statistics: in training nothing is computed from them.
        found = {name: found.get(name, own[name]) for name, _ in module.named_buffers()}
    return found


def _followed(module: nn.Module) -> dict[str, float]:
    """Layers that normalise batches and keep a running average of their statistics, with the weight of the newest."""
    layers = trained_layers(module).items()
    return {
        name: layer.momentum for name, layer in layers if layer.momentum is not None and layer.running_mean is not None
    }


def _running(captures: Sequence[Capture], module: nn.Module) -> Buffers:
    """What became of the running statistics at each client; {} where not every capture holds them, or none moved."""
    whole = RunningStatistics(trained_layers(module), 1).buffers
    names = [name for name, values in whole.items() if values.is_floating_point()]
    if not names or captures[0].kind == "gradient":
        return {}
    rows, first = list[dict[str, Tensor]](), None
    for capture in captures:
        moved = fitted_arrays(capture.moved, module, whole=False)
        if not moved.keys() >= set(names):
            return {}
        before = fitted_arrays(capture.before, module, whole=True)
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


def _truth(capture: Capture) -> tuple[Tensor, Tensor]:
    """Images (n, C, H, W) and labels (n,) of one client, as the counts in its record demand."""
    assert capture.truth is not None
    found, record = capture.truth, capture.record
    expected = record.batch_size * (1 if capture.kind == "gradient" else record.local_steps)
    shape = found.shapes["images"]
    count = shape[0] if shape else 0
    # Asked before values are read: they may be more than memory holds.
    if count != expected:
        raise UsageError(
            f"capture {str(capture.folder)!r}: {count} true images, but batch_size {record.batch_size} and "
            f"local_steps {record.local_steps} make {expected}; give those the client trained on, in order"
        )
    file = DataFile(found.path)
    if math.prod(shape) != expected * math.prod(record.image_shape) or math.prod(found.shapes["labels"]) != expected:
        raise file.wrong(
            f"has images of shape {shape[1:]} and labels {found.shapes['labels']}, not {tuple(record.image_shape)} and "
            f"({expected},)", "check image_shape",
        )  # fmt: skip
    truth = checked_truth(file, found["images"], found["labels"], record)
    return truth.images, truth.labels


def checked_truth(file: DataFile, images: np.ndarray, labels: np.ndarray, record: CaptureRecord) -> Dataset:
    """True images through the gate of all datasets. Raises UsageError."""
    classes = tuple(str(label) for label in range(record.classes))
    found = build_dataset(file, "truth", np.asarray(images), np.asarray(labels), classes, "truth of a capture")
    if found.image_shape != tuple(record.image_shape):
        raise file.wrong(
            f"has images of shape {found.image_shape}, not {tuple(record.image_shape)}", "check image_shape"
        )
    return found


def names_of(folders: Sequence[Path]) -> str:
    """What the captures are called in a result: the folder, or how many."""
    return f"capture {folders[0].resolve().name}" if len(folders) == 1 else f"{len(folders)} captures"
