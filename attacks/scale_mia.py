"""Scale-MIA: bins in a hidden layer of the network reveal features, which are decoded to images.

No module is added. All units of the first fully connected layer get one direction of what the layers before it make of
an image, and cutoffs at public quantiles, so that neighbouring units differ by the images between them (as ``imprint``
has it of pixels). The layer after it weighs all units alike. Convolutions stay as they are: what they make of an image
comes back exactly, and is fitted by an image, from the best linear guess of public data on. Source: Shi et al.,
"Scale-MIA: A Scalable Model Inversion Attack against Secure Federated Learning via Latent Space Reconstruction" (NDSS
2025), section IV. They train a decoder; the linear guess and the fit are ours. Before a network that begins with the
layer itself there is nothing to fit.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.bins import Differences, quantiles, tells_shares
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.models import RowModel
from harness.observation import Observation, Tier
from harness.tampering import Tamper

_GUESSES, _RIDGE, _HELD = 1024, 1e-4, 1e-2
"""Public images for the linear guess, its ridge by the mean square of features, and what a deviation of public images
costs a fit."""
_MOST = 2048
"""Public images that cutoffs are taken from."""
_DULL = 0.1
"""Of the largest deviation of a feature: less is taken for as much."""


@ATTACKS.register("scale_mia")
@validated_attack
class ScaleMia(ClosedForm):
    """``fit``: most iterations of fitting images to features; 0 leaves the linear guess."""

    fit: Annotated[int, Field(ge=0, le=10_000)] = 150
    tier: ClassVar[Tier] = "tampering"

    def tamper(self, clients: int, examples: int) -> Tamper:
        return Tamper(partial(_send, clients * examples))

    def solved(self, observation: Observation) -> Tensor:
        return torch.stack([self._images(observation, row) for row in range(observation.rows)])

    def _images(self, observation: Observation, row: int) -> Tensor:
        """(n*D,) of one row."""
        model, weights = observation.model, observation.weights[row]
        first, _ = hidden_layers(model, weights)
        gradients, sent = (model.layout.split(flat[row]) for flat in (observation.target, observation.weights))
        weight, bias = (f"{first}.{name}" for name in ("weight", "bias"))
        public = _public(observation)
        made = _features(model, weights, public, first)
        differences = Differences.of(gradients[weight], gradients[bias], -sent[bias])
        by_bias = tells_shares(observation)
        found = differences.images(observation.examples, sent[weight][0], by_bias, made.mean(0))
        if made.shape == public.shape and torch.equal(made, public):
            return found.flatten()
        guess = _linear(made, public)(found)
        if observation.noise is not None or observation.sparse:
            return guess.flatten()  # a fit would follow the noise
        return self._fitted(model, weights, first, found, guess, public).flatten()

    def _fitted(
        self, model: RowModel, weights: Tensor, first: str, features: Tensor, guess: Tensor, public: Tensor
    ) -> Tensor:
        """Images (n, D) whose features (n, F) are those, near a guess (n, D) as public images (m, D) vary."""
        deviation = _deviation(_features(model, weights, public, first))
        _, sizes, directions = torch.linalg.svd((public - public.mean(0)).double(), full_matrices=False)
        kept = sizes > _DULL**3 * sizes[0]
        axes = (sizes[kept, None] / len(public) ** 0.5 * directions[kept]).to(guess)
        place = guess.new_zeros(len(guess), len(axes)).requires_grad_(True)
        optimizer = torch.optim.LBFGS(
            [place], max_iter=max(1, self.fit), history_size=20, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            with torch.enable_grad():
                off = (_features(model, weights, guess + place @ axes, first) - features) / deviation
                value = off.square().sum() + _HELD * place.square().sum()
                (place.grad,) = torch.autograd.grad(value, place)
            return value.detach()

        if self.fit:
            optimizer.step(loss)
        return guess + place.detach() @ axes


def hidden_layers(model: RowModel, weights: Tensor) -> tuple[str, str]:
    """Names of the first linear layer of a network and of the one that reads its rectified units.

    Args:
        model: the network. weights: (P,).

    Raises:
        UsageError: there are no such two layers, or the first has no bias.
    """
    module, called = model.plain(weights), []
    linear = {layer: name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}

    def note(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        called.append((layer, given[0], made))

    hooks = [layer.register_forward_hook(note) for layer in linear]
    try:
        with torch.no_grad():
            module(torch.rand(2, *model.image_shape, generator=generator("hidden")).to(weights))
    finally:
        for hook in hooks:
            hook.remove()
    (first, given, made), (second, read, _), *_ = [*called, *[(None, None, None)] * 2]
    if second is None or given.dim() != 2 or first.bias is None or not torch.equal(read, made.relu()):
        raise UsageError(
            "attack 'scale_mia' needs a fully connected layer with a bias and rectified units before another one, "
            f"which model {model.name!r} lacks; use --model mlp2, a network of your own with such layers, or --attack "
            "imprint"
        )
    return linear[first], linear[second]


def _send(together: int, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor:
    sent, examples = weights.clone(), public.flatten(1)[:: -(-len(public) // _MOST)]
    named = model.layout.split(sent)
    for row, own in enumerate(weights):
        first, second = hidden_layers(model, own)
        units = named[f"{first}.bias"].shape[1]
        require_units(model.name, units, together)
        made = _features(model, own, examples, first)
        direction = torch.rand(made.shape[1], generator=generator("scale_mia")).to(made) + 0.5
        direction = direction / _deviation(made) * torch.where(made.mean(0) < 0, -1.0, 1.0)
        direction = direction / (made @ direction).mean() / units
        named[f"{first}.weight"][row] = direction
        named[f"{first}.bias"][row] = -quantiles(made @ direction, units)
        named[f"{second}.weight"][row] = named[f"{second}.weight"][row].abs().mean(1, keepdim=True)
    return sent


def require_units(model: str, units: int, images: int) -> None:
    """Raises:
    UsageError: more images are to be told apart than a layer has units.
    """
    if units < images:
        raise UsageError(
            f"attack 'scale_mia' tells at most {units} images apart, one in a unit of the hidden layer of {model!r}, "
            f"and {images} are behind one observation; use a smaller --batch-size"
        )


def _features(model: RowModel, weights: Tensor, images: Tensor, first: str) -> Tensor:
    """Return what reaches a layer of images (n, D): (n, F)."""
    module, kept = model.plain(weights), []
    layer = module.get_submodule(first)
    hook = layer.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        with torch.set_grad_enabled(images.requires_grad):
            module(images.reshape(-1, *model.image_shape))
    finally:
        hook.remove()
    return kept[0]


def _deviation(features: Tensor) -> Tensor:
    """Return the deviation of each feature (F,) of public images (n, F), at least a share of the largest one."""
    own = features.std(0)
    return own.clamp_min(_DULL * float(own.max())).clamp_min(1e-12)


def _public(observation: Observation) -> Tensor:
    """Images (m, D) as public data have them; of any kind where nothing is public."""
    prior, classes, size = observation.prior, observation.model.classes, math.prod(observation.model.image_shape)
    if prior is None:
        return torch.rand(_GUESSES, size, generator=generator("scale_mia")).to(observation.target)
    each = [prior.drawn(label, -(-_GUESSES // classes), generator("scale_mia", label)) for label in range(classes)]
    return torch.cat(each).to(observation.target)


def _linear(features: Tensor, images: Tensor) -> Callable[[Tensor], Tensor]:
    """The linear map from features (n, F) to images (n, D) that fits public ones best."""
    mean, centre = features.mean(0), images.mean(0)
    deviation = _deviation(features)
    rows = ((features - mean) / deviation).double()
    inner = rows @ rows.T
    inner.diagonal().add_(_RIDGE * inner.diagonal().mean())
    solved = torch.linalg.solve(inner, (images - centre).double())
    slope = (rows.T @ solved).to(images)
    return lambda given: centre + ((given - mean) / deviation) @ slope
