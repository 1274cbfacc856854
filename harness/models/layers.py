"""The layers of a network in the order in which a forward pass comes to them, which need not be that of their names."""

from collections.abc import Callable

import torch
from torch import nn

from harness.models.batch_norm import in_evaluation_mode


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
