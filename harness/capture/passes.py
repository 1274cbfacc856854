"""Passes through a network while it trained: batches, their losses, and the weights that they met."""

import gc
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.layers import random_layer
from harness.capture.losses import mark_output, marks_of, near_of, share_of

# What libraries wrap around a network, as its only part.
_WRAPPERS = {
    "OptimizedModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "GradSampleModule",
}  # fmt: skip


_NORM, _BATCHES = nn.modules.batchnorm._NormBase, nn.modules.batchnorm._BatchNorm
# More nodes than are looked at of a network's graph.
_NODES = 10_000
# How much the norm of a weight may be off by rounding, as where something was added and taken away again.
_NEAR = 1e-5

#: How far images may go beyond [0, 1], as they do where one is resized; and how far they do where that was not clamped.
BEYOND, NEARLY = 0.01, 0.3
# How near the numbers that went in come to those of black and white, as a share of the distance between these.
_ENDS = 0.15


class Look:
    """A hook that leaves no trace in copies of the network, nor in files that hold it."""

    def __init__(self, look: Callable[..., None]) -> None:
        self._look = look

    def __call__(self, *given: Any) -> None:
        self._look(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def hide_looks_from_scripts() -> None:
    """Make ``torch.jit.script`` compile networks from now on as if nobody looked: it would compile hooks too."""
    original: Any = torch.jit.script
    if hasattr(original, "hides_looks"):
        return

    @wraps(original)
    def script(what: Any, *given: Any, **named: Any) -> Any:
        parts = list(what.modules()) if isinstance(what, nn.Module) else []
        # The second is what a look has become in a copy.
        hidden = [
            (hooks, key, hooks.pop(key))
            for part in parts
            for hooks in (part._forward_hooks, part._forward_pre_hooks)
            for key, hook in list(hooks.items())
            if (isinstance(hook, Look) or getattr(hook, "__func__", None) is nullcontext.__exit__)
        ]
        try:
            # It resolves names in the frame of who called it.
            return original(what, *given, **named | {"_frames_up": named.get("_frames_up", 0) + 1})
        finally:
            for hooks, key, hook in hidden:
                hooks[key] = hook

    setattr(script, "hides_looks", True)  # noqa: B010
    torch.jit.script = script


@dataclass
class Pass:
    """A batch that went through a network, and whether a gradient came back, and made a step.

    Attributes:
        share: which multiple of its mean cross-entropy the loss is, times ``scale``, by which a scaler multiplied it.
        near: how much that may be off, relative to it.
        kept: of the first batches, the output and the gradient there.
        apart: whether it met other weights than the last step left.
        steady: the name of a layer that normalised it with statistics which do not follow the batches.
        logits: of its outputs, while its gradient is awaited.
        drew: whether random numbers were drawn meanwhile.
        odd: why the network cannot be played as it is; ``returns``: why not by its class alone.
    """

    examples: int
    back: bool = False
    counts: bool = False
    share: Tensor | None = None
    scale: float = 1.0
    near: float = 0.0
    kept: tuple[Tensor, Tensor] | None = None
    apart: Tensor | None = None
    steady: str | None = None
    logits: Tensor | None = None
    drew: bool = False
    odd: str | None = None
    returns: str | None = None

    def came_back(self, output: Tensor, gradient: Tensor, keep: bool, again: bool) -> None:
        """The gradient at the output is there; ``again``: beside that of an earlier ``backward()``, which adds up."""
        share, self.near = share_of(output, gradient), near_of(output, gradient)
        self.share = share + self.share if again and self.share is not None else share
        self.kept = (output, gradient.clone()) if keep else None

    @property
    def multiple(self) -> float | None:
        """Loss as a multiple of its mean cross-entropy; None where it was not seen."""
        return None if self.share is None else float(self.share) / self.scale


@dataclass
class Network:
    """A network that may be the client's, and what went through it.

    Attributes:
        still: buffers as they were, but for those of BatchNorm, which are known to follow the batches.
        image_shape, classes: of what went in and came out; ``reads``: texts went in.
        least, most: (C,) of the numbers of images that went in.
        random: the name of a layer that drops out units.
        coarse: the numbers it computed in, where autocast made them coarser than its weights.
        mixes: the name of a layer that has nothing but the batch to normalise with.
        left: weights, by their identity, whose gradient was there before the first batch of a step.
        marks: marks of its weights after the last step, and before the first.
        after: whether they are others at the end.
        waiting, all, made: passes that are no part of a step yet, all, and those of each step.
        steps: of each the sizes of its batches.
    """

    module: nn.Module
    still: dict[str, Tensor] = field(default_factory=dict)
    image_shape: tuple[int, ...] | None = None
    classes: int | None = None
    least: Tensor | None = None
    most: Tensor | None = None
    reads: bool = False
    coarse: str | None = None
    mixes: str | None = None
    random: str | None = None
    left: set[int] = field(default_factory=set)
    marks: Tensor | None = None
    after: Tensor | None = None
    waiting: list[Pass] = field(default_factory=list)
    all: list[Pass] = field(default_factory=list)
    made: list[list[Pass]] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)
    # Of the pass that is under way.
    _chance: list[Any] = field(default_factory=list)
    _kept: dict[str, Tensor] | None = None
    _again: bool = False

    def begins(self) -> None:
        """A batch is about to go through it."""
        self._chance, self._again = random_state(), False
        self._kept = None if self.steps else still_buffers(self.module)

    def saves_memory(self) -> None:
        """Something is computed again in the backward pass, perhaps of this network."""
        self._again = True

    def _look_at_pass(self, batch: Pass, inputs: int, made: Any, trained: Sequence[Tensor]) -> None:
        """Note what a network does in a pass beside computing logits of each example."""
        batch.drew = not alike(self._chance, random_state())
        self.mixes = self.mixes or _mixing_layer(self.module)
        self.coarse = self.coarse or _half_of(trained)
        if self.steps:  # those of the first step tell the rest
            return
        changed = None if self._kept is None else changed_buffer(self.module, self._kept)
        if changed is not None:
            batch.odd = f"changes its buffer {changed!r} in a pass"
        if self._again or any(_computes_again(one) for one in trained):
            batch.odd = "computes parts again in the backward pass (gradient checkpointing)"
        if not self.module.training and (asks := _asks_for_mode(self.module)) is not None:
            batch.returns = f"asks in {asks} whether it trains, and is in eval()"
        if not isinstance(made, Tensor):
            batch.returns = f"returns {type(made).__name__}, and not the logits alone"
        if inputs > 1:
            batch.returns = f"takes {inputs} tensors for a batch"

    def passed(self, given: Iterable[Any], made: Any) -> None:
        """A batch went through it."""
        batches = [one for one in given if isinstance(one, Tensor) and one.dim() > 1]
        if not batches:
            return
        images = batches[0]
        if self.waiting and all(one.back for one in self.waiting) and self._dropped():
            self._forget()  # a step that a scaler skipped, or a warm-up
        trained = [one for one in _outputs_of(made) if isinstance(one, Tensor) and one.requires_grad]
        if images.dim() == 4:
            self.image_shape = tuple(images.shape[1:])
            each = images.detach().float().transpose(0, 1).flatten(1)
            least, most = each.amin(1), each.amax(1)
            if self.least is None or self.most is None or len(self.least) != len(least):
                self.least, self.most = least, most  # a part of a network may take other channels each time
            self.least, self.most = self.least.minimum(least), self.most.maximum(most)
        self.reads = self.reads or are_tokens(images)
        if not trained:
            return
        self.random = self.random or random_layer(self.module)
        one = Pass(len(images), steady=_steady_layer(self.module))
        with suppress(Exception):
            self._look_at_pass(one, len(batches), made, trained)
        with suppress(Exception):
            now = marks_of_weights(self.module)
            self.marks = now if self.marks is None else self.marks
            one.apart = moved(now, self.marks)
        self.waiting.append(one)
        self.all.append(one)
        for place, other in enumerate(trained):
            mark_output(other, (id(one), place))
            other.register_hook(_safe(lambda _: self._came_back(one)))
            if other.dim() == 2:
                self.classes = int(other.shape[1])
                self._read_loss(one, other)

    def _read_loss(self, batch: Pass, logits: Tensor) -> None:
        """Read the loss from the gradient at the logits. Of several outputs the logits are that whose gradient comes
        first: others may be what they are made of."""
        # A copy: what is computed in place from here on is no output of the network's.
        scores, keep = logits.detach().clone(), not self.steps

        def back(gradient: Tensor) -> None:
            batch.logits = scores if batch.logits is None else batch.logits
            if batch.logits is not scores:
                return
            self.classes = int(scores.shape[1])
            again = batch.share is not None and not self._dropped()
            batch.came_back(scores, gradient.detach(), keep, again)

        logits.register_hook(_safe(back))

    def _came_back(self, batch: Pass) -> None:
        """Its gradient is there, and not yet at the weights."""
        if not any(one.back for one in self.waiting):
            there = [one for one in self.module.parameters() if one.grad is not None]
            self.left = {id(one) for one in there if one.grad is not None and bool(one.grad.any())}
        batch.back = True

    def stepped(self, counts: bool, scale: float = 1.0) -> None:
        """The optimizer took a step, or only seemed to; ``scale``: what a scaler multiplied the losses by."""
        if counts:
            made = [one for one in self.waiting if one.back]
            for one in made:
                one.counts, one.scale = True, scale
            self.made.append(made)
            self.steps.append(tuple(one.examples for one in made))
        self._forget()
        self.left.clear()

    def _forget(self) -> None:
        for one in self.waiting:
            one.logits = None
        self.waiting.clear()

    @property
    def moved(self) -> str | None:
        """The name of a buffer that is not as it was; None of none."""
        return changed_buffer(self.module, self.still)

    def _dropped(self) -> bool:
        """Return whether the gradients of all earlier passes are gone, or are none that a step is taken with."""
        if any(getattr(one, "summed_grad", None) is not None for one in self.module.parameters()):
            return False  # Opacus's BatchMemoryManager keeps the clipped ones there until the step
        made = [one.grad for one in self.module.parameters() if one.grad is not None]
        return not any(bool(one.any()) for one in made) or not all(bool(one.isfinite().all()) for one in made)


