"""What a local iteration costs without this harness: plain SGD, and clipped noisy SGD by torch.func's gradients."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

CLIP, SIGMA = 4.0, 6.0


def plain_loop(module: nn.Module, images: Tensor, labels: Tensor, learning_rate: float) -> None:
    """One SGD step for each client (K, B, ...), one after the other, with nothing but PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    for batch, targets in zip(images, labels, strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(module(batch), targets).backward()
        optimizer.step()


def example_gradient_loop(module: nn.Module, images: Tensor, labels: Tensor, learning_rate: float) -> None:
    """The same under Fed-CDP with the per-example gradients of ``vmap(grad)``: clipped per tensor, noise on the sum."""

    def loss(named: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(module, named, (image[None],)), label[None])

    gradients_of = vmap(grad(loss), in_dims=(None, 0, 0))
    parameters = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for batch, targets in zip(images, labels, strict=True):
        for name, gradients in gradients_of(parameters, batch, targets).items():
            norms = gradients.flatten(1).norm(dim=1)
            clipped = torch.tensordot((CLIP / norms.clamp(min=1e-30)).clamp(max=1.0), gradients, dims=1)
            noisy = clipped + SIGMA * CLIP * torch.randn_like(clipped)
            parameters[name].sub_(noisy, alpha=learning_rate / len(targets))
