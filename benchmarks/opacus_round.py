"""Seconds of a full-scale round of MNIST (100 clients, 100 local steps of 5 examples) beside Opacus, on the same work.

    python -m venv beside && beside/bin/pip install . opacus==1.6.0
    HARNESS_DATA=data OMP_NUM_THREADS=1 taskset -c 0 beside/bin/python benchmarks/opacus_round.py

Both sides train the network of the papers (``cnn``) in float32 from the same weights on the same batches in the same
order, with one clip of each example's whole gradient and noise of the same level, each by a generator of its own.
Opacus trains one client after another, by its hooks and by functorch: its optimizer is called directly, with no
loader. Sides take turns, the first rounds do not count, and of Opacus only what is faster there goes on. Before that,
updates of two clients without noise are compared, in double precision.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from opacus.grad_sample.utils import prepare_module
from opacus.optimizers import DPOptimizer
from torch import Tensor
from torch.nn import functional

from harness.base.randomness import Stream
from harness.datasets import Dataset, data_root, load_dataset
from harness.defenses import DEFENSES, Cohort
from harness.federation.client_round import train_locally
from harness.federation.context import RoundContext
from harness.federation.examples import Batches
from harness.models import RowModel
from harness.training.clients import batch_gradients

RATE, CLIP, SIGMA, WARM_UP = 0.05, 4.0, 6.0, 2
# Clients whose updates are compared, in double precision: in single, a ReLU that is all but 0 falls on either side.
COMPARED = 2
MODES = ("hooks", "functorch")


class Work:
    """A round's clients with their examples; either side makes of it the updates (K, P)."""

    def __init__(
        self, data: Dataset, clients: int, steps: int, batch: int, chunk: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.data, self.steps, self.batch, self.chunk, self.dtype = data, steps, batch, chunk, dtype
        self.model = RowModel("cnn", data.image_shape, data.num_classes)
        self.model.to(torch.device("cpu"), dtype)
        self.start = self.model.initial_weights([(0, "global")])[0].to(dtype)
        each = steps * batch
        chosen = torch.stack(
            [Stream(client, "round").permutation(len(data.labels))[:each] for client in range(clients)]
        )
        self.places = chosen
        self.modules = {
            mode: prepare_module(copy.deepcopy(self.model.plain(self.start)).to(dtype), mode, loss_reduction="mean")
            for mode in MODES
        }

    def ours(self, sigma: float) -> Tensor:
        """As a training run does it, in chunks of clients."""
        clients = len(self.places)
        defense = DEFENSES["fed_cdp"](clip=CLIP, sigma=sigma, clipping="whole")
        cohort = Cohort(clients, clients, 1, self.steps, self.batch)
        order = torch.arange(self.steps * self.batch).reshape(1, self.steps, self.batch)
        made = []
        for first in range(0, clients, self.chunk):
            places = self.places[first : first + self.chunk]
            context = RoundContext(
                0, 0, RATE, cohort, self.model.layout, tuple((0, first + row) for row in range(len(places)))
            )
            batches = Batches(order.expand(len(places), -1, -1), None)
            gradients = batch_gradients(self.model, self.data, places, batches, self.batch)
            weights = self.start.expand(len(places), -1).contiguous()
            trained = train_locally(gradients, weights, defense, context, self.steps, precision=self.dtype)
            made.append(trained.moved)
        return torch.cat(made)

    def theirs(self, mode: str, sigma: float) -> Tensor:
        """By Opacus, one client after another in one module."""
        module = self.modules[mode]
        named = dict(module._module.named_parameters())
        start = self.model.layout.split(self.start)
        made = []
        for places in self.places:
            with torch.no_grad():
                for name, parameter in named.items():
                    parameter.copy_(start[name])
            optimizer = DPOptimizer(
                torch.optim.SGD(module.parameters(), lr=RATE), noise_multiplier=sigma, max_grad_norm=CLIP,
                expected_batch_size=self.batch,
            )  # fmt: skip
            for step in range(self.steps):
                rows = places[step * self.batch : (step + 1) * self.batch]
                optimizer.zero_grad()
                loss = functional.cross_entropy(module(self.data.images[rows].to(self.dtype)), self.data.labels[rows])
                loss.backward()
                optimizer.step()
            moved = {name: parameter.detach().clone() for name, parameter in named.items()}
            made.append(self.model.layout.flatten(moved) - self.start)
        return torch.stack(made)


def main() -> None:
    """Print how far updates differ without noise, then the seconds of each round as it ends, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--chunk", type=int, default=25, help="clients at once, on our side")
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    asked = parser.parse_args()
    data, size = load_dataset("mnist", data_root(None), "train"), (asked.steps, asked.batch, asked.chunk)
    print(f"torch {torch.__version__}, opacus {version('opacus')}, {torch.get_num_threads()} thread(s)", flush=True)
    few = Work(data, COMPARED, *size, dtype=torch.float64)
    quiet = few.ours(0.0)
    for mode in MODES:
        differ = (few.theirs(mode, 0.0) - quiet).norm() / quiet.norm()
        print(f"without noise, {mode}: updates differ by {differ:.1e} of their length", flush=True)
    work = Work(data, asked.clients, *size)
    sides: dict[str, Callable[[], Tensor]] = {"ours": lambda: work.ours(SIGMA)}
    sides |= {mode: lambda mode=mode: work.theirs(mode, SIGMA) for mode in MODES}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARM_UP + asked.rounds):
        if number == WARM_UP:
            del sides[max(MODES, key=lambda mode: min(taken[mode]))]
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            taken[name].append(time.perf_counter() - began)
        said = ", ".join(f"{name} {taken[name][-1]:.2f} s" for name in sides)
        print(f"round {number + 1}: {said}; load {os.getloadavg()[0]:.1f}", flush=True)
    (ours, mine), (theirs, peer) = ((name, statistics.median(taken[name][WARM_UP:])) for name in sides)
    print(f"median of {asked.rounds}: {ours} {mine:.2f} s, Opacus by {theirs} {peer:.2f} s, ratio {peer / mine:.2f}")


if __name__ == "__main__":
    main()
