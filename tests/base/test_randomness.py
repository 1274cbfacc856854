"""Noise of 256 bits: its law, its map in exactly rounded operations, and streams that nobody finds again."""

import hashlib
import math
import runpy
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats
from scipy.special import ndtri

from harness.base.randomness import (
    Stream,
    digest,
    laplace_rows,
    normal_rows,
    normals,
    poisson_sample,
    tail_logarithm,
    tail_quantile,
    uniform_rows,
)
from harness.secagg import numbers
from harness.training import TrainFolder

MANY = 1_000_000


def given(words: np.ndarray):
    """Fills with these words, one after another."""
    at = 0

    def fill(array: np.ndarray) -> None:
        nonlocal at
        array[:] = words[at : at + len(array)]
        at += len(array)

    return fill


def mapped(words: np.ndarray, finer: np.ndarray) -> np.ndarray:
    """The normal numbers of these words, and of these finer ones in the tails."""
    drawn = np.empty(len(words), dtype=np.float32)
    normals(drawn, given(words), lambda places: finer[: len(places)])
    return drawn


def test_the_map_is_the_normal_quantile() -> None:
    edges = [sign * 2**bit + off for bit in range(31) for sign in (1, -1) for off in (-1, 0, 1)]
    words = np.array([*edges, 2**31 - 1, -(2**31), *np.random.default_rng(0).integers(-(2**31), 2**31, MANY)], "<i4")
    found = mapped(words, np.full(len(words), 2**63, dtype=np.uint64))
    size = np.where(words < 0, ~words, words) + 0.5
    exact = np.where(words < 0, 1, -1) * ndtri(size / 2**32)
    assert (np.abs(found - exact) / np.maximum(np.abs(exact), 1)).max() < 4e-7
    probabilities = 2.0 ** -np.linspace(1, 100, 100_001)
    assert np.abs(tail_quantile(probabilities) / -ndtri(probabilities)[...].clip(max=-1e-9) - 1)[1:].max() < 1e-13
    assert np.abs(tail_logarithm(probabilities) / np.log(probabilities) - 1).max() < 1e-15


def test_tails_are_as_fine_as_they_are_rare() -> None:
    """Beyond 6 standard deviations, where 32 bits have four words, 64 bits more decide: no value comes back."""
    words = np.array([0, -1] * 25_000, "<i4")
    finer = np.random.default_rng(1).integers(0, 2**64, len(words), dtype=np.uint64)
    found = np.abs(mapped(words, finer).astype(np.float64))
    # Given a probability below 2^-32, the share beyond x is that of the normal law.
    assert stats.kstest(stats.norm.sf(found) * 2**32, "uniform").pvalue > 1e-3
    assert found.min() > 6.2 and found.max() > 7.5 and len(np.unique(found)) > len(words) / 4


LAWS = {
    "normal": (lambda stream, count: stream.normal((count,)), stats.norm.cdf),
    "laplace": (lambda stream, count: stream.laplace((count,)), stats.laplace.cdf),
    "uniform": (lambda stream, count: stream.uniform((count,)), stats.uniform.cdf),
}


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: str) -> None:
    draw, cdf = LAWS[law]
    drawn = draw(Stream("law", law), MANY).double().numpy()
    # The law of the distance for many draws; the exact one is slow, and at a million no other.
    assert stats.kstest(drawn, cdf, method="asymp").pvalue > 1e-3
    places = cdf(drawn)
    assert stats.chisquare(np.bincount((places * 4096).astype(int), minlength=4096)).pvalue > 1e-3
    assert abs(np.corrcoef(places[1:], places[:-1])[0, 1]) < 5 / MANY**0.5
    # The same test tells noise apart whose deviation is wrong by two percent.
    wrong = 1.02 * drawn if law != "uniform" else drawn**1.02
    assert stats.kstest(wrong, cdf, method="asymp").pvalue < 1e-3


ROWS = {"normal": normal_rows, "laplace": laplace_rows, "uniform": uniform_rows}


@pytest.mark.parametrize("size", [1, 7, 7_850, 40_000])
@pytest.mark.parametrize("law", ROWS)
def test_no_number_depends_on_what_is_drawn_with_it(law: str, size: int) -> None:
    """Rows are drawn many at a time, in parts that end within rows, and each is what its own stream gives."""
    keys, like = [("noise", 0, client, 3, 1) for client in range(40)], torch.empty(0)
    together = ROWS[law](keys, (size,), like)
    assert torch.equal(together, torch.stack([getattr(Stream(*key), law)((size,)) for key in keys]))
    stream, parts = Stream(*keys[0]), sorted({1, size // 3, size})
    apart = [getattr(stream, law)((end - begin,)) for begin, end in zip([0, *parts], parts, strict=False)]
    assert torch.equal(together[0], torch.cat(apart)) and not torch.equal(together[0], together[1])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3)])
