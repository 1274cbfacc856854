"""Networks that predict the next word, as networks of two classes of which all texts have the first."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UsageError
from harness.base.words import PAD

# Of a loss: below that no logit says it.
_LEAST = 1e-6


class NextWord(nn.Module):
    """A network of two classes whose cross-entropy under label 0 is how badly another predicts the next words.

    With l the mean cross-entropy of a text's next words, its logits are 0 and log(exp(l) - 1): the loss under label 0
    is l, and so are its gradients. So labels say nothing, and next words are no labels, which an attacker would be
    told. The end of a text is predicted too, as token 0, where it has places behind it.

    Args:
        network: gives logits (B, T, V) of tokens (B, T), those at a place by the tokens up to there.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, 2) of tokens (B, T). Raises UsageError: the network gives no logits of each place."""
        logits = self.network(tokens)
        if logits.dim() != 3 or logits.shape[:2] != tokens.shape:
            raise UsageError(
                f"NextWord got logits of shape {tuple(logits.shape)} for tokens {tuple(tokens.shape)}; let its network "
                "give (B, T, vocabulary)"
            )
        lost = functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
        there = (tokens[:, :-1] != PAD).to(lost)
        loss = ((lost * there).sum(1) / there.sum(1).clamp_min(1.0)).clamp_min(_LEAST)
        return torch.stack([torch.zeros_like(loss), loss + torch.log(-torch.expm1(-loss))], 1)
