"""Measures what each special kernel of ``harness/models`` gains over plain autograd, on one core each.

``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/kernels.py [REPEATS]`` prints one row per kernel and network. The
work is one step of gradient matching. *Without* is the network's own layers under autograd, row after row. Seconds are
processor time of the thread, the least of both sides in turns. ``side_by_side`` has no row: it gives each victim a
thread, on both sides.
"""

import sys
import time
from collections.abc import Callable

from harness.models import build_module  # isort: skip  # before torch
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, resnet18

from harness.base.vectors import Layout
from harness.models.row_layers import without_idle_weights
from harness.models.row_operators import with_row_operators
from harness.models.row_sequence import row_sequence
from harness.models.rows import ChainedRows, LoneRows, MappedRows, OwnRows, Rows
from harness.models.transformer import torchvision_transformer

SMALL, LARGE = (1, 28, 28), (3, 32, 32)


def step(rows: Rows, module: nn.Module, count: int, shape: tuple[int, ...]) -> Callable:
    """One step of gradient matching for ``count`` rows of one image."""
    random = torch.Generator().manual_seed(0)
    flat = torch.cat([part.detach().flatten() for part in module.parameters()])
    weights = flat + 0.01 * torch.randn(count, len(flat), generator=random)
    images = torch.rand(count, 1, *shape, generator=random).requires_grad_()

    def work() -> Tensor:
        made = rows.gradient(weights, images, torch.zeros(count, 1).long(), create_graph=True)
        return torch.autograd.grad(made.square().sum(), images)[0]

    return work


def of_rows() -> list[tuple[str, str, Callable, Callable]]:
    """Kernels for many rows together: kernel, network, the step with it and the one without."""
    found = []

    def add(kernel: str, network: str, module: nn.Module, shape: tuple[int, ...], rows: Rows, count: int) -> None:
        plain = step(LoneRows(module, Layout.of(module)), module, count, shape)
        found.append((kernel, network, step(rows, module, count, shape), plain))

    for network, shape in (("mlp", SMALL), ("lenet", SMALL), ("cnn", LARGE)):
        module = build_module(network, shape, 10, 0)
        rows = ChainedRows(row_sequence(module), Layout.of(module), False)  # type: ignore[arg-type]
        add("chain of layers", network, module, shape, rows, 16)
    vit, resnet8, theirs = *(build_module(name, LARGE, 10, 0) for name in ("vit", "resnet8")), transformer()
    for network, module, own in (("vit", vit, vit), ("torchvision vit", theirs, torchvision_transformer(theirs))):
        add("transformer of rows", network, module, LARGE, OwnRows(own, Layout.of(module)), 8)  # type: ignore[arg-type]
    add("row operators", "resnet8", resnet8, LARGE, MappedRows(with_row_operators(resnet8), Layout.of(resnet8)), 8)
    return found


def of_lone_rows() -> list[tuple[str, str, Callable, Callable]]:
    """The kernel for one row of a large network."""
    resnet = resnet18(num_classes=10).eval()
    fewer, _ = without_idle_weights(resnet, LARGE) or (resnet, None)
    spared, full = (step(LoneRows(one, Layout.of(one)), one, 1, LARGE) for one in (fewer, resnet))
    return [("idle weights", "resnet18", spared, full)]


def transformer() -> nn.Module:
    """torchvision's transformer for images of 32 pixels, with 2.7 million weights."""
    return VisionTransformer(32, 4, 6, 3, 192, 768, num_classes=10)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| kernel | network | with, s | without, s | gain |\n|---|---|---|---|---|")
    for kernel, network, *both in of_rows() + of_lone_rows():
        taken: list[list[float]] = [[], []]
        for work, seconds in [*zip(both, taken, strict=True)] * (1 + int((sys.argv[1:] or ["7"])[0])):
            begun = time.thread_time()
            work()
            seconds.append(time.thread_time() - begun)
        fast, slow = (min(seconds[1:]) for seconds in taken)
        print(f"| {kernel} | {network} | {fast:.4f} | {slow:.4f} | {slow / fast:.2f} |", flush=True)
