"""One network evaluated for many rows (victims or clients) at once, each row with its own weights."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UsageError, in_one_line
from harness.base.limits import require_memory
from harness.base.randomness import derive_seed
from harness.base.tuning import say_if_too_late
from harness.base.vectors import Layout, filled
from harness.base.words import TextShape
from harness.models.batch_norm import (
    BatchNorm,
    JointGradients,
    LayerStatistics,
    in_evaluation_mode,
    places_of,
    refusal,
    require_variance,
    trained_layers,
)
from harness.models.example_gradients import FactoredGradients, MaterialisedGradients
from harness.models.feature_extractor import fitted_to
from harness.models.imprint import Front, WithInsertedModule
from harness.models.networks import PREFIX, ImageShape, build_module, is_own
from harness.models.row_layers import without_idle_weights
from harness.models.rows import LoneRows, Way, ways_of
from harness.models.weights_files import load_state

# The layers of a network in the order in which a forward pass comes to them, which need not be that of their names.


def called_layers(module: nn.Module, image_shape: tuple[int, ...]) -> list[tuple[str, nn.Module]]:
    """Layers with weights of their own that a pass over an image (C, H, W) calls, with the prefix of their names."""
    called: dict[str, nn.Module] = {}

    def noting(prefix: str) -> Callable[[nn.Module, object], None]:
        def note(layer: nn.Module, _: object) -> None:
            called.setdefault(prefix, layer)

        return note

    hooks = [
        layer.register_forward_pre_hook(noting(f"{name}." if name else ""))
        for name, layer in module.named_modules()
        if list(layer.parameters(recurse=False))
    ]
    try:
        # One image has no variance where a layer sees a single value of it.
        with torch.no_grad(), in_evaluation_mode(module):
            module(torch.zeros(1, *image_shape).to(next(module.parameters())))
    finally:
        for hook in hooks:
            hook.remove()
    return list(called.items())


# Its attention without gradients has no derivative at all, not even under a transformation of functions.
torch.backends.mha.set_fastpath_enabled(False)


class RowModel:
    """A network over rows: R rows of B images each, weights as flat vectors (R, P).

    Every result for a row depends on that row alone. For a chain of layers known here (see ``row_sequence``) it does so
    to the bit, on CPU and as long as at least two rows are evaluated together (a single row takes other kernels). So
    does it for a large network, whose rows are evaluated one after another; others may round differently beside others.

    Attributes:
        normalised: the layers that normalise batches as a whole, BatchNorm in training mode, by name. Their running
            statistics are those that everybody begins with; no pass moves them.
        front: makes what a tampering server put before the network, whose parameters come first; None where nothing is.
        uncovered: what of the network was computed from private data without noise, in words; None where nothing was.
    """

    def __init__(
        self, name: str, image_shape: ImageShape, classes: int, images: Tensor | None = None, front: Front | None = None
    ) -> None:
        say_if_too_late()
        self.name, self.image_shape, self.classes, self.front = name, image_shape, classes, front
        self.plain_module = self._built(seed=0)
        self.normalised = trained_layers(self.plain_module)
        self.uncovered = fitted_to(images, self.plain_module, name)
        self.layout = Layout.of(self.plain_module)
        self._second_derivative: str | None = None
        ways = ways_of(self.plain_module, self.layout.total, bool(self.normalised))
        if is_own(name):
            self._second_derivative = fastest_that_agrees(self, ways)
        else:
            self.evaluate_by(ways[0])

    def _built(self, seed: int) -> nn.Module:
        network = build_module(self.name, self.image_shape, self.classes, seed)
        return network if self.front is None else WithInsertedModule(self.front(self.image_shape), network)

    def evaluate_by(self, way: Way) -> nn.Module:
        """Chooses how rows are evaluated, and gives the network that then is."""
        self._way, module = way, way.module(self.plain_module)
        self._rows = way.rows(module, self.layout)
        return module

    @property
    def vocabulary(self) -> int | None:
        """The number of tokens that a network of texts knows; None for one that takes images."""
        return getattr(self.plain_module, "vocabulary", None)

    @property
    def of_one_round(self) -> "RowModel":
        """The network itself, where several rounds of it are one model."""
        return self

    @property
    def evaluates_alone(self) -> bool:
        """Return whether rows are evaluated sequentially, so that nothing is gained or lost by evaluating few."""
        return self._way.alone

    def without_idle_weights(self) -> tuple["RowModel", Tensor] | None:
        """Return the network without weights that no image uses, and the places (P',) of those that are left.

        None where there are none, or where they cost little: rows that are evaluated together.
        """
        found = without_idle_weights(self.plain_module, self.image_shape) if self.evaluates_alone else None
        if found is None:
            return None
        lean = copy.copy(self)
        lean.plain_module, lean.layout = found[0], Layout.of(found[0])
        lean.evaluate_by(self._way)
        return lean, found[1]

    def to(self, device: torch.device, dtype: torch.dtype) -> "RowModel":
        """Moves the network's buffers; weights are handed in and keep their own device."""
        self.plain_module.to(device, dtype)
        self.evaluate_by(self._way)
        # On the CPU, in single precision, it was tried when it was made.
        if is_own(self.name) and (device.type, dtype) != ("cpu", torch.float32):
            refuse_what_fails_there(self, device, dtype)
        return self

    def initial_weights(self, keys: list[tuple[int | str, ...]]) -> Tensor:
        """Freshly initialised weights (R, P), one network per key; one at a time in memory beside them."""
        return filled((self._fresh(derive_seed("weights", *key))[None] for key in keys), len(keys))

    def _fresh(self, seed: int) -> Tensor:
        module = self._built(seed)
        return self.layout.flatten(dict(module.named_parameters())).detach()

    def state(self, weights: Tensor) -> dict[str, Tensor]:
        """The state dictionary of the network with weights (P,), for :meth:`load_weights`."""
        return self.layout.split(weights) | dict(self.plain_module.named_buffers())

    def load_weights(self, path: Path) -> Tensor:
        """Weights (P,) from a state dictionary saved with ``torch.save``; buffers are taken over.

        Raises:
            UsageError: the file is missing, is not a plain state dictionary, or does not fit the network.
        """
        own = self.plain_module
        load_state(own.network if isinstance(own, WithInsertedModule) else own, self.name, path)
        self.evaluate_by(self._way)
        return self.layout.flatten(dict(self.plain_module.named_parameters())).detach()

    def take_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Takes over all buffers of a state dictionary, such as running statistics; weights in it are left alone."""
        with torch.no_grad():
            for name, buffer in self.plain_module.named_buffers():
                buffer.copy_(buffers[name])
        self.evaluate_by(self._way)

    def logits(self, weights: Tensor, images: Tensor) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under weights (R, P)."""
        return self._rows.logits(weights, images)

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool = False) -> Tensor:
        """Gradients (R, P) of each row's mean cross-entropy; targets are labels (R, B) or probabilities (R, B, K).

        Raises:
            UsageError: ``create_graph`` for a network whose gradients cannot be differentiated.
        """
        self._require_derivatives(create_graph)
        return self._rows.gradient(weights, images, targets, create_graph)

    def _require_derivatives(self, create_graph: bool) -> None:
        if create_graph and self._second_derivative:
            raise UsageError(
                f"model {self.name!r} has no second derivative, which this attack needs ({self._second_derivative}); "
                "use layers that have one, or --attack analytic"
            )

    def per_example_gradients(
        self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool = False
    ) -> Tensor:
        """Gradients (R, B, P) of each example's own loss.

        Raises:
            UsageError: there are none, where batches are normalised as a whole.
        """
        if self.normalised:
            raise refusal(self.name, "gradients of single examples are computed here")
        self._require_derivatives(create_graph)
        return self._rows.per_example_gradients(weights, images, targets, create_graph)

    def gradients_by_tensor(self, weights: Tensor, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Gradients (B, n) by each parameter tensor, of examples (B, ...) at one row's weights (P,)."""
        if isinstance(self._rows, LoneRows):
            return self._rows.by_tensor(weights, images, targets)
        made = self.per_example_gradients(weights[None], images[None], targets[None])[0]
        return list(made.split(self.layout.sizes, 1))

    def tells_products(self, weights: Tensor, images: Tensor, targets: Tensor) -> bool:
        """Return whether :meth:`gradient_products` can be had of this network; tried with a few of these examples."""
        return isinstance(self._rows, LoneRows) and self._rows.tells_products(weights, images, targets)

    def gradient_products(
        self, weights: Tensor, images: Tensor, targets: Tensor, read: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Inner products (B, M) by each parameter tensor of examples' gradients, of which none is written down.

        Args:
            weights: one row's (P,). images: (B, ...). targets: labels (B,). read: (P,).

        Returns:
            With what was read, and of each gradient with itself.
        """
        assert isinstance(self._rows, LoneRows)
        return self._rows.products(weights, images, targets, read)

    @property
    def group(self) -> int:
        """Return the number of examples at one row's weights that are best evaluated together."""
        return self._rows.group if isinstance(self._rows, LoneRows) else 128

    def example_gradients(
        self, weights: Tensor, images: Tensor, labels: Tensor, present: Tensor | None, expected: float
    ) -> FactoredGradients | MaterialisedGradients | JointGradients:
        """Per-example gradients for training; see :class:`FactoredGradients` for the arguments.

        Raises:
            UsageError: batches that are normalised as a whole have places without an example.
        """
        if self.normalised:
            if present is not None:
                raise refusal(self.name, "batches have places without an example here")
            return self.joint_gradients(weights, images, labels)
        if self._way.sequence is not None:
            return FactoredGradients(self._way.sequence, self.layout, weights, images, labels, present, expected)
        gradients = self.per_example_gradients(weights, images, labels)
        return MaterialisedGradients(gradients, self.layout.sizes, present, expected)

    def joint_gradients(self, weights: Tensor, images: Tensor, labels: Tensor) -> JointGradients:
        """Gradients of batches (N, B, C, H, W) that are normalised as a whole, and what they are normalised by."""
        self.require_batch(images.shape[1])
        return JointGradients.of(self.name, self.plain_module, self.layout, self.places, weights, images, labels)

    def require_batch(self, examples: int) -> None:
        """Looks whether batches of so many examples can be normalised.

        Raises:
            UsageError: a layer that normalises a batch sees one value of it.
        """
        require_variance(self.name, self.places, examples)

    @cached_property
    def places(self) -> dict[str, int]:
        """Values per channel and example that each layer of ``normalised`` sees."""
        try:
            return places_of(self.plain_module, self.image_shape)
        except UsageError as error:
            raise UsageError(f"model {self.name!r}: {error}") from error

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        """Return the input of every BatchNorm for a row's batch (R, B, C, H, W), in the order of the forward pass."""
        return self._rows.batch_norm_statistics(weights, images)

    def running_statistics(self, name: str) -> tuple[Tensor, Tensor]:
        """Running mean and variance (channels,) of a BatchNorm."""
        layer = self.plain_module.get_submodule(name)
        assert isinstance(layer, BatchNorm) and layer.running_mean is not None and layer.running_var is not None
        return layer.running_mean, layer.running_var

    def called_layers(self) -> list[tuple[str, nn.Module]]:
        """See :func:`harness.models.row_model.called_layers`."""
        return called_layers(self.plain_module, self.image_shape)

    def last_linear(self) -> tuple[str, str | None]:
        """Parameter names of the last linear layer's weight and, if it has one, bias.

        Raises:
            UsageError: the network does not end in a linear layer over the classes.
        """
        for prefix, layer in reversed(self.called_layers()):
            own = isinstance(layer, nn.Linear) and f"{prefix}weight" in self.layout.names
            if own and layer.out_features == self.classes:
                return f"{prefix}weight", None if layer.bias is None else f"{prefix}bias"
        raise UsageError(f"model {self.name!r} has no last linear layer to infer labels from; use --labels known")

    def plain(self, weights: Tensor) -> nn.Module:
        """The unmodified module holding weights (P,), for the sequential reference engine."""
        with torch.no_grad():
            for (_, parameter), value in zip(
                self.plain_module.named_parameters(), self.layout.split(weights).values(), strict=True
            ):
                parameter.copy_(value)
        return self.plain_module


def cross_entropy(module: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of one batch; targets are labels (B,) or probabilities (B, K)."""
    return functional.cross_entropy(module(images), targets)


# --------------------------------------------------------------------------------------
# Whether a user's own network is one whose gradients say what a client sends, tried before anything is measured.
#
# A federation's client sends the mean of gradients of single examples. That is what this harness computes, attacks and
# clips, so a network must be a function of each image alone, the same at every call, trained in all its parameters.
# With BatchNorm in training mode it is one of each batch as a whole; that it is nothing else is tried in evaluation
# mode. What is tried is the network itself at weights moved away from its first ones, where a layer left out can't
# hide.


_TOLERANCE = 1e-3
# Of each weight, beside what any process takes: as measured, 60 of a ResNet-50 and 129 of a ViT-B/16.
_BYTES_OF_A_TRIAL = 60


class RowNetwork(Protocol):
    """Network that is evaluated for several rows at once; see :class:`harness.models.RowModel`."""

    name: str
    image_shape: ImageShape
    classes: int
    layout: Layout
    plain_module: nn.Module

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens that a network of texts knows; None for one that takes images."""
        ...

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
    """Weights and examples that a network is tried on.

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
        """Return the trial in double precision."""
        return Trial(self.weights.double(), self.images.double(), self.labels)


@torch.enable_grad()  # whoever calls in Python may have turned it off
def fastest_that_agrees(model: RowNetwork, ways: Sequence[Way]) -> str | None:
    """Tries a user's own network, and has it evaluated by the first way that gives its results.

    Returns:
        why its gradients cannot be differentiated; None where they can.

    Raises:
        UsageError: see :func:`refuse_other_functions`; or weights are no function of torch's seed, or there is no way.
    """
    name = model.name
    least = _BYTES_OF_A_TRIAL * model.layout.total
    require_memory(least, f"trying model {name!r} (at least)", "take a smaller network, or a machine with more")
    trial = Trial.of(model.plain_module, model.image_shape, model.classes)
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


@torch.enable_grad()
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
        bare = any(isinstance(one, BatchNorm) and one.running_mean is None for one in module.modules())
        fix = "build BatchNorm with running statistics, which trains alike"
        fix = fix if bare else "its logits must depend on each image alone"
        raise UsageError(f"model {name!r} mixes the examples of a batch; {fix}")


@torch.no_grad()
def _logits(name: str, module: nn.Module, images: Tensor, classes: int) -> Tensor:
    what = "texts" if hasattr(module, "vocabulary") else "images"
    try:
        logits = module(images)
    except Exception as error:  # the user's own code may raise anything
        fix = "give larger images, or choose another --model" if name.startswith(PREFIX) else "fix it"
        size = tuple(images.shape) if what == "images" else f"of token numbers {(len(images), images.shape[-1])}"
        raise UsageError(f"model {name!r} fails on {what} {size}: {in_one_line(error)}; {fix}") from error
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(images), classes):
        more = isinstance(logits, Tensor) and logits.shape[:-1] == images.shape[:1] and logits.shape[-1] > classes
        last = f", or give data in which its last class, label {logits.shape[-1] - 1}, occurs" if more else ""
        raise UsageError(
            f"model {name!r} gives {shape} for {len(images)} {what} of {classes} classes; return one logit per class"
            f"{last}"
        )
    return logits


def _agrees(model: RowNetwork, trial: Trial) -> bool:
    """Return whether rows evaluated together have the gradients of the module itself, which keeps its own weights."""
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
    """Return whether :func:`_agrees` holds in double precision. Single precision may round too much: normalising
    numbers that are nearly alike magnifies it."""
    modules = (model.plain_module, module)
    try:
        for each in modules:
            each.double()
        return _agrees(model, trial.double())
    finally:
        for each in modules:
            each.float()


def _fails_twice(model: RowNetwork, trial: Trial) -> str | None:
    """Return why the gradients can't be differentiated by the images; None where they can."""
    try:
        images = trial.images.clone().requires_grad_()
        gradient = model.gradient(trial.weights, images, trial.labels, create_graph=True)
        (found,) = torch.autograd.grad(gradient.square().sum(), images, allow_unused=True)
    except RuntimeError as error:
        return in_one_line(error)
    # Numbers of tokens are looked up, and no attack on texts goes by their slope.
    looked_up = found is None and model.vocabulary is None
    return "its forward() casts or looks up the pixels, so that nothing follows from their slope" if looked_up else None


def close(made: Tensor, truth: Tensor) -> bool:
    """Return whether two results are one but for rounding."""
    return bool((made - truth).norm() <= _TOLERANCE * truth.norm() + 1e-6)
