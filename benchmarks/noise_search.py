"""Search for the key of the noise of ``fed_cdp`` (sigma = 6, 64 clients) by trying what has few values.

``python benchmarks/noise_search.py [--states N] [--seeds N] [--streams N]`` prints three results:

1. Seeds 0 to N-1 (2^32 by default, all) of torch's CPU generator, by a C program: noise under a secret key, and as a
   control noise that torch draws from the low 32 bits of our seeds, as version 0.1.7 drew it.
2. Public seeds 0 to N-1 (2^20 by default) through our own derivation: noise under a secret key, and as a control that
   of the last of these seeds.
3. Streams (10^6 by default) of distinct client, round, step and purpose: equal keys and equal first 128 bits.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.randomness import Stream, derive_seed, digest, normal_rows
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.models.example_gradients import MaterialisedGradients
from harness.training import TrainFolder

CLIENTS, SIGMA, CLIP, PURPOSE = 64, 6.0, 4.0, "client_step"
NUMBERS = 16  # of each row that are compared
LEVELS = 1 << 24  # of torch's uniform numbers
TOLERANCE = 8  # of these levels: what rounding of float32 noise leaves open

# The first output of the Mersenne Twister depends on words 0, 1 and 397 of its state, and these on the seed alone.
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint32_t Words __attribute__((vector_size(32)));
enum { PARTS = 8, LANES = 8 };
static uint8_t wanted[1 << 21];

int main(int count, char **given) {
    if (count != 3 || fread(wanted, 1, sizeof wanted, stdin) != sizeof wanted) return 1;
    uint64_t end = strtoull(given[2], 0, 10);
    for (uint64_t first = strtoull(given[1], 0, 10); first < end; first += PARTS * LANES) {
        Words word[PARTS], second[PARTS];
        for (int part = 0; part < PARTS; part++)
            for (int lane = 0; lane < LANES; lane++) word[part][lane] = first + part * LANES + lane;
        for (uint32_t place = 1; place <= 397; place++) {
            for (int part = 0; part < PARTS; part++)
                word[part] = (word[part] ^ (word[part] >> 30)) * 1812433253u + place;
            if (place == 1)
                for (int part = 0; part < PARTS; part++) second[part] = word[part];
        }
        for (int which = 0; which < PARTS * LANES; which++) {
            uint32_t seed = first + which, next = second[which / LANES][which % LANES];
            uint32_t mixed = (seed & 0x80000000u) | (next & 0x7fffffffu);
            uint32_t out = word[which / LANES][which % LANES] ^ (mixed >> 1) ^ (next & 1 ? 0x9908b0dfu : 0);
            out ^= out >> 11;
            out ^= (out << 7) & 0x9d2c5680u;
            out ^= (out << 15) & 0xefc60000u;
            out = (out ^ (out >> 18)) & 0xffffff;
            if (first + which < end && wanted[out >> 3] >> (out & 7) & 1) printf("%u\n", seed);
        }
    }
}
"""


def noise(key: int | str) -> Tensor:
    """Standard normal noise (64, 16) that fed_cdp adds to the clients' gradients in step 0 of round 0."""
    layout = Layout(("weight",), ((NUMBERS,),))
    cohort = Cohort(CLIENTS, CLIENTS, 1, 1, 1)
    context = RoundContext(0, 0, 0.1, cohort, layout, tuple((key, client) for client in range(CLIENTS)))
    defense = build(DEFENSES, "fed_cdp", {"sigma": SIGMA, "clip": CLIP})
    nothing = MaterialisedGradients(torch.zeros(CLIENTS, 1, NUMBERS), layout.sizes)
    return defense.client_step(nothing, context).step / (SIGMA * CLIP)


def keys_of(seed: int) -> list[tuple[int | str, ...]]:
    """Keys of the clients' noise under a public seed."""
    return [("noise", seed, client, 0, 0, PURPOSE) for client in range(CLIENTS)]


def noise_of_32_bits(below: int) -> Tensor:
    """Noise (64, 16) of torch's generator from the low bits of our seeds; ``below``: 2^32 or a smaller power of 2."""
    seeds = [derive_seed(*key) % below for key in keys_of(0)]
    return torch.stack([_torch_noise(seed) for seed in seeds])


