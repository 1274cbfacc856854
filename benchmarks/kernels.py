"""Measures what each special kernel of ``harness/models`` gains over plain autograd, on one core each.

``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/kernels.py [REPEATS]`` prints one row per kernel and network. The work
is one step of gradient matching: the gradient of each row, its squared distance from a target, and the derivative by
the images. *Without* is the network's own layers under autograd, one row after another; for the parts of a kernel it is
the same kernel without that part. Seconds are processor time of the thread, the least of both sides in turns, so other
work on the machine disturbs little. ``side_by_side`` has no row: it gives each row a thread, on both sides.
"""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import harness.models  # isort: skip  # before torch
import torch
import torchvision
from torch import Tensor, nn

from harness.base.vectors import Layout
from harness.models import build_module, lone_rows
from harness.models.idle_weights import without_idle_weights
from harness.models.lone_rows import LoneRows, with_lone_layers
from harness.models.row_operators import with_row_operators
from harness.models.row_sequence import row_sequence
from harness.models.rows import ChainedRows, MappedRows, OwnRows, Rows
from harness.models.transformer import torchvision_transformer

Step = Callable[[], Tensor]
WITHOUT_ONCE = {"gradient_once": lambda _: nullcontext()}


def small_transformer() -> nn.Module:
    """torchvision's vision transformer for images of 32 pixels, with 2.7 million weights."""
    return torchvision.models.VisionTransformer(32, 4, 6, 3, 192, 768, num_classes=10)


def step(rows: Rows, module: nn.Module, count: int, shape: tuple[int, ...], changed: dict[str, Any]) -> Step:
    """One step of gradient matching for ``count`` rows of one image, with names of ``lone_rows`` ``changed``."""
    random = torch.Generator().manual_seed(0)
    flat = torch.cat([part.detach().flatten() for part in module.parameters()])
    weights = flat + 0.01 * torch.randn(count, len(flat), generator=random)
    images = torch.rand(count, 1, *shape, generator=random).requires_grad_()
    targets, wanted = torch.randint(10, (count, 1), generator=random), torch.zeros(count, len(flat))

    def work() -> Tensor:
        with patch.multiple(lone_rows, **changed) if changed else nullcontext():
            made = rows.gradient(weights, images, targets, create_graph=True)
            return torch.autograd.grad((made - wanted).square().sum(), images)[0]

    return work


def sides() -> list[tuple[str, str, Step, Step]]:
    """Kernel, network, the step with the kernel and the one without."""
    found, small, large = [], (1, 28, 28), (3, 32, 32)

    def add(kernel: str, network: str, module: nn.Module, count: int, shape: tuple[int, ...], rows: Rows, other: Rows | None = None, **changed: Any) -> None:  # fmt: skip  # noqa: E501
        plain = other or LoneRows(module, Layout.of(module))
        changed = changed if other else WITHOUT_ONCE
        found.append((kernel, network, step(rows, module, count, shape, {}), step(plain, module, count, shape, changed)))

    for network, shape in (("mlp", small), ("lenet", small), ("cnn", large)):
        module = build_module(network, shape, 10)
        sequence = row_sequence(module)
        assert sequence is not None
        add("chain of layers", network, module, 16, shape, ChainedRows(sequence, Layout.of(module), False))
    vit, theirs, resnet8 = build_module("vit", large, 10), small_transformer(), build_module("resnet8", large, 10)
    own = torchvision_transformer(theirs)
    assert own is not None
    add("transformer of rows", "vit", vit, 8, large, OwnRows(vit, Layout.of(vit)))  # pyright: ignore[reportArgumentType]
    add("transformer of rows", "torchvision", theirs, 8, large, OwnRows(own, Layout.of(theirs)))
    add("rows under vmap", "resnet8", resnet8, 8, large, MappedRows(with_row_operators(resnet8), Layout.of(resnet8)))
    resnet = torchvision.models.resnet18(num_classes=10).eval()
    for network, module in (("resnet18", resnet), ("torchvision", theirs)):
        lone = LoneRows(with_lone_layers(module), Layout.of(module))
        add("lone layers", network, module, 1, large, lone)
        add("- gradient_once", network, module, 1, large, lone, lone, **WITHOUT_ONCE)
        add("- oneDNN", network, module, 1, large, lone, lone, is_possible=lambda _: False)
        if module is resnet:
            add("- few places", network, module, 1, large, lone, lone, _FEW_PLACES=())
    with patch.object(lone_rows, "spare_other_tokens", lambda _: None):
        every_token = LoneRows(with_lone_layers(theirs), Layout.of(theirs))
    add("- class token alone", "torchvision", theirs, 1, large, LoneRows(with_lone_layers(theirs), Layout.of(theirs)), every_token)  # fmt: skip  # noqa: E501
    spared = without_idle_weights(resnet, large)
    assert spared is not None
    fewer = LoneRows(with_lone_layers(spared[0]), Layout.of(spared[0]))
    whole = step(LoneRows(with_lone_layers(resnet), Layout.of(resnet)), resnet, 1, large, {})
    found.append(("idle weights", "resnet18", step(fewer, spared[0], 1, large, {}), whole))
    return found


def least(one: Step, other: Step, repeats: int) -> tuple[float, float]:
    """Seconds of both, the least of so many in turns."""
    taken: tuple[list[float], list[float]] = [], []
    for _ in range(repeats + 1):
        for work, seconds in zip((one, other), taken, strict=True):
            begun = time.thread_time()
            work()
            seconds.append(time.thread_time() - begun)
    return min(taken[0][1:]), min(taken[1][1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| kernel | network | with, s | without, s | gain |\n|---|---|---|---|---|")
    for kernel, network, one, other in sides():
        fast, slow = least(one, other, int(sys.argv[1]) if len(sys.argv) > 1 else 7)
        print(f"| {kernel} | {network} | {fast:.4f} | {slow:.4f} | {slow / fast:.2f} |", flush=True)
