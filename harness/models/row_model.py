"""One network evaluated for many rows (victims or clients) at once, each row with its own weights."""

import copy
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.errors import UsageError, in_one_line
from harness.models.batch_norm import (
    BatchNorm,
    LayerStatistics,
    in_evaluation_mode,
    places_of,
    recorded,
    refusal,
    require_variance,
    trained_layers,
)
from harness.models.checking import Trial, agrees, fails_twice, refuse_other_functions
from harness.models.example_gradients import FactoredGradients, MaterialisedGradients
from harness.models.feature_extractor import FeatureExtractor
from harness.models.idle_weights import without_idle_weights
from harness.models.imprint import Front, Fronted
from harness.models.joint_gradients import JointGradients
from harness.models.layers import called_layers
from harness.models.lone_layers import with_lone_layers
from harness.models.lone_rows import LoneRows
from harness.models.networks import ImageShape, build_module, is_own
from harness.models.row_operators import with_row_operators
from harness.models.row_sequence import RowSequence, row_sequence
from harness.models.weights_files import load_state
from harness.tuning import say_if_too_late
from harness.vectors.layout import Layout
from harness.vectors.randomness import derive_seed

# Its attention without gradients has no derivative at all, not even under a transformation of functions.
torch.backends.mha.set_fastpath_enabled(False)


# Weights from which a network that is no chain is faster one row at a time, measured on networks of 13 thousand to 11
# million of them; fewer where batches are normalised as a whole, since these are never of one image.
_LARGE, _LARGE_FOR_BATCHES = 2**19, 2**16


