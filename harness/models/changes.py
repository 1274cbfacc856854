"""Changes of a network before it is trained: by name behind its own (``NAME+group_norm``), or called directly.

Sources: the bottleneck is PRECODE's (Scheliga et al. 2022); GroupNorm is Wu and He, ECCV 2018; in the place of
BatchNorm, whose gradients mix a batch's examples, it is put by Opacus' ``ModuleValidator.fix`` (Yousefpour et al. 2021,
arXiv:2109.12298).
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.layers import drops_out, drops_within
from harness.base.normalising import scaling_of
from harness.models.adapters import adapters
from harness.models.batch_norm import BatchNorm

_GROUPS = 32
_WIDTH = 256
_ONLY, _ADAPTERS = re.compile(r"only\((.+)\)"), re.compile(r"adapters\((\d{1,9})(?:\|(\d{1,9}(?:\.\d{1,9})?))?\)")


def group_norm(network: nn.Module) -> nn.Module:
    """Puts a GroupNorm in the place of every BatchNorm of a network, with its weight and bias, and returns the network.

    C channels form gcd(32, C) groups, which is Opacus' number where that divides C.

    Raises:
        UsageError: there is no BatchNorm in it.
    """
    if not any(isinstance(layer, BatchNorm) for layer in network.modules()):
        raise UsageError("there is no BatchNorm to change; leave +group_norm out")
    return _replaced(network)


def _replaced(layer: nn.Module) -> nn.Module:
    if isinstance(layer, BatchNorm):
        made = nn.GroupNorm(math.gcd(_GROUPS, layer.num_features), layer.num_features, layer.eps, layer.affine)
        made.load_state_dict({name: value.detach() for name, value in layer.named_parameters()})
        return made.train(layer.training)
    for name, child in layer._modules.items():
        if child is not None:
            layer._modules[name] = _replaced(child)
    return layer


def no_dropout(network: nn.Module) -> nn.Module:
    """Turns off a network's dropout and stochastic depth, which make gradients random, and returns the network.

    Raises:
        UsageError: there is none in it.
    """
    dropping = [layer for layer in network.modules() if drops_out(layer) or drops_within(layer)]
    if not dropping:
        raise UsageError("there is no dropout to turn off; leave +no_dropout out")
    for layer in dropping:
        if drops_within(layer):
            layer.dropout = 0.0  # pyright: ignore[reportArgumentType]
            continue
        layer.p = 0.0  # pyright: ignore[reportArgumentType]  # Module declares parameters and layers only
    return network


BOTTLENECK = "precode_sample"
"""How the name of a bottleneck's sample ends."""


def draws_a_sample(names: Iterable[str]) -> bool:
    """Return whether a network of these parameters has a bottleneck, whose sample only the client knows."""
    return any(name.endswith(BOTTLENECK) for name in names)


class Bottleneck(nn.Module):
    """A variational bottleneck of ``width`` around features: its sample is a parameter, zero but while a client trains.

    Source: Scheliga et al. 2022, section 3.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(features, 2 * width), nn.Linear(width, features)
        self.precode_sample = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, F) of features (B, F), through a code with noise."""
        mean, spread = self.encoder(features).chunk(2, -1)
        return self.decoder(mean + nn.functional.softplus(spread) * self.precode_sample)


def precode(network: nn.Module) -> nn.Module:
    """Puts a variational bottleneck before the last linear layer of a network, for paper:PRECODE.

    Raises:
        UsageError: there is no linear layer in it.
    """
    found = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not found or not found[-1][0]:
        raise UsageError("there is no last linear layer to put a bottleneck before; leave +precode out")
    name, layer = found[-1]
    parent = network.get_submodule(name.rpartition(".")[0])
    setattr(parent, name.rpartition(".")[2], nn.Sequential(Bottleneck(layer.in_features, _WIDTH), layer))
    return network


def only(network: nn.Module, parts: Iterable[str]) -> nn.Module:
    """Fixes every parameter of a network but those of some parts, and returns it; what is fixed already stays so.

    Args:
        parts: names of parameters, or of layers with all their parameters.

    Raises:
        UsageError: a part has no parameter.
    """
    named, parts = list(network.named_parameters(remove_duplicate=False)), list(parts)
    trained = {id(one) for name, one in named if any(f"{name}.".startswith(f"{part}.") for part in parts)}
    for part in parts:
        if not any(f"{name}.".startswith(f"{part}.") for name, _ in named):
            raise UsageError(f"+only names {part!r}, of which there is no parameter; check the names")
    for _, parameter in named:
        if id(parameter) not in trained:
            parameter.requires_grad_(False)
    return network