def found_by_state(sets: Sequence[Tensor], states: int) -> list[int]:
    """How many rows of each set of noise torch's CPU generator draws from one of the first ``states`` seeds.

    Torch makes numbers j and j+8 from uniform numbers u and v as r cos(t) and r sin(t), with r^2 = -2 log(1 - u) and
    t = 2 pi v. A row therefore gives u, and only seeds with that first output are tried.
    """
    rows = torch.cat(list(sets))
    radius = rows[:, 0].double().square() + rows[:, 8].double().square()
    levels = ((1 - (-radius / 2).exp()) * LEVELS).round().long()
    near = (levels[:, None] + torch.arange(-TOLERANCE, TOLERANCE + 1)).clamp(0, LEVELS - 1)
    wanted, found = np.zeros(LEVELS, dtype=np.uint8), torch.zeros(len(rows), dtype=torch.bool)
    wanted[near.flatten().numpy()] = 1
    for seed in _seeds_with(np.packbits(wanted, bitorder="little").tobytes(), states):
        found |= _equal(rows, _torch_noise(seed))
    return found.reshape(len(sets), CLIENTS).sum(1).tolist()


def _torch_noise(seed: int) -> Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed))


def _seeds_with(wanted: bytes, states: int) -> list[int]:
    """Seeds below ``states`` whose first output is wanted."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("this search needs a C compiler named cc; install one")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "search"
        made = [compiler, "-O3", "-march=native", "-x", "c", "-", "-o", str(program)]
        subprocess.run(made, input=PROGRAM.encode(), check=True)
        said = subprocess.run([str(program), "0", str(states)], input=wanted, check=True, capture_output=True)
    return [int(line) for line in said.stdout.split()]


def _equal(rows: Tensor, drawn: Tensor) -> Tensor:
    return (rows - drawn).abs().amax(-1) < 1e-3


def found_by_seed(sets: Sequence[Tensor], seeds: int) -> list[int]:
    """How many rows of each set of noise are those of their client under one of the first ``seeds`` public seeds.

    The rows of a run have one seed: it is tried on the first client, and on all where that client's row is found.
    """
    found, like = torch.zeros(len(sets), CLIENTS, dtype=torch.bool), torch.empty(0)
    for first in range(0, seeds, 1024):
        some = range(first, min(first + 1024, seeds))
        drawn = normal_rows([keys_of(seed)[0] for seed in some], (NUMBERS,), like)
        for number, rows in enumerate(sets):
            for place in _equal(rows[0], drawn).nonzero()[:, 0].tolist():
                found[number] |= _equal(rows, normal_rows(keys_of(some[place]), (NUMBERS,), like))
    return found.sum(1).tolist()


def streams() -> Iterator[tuple[int | str, ...]]:
    """Keys of noise of 100 clients, 100 rounds, 100 steps and two purposes."""
    for client, now, step, purpose in product(range(100), range(100), range(100), (PURPOSE, "client_message")):
        yield "noise", 0, client, now, step, purpose


def equal_streams(count: int) -> tuple[int, int]:
    """Of so many streams: how many keys, and how many first 128 bits, were there before."""
    keys, beginnings = set[bytes](), set[bytes]()
    for key in islice(streams(), count):
        keys.add(digest(*key))
        beginnings.add(Stream(*key).words(2).tobytes())
    return count - len(keys), count - len(beginnings)


def main() -> None:
    """Prints the three results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1 << 32)
    parser.add_argument("--seeds", type=int, default=1 << 20)
    parser.add_argument("--streams", type=int, default=1_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        secret = noise(TrainFolder(Path(folder)).new_key())
    old, public = noise_of_32_bits(1 << 32), noise(asked.seeds - 1)
    tried = (
        (f"first {asked.states} seeds of torch's generator", found_by_state([secret, old], asked.states), "of 32 bits"),
        (f"first {asked.seeds} public seeds", found_by_seed([secret, public], asked.seeds), "of the last of them"),
    )
    for what, (hidden, known), control in tried:
        print(f"{what}: found {hidden} of {CLIENTS} rows of noise under a secret key")
        print(f"{what}: found {known} of {CLIENTS} rows of noise {control} (control)")
    keys, beginnings = equal_streams(asked.streams)
    print(f"{asked.streams} streams: {keys} equal keys, {beginnings} equal beginnings of 128 bits")


if __name__ == "__main__":
    main()
