"""Whether the weights of a network are as the last step of its optimizer left them.

What is written into them between steps is no part of any optimizer: a projection, a clamp, an earlier checkpoint that
is loaded again, an average over steps.
"""

from torch import Tensor, nn, stack

# How much the norm of a weight may be off by rounding, as where something was added and taken away again.
_NEAR = 1e-5


def norms_of(network: nn.Module) -> Tensor | None:
    """Return the norm of each weight that is trained; None where they cannot be had together."""
    trained = [one for one in network.parameters() if one.requires_grad]
    if len({(one.dtype, one.device) for one in trained}) != 1:
        return None
    return stack([one.detach().norm() for one in trained])


def moved(now: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Return whether norms differ, one bool; None where they cannot be compared, such as after another rounding."""
    alike = now is not None and before is not None and (now.dtype, now.device) == (before.dtype, before.device)
    if now is None or before is None or not alike or now.shape != before.shape:
        return None
    return ((now - before).abs() > _NEAR * before.abs()).any()
