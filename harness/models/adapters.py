"""Adapters of low rank (LoRA) on a frozen network: W + (alpha / r) B A, where A is random and B zero at first.

Source: Hu et al. 2021, "LoRA", section 4.1. On the query and the value of every attention, which are the paper's choice
(its section 7.1) and that of the library ``peft`` for BERT; as there, the last linear layer is trained too.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UsageError

#: What linear layers are called that make queries and values, where an attention is put together of them.
NAMES = ("query", "value", "q_proj", "v_proj")
#: The default rank, which is that of ``peft``.
RANK = 8


class Adapter(nn.Module):
    """Part (..., O) that is added for values (..., I): ``scale`` times B A of them, where A (r, I) is random and B
    (O, r) zero at first."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        self.a, self.b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, values: Tensor) -> Tensor:
        return self.scale * self.b(self.a(values))


class AdaptedLinear(nn.Module):
    """A linear layer with an adapter beside it; its own parameters keep their names."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.adapter = Adapter(layer.in_features, layer.out_features, rank, alpha)

    def forward(self, values: Tensor) -> Tensor:
        return functional.linear(values, self.weight, self.bias) + self.adapter(values)


class AdaptedAttention(nn.Module):
    """PyTorch's attention with adapters of query and value; its own parameters keep their names.

    It gives no weights of attention beside the output, which no encoder layer asks for.
    """

    def __init__(self, layer: nn.MultiheadAttention, rank: int, alpha: float) -> None:
        super().__init__()
        self.num_heads, self.batch_first, self.dropout = layer.num_heads, layer.batch_first, layer.dropout
        self.in_proj_weight, self.in_proj_bias, self.out_proj = layer.in_proj_weight, layer.in_proj_bias, layer.out_proj
        self.query, self.value = (Adapter(layer.embed_dim, layer.embed_dim, rank, alpha) for _ in range(2))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attended values (B, T, E), or (T, B, E) as of the layer that was adapted; masks are added to the scores."""
        if not self.batch_first:
            query, key, value = (one.transpose(0, 1) for one in (query, key, value))
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        three = [functional.linear(*one) for one in zip((query, key, value), weights, biases, strict=True)]
        three[0], three[2] = three[0] + self.query(query), three[2] + self.value(value)
        heads = [one.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2) for one in three]
        mask = None if key_padding_mask is None else _added(key_padding_mask, query)[:, None, None]
        if attn_mask is not None:
            own = _added(attn_mask, query)
            own = own if own.dim() == 2 else own.unflatten(0, (-1, self.num_heads))
            mask = own if mask is None else mask + own
        dropped = self.dropout if self.training else 0.0
        queries, keys, values = heads
        causal = is_causal and mask is None
        out = functional.scaled_dot_product_attention(queries, keys, values, mask, dropped, causal)
        out = self.out_proj(out.transpose(-3, -2).flatten(-2))
        return (out if self.batch_first else out.transpose(0, 1)), None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers that are added to scores; of truth values, what is true is left out."""
    zeros = like.new_zeros(mask.shape)
    return zeros.masked_fill(mask, -float("inf")) if mask.dtype is torch.bool else zeros + mask


def _inputs(name: str, layer: nn.Module) -> int:
    """The width of what a layer reads that can be adapted; 0 of one that cannot."""
    if type(layer) is nn.MultiheadAttention and None not in (layer.in_proj_weight, layer.in_proj_bias):
        return 0 if layer.bias_k is not None or layer.add_zero_attn else layer.embed_dim
    return layer.in_features if type(layer) is nn.Linear and name.rpartition(".")[2] in NAMES else 0


def adapters(network: nn.Module, rank: int, alpha: float | None = None) -> nn.Module:
    """Puts adapters beside the queries and values of a network's attentions, and returns it; only they and the last
    linear layer are trained from then on. To keep the latter as it is, fix it too, such as by ``+only(encoder)``.

    Args:
        rank: from 1 to the width of what the layers read.
        alpha: of the scale alpha / rank; twice the rank by default, which makes the scale 2 for every rank.

    Raises:
        UsageError: there is no attention that can be adapted, or the rank is out of range.
    """
    linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    found = [(name, layer, _inputs(name, layer)) for name, layer in network.named_modules() if _inputs(name, layer)]
    if not found:
        raise UsageError(
            "there is no attention whose queries and values adapters could be put on; use a transformer, such as "
            "--model text_transformer, or leave +adapters out"
        )
    width = min(inputs for _, _, inputs in found)
    if not 1 <= rank <= width:
        raise UsageError(f"adapters have a rank of 1 to the width of the network, {width}, not {rank}; change the rank")
    if alpha is not None and not alpha > 0:
        raise UsageError(f"adapters have a positive alpha, not {alpha:g}; change it, or leave it out")
    head = network.get_submodule(linear[-1]) if linear else None
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    if head is not None:
        head.requires_grad_(True)
    for name, layer, _ in found:
        parent, _, own = name.rpartition(".")
        scaled = 2.0 * rank if alpha is None else alpha
        attends = isinstance(layer, nn.MultiheadAttention)
        made = AdaptedAttention(layer, rank, scaled) if attends else AdaptedLinear(cast(nn.Linear, layer), rank, scaled)
        setattr(network.get_submodule(parent), own, made)
    return network


def trained_only(names: Sequence[str], part: str | None, rank: int | None) -> list[str]:
    """The names of networks of which one part alone is trained, as the options ``--train-only`` and ``--adapter-rank``
    say it.

    Raises:
        UsageError: there is no such part, or it cannot be combined with the names.
    """
    if part is None:
        if rank is not None:
            raise UsageError("--adapter-rank needs adapters; add --train-only adapters")
        return list(names)
    if part != "adapters":
        raise UsageError(
            f"--train-only takes adapters, not {part!r}; for layers by name use --model 'NAME+only({part})'"
        )
    if again := [name for name in names if "+adapters" in name]:
        raise UsageError(f"model {again[0]!r} has adapters already; leave --train-only out")
    return [f"{name}+adapters({RANK if rank is None else rank})" for name in names]
