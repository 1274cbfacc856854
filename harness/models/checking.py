"""Whether a user's own network is one whose gradients say what a client sends, tried before anything is measured.

A federation's client sends the mean of gradients of single examples. That is what this harness computes, attacks and
clips, so a network must be a function of each image alone, the same at every call, trained in all its parameters. With
BatchNorm in training mode it is one of each batch as a whole; that it is nothing else is tried in evaluation mode. What
is tried is the network itself at weights moved away from its first ones, where a layer left out can't hide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UsageError, in_one_line
from harness.base.vectors import Layout
from harness.base.words import TextShape
from harness.models.batch_norm import in_evaluation_mode
from harness.models.networks import PREFIX, ImageShape
from harness.models.rows import Way

_TOLERANCE = 1e-3


class RowNetwork(Protocol):
    """What evaluates a network for several rows at once; see :class:`harness.models.RowModel`."""

    name: str
    image_shape: ImageShape
    classes: int
    layout: Layout
    plain_module: nn.Module

    def evaluate_by(self, way: Way) -> nn.Module:
        """Chooses how rows are evaluated, and gives the network that then is."""
        ...

    def initial_weights(self, keys: list[tuple[int | str, ...]]) -> Tensor:
        """Freshly initialised weights (R, P)."""
        ...

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool = False) -> Tensor:
        """Gradients (R, P) of the rows' losses."""
        ...

    def plain(self, weights: Tensor) -> nn.Module:
        """The module itself, holding weights (P,)."""
        ...


@dataclass(frozen=True)
class Trial:
    """What a network is tried on.

    Attributes:
        weights: (2, P). images: (2, 2, C, H, W). labels: (2, 2).
    """

    weights: Tensor
    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, module: nn.Module, image_shape: tuple[int, ...], classes: int) -> "Trial":
        """Reproducible images, and a module's weights with noise on them, in its precision."""
        generator = torch.Generator().manual_seed(0)
        moved = []
        for parameter in (parameter.detach() for parameter in module.parameters()):
            # No layer's output moves by more than a fraction, however many inputs it has: nothing saturates.
            inputs = parameter[0].numel() if parameter.dim() > 1 else 10
            noise = torch.randn(2, *parameter.shape, generator=generator) * 0.3 / inputs**0.5
            moved.append((parameter + noise.to(parameter)).reshape(2, -1))
        weights = torch.cat(moved, dim=1)
        if isinstance(image_shape, TextShape):
            images = image_shape.drawn(4, generator).unflatten(0, (2, 2))
        else:
            images = torch.rand(2, 2, *image_shape, generator=generator)
        return cls(weights, images.to(weights), torch.randint(classes, (2, 2), generator=generator))

    def double(self) -> "Trial":
        """The same in double precision."""
        return Trial(self.weights.double(), self.images.double(), self.labels)


def fastest_that_agrees(model: RowNetwork, ways: Sequence[Way]) -> str | None:
    """Tries a user's own network, and has it evaluated by the first way that gives its results.

    Returns:
        why its gradients cannot be differentiated; None where they can.

    Raises:
        UsageError: see :func:`refuse_other_functions`; or weights are no function of torch's seed, or there is no way.
    """
    name, trial = model.name, Trial.of(model.plain_module, model.image_shape, model.classes)
    with in_evaluation_mode(model.plain_module):
        refuse_other_functions(name, model.plain_module, trial, model.classes)
    if not torch.equal(*model.initial_weights([("trial",), ("trial",)])):
        raise UsageError(f"model {name!r} draws weights that no seed of torch repeats; draw them with torch")
    problem = "its results there are others"
    for way in ways:
        try:
            module = model.evaluate_by(way)
            if _agrees(model, trial) or _agrees_in_double(model, module, trial):
                return _fails_twice(model, trial)
        except Exception as error:  # the user's own code, under transformations of functions, may raise anything
            problem = in_one_line(error)
    raise UsageError(
        f"model {name!r} cannot be evaluated for several clients at once ({problem}); keep its weights in "
        "registered layers, and its flow independent of the data"
    )


