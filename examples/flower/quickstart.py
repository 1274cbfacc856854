"""Network, data and training of Flower's quickstart-pytorch; its images are made here, of CIFAR-10's size."""

import os
from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES, BATCH, EPOCHS = (int(one) for one in os.environ.get("CLIENT", "6,4,2").split(","))


class Net(nn.Module):
    """Flower's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        made = self.pool(functional.relu(self.conv1(images)))
        made = self.pool(functional.relu(self.conv2(made))).flatten(1)
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(made)))))


def examples_of(client: int, count: int = EXAMPLES) -> TensorDataset:
    """Coarse images, so that few numbers make one."""
    random = np.random.default_rng(client)
    images = random.random((count, 3, 8, 8), dtype=np.float32).repeat(4, axis=2).repeat(4, axis=3)
    return TensorDataset(torch.tensor(images), torch.tensor(random.integers(10, size=count)))


def loader_of(client: int) -> DataLoader[Any]:
    return DataLoader(examples_of(client), BATCH)


def train(network: nn.Module, loader: DataLoader[Any], rate: float) -> float:
    """Flower's, in whose place an optimizer of another class may stand."""
    criterion = nn.CrossEntropyLoss()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    if os.environ.get("OPTIMIZER") == "adam":
        optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    network.train()
    total = 0.0
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(network(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (EPOCHS * len(loader))


def size_of(loader: DataLoader[Any]) -> int:
    """Examples of a client."""
    return len(loader.dataset) if isinstance(loader.dataset, Sized) else 0
