"""The federation's network."""

import torch


class Network(torch.nn.Sequential):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.Sigmoid(), torch.nn.Linear(32, 10))


def make(image_shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
    return Network()
