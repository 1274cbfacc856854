"""Inner products of examples' gradients, tensor by tensor, without the gradients: from what layers are given and get.

The gradient of a linear layer's weight is the sum of g x^T over an example's tokens, where x goes in and g is the
derivative by what comes out. Its square length is that of two Gram matrices (Goodfellow, "Efficient per-example
gradient computations", 2015; for sequences Li et al., "Large language models can be strong differentially private
learners", ICLR 2022), and its inner product with a matrix Y is the sum of (g Y) x.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def inner_products(
    network: nn.Module, named: Mapping[str, Tensor], read: Mapping[str, Tensor], images: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Inner products (B, M) of examples' gradients with what was read, and of each gradient with itself.

    Args:
        network: called with the parameters below.
        named: its parameters, M tensors by name.
        read: tensors of the same names and shapes.
        images: (B, ...), B > 1. targets: labels (B,) or probabilities (B, K).

    Returns:
        None where a parameter is used otherwise than by a linear layer, an embedding, a layer normalisation or one
        attention of tokens to each other, or more than once.
    """
    count = len(images)
    # One of each example where a parameter stands once for all of them, such as places.
    spread = {
        name: one.detach().expand(count, *one.shape[1:]).clone().requires_grad_()
        for name, one in named.items() if one.dim() > 2 and one.shape[0] == 1
    }  # fmt: skip
    fixed = {name: one.detach() for name, one in named.items() if name not in spread}
    watch = _Watch({id(one): name for name, one in fixed.items()}, read, count)
    with suppress(_Otherwise):
        with torch.enable_grad():
            with watch:
                logits = functional_call(network, fixed | spread, (images,))
                loss = functional.cross_entropy(logits, targets, reduction="sum")
            roots = [*spread.values(), *watch.roots]
            if not roots:
                return None
            made = torch.autograd.grad(loss, roots, materialize_grads=True)
        for name, own in zip(spread, made, strict=False):
            watch.add(name, own.flatten(1) @ read[name].flatten(), own.flatten(1).square().sum(1))
        if watch.found.keys() == named.keys():
            both, own = zip(*(watch.found[name] for name in named), strict=True)
            return torch.stack(both, 1), torch.stack(own, 1)
    return None


class _Otherwise(Exception):
    """A parameter is used in a way that is not known here."""


class _Watch(TorchFunctionMode):
    """Looks at what goes into layers, and at the derivatives by what comes out.

    Attributes:
        roots: what is differentiable first.
        found: both inner products (B,) by the name of a parameter.
    """

    def __init__(self, names: dict[int, str], read: Mapping[str, Tensor], count: int) -> None:
        super().__init__()
        self._names, self._read, self._count = names, read, count
        self.roots: list[Tensor] = []
        self.found: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, both: Tensor, own: Tensor) -> None:
        if name in self.found:
            raise _Otherwise
        self.found[name] = (both, own)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        played = _PLAYED.get(func)
        return func(*args, **(kwargs or {})) if played is None else played(self, *args, **(kwargs or {}))

    def linear(self, given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made = functional.linear(given, weight, bias)
        tokens = self._tokens(given).detach()

        def seen(slope: Tensor) -> None:
            slope = self._tokens(slope)
            if name := self._names.get(id(weight)):
                both = ((slope @ self._read[name]) * tokens).sum((1, 2))
                self.add(name, both, ((tokens @ tokens.mT) * (slope @ slope.mT)).sum((1, 2)))
            self._added_up(bias, slope)

        return self._watched(made, seen)

    def layer_norm(
        self, given: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        normed = functional.layer_norm(given, shape, eps=eps)
        made = normed if weight is None else normed * weight
        made = made if bias is None else made + bias
        tokens = self._tokens(normed).detach()

        def seen(slope: Tensor) -> None:
            self._added_up(weight, self._tokens(slope) * tokens)
            self._added_up(bias, self._tokens(slope))

        return self._watched(made, seen)

    def embedding(self, places: Tensor, weight: Tensor, **settings: Any) -> Tensor:
        special = any(settings.get(name) for name in ("max_norm", "scale_grad_by_freq"))
        if places.dim() != 2 or len(places) != self._count or special or settings.get("padding_idx") is not None:
            raise _Otherwise
        made = functional.embedding(places, weight)
        same = places[:, :, None] == places[:, None]

        def seen(slope: Tensor) -> None:
            if name := self._names.get(id(weight)):
                own = ((slope @ slope.mT) * same).sum((1, 2))
                self.add(name, (slope * self._read[name][places]).sum((1, 2)), own)

        return self._watched(made, seen)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, *more: Any, **settings: Any
    ) -> tuple[Tensor, None]:
        """That of tokens (T, B, E) to each other, without dropout."""
        names = ("in_weight", "in_bias", "key_bias", "value_bias", "zeros", "dropout", "out_weight", "out_bias")
        own = dict(zip(names, more, strict=False))
        mask, among = settings.get("key_padding_mask"), settings.get("attn_mask")
        plain = query is key is value and len(more) == len(names) and among is None and not own["zeros"]
        plain = plain and own["key_bias"] is own["value_bias"] is None and not settings.get("use_separate_proj_weight")
        if not plain or (own["dropout"] and settings.get("training", True)) or settings.get("need_weights", True):
            raise _Otherwise
        tokens = query.transpose(0, 1)
        three = self.linear(tokens, own["in_weight"], own["in_bias"]).unflatten(2, (3, heads, width // heads))
        asks, offers, says = three.permute(2, 0, 3, 1, 4).unbind()
        scores = asks @ offers.mT / math.sqrt(width // heads)
        if mask is not None:
            mask = mask[:, None, None]
            scores = scores + mask if mask.is_floating_point() else scores.masked_fill(mask, -math.inf)
        heard = (scores.softmax(-1) @ says).transpose(1, 2).flatten(2)
        return self.linear(heard, own["out_weight"], own["out_bias"]).transpose(0, 1), None

    def _added_up(self, parameter: Tensor | None, slopes: Tensor) -> None:
        """Add the products of a parameter that is the same for all tokens, whose derivatives add up."""
        if parameter is not None and (name := self._names.get(id(parameter))):
            total = slopes.sum(1)
            self.add(name, total @ self._read[name], total.square().sum(1))

    def _tokens(self, values: Tensor) -> Tensor:
        """(B, T, E) of (B, ..., E)."""
        if values.dim() < 2 or len(values) != self._count:
            raise _Otherwise
        return values[:, None] if values.dim() == 2 else values.flatten(1, -2)

    def _watched(self, made: Tensor, seen: Callable[[Tensor], None]) -> Tensor:
        if not made.requires_grad:
            self.roots.append(made.requires_grad_())
        made.register_hook(seen)
        return made


_PLAYED: dict[Any, Any] = {
    functional.linear: _Watch.linear,
    functional.layer_norm: _Watch.layer_norm,
    functional.embedding: _Watch.embedding,
    functional.multi_head_attention_forward: _Watch.attention,
}