class _Way(NamedTuple):
    """How rows are evaluated: as a chain, or as a network with ``other_layers`` or its own, together or alone."""

    sequence: RowSequence | None
    other_layers: bool
    alone: bool = False


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
        self,
        name: str,
        image_shape: ImageShape,
        classes: int,
        images: Tensor | None = None,
        front: Front | None = None,
    ) -> None:
        say_if_too_late()
        self.name, self.image_shape, self.classes, self.front = name, image_shape, classes, front
        self.plain_module = self._built(seed=0)
        self.normalised = trained_layers(self.plain_module)
        self._fit(images)
        self.layout = Layout.of(self.plain_module)
        if len(list(self.plain_module.named_parameters(remove_duplicate=False))) > len(self.layout.names):
            raise UsageError(f"model {name!r} shares parameters between layers; give every layer its own")
        self._second_derivative: str | None = None
        chain = row_sequence(self.plain_module)
        large = self.layout.total >= (_LARGE_FOR_BATCHES if self.normalised else _LARGE)
        ways = [_Way(chain, True)] if chain else []
        ways += [_Way(None, True, alone=True), _Way(None, False, alone=True)] if large and not chain else []
        ways += [_Way(None, True), _Way(None, False)]
        if is_own(name):
            self._check(ways)
        else:
            self._evaluate_by(ways[0])

    def _built(self, seed: int) -> nn.Module:
        network = build_module(self.name, self.image_shape, self.classes, seed)
        return network if self.front is None else Fronted(self.front(self.image_shape), network)

    def _evaluate_by(self, way: "_Way") -> None:
        self._way, self._sequence = way, way.sequence
        replaced = with_lone_layers if way.alone else with_row_operators
        self._rowwise = replaced(self.plain_module) if way.other_layers else self.plain_module
        self._alone = LoneRows(self._rowwise, self.layout) if way.alone else None

    @property
    def evaluates_alone(self) -> bool:
        """Whether rows are evaluated one after another: nothing is gained, nor lost, by evaluating few of them."""
        return self._alone is not None

    def without_idle_weights(self) -> tuple["RowModel", Tensor] | None:
        """The same network without weights that no image meets, and the places (P',) of those that are left.

        None where there are none, or where they cost little: rows that are evaluated together.
        """
        found = without_idle_weights(self.plain_module, self.image_shape) if self.evaluates_alone else None
        if found is None:
            return None
        lean = copy.copy(self)
        lean.plain_module, lean.layout = found[0], Layout.of(found[0])
        lean._evaluate_by(self._way)
        return lean, found[1]

    def _check(self, ways: list["_Way"]) -> None:
        """Tries a user's own network, and chooses the fastest way to evaluate it that gives its results.

        Raises:
            UsageError: see :mod:`harness.models.checking`; or there is no such way.
        """
        trial = Trial.of(self.plain_module, self.image_shape, self.classes)
        with in_evaluation_mode(self.plain_module):
            refuse_other_functions(self.name, self.plain_module, trial, self.classes)
        if not torch.equal(*(self._fresh(0) for _ in range(2))):
            raise UsageError(f"model {self.name!r} draws weights that no seed of torch repeats; draw them with torch")
        problem = "its results there are others"
        for way in ways:
            try:
                self._evaluate_by(way)
                if agrees(self, trial) or self._agrees_in_double(trial):
                    self._second_derivative = fails_twice(self, trial)
                    return
            except Exception as error:  # the user's own code, under transformations of functions, may raise anything
                problem = in_one_line(error)
        raise UsageError(
            f"model {self.name!r} cannot be evaluated for several clients at once ({problem}); keep its weights in "
            "registered layers, and its flow independent of the data"
        )

    def _agrees_in_double(self, trial: Trial) -> bool:
        """The same where rounding is not all: normalising numbers that are nearly alike magnifies it."""
        modules = (self.plain_module, self._rowwise)
        try:
            for module in modules:
                module.double()
            return agrees(self, trial.double())
        finally:
            for module in modules:
                module.float()

    def _fit(self, images: Tensor | None) -> None:
        """Fits what stands before the trained layers to the training images (N, C, H, W), where it is to be fitted."""
        found = [layer for layer in self.plain_module.modules() if isinstance(layer, FeatureExtractor)]
        fitted = [layer for layer in found if layer.fitted_to]
        for extractor in fitted:
            if images is None:
                raise UsageError(
                    f"model {self.name!r} is fitted to training data, which is not done here; use another one"
                )
            extractor.fit(images)
        self.uncovered = f"model {self.name} has {fitted[0].fitted_to}; no epsilon covers it" if fitted else None

    def to(self, device: torch.device, dtype: torch.dtype) -> "RowModel":
        """Moves the network's buffers; weights are handed in and keep their own device."""
        self.plain_module.to(device, dtype)
        self._evaluate_by(self._way)
        if is_own(self.name):
            self._check_there(device, dtype)
        return self

    def _check_there(self, device: torch.device, dtype: torch.dtype) -> None:
        trial = Trial.of(self.plain_module, self.image_shape, self.classes)
        try:
            self.gradient(trial.weights, trial.images, trial.labels.to(device))
        except RuntimeError as error:
            raise UsageError(
                f"model {self.name!r} fails on {device.type} in {str(dtype).removeprefix('torch.')} "
                f"({in_one_line(error)}); keep its fixed tensors with register_buffer, and let it take any precision"
            ) from error

    def initial_weights(self, keys: list[tuple[int | str, ...]]) -> Tensor:
        """Freshly initialised weights (R, P), one network per key."""
        return torch.stack([self._fresh(derive_seed("weights", *key)) for key in keys])

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
        load_state(own.network if isinstance(own, Fronted) else own, self.name, path)
        self._evaluate_by(self._way)
        return self.layout.flatten(dict(self.plain_module.named_parameters())).detach()

    def take_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Takes over all buffers of a state dictionary, such as running statistics; weights in it are left alone."""
        with torch.no_grad():
            for name, buffer in self.plain_module.named_buffers():
                buffer.copy_(buffers[name])
        self._evaluate_by(self._way)

    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under weights (R, P); ``gradient_once`` is of RowSequence."""
        if self._sequence is not None and self.front is not None:
            # A product of rows, where a copy of the weights for every example would not fit into memory.
            return self._sequence.record(self.layout.split(weights), images)[0]
        if self._sequence is not None:
            return self._sequence(self.layout.split(weights), images, gradient_once)

        if self._alone is not None:
            return self._alone.logits(weights, images)

        def one_row(flat: Tensor, batch: Tensor) -> Tensor:
            return functional_call(self._rowwise, self.layout.split(flat), (batch,))

        with sdpa_kernel(SDPBackend.MATH):  # the only attention whose gradient has a derivative
            return vmap(one_row)(weights, images)

    def loss(self, weights: Tensor, images: Tensor, targets: Tensor, gradient_once: bool = False) -> Tensor:
        """Mean cross-entropy (R,) over each row's batch; targets are labels (R, B) or probabilities (R, B, K)."""
        scores = self.logits(weights, images, gradient_once).log_softmax(-1)
        if targets.dim() == 2:
            return -scores.gather(-1, targets[..., None]).squeeze(-1).mean(-1)
        return -(scores * targets).sum(-1).mean(-1)

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool = False) -> Tensor:
        """Gradients (R, P) of :meth:`loss` with respect to the weights.

        Raises:
            UsageError: ``create_graph`` for a network whose gradients cannot be differentiated.
        """
        self._require_derivatives(create_graph)
        if self._alone is not None:
            return self._alone.gradient(weights, images, targets, create_graph)
        own_leaf = not weights.requires_grad
        if own_leaf:
            weights = weights.detach().requires_grad_(True)
        with torch.enable_grad():
            # Rows have separate weights, so the gradient of the sum holds each row's own gradient.
            total = self.loss(weights, images, targets, gradient_once=own_leaf and create_graph).sum()
            (gradient,) = torch.autograd.grad(total, weights, create_graph=create_graph)
        return gradient

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
        if self._alone is not None:
            return self._alone.per_example_gradients(weights, images, targets, create_graph)
        rows, batch = images.shape[:2]
        expanded = weights[:, None].expand(rows, batch, -1).reshape(rows * batch, -1)
        flat = self.gradient(expanded, images.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None], create_graph)
        return flat.reshape(rows, batch, -1)

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
        if self._sequence is not None:
            return FactoredGradients(self._sequence, self.layout, weights, images, labels, present, expected)
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
        """What every BatchNorm is given of each row's batch (R, B, C, H, W), in the order of the forward pass."""
        if not any(isinstance(layer, BatchNorm) for layer in self._rowwise.modules()):
            return []
        if self._alone is not None:
            return self._alone.batch_norm_statistics(weights, images)
        called: list[LayerStatistics] = []

        def one_row(flat: Tensor, batch: Tensor) -> list[tuple[Tensor, Tensor]]:
            with recorded(self._rowwise) as seen:
                functional_call(self._rowwise, self.layout.split(flat), (batch,))
            called.extend(seen)
            return [(one.mean, one.variance) for one in seen]

        with sdpa_kernel(SDPBackend.MATH):
            found = vmap(one_row)(weights, images)
        return [LayerStatistics(one.name, *pair, one.count) for one, pair in zip(called, found, strict=True)]

    def running_statistics(self, name: str) -> tuple[Tensor, Tensor]:
        """Running mean and variance (channels,) of a BatchNorm."""
        layer = self.plain_module.get_submodule(name)
        assert isinstance(layer, BatchNorm) and layer.running_mean is not None and layer.running_var is not None
        return layer.running_mean, layer.running_var

    def called_layers(self) -> list[tuple[str, nn.Module]]:
        """See :func:`harness.models.layers.called_layers`."""
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