def named_only(names: Iterable[str], network: nn.Module) -> str:
    """The change that trains only some parameters, ``only(...)``; of a layer that is trained as a whole its name."""
    own, trained = [name for name, _ in network.named_parameters(remove_duplicate=False)], set(names)
    parts: list[str] = []
    for name in own:
        pieces = name.split(".")
        starts = (".".join(pieces[:count]) for count in range(1, len(pieces) + 1))
        found = next(
            (one for one in starts if all(other in trained for other in own if f"{other}.".startswith(f"{one}."))), None
        )
        if found is not None and found not in parts:
            parts.append(found)
    return f"only({'|'.join(parts)})"


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "group_norm": group_norm,
    "no_dropout": no_dropout,
    "precode": precode,
}

PATTERNS = {
    "normalised(MEAN|DEVIATION)": "Scales images in [0, 1] before the network takes them, as torchvision's Normalize.",
    "adapters(RANK|ALPHA)": "Freezes the network and trains adapters (LoRA) beside the attentions; ALPHA is optional.",
    "only(PARTS)": "Trains only some parts, with | between their names, and freezes the others.",
}
"""Forms of the changes that are named with numbers or parts, and what they do."""


def split_name(name: str) -> tuple[str, list[Callable[[nn.Module], nn.Module]]]:
    """A network's own name, and the changes that are named behind it.

    Raises:
        UsageError: there is no such change.
    """
    own, *named = name.split("+")
    for change in named:
        if change.startswith("adapters") and not _ADAPTERS.fullmatch(change):
            raise UsageError(
                f"model {name!r}: adapters have a rank and perhaps an alpha, both positive numbers; write "
                f"{own}+adapters(16) or {own}+adapters(16|32)"
            )
        if change.startswith("normalised"):
            _require_scaling(own, change)
            continue
        if change not in CHANGES and not _ONLY.fullmatch(change) and not _ADAPTERS.fullmatch(change):
            near = difflib.get_close_matches(change, CHANGES, n=1)
            hint = f"did you mean {own}+{near[0]}?" if near else f"known: {', '.join([*CHANGES, *PATTERNS])}"
            raise UsageError(f"model {name!r}: unknown change {change!r}; {hint}")
    return own, [_change(change) for change in named]


def _require_scaling(own: str, change: str) -> None:
    """Raises UsageError: the change says no scaling."""
    try:
        if scaling_of(change) is not None:
            return
    except ValueError:
        pass
    raise UsageError(
        f"model '{own}+{change}': a scaling is a mean and a deviation above 0, of all channels or of each; write "
        f"{own}+normalised(0.5|0.25) or {own}+normalised(0.5/0.4/0.4|0.25/0.2/0.2)"
    )


@dataclass(frozen=True)
class _Scaled:
    """A hook that scales images (B, C, H, W) in [0, 1], as ``Normalize`` of torchvision does."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, _: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        (images,) = given
        if len(self.mean) not in (1, images.shape[-3]):
            raise UsageError(
                f"normalised scales {len(self.mean)} channels and images have {images.shape[-3]}; name each"
            )
        mean, deviation = (torch.tensor(one).to(images)[:, None, None] for one in (self.mean, self.deviation))
        return ((images - mean) / deviation,)


def normalised(network: nn.Module, mean: Iterable[float], deviation: Iterable[float]) -> nn.Module:
    """Lets a network take images in [0, 1] that its clients scale outside of it, and returns the network.

    Args:
        mean, deviation: of all channels or of each, as of torchvision's ``Normalize``.
    """
    network.register_forward_pre_hook(_Scaled(tuple(mean), tuple(deviation)))
    return network


def is_scaled(network: nn.Module) -> bool:
    """Return whether a network scales what it is given, which its layers alone do not show."""
    return any(isinstance(hook, _Scaled) for hook in network._forward_pre_hooks.values())


def _change(name: str) -> Callable[[nn.Module], nn.Module]:
    if (scaling := scaling_of(name)) is not None:
        return lambda network: normalised(network, *scaling)
    if (low := _ADAPTERS.fullmatch(name)) is not None:
        rank, alpha = int(low[1]), None if low[2] is None else float(low[2])
        return lambda network: adapters(network, rank, alpha)
    parts = _ONLY.fullmatch(name)
    return CHANGES[name] if parts is None else lambda network: only(network, parts[1].split("|"))