def refuse_what_fails_there(model: RowNetwork, device: torch.device, dtype: torch.dtype) -> None:
    """Tries a user's own network where it was moved to.

    Raises:
        UsageError: it fails there.
    """
    trial = Trial.of(model.plain_module, model.image_shape, model.classes)
    try:
        model.gradient(trial.weights, trial.images, trial.labels.to(device))
    except RuntimeError as error:
        raise UsageError(
            f"model {model.name!r} fails on {device.type} in {str(dtype).removeprefix('torch.')} "
            f"({in_one_line(error)}); keep its fixed tensors with register_buffer, and let it take any precision"
        ) from error


def refuse_other_functions(name: str, module: nn.Module, trial: Trial, classes: int) -> None:
    """Refuses what gives no logits, mixes examples, is random, or changes its buffers or its input.

    Raises:
        UsageError: one of these, with the fix.
    """
    images, before = trial.images[0], {key: value.clone() for key, value in module.named_buffers()}
    given = images.clone()
    logits = _logits(name, module, given, classes)
    if not torch.equal(given, images):
        raise UsageError(f"model {name!r} changes its input in place; work on a copy (x = x.clone())")
    if any(not torch.equal(value.nan_to_num(), before[key].nan_to_num()) for key, value in module.named_buffers()):
        raise UsageError(f"model {name!r} changes its buffers in a forward pass; return it in evaluation mode")
    if not torch.equal(logits, _logits(name, module, images.clone(), classes)):
        # Layers that drop out have been named before.
        raise UsageError(f"two forward passes of model {name!r} differ; turn off the noise that its forward() draws")
    if not close(torch.cat([_logits(name, module, image[None].clone(), classes) for image in images]), logits):
        raise UsageError(f"model {name!r} mixes the examples of a batch; its logits must depend on each image alone")


@torch.no_grad()
def _logits(name: str, module: nn.Module, images: Tensor, classes: int) -> Tensor:
    what = "texts" if hasattr(module, "vocabulary") else "images"
    try:
        logits = module(images)
    except Exception as error:  # the user's own code may raise anything
        mend = "give larger images, or choose another --model" if name.startswith(PREFIX) else "fix it"
        size = tuple(images.shape) if what == "images" else f"of token numbers {(len(images), images.shape[-1])}"
        raise UsageError(f"model {name!r} fails on {what} {size}: {in_one_line(error)}; {mend}") from error
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(images), classes):
        raise UsageError(
            f"model {name!r} gives {shape} for {len(images)} {what} of {classes} classes; return one logit per class"
        )
    return logits


def _agrees(model: RowNetwork, trial: Trial) -> bool:
    """Whether rows evaluated together have the gradients of the module itself, which keeps its own weights."""
    made = model.gradient(trial.weights, trial.images, trial.labels)
    own = model.layout.flatten(dict(model.plain_module.named_parameters())).detach().clone()
    alike = []
    for weights, images, labels, gradient in zip(trial.weights, trial.images, trial.labels, made, strict=True):
        module = model.plain(weights)
        loss = functional.cross_entropy(module(images), labels)
        parts = torch.autograd.grad(loss, list(module.parameters()), materialize_grads=True)
        alike.append(close(gradient, torch.cat([part.flatten() for part in parts])))
    model.plain(own)
    return all(alike)


def _agrees_in_double(model: RowNetwork, module: nn.Module, trial: Trial) -> bool:
    """The same where rounding is not all: normalising numbers that are nearly alike magnifies it."""
    modules = (model.plain_module, module)
    try:
        for each in modules:
            each.double()
        return _agrees(model, trial.double())
    finally:
        for each in modules:
            each.float()


def _fails_twice(model: RowNetwork, trial: Trial) -> str | None:
    """Why the gradients can't be differentiated by the images; None where they can."""
    try:
        images = trial.images.clone().requires_grad_()
        gradient = model.gradient(trial.weights, images, trial.labels, create_graph=True)
        torch.autograd.grad(gradient.square().sum(), images, allow_unused=True)
    except RuntimeError as error:
        return in_one_line(error)
    return None


def close(made: Tensor, truth: Tensor) -> bool:
    """Whether two results are one but for rounding."""
    return bool((made - truth).norm() <= _TOLERANCE * truth.norm() + 1e-6)
