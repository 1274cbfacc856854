"""Whether a user's own network is one whose gradients say what a client sends, tried before anything is measured.

A federation's client sends the mean of gradients of single examples. That is what this harness computes, attacks and
clips, so a network must be a function of each image alone, the same at every call, trained in all its parameters. With
BatchNorm in training mode it is one of each batch as a whole; that it is nothing else is tried in evaluation mode. What
is tried is the network itself at weights moved away from its first ones, where a layer left out can't hide.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.errors import UsageError, in_one_line
from harness.models.torchvision_networks import PREFIX
from harness.vectors.layout import Layout

_TOLERANCE = 1e-3


class RowNetwork(Protocol):
    """What evaluates a network for several rows at once; see :class:`harness.models.RowModel`."""

    layout: Layout
    plain_module: nn.Module

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
        images = torch.rand(2, 2, *image_shape, generator=generator)
        return cls(weights, images.to(weights), torch.randint(classes, (2, 2), generator=generator))

    def double(self) -> "Trial":
        """The same in double precision."""
        return Trial(self.weights.double(), self.images.double(), self.labels)


def refuse_other_functions(name: str, module: nn.Module, trial: Trial, classes: int) -> None:
    """Refuses what gives no logits, mixes examples, is random, or changes its buffers or its input.

    Raises:
        UsageError: one of these, with the mend.
    """
    images, before = trial.images[0], {key: value.clone() for key, value in module.named_buffers()}
    given = images.clone()
    logits = _logits(name, module, given, classes)
    if not torch.equal(given, images):
        raise UsageError(f"model {name!r} changes its input in place; work on a copy (x = x.clone())")
    if any(not torch.equal(value.nan_to_num(), before[key].nan_to_num()) for key, value in module.named_buffers()):
        raise UsageError(f"model {name!r} changes its buffers in a forward pass; return it in evaluation mode")
    if not torch.equal(logits, _logits(name, module, images.clone(), classes)):
        raise UsageError(f"model {name!r} is random, so its gradients would be; drop the noise or the dropout")
    if not close(torch.cat([_logits(name, module, image[None].clone(), classes) for image in images]), logits):
        raise UsageError(f"model {name!r} mixes the examples of a batch; its logits must depend on each image alone")


@torch.no_grad()
def _logits(name: str, module: nn.Module, images: Tensor, classes: int) -> Tensor:
    try:
        logits = module(images)
    except Exception as error:  # the user's own code may raise anything
        mend = "give larger images, or choose another --model" if name.startswith(PREFIX) else "mend it"
        raise UsageError(
            f"model {name!r} fails on images {tuple(images.shape)}: {in_one_line(error)}; {mend}"
        ) from error
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(images), classes):
        raise UsageError(
            f"model {name!r} gives {shape} for {len(images)} images of {classes} classes; return one logit per class"
        )
    return logits


def agrees(model: RowNetwork, trial: Trial) -> bool:
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


def fails_twice(model: RowNetwork, trial: Trial) -> str | None:
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