# Whether weights are as the last step of the optimizer left them. What is written into them between steps is no part of
# any optimizer: a projection, a clamp, an earlier checkpoint that is loaded again, an average over steps.


def marks_of_weights(network: nn.Module) -> Tensor | None:
    """Return :func:`marks_of` each weight that is trained (M, 2); None where they cannot be had together."""
    trained = [one for one in network.parameters() if one.requires_grad]
    if len({(one.dtype, one.device) for one in trained}) != 1:
        return None
    return torch.stack([marks_of(one) for one in trained])


def moved(now: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Return whether marks differ, one bool; None where they cannot be compared, such as after another rounding."""
    if now is None or before is None or (now.dtype, now.device, now.shape) != (
        before.dtype, before.device, before.shape
    ):  # fmt: skip
        return None
    return ((now - before).abs() > _NEAR * before[:, :1]).any()


def is_wrapper(one: object) -> bool:
    """Return whether this is what a library wrapped around a network."""
    return issubclass(type(one), nn.Module) and type(one).__name__ in _WRAPPERS


def bare(network: nn.Module) -> nn.Module:
    """A network without what libraries wrap around it, such as ``torch.compile``."""
    inner = next(network.children(), None)
    return network if inner is None or not is_wrapper(network) else bare(inner)


def changed_reply(network: Network, sent: Mapping[str, Any]) -> str | None:
    """Return the name of a weight that was not sent as the last step left it; None where there is none, or no telling.

    Args:
        sent: arrays by the names of the network's ``state_dict``, or without names in its order.
    """
    named = [name for name, one in bare(network.module).named_parameters() if one.requires_grad]
    state = list(bare(network.module).state_dict())
    by_name = sent if set(named) & set(sent) else dict(zip(state, sent.values(), strict=False))
    if network.marks is None or len(named) != len(network.marks) or len(by_name) != len(state):
        return None
    arrays = [torch.as_tensor(by_name[name]) for name in named]
    shapes = [one.shape for one in network.module.parameters() if one.requires_grad]
    now = torch.stack(
        [marks_of(one.to(network.marks).reshape(shape)) for one, shape in zip(arrays, shapes, strict=True)]
    )
    near = max([_NEAR, *(torch.finfo(one.dtype).eps for one in arrays if one.is_floating_point())])
    apart = ((now - network.marks).abs() > near * network.marks[:, :1]).any(1)
    return next((name for name, one in zip(named, apart.tolist(), strict=True) if one), None)


def still_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of a network's buffers, but for those of layers that follow the batches."""
    follow = {name for name, layer in module.named_modules() if isinstance(layer, _BATCHES)}
    named = ((name, one) for name, one in module.named_buffers() if name.rpartition(".")[0] not in follow)
    return {name: one.detach().clone() for name, one in named}


def changed_buffer(module: nn.Module, was: Mapping[str, Tensor]) -> str | None:
    """Return the name of a buffer that is not as it was; None of none."""
    now = dict(module.named_buffers())
    return next((name for name, one in was.items() if name in now and not _equal(now[name], one)), None)


def random_state() -> list[Any]:
    """The state of the generators that everybody shares, of torch, numpy and Python."""
    known: Any = np.random.get_state(legacy=False)
    on_device = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_device, known["state"]["key"].copy(), known["state"]["pos"], random.getstate()]


