"""torchvision's vision transformers, of whose last layer only the class token is computed: nothing reads the others."""

import sys
from typing import Any

from torch import Tensor


def spare_other_tokens(network: Any) -> None:
    """Changes a network in place, if it is such a transformer."""
    kinds = sys.modules.get("torchvision.models.vision_transformer")  # which is slow to load, and there if one is
    if kinds is None or type(network) is not kinds.VisionTransformer:
        return
    *_, last = network.encoder.layers
    if type(last) is kinds.EncoderBlock:
        last.__class__ = type("FirstToken", (kinds.EncoderBlock,), {"forward": _first_token})


def _first_token(self: Any, input: Tensor) -> Tensor:
    """Tokens (B, T, E) to the first of them (B, 1, E): every token goes into its attention."""
    normed = self.ln_1(input)
    attended, _ = self.self_attention(normed[:, :1], normed, normed, need_weights=False)
    own = input[:, :1] + self.dropout(attended)
    return own + self.mlp(self.ln_2(own))