@pytest.mark.parametrize("law", LAWS)
def test_shapes(law: str, shape: tuple[int, ...]) -> None:
    assert getattr(Stream("shape"), law)(shape).shape == shape


def test_the_words_are_those_of_chacha20() -> None:
    """Any other implementation of RFC 8439 under the same 256 bits makes them too."""
    key = hashlib.sha256(b"str:noise\x1fint:7").digest()
    assert key == digest("noise", 7)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(80_000))
    assert Stream("noise", 7).words(10_000).tobytes() == stream


def hashed(drawn: torch.Tensor) -> str:
    return hashlib.sha256(drawn.numpy().tobytes()).hexdigest()[:16]


def test_fixed_numbers() -> None:
    """They never move with a machine or a library."""
    made = [Stream("fixed").normal((100_000,)), Stream("fixed").laplace((1000,))]
    assert [hashed(one) for one in made] == ["9344879fae19bcc8", "83802083d2dffde5"]
    keys = [("noise", 0, client, 0, 0, "step") for client in range(64)]
    rows = {law: [hashed(draw(keys, (size,), torch.empty(0))) for size in (1000, 7850)] for law, draw in ROWS.items()}
    assert rows == {
        "normal": ["0b206b5ca50c2b5c", "ed4ee022f0f32741"],
        "laplace": ["17be8265ff471e0b", "c3a4da97393ab713"],
        "uniform": ["354dafa1b44d417f", "b772cf3f0746fb76"],
    }


@pytest.fixture(scope="module")
def search() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "noise_search.py"))


def test_a_search_finds_noise_of_few_keys_only(search: dict[str, Any], tmp_path: Path) -> None:
    """In all 64 rows of ``fed_cdp`` where the key is one of few, in none under a secret key or one not tried."""
    secret, public = search["noise"](TrainFolder(tmp_path).new_key()), search["noise"](99)
    assert [search["found_by_seed"]([public, secret], seeds) for seeds in (100, 99)] == [[64, 0], [0, 0]]
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    assert search["found_by_state"]([search["noise_of_32_bits"](1 << 16), secret, public], 1 << 16) == [64, 0, 0]


def test_streams_of_numpy_have_128_bits() -> None:
    key = ("noise", 0, 3, 0, 0, "step")
    state = numbers(*key).bit_generator.state["state"]["key"]
    assert int(state[0]) + (int(state[1]) << 64) == int.from_bytes(digest(*key)[:16], "big") and all(state >> 32)


@pytest.mark.slow
def test_a_million_streams_are_distinct(search: dict[str, Any]) -> None:
    """With 32 bits about 116 pairs of 10^6 are equal; with 64 bits of each, none."""
    first = {digest("noise", 0, client, now, 0)[:8] for client in range(1000) for now in range(1000)}
    assert len(first) == MANY
    assert search["equal_streams"](20_000) == (0, 0)


@pytest.mark.parametrize("rate", [0.0, 1e-12, 0.3, 1.0])
def test_poisson_samples_never_exceed_their_rate(rate: float) -> None:
    taken = int(poisson_sample((MANY,), rate, Stream("rate")).sum())
    assert abs(taken - MANY * rate) <= 5 * math.sqrt(MANY * rate * (1 - rate))


def test_uniform_numbers_have_53_bits() -> None:
    drawn = uniform_rows([("choice", 0)], (10_000,), torch.empty(0, dtype=torch.float32))[0]
    assert drawn.dtype == torch.float64 and drawn.min() >= 0 and drawn.max() < 1
    assert (drawn * 2**53 % 2).sum() > 4000 and torch.equal(drawn * 2**53, (drawn * 2**53).round())


def test_orders_and_choices_are_uniform() -> None:
    stream = Stream("orders")
    orders = torch.stack([stream.permutation(5) for _ in range(6000)])
    assert torch.equal(orders.sort(1).values, torch.arange(5).expand(6000, 5))
    for place in range(5):
        assert stats.chisquare(torch.bincount(orders[:, place], minlength=5)).pvalue > 1e-4
    assert stats.chisquare(torch.bincount(stream.choices(MANY, 7), minlength=7)).pvalue > 1e-4


def test_drawing_is_about_as_fast_as_torch() -> None:
    """The aim is 1.5 times torch's time on an idle machine; three times tells a slow path on a busy one."""

    def least(draw: object) -> float:
        return min(_seconds(draw) for _ in range(30))

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    theirs = least(lambda: torch.randn(MANY, generator=random))
    assert least(lambda: Stream("fast").normal((MANY,))) < 3 * theirs


def _seconds(draw: object) -> float:
    began = time.perf_counter()
    draw()  # type: ignore[operator]
    return time.perf_counter() - began