def alike(state: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether no number was drawn between two states."""
    return len(state) != len(other) or all(
        one == two if not hasattr(one, "shape") else bool((one == two).all())
        for one, two in zip(state, other, strict=True)
    )


def _mixing_layer(module: nn.Module) -> str | None:
    """The name of a layer of BatchNorm's kind that has nothing but the batch to normalise with; None of none."""
    layers = ((name, one) for name, one in module.named_modules() if isinstance(one, _BATCHES))
    return next((name for name, one in layers if one.running_mean is None), None)


def _half_of(made: Sequence[Tensor]) -> str | None:
    """The numbers that autocast computes such outputs in; None where it is off, or keeps single precision."""
    device = made[0].device.type
    if not torch.is_autocast_enabled(device):
        return None
    name = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return name if name in ("float16", "bfloat16") else None


def _asks_for_mode(module: nn.Module) -> str | None:
    """The name of a class, not torch's, whose pass depends on whether the network trains; None of none."""
    kinds = (type(layer) for layer in module.modules() if not layer.training)
    own = (kind for kind in kinds if not kind.__module__.startswith("torch."))
    codes = ((kind.__name__, getattr(kind.forward, "__code__", None)) for kind in own)
    return next((name for name, code in codes if code is not None and "training" in code.co_names), None)


def _computes_again(made: Tensor) -> bool:
    """Return whether a part of what this was made of is computed again for its gradient, as older checkpoints do."""
    waiting, visited = [made.grad_fn], set[Any]()
    while waiting and len(visited) < _NODES:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node.name() == "CheckpointFunctionBackward":
            return True
        waiting += [other for other, _ in node.next_functions]
    return False


def _steady_layer(module: nn.Module) -> str | None:
    """The name of a layer of BatchNorm's kind that is not in training mode; None of none."""
    layers = ((name, one) for name, one in module.named_modules() if isinstance(one, _NORM))
    return next((name for name, one in layers if not one.training and one.running_mean is not None), None)


def _equal(now: Tensor, was: Tensor) -> bool:
    return now.shape == was.shape and torch.equal(now.detach().nan_to_num().to(was), was.nan_to_num())


def _outputs_of(made: Any) -> list[Any]:
    """Return what a network returned, one by one: a tensor, several, or an object that holds some."""
    if isinstance(made, Tensor):
        return [made]
    if isinstance(made, Mapping):
        return list(made.values())
    return list(made) if isinstance(made, tuple | list) else list(getattr(made, "__dict__", {}).values())


def are_tokens(values: Tensor) -> bool:
    """Return whether a batch is of token numbers (B, T)."""
    return values.dim() == 2 and not values.is_floating_point()


def _safe(look: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    """A hook that breaks nothing: what it cannot read stays unknown."""

    def hook(gradient: Tensor) -> None:
        with suppress(Exception):
            look(gradient)

    return hook


# How images were scaled before they went in.


def scaling_in_use(
    ends: Sequence[tuple[float, float]], aside: Container[int]
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation of the one ``Normalize``, as torchvision's, that is there and makes such numbers of [0, 1].

    Args:
        ends: the least and the largest number of each channel.
        aside: objects, by their identity, that are parts of networks.
    """
    found = set[tuple[tuple[float, ...], tuple[float, ...]]]()
    for one in gc.get_objects():
        with suppress(Exception):  # of somebody's own, perhaps half built
            if type(one).__name__ == "Normalize" and id(one) not in aside:
                scaling = _numbers(one.mean), _numbers(one.std)
                if _makes(*scaling, ends):
                    found.add(scaling)
    return found.pop() if len(found) == 1 else None


def _makes(mean: Sequence[float], deviation: Sequence[float], ends: Sequence[tuple[float, float]]) -> bool:
    """Return whether images in [0, 1], nearly from end to end, may have become such numbers."""
    if len(mean) not in (1, len(ends)) or len(deviation) != len(mean):
        return False
    each = zip([*mean] * (len(ends) // len(mean)), [*deviation] * (len(ends) // len(mean)), ends, strict=True)
    back = [(least * std + middle, most * std + middle) for middle, std, (least, most) in each]
    within = all(least >= -BEYOND and most <= 1 + BEYOND for least, most in back)
    return within and min(one for one, _ in back) <= _ENDS and max(one for _, one in back) >= 1 - _ENDS


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(map(float, torch.as_tensor(values).flatten().tolist()))
