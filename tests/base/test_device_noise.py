"""Noise that a GPU draws by itself: the same bits as on the CPU, whose operations stand in for its own here.

Equality on the CPU shows that the formulas are the same. That a GPU rounds each operation as IEEE 754 says is shown
where there is one (``pytest -m gpu``).
"""

import math

import pytest
import torch

from harness.base import randomness
from harness.base.randomness import (
    digest,
    laplace_rows,
    laplace_rows_on,
    normal_rows,
    normal_rows_on,
    uniform_rows,
    uniform_rows_on,
)

LAWS = {
    "normal": (normal_rows, normal_rows_on), "laplace": (laplace_rows, laplace_rows_on),
    "uniform": (uniform_rows, uniform_rows_on),
}  # fmt: skip
CPU = torch.device("cpu")


def test_blocks_are_those_of_the_standard() -> None:
    """RFC 8439, appendix A.1: test vectors 1, 2 and 3 of the block function; 3 with its key, the others with zeros."""
    zeros = bytes(32)
    for key, counter, words in (
        (zeros, 0, "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b"
                   " 7c5941da 8d485751 3fe02477 374ad8b8 f4b8436a 1ca11815 69b687c3 8665eeb2"),
        (zeros, 1, "bee7079f 7a385155 7c97ba98 0d082d73 a0290fcb 6965e348 3e53c612 ed7aee32"
                   " 7621b729 434ee69c b03371d5 d539d874 281fed31 45fb0a51 1f0ae1ac 6f4d794b"),
        (zeros[1:] + b"\x01", 1, "2452eb3a 9249f8ec 8d829d9b ddd4ceb1 e8252083 60818b01 f38422b8 5aaa49c9"
                                 " bb00ca8e da3ba7b4 c4b592d1 fdf2732f 4436274e 2561b3c8 ebdd4aa6 a0136c00"),
    ):  # fmt: skip
        state = randomness._state([key], CPU)
        made = randomness._chacha(state, torch.tensor([counter], dtype=torch.int32))[:, 0]
        assert [f"{word & 0xFFFFFFFF:08x}" for word in made.tolist()] == words.split()


@pytest.mark.parametrize("size", [0, 1, 7, 16, 7_850, 200_003])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("at_once", [1 << 12, 1 << 24])
def test_the_bits_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, law: str, size: int, at_once: int) -> None:
    """In whatever parts words are made, tails (about one in 131,072) included."""
    monkeypatch.setattr(randomness, "_MOST", at_once)
    keys = [("noise", 0, client, 3, "step") for client in range(3)]
    ours, theirs = LAWS[law]
    made = theirs([digest(*key) for key in keys], size, CPU)
    assert torch.equal(made, ours(keys, (size,), torch.empty(0)))
    if law == "normal" and size > 100_000:
        assert (made.abs() > 4.47).any(), "no number of a tail was drawn"


def test_numbers_of_tails_are_finite_where_there_are_more_than_usual() -> None:
    """Room for them is 40 and ten deviations more than are expected."""
    for total in (1, 1 << 17, 1 << 24, 1 << 34):
        mean = total * 2.0**-17
        room = mean + 10 * math.sqrt(mean) + 40
        # Chernoff's bound of a Poisson number.
        beyond = room - mean + room * math.log(mean / room)
        assert beyond / math.log(2) < -70


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("law", LAWS)
def test_a_gpu_rounds_alike(law: str) -> None:
    keys = [("noise", 0, client, 3, "step") for client in range(64)]
    ours, _ = LAWS[law]
    on_gpu = ours(keys, (200_003,), torch.empty(0, device="cuda")).cpu()
    assert torch.equal(on_gpu, ours(keys, (200_003,), torch.empty(0)))
