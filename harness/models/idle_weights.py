"""Weights that no image meets: borders of kernels that lie on nothing but padding, deep in a network of small images.

Their derivatives are zero whatever the image is. Of ResNet-18 at 32 pixels 62% are.
"""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from harness.models.batch_norm import in_evaluation_mode
from harness.models.row_operators import Size, is_plain_convolution, zero_padding

Border = tuple[int, int, int, int]


def without_idle_weights(module: nn.Module, image_shape: tuple[int, ...]) -> tuple[nn.Module, Tensor] | None:
    """A copy of a network whose kernels lack these borders, and the places (P',) of its weights among all P.

    None where there are no such borders, or the copy is not the same function: its author may use a layer's weights in
    ways that do not show.

    Args:
        image_shape: (C, H, W) of all images that it will see.
    """
    borders = _borders(module, image_shape)
    if not borders:
        return None
    made, kept, before = copy.deepcopy(module), [], 0
    for name, parameter in module.named_parameters():
        places = torch.arange(before, before + parameter.numel()).reshape(parameter.shape)
        before += parameter.numel()
        layer, _, kind = name.rpartition(".")
        kept.append((inner(places, borders[layer][0]) if kind == "weight" and layer in borders else places).flatten())
    for name, (size, padding) in borders.items():
        _narrow(made.get_submodule(name), size, padding)
    return (made, torch.cat(kept)) if _same(module, made, image_shape) else None


def _borders(module: nn.Module, image_shape: tuple[int, ...]) -> Mapping[str, tuple[Border, Size]]:
    """By convolution: rows above and below and columns left and right of its kernels that meet only padding, and the
    padding that the rest needs; of those that have any."""
    seen: dict[str, list[tuple[Border, Size]]] = {}

    def noting(name: str, layer: nn.Conv2d) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen.setdefault(name, []).append(border_of(given[0].shape[-2:], layer))

        return note

    hooks = [
        layer.register_forward_pre_hook(noting(name, layer))
        for name, layer in module.named_modules()
        if type(layer) is nn.Conv2d and is_plain_convolution(layer)
    ]
    try:
        _run(module, torch.zeros(1, *image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: calls[0] for name, calls in seen.items() if any(calls[0][0]) and len(set(calls)) == 1}


def border_of(size: Size, layer: nn.Conv2d) -> tuple[Border, Size]:
    """Of a convolution of images (rows, columns): how much of its kernels' border meets nothing but padding, above,
    below, left and right, and the padding, in rows and columns, that the rest needs.

    Of 3x3 kernels on a single pixel eight of nine weights do nothing.
    """
    (above, below, rows), (left, right, columns) = map(
        _along, size, layer.kernel_size, zero_padding(layer), layer.stride
    )
    return (above, below, left, right), (rows, columns)


def _along(size: int, kernel: int, padding: int, stride: int) -> tuple[int, int, int]:
    places = places_along(size, kernel, padding, stride)
    before, after = max(0, padding - (places - 1) * stride), max(0, kernel - size - padding)
    left = padding - before
    same = places_along(size, kernel - before - after, left, stride) == places
    return (before, after, left) if same else (0, 0, padding)


def places_along(size: int, kernel: int, padding: int, stride: int) -> int:
    """Rows, or columns, of what a convolution makes of so many."""
    return (size + 2 * padding - kernel) // stride + 1


def inner(kernels: Tensor, border: Border) -> Tensor:
    """Kernels (..., k, l) without a border."""
    above, below, left, right = border
    rows, columns = kernels.shape[-2:]
    return kernels[..., above : rows - below, left : columns - right]


def _narrow(layer: nn.Module, border: Border, padding: Size) -> None:
    assert isinstance(layer, nn.Conv2d)
    layer.weight = nn.Parameter(inner(layer.weight.detach(), border).clone())
    layer.kernel_size, layer.padding = tuple(layer.weight.shape[-2:]), padding


def _run(module: nn.Module, images: Tensor) -> Tensor:
    # One image has no variance where a layer sees a single value of it.
    with torch.no_grad(), in_evaluation_mode(module):
        return module(images.to(next(module.parameters())))


def _same(module: nn.Module, other: nn.Module, image_shape: tuple[int, ...]) -> bool:
    images = torch.rand(2, *image_shape, generator=torch.Generator().manual_seed(0))
    known = _run(module, images)
    try:
        made = _run(other, images)
    except Exception:  # a user's own code, which may reckon with the shapes that it gave its layers, may raise anything
        return False
    return made.shape == known.shape and torch.allclose(known, made, rtol=1e-3, atol=1e-5)
