"""Is the loss the declared multiple of the mean cross-entropy? What the bias of the last layer tells of it.

At the bias that is added to logits, cross-entropy has the gradient p - y: probabilities less a target, which both add
up to 1. So the entries of a mean of such gradients add up to 0, and their sizes to 2 at most, whatever the data are.
"""

from typing import Any

import torch
from torch import nn

from harness.judging.evidence import Check, Evidence

NAME = "the loss is the declared one"
# Of the sizes' sum: what half precision in a client leaves.
_UNLIKE = 0.05
_MOST = 2.0


def fits_loss(evidence: Evidence) -> Check | None:
    """Whether what was sent without a defense can be of the declared loss; None where that cannot be seen."""
    captured = evidence.captured
    if evidence.settings.defense != "none" or captured.not_known or captured.foreign or not captured.sums:
        return None
    name = bias_of_logits(evidence.module, captured.record.shape)
    if name not in evidence.layout.names:
        return None
    values = evidence.tensors()[evidence.layout.names.index(name)]
    rounding = torch.from_numpy(evidence.rounding(1)) * values.shape[1]
    sizes = values.abs().sum(1)
    apart = ((values.sum(1).abs() - rounding).clamp_min(0) / sizes.clamp_min(1e-30)).max()
    times = ((sizes - rounding) / _MOST).max()
    if float(apart) > _UNLIKE:
        said = f"the entries of {name} add up to {float(apart):.2g} of their sizes, those of cross-entropy to 0"
        mend = "another loss, weight decay or a defense that is not declared"
        return Check(NAME, "violated", f"{said}: {mend}")
    if float(times) > 1 + _UNLIKE:
        said = f"the entries of {name} are at least {float(times):.3g} times as large as those of the declared loss"
        return Check(NAME, "violated", f"{said}: give loss_scale where it is a sum, or correct learning_rate")
    return Check(NAME, "holds", f"the entries of {name} are as the declared multiple of cross-entropy has them")


def bias_of_logits(module: nn.Module, image_shape: tuple[int, ...]) -> str | None:
    """The name of the bias that is added to logits and to nothing else; None where there is none such."""
    made: dict[str, list[Any]] = {}
    layers = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    hooks = [
        layer.register_forward_hook(lambda _, __, out, name=name: made.setdefault(name, []).append(out))
        for name, layer in layers.items()
    ]  # fmt: skip
    try:
        with torch.no_grad():
            output = module.eval()(torch.zeros(1, *image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    shared = [id(one) for _, one in module.named_parameters(remove_duplicate=False)]
    for name, outputs in made.items():
        alike = len(outputs) == 1 and outputs[0].shape == output.shape
        last = alike and any(torch.equal(one, output) for one in (outputs[0], outputs[0].log_softmax(-1)))
        bias = layers[name].bias
        if last and bias is not None and shared.count(id(bias)) == 1:
            return f"{name}.bias" if name else "bias"
    return None
