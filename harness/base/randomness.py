"""Random numbers keyed by what they are for, so that no result depends on batching, chunking or resuming.

Noise and sampling come from ChaCha20 (RFC 8439) under the 256 bits of SHA-256 of the key. They are mapped to numbers in
exactly rounded operations only, so every machine makes the same ones.
"""

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

# --------------------------------------------------------------------------------------
# From uniform words to normal and exponential numbers, in exactly rounded operations only: + - * / and square roots.
#
# IEEE 754 fixes every bit of these, unlike logarithms and cosines, whose last bits differ between machines and
# libraries. No result depends on how many numbers are drawn together. What takes "numbers" takes numpy's and torch's
# arrays alike, so that a GPU makes the same ones.


Fill = Callable[[np.ndarray], None]
Finer = Callable[[np.ndarray], np.ndarray]

# Numbers that are made at a time: many, so that calls cost little, and few enough for a processor's cache.
CHUNK = 1 << 15
_LOG2 = 0.6931471805599453
ROOT_HALF = 0.7071067811865476
# Words of fewer bits, of numbers beyond 4.47, are drawn more finely.
TAIL_BITS = 14
_SEGMENTS = 8  # bits of them in each octave of the tail probability
SHIFT = 23 - _SEGMENTS

# Wichura's algorithm AS 241 (Applied Statistics 37, 1988), routine PPND16: numerators and denominators of its three
# ranges, highest power first; relative error about 1e-16.
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
SIDE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def tail_logarithm(values: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive float64 numbers, to about 2e-16 of its size below 1/2."""
    fraction, exponent = np.frexp(values)
    low = fraction < ROOT_HALF
    return logarithm(np.where(low, 2 * fraction, fraction), exponent - low)


def logarithm(fraction: Any, exponent: Any) -> Any:
    """Logarithm of fractions from sqrt(1/2) to sqrt(2), times powers of 2: of arrays or of one number."""
    # log f = 2 artanh((f - 1) / (f + 1)); the series' terms fall by 34 each.
    ratio = (fraction - 1) / (fraction + 1)
    square, total = ratio * ratio, 0.0
    for power in range(25, 0, -2):
        total = total * square + 1 / power
    return exponent * _LOG2 + 2 * ratio * total


def tail_quantile(probability: np.ndarray) -> np.ndarray:
    """Return what a standard normal number exceeds with a probability, from 2^-200 to 1/2 and a little more:
    float64."""
    half, found = 0.5 - probability, np.empty_like(probability)
    root = np.sqrt(-tail_logarithm(np.minimum(probability, 0.25)))
    middle = half <= 0.425
    for where, polynomials, at in (
        (middle, _MIDDLE, 0.180625 - half * half),
        (~middle & (root <= 5), SIDE, root - 1.6),
        (root > 5, FAR, root - 5),
    ):
        if where.any():
            found[where] = ratio(polynomials, at[where])
    return np.multiply(found, half, out=found, where=middle)


def _far_quantile(probability: float) -> float:
    """One :func:`tail_quantile` below 2^-16, where so few are asked for that arrays would cost more."""
    fraction, exponent = math.frexp(probability)
    if fraction < ROOT_HALF:
        fraction, exponent = 2 * fraction, exponent - 1
    root = math.sqrt(-logarithm(fraction, exponent))
    return ratio(SIDE, root - 1.6) if root <= 5 else ratio(FAR, root - 5)


def ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], at: Any) -> Any:
    top = bottom = 0.0
    for over, below in zip(*polynomials, strict=True):
        top, bottom = top * at + over, bottom * at + below
    return top / bottom


@lru_cache(maxsize=1)
def table() -> np.ndarray:
    """Coefficients (square, linear, constant) of the quantile in a word, by the top bits of the word as float32.

    Each octave of the tail probability is cut into equal segments; a parabola meets the quantile at both ends and in
    the middle of its segment. What is left to :func:`_tail` is NaN.
    """
    found = np.full((3, 1 << (9 + _SEGMENTS)), np.nan, dtype=np.float32)
    for octave in range(TAIL_BITS, 32):
        width = 2.0 ** (octave - _SEGMENTS)
        # Beyond 2^31, the middle, lies no word.
        low = 2.0**octave + width * np.arange(1 if octave == 31 else 1 << _SEGMENTS)
        for sign, half in ((1.0, 0.5), (-1.0, -0.5)):
            first, centre, last = (sign * tail_quantile((low + part * width + half) * 2.0**-32) for part in (0, 0.5, 1))
            bend = 2 * (first - 2 * centre + last) / (width * width)
            slope = (last - first) / width - bend * (2 * low + width)
            place = (sign * low).astype(np.float32).view(np.uint32) >> SHIFT
            found[:, place] = bend, sign * slope, first - low * (slope + bend * low)
    return found


def normals(drawn: np.ndarray, words: Fill, finer: Finer) -> None:
    """Fills a float32 array (N,) with normal numbers: the normal quantile of one word of 32 bits each.

    It is exact to 3e-7 of the number or of 1, whichever is larger. A word's sign is that of its number, its size the
    probability of a larger one. A word of less than 2^14, one in 2^17 and of a number beyond 4.47, takes 64 bits more,
    so that tails are as fine as they are rare.

    Words of 32 bits are coarser than float32 in two places: near 0, where numbers lie 6e-10 apart, and from 3.5 to
    4.47, up to 1.3e-5 apart, where one number in 2,200 lies. No distribution function is off by more than 2^-32, but
    whoever sees the noise alone, with all its digits, can tell it from real numbers.

    Args:
        words: fills an array with the next words.
        finer: words of 64 bits for the numbers at some places, which ascend.
    """
    chunk, places, rare = _SCRATCH.part(min(len(drawn), CHUNK)), [], []
    for start in range(0, len(drawn), CHUNK):
        out = drawn[start : start + CHUNK]
        if len(out) != len(chunk.value):
            chunk = _SCRATCH.part(len(out))
        word = out.view("<i4")
        words(word)
        chunk.map(word, out)
        near = (out != out).nonzero()[0]
        if near.size:
            places.append(near + start)
            rare.append(chunk.value[near])
    if places:
        at = np.concatenate(places)
        drawn[at] = _tail(np.concatenate(rare), finer(at))


class _Chunk:
    """Memory between the words of a chunk and its numbers, and views of it, which are not free either."""

    def __init__(self, value: np.ndarray, place: np.ndarray, coefficients: np.ndarray) -> None:
        self.value, self._place, self._coefficients, self._table = value, place, coefficients, table()
        self._total, self._linear, self._constant = coefficients
        self._bits, self._narrow = value.view(np.uint32), self._total.view(np.uint32)

    def map(self, word: np.ndarray, out: np.ndarray) -> None:
        """Puts numbers into ``out``, which may be where their words are; NaN in the tails. ``value``: the words."""
        value, total = self.value, self._total
        value[...] = word
        # In two steps: numpy widens faster by itself than as part of a shift.
        self._place[...] = np.right_shift(self._bits, SHIFT, out=self._narrow)
        # Places are within the table; any mode but "raise" writes without a copy.
        self._table.take(self._place, axis=1, out=self._coefficients, mode="clip")
        np.multiply(total, value, out=total)
        np.add(total, self._linear, out=total)
        np.multiply(total, value, out=total)
        np.add(total, self._constant, out=out)


class _Scratch(threading.local):
    """Memory of a thread, once for all draws: fresh memory costs about as much as the map."""

    def __init__(self) -> None:
        self._value, self._coefficients = np.empty(CHUNK, dtype=np.float32), np.empty(3 * CHUNK, dtype=np.float32)
        self._place = np.empty(CHUNK, dtype=np.intp)

    def part(self, size: int) -> _Chunk:
        """Enough for so many numbers."""
        coefficients = self._coefficients[: 3 * size].reshape(3, size)
        return _Chunk(self._value[:size], self._place[:size], coefficients)


_SCRATCH = _Scratch()


def _tail(words: np.ndarray, finer: np.ndarray) -> np.ndarray:
    """Tail numbers of words below 2^14, which float32 holds exactly, and 64 bits more."""
    numbers = []
    for word, part in zip(words.tolist(), finer.tolist(), strict=True):
        whole = -1 - word if word < 0 else word
        # Where the whole is 0, the part keeps all its digits.
        exceeded = _far_quantile((whole + (part + 0.5) * 2.0**-64) * 2.0**-32)
        numbers.append(-exceeded if word < 0 else exceeded)
    return np.array(numbers)


# --------------------------------------------------------------------------------------
# The same noise drawn where it is needed, on a GPU: the same bits, nothing waited for.
#
# Words come from ChaCha20 in integer operations, and become numbers in the operations above, one at a time, each
# rounded exactly. What the host sends is 32 bytes per row, the row's key.


_CONSTANTS = tuple(int.from_bytes(b"expand 32-byte k"[at : at + 4], "little") for at in range(0, 16, 4))
_BLOCK_WORDS = 16  # words of 32 bits
#: Words that are made at a time: about ten times their memory is used on the way.
_MOST = 1 << 24


def normal_rows_on(keys: list[bytes], count: int, device: torch.device) -> Tensor:
    """Standard normal numbers (R, ``count``), float32, of R keys of 256 bits.

    A number of a tail takes more bits, and how many there are is only known on the device. So a few more are made
    than there will be: with probability 2^-70 that is too few, and a number is NaN.
    """
    rows, total = len(keys), len(keys) * count
    if not total:
        return torch.empty(rows, count, device=device)
    state = _state(keys, device)
    coefficients = _table_on(device)
    padded = torch.empty(total + 1, dtype=torch.float32, device=device)
    drawn, value = padded[:total].view(rows, count), torch.empty(rows, count, dtype=torch.float32, device=device)
    for part in _parts(rows, count):
        value[:, part] = _words(state, part).float()
        near = value[:, part]
        place = (near.contiguous().view(torch.int32) >> SHIFT) & ((1 << 32 - SHIFT) - 1)
        bend, slope, constant = coefficients[:, place.long()]
        drawn[:, part] = (bend * near + slope) * near + constant
    expected = total * 2.0 ** (TAIL_BITS - 31)
    _fill_tails(padded, value, state, count, math.ceil(expected + 10 * math.sqrt(expected) + 40))
    return drawn


def laplace_rows_on(keys: list[bytes], count: int, device: torch.device) -> Tensor:
    """Laplace numbers of scale 1 (R, ``count``), float32, of R keys."""

    def mapped(low: Tensor, high: Tensor) -> Tensor:
        sizes = -_tail_logarithm((_top_bits(low, high) + 0.5) * 2.0**-53)
        return torch.where((low & 1).bool(), sizes, -sizes).float()

    return _mapped(keys, count, device, mapped)


def uniform_rows_on(keys: list[bytes], count: int, device: torch.device) -> Tensor:
    """Multiples of 2^-53 in [0, 1) (R, ``count``), float64, of R keys."""
    return _mapped(keys, count, device, lambda low, high: _top_bits(low, high) * 2.0**-53)


def _state(keys: list[bytes], device: torch.device) -> Tensor:
    """Keys (8, R) as words."""
    return torch.from_numpy(np.frombuffer(b"".join(keys), "<i4").reshape(-1, 8).T.copy()).to(device)


@lru_cache(maxsize=8)
def _table_on(device: torch.device) -> Tensor:
    return torch.from_numpy(table()).to(device)


def _parts(rows: int, count: int) -> list[slice]:
    """Places of a row that are made together, whole blocks each."""
    step = max(_MOST // max(rows, 1) // _BLOCK_WORDS, 1) * _BLOCK_WORDS
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _words(keys: Tensor, part: slice) -> Tensor:
    """Words (R, N) of keys (8, R), from a whole block on: int32."""
    first, last = part.start // _BLOCK_WORDS, -(-part.stop // _BLOCK_WORDS)
    counters = torch.arange(first, last, dtype=torch.int32, device=keys.device)
    rows, blocks = keys.shape[1], last - first
    made = _chacha(keys[:, :, None].expand(-1, -1, blocks), counters.expand(rows, -1))
    return made.permute(1, 2, 0).reshape(rows, -1)[:, : part.stop - part.start]


def _mapped(keys: list[bytes], count: int, device: torch.device, mapped: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return what a map makes (R, ``count``) of the lower and upper halves of words of 64 bits, int64 and not
    negative."""
    state, made = _state(keys, device), []
    for part in _parts(len(keys), 2 * count):
        halves = (_words(state, part).long() & 0xFFFFFFFF).unflatten(1, (-1, 2))
        made.append(mapped(halves[..., 0], halves[..., 1]))
    return torch.cat(made, 1) if made else mapped(*state.new_empty(2, len(keys), 0).long())


def _top_bits(low: Tensor, high: Tensor) -> Tensor:
    """The upper 53 bits of words of 64: float64."""
    return ((high << 21) | (low >> 11)).double()


def _chacha(keys: Tensor, counters: Tensor, number: int = 0) -> Tensor:
    """Blocks (16, ...) of ChaCha20 (RFC 8439, section 2.3) for keys (8, ...), block numbers (...) and a stream's."""
    like = counters.expand(keys.shape[1:])
    constants = torch.stack([torch.full_like(like, word) for word in _CONSTANTS])
    zero = torch.zeros_like(like)
    start = (constants, keys[:4], keys[4:], torch.stack([like, zero, torch.full_like(like, number), zero]))
    a, b, c, d = start
    for _ in range(10):
        a, b, c, d = _quarters(a, b, c, d)
        a, b, c, d = _quarters(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([one + other for one, other in zip((a, b, c, d), start, strict=True)])


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds side by side. Sums of int32 wrap around, as the cipher wants."""
    for by_d, by_b in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, by_d)
        c = c + d
        b = _rotated(b ^ c, by_b)
    return a, b, c, d


def _rotated(words: Tensor, bits: int) -> Tensor:
    return (words << bits) | ((words >> 32 - bits) & ((1 << bits) - 1))


def _fill_tails(padded: Tensor, value: Tensor, keys: Tensor, count: int, most: int) -> None:
    """Puts up to ``most`` numbers where ``padded``, a flat row longer than all numbers, has NaN.

    Args:
        value: the words (R, ``count``) of the numbers.
        keys: (8, R); the k-th such number of a row takes the k-th word of 64 bits of the row's stream 1.
    """
    found = padded[:-1].isnan().cumsum(0, dtype=torch.int32)
    nth = torch.arange(1, most + 1, dtype=torch.int32, device=padded.device)
    at = torch.searchsorted(found, nth)  # beyond the last number where there are fewer
    held = at.clamp(max=len(padded) - 2)
    row = held // count
    before = torch.where(row > 0, found[(row * count - 1).clamp(min=0)], 0)
    k = (nth - 1 - before).long()
    block = _chacha(keys[:, row], (k // 8).int(), number=1).long() & 0xFFFFFFFF
    low, high = (block.gather(0, (2 * (k % 8) + half)[None])[0] for half in (0, 1))
    word = value.flatten()[held].double()
    whole = torch.where(word < 0, -1 - word, word)
    # Of both halves one exact number, which is rounded once, as Python rounds a whole number.
    part = high.double() * 2.0**32 + low.double()
    exceeded = _far_quantiles((whole + (part + 0.5) * 2.0**-64) * 2.0**-32)
    padded[at] = torch.where(word < 0, -exceeded, exceeded).float()


def _far_quantiles(probability: Tensor) -> Tensor:
    root = (-_tail_logarithm(probability)).sqrt()
    return torch.where(root <= 5, ratio(SIDE, root - 1.6), ratio(FAR, root - 5))


def _tail_logarithm(values: Tensor) -> Tensor:
    fraction, exponent = torch.frexp(values)
    low = fraction < ROOT_HALF
    return logarithm(torch.where(low, 2 * fraction, fraction), (exponent - low.int()).double())


# --------------------------------------------------------------------------------------
# Streams of random numbers by their keys.


Key = tuple[int | str, ...]
_BLOCK = 1 << 16
_ZEROS = memoryview(bytes(_BLOCK))
_ALL = 1 << 62  # more bytes than anybody draws


def digest(*key: int | str) -> bytes:
    """The 256 bits that stand for ``key`` (for example seed, purpose, victim, round, step)."""
    return hashlib.sha256("\x1f".join([f"{type(part).__name__}:{part}" for part in key]).encode()).digest()


def derive_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of ``key``: for what is public, as orders and weights, never for noise."""
    return int.from_bytes(digest(*key)[:8], "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator for public orders; torch keeps 32 bits of its seed, so noise must not come from it."""
    return torch.Generator().manual_seed(derive_seed(*key))


class Stream:
    """Random numbers of one key, drawn one after the other on the CPU, so that every device sees the same."""

    def __init__(self, *key: int | str) -> None:
        self._keys = [digest(*key)]
        self._words = _in_turn(self._keys)

    @cached_property
    def _tails(self) -> Fill:
        return _in_turn(self._keys, number=1)

    def words(self, count: int) -> np.ndarray:
        """Uniform integers of 64 bits."""
        return _drawn(self._words, count)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Multiples of 2^-53 in [0, 1), as float64."""
        return torch.from_numpy(_uniform(self.words(math.prod(shape)))).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers, as float32."""
        drawn = np.empty(math.prod(shape), dtype=np.float32)
        normals(drawn, self._words, lambda places: _drawn(self._tails, len(places)))
        return torch.from_numpy(drawn).reshape(tuple(shape))

    def laplace(self, shape: Sequence[int]) -> Tensor:
        """Laplace numbers of scale 1 (standard deviation sqrt 2), as float32."""
        return torch.from_numpy(_laplace(self.words(math.prod(shape)))).reshape(tuple(shape))

    def permutation(self, count: int) -> Tensor:
        """The numbers below ``count`` in random order; orders differ in probability by less than count^2 / 2^64."""
        return torch.from_numpy(np.argsort(self.words(count), kind="stable"))

    def choices(self, count: int, below: int) -> Tensor:
        """``count`` numbers from 0 to ``below`` - 1, each as probable as the others but for ``below`` / 2^53."""
        return (self.uniform((count,)) * below).long().clamp(max=below - 1)


def poisson_sample(shape: tuple[int, ...], rate: float, random: Stream) -> Tensor:
    """Booleans of a shape: who takes part, each with probability ``rate`` in [0, 1], or less by at most 2^-53.

    Uniform numbers are multiples of 2^-53; below the rate itself would lie one more of them than the accounted rate
    allows.
    """
    return random.uniform(shape) < math.floor(rate * 2**53) / 2**53


def normal_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal noise (R, *shape) with one independent stream per row, on the device and dtype of ``like``."""
    count, digests = math.prod(shape), [digest(*key) for key in keys]
    if like.is_cuda:
        return normal_rows_on(digests, count, like.device).reshape(len(keys), *shape).to(like.dtype)
    drawn = np.empty(len(keys) * count, dtype=np.float32)

    def finer(places: np.ndarray) -> np.ndarray:
        rows = Counter((places // count).tolist())
        return np.concatenate([_drawn(_in_turn([digests[row]], number=1), many) for row, many in rows.items()])

    normals(drawn, _in_turn(digests, 4 * count), finer)
    return torch.from_numpy(drawn).reshape(len(keys), *shape).to(device=like.device, dtype=like.dtype)


def laplace_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Laplace noise of scale 1 (standard deviation sqrt 2) in the form of :func:`normal_rows`."""
    if like.is_cuda:
        drawn = laplace_rows_on([digest(*key) for key in keys], math.prod(shape), like.device)
        return drawn.reshape(len(keys), *shape).to(like.dtype)
    return _mapped_rows(keys, shape, _laplace, np.float32).to(device=like.device, dtype=like.dtype)


def uniform_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2^-53 whatever the dtype of ``like``, otherwise as normal_rows."""
    if like.is_cuda:
        drawn = uniform_rows_on([digest(*key) for key in keys], math.prod(shape), like.device)
        return drawn.reshape(len(keys), *shape)
    return _mapped_rows(keys, shape, _uniform, np.float64).to(device=like.device)


def _mapped_rows(
    keys: list[Key], shape: tuple[int, ...], mapped: Callable[[np.ndarray], np.ndarray], dtype: type[np.floating]
) -> Tensor:
    """Rows (R, *shape) of what a map makes of each word of 64 bits."""
    count = math.prod(shape)
    drawn, fill = np.empty(len(keys) * count, dtype), _in_turn([digest(*key) for key in keys], 8 * count)
    words = np.empty(min(len(drawn), CHUNK), dtype="<u8")
    for start in range(0, len(drawn), CHUNK):
        out = drawn[start : start + CHUNK]
        fill(words[: len(out)])
        out[:] = mapped(words[: len(out)])
    return torch.from_numpy(drawn).reshape(len(keys), *shape)


def _in_turn(keys: Iterable[bytes], length: int = _ALL, number: int = 0) -> Fill:
    """Fills arrays with the first ``length`` bytes of each key's stream of this number, one key after another."""
    nonce = bytes(8) + number.to_bytes(8, "little")
    streams = (Cipher(algorithms.ChaCha20(key, nonce), None).encryptor() for key in keys)
    stream: Any = None
    left = 0

    def fill(words: np.ndarray) -> None:
        nonlocal stream, left
        view = words.view(np.uint8).data
        at, end = 0, len(view)
        while at < end:
            if not left:
                stream, left = next(streams), length
            part = min(left, end - at, _BLOCK)
            stream.update_into(_ZEROS[:part], view[at : at + part])
            at, left = at + part, left - part

    return fill


def _drawn(words: Fill, count: int) -> np.ndarray:
    drawn = np.empty(count, dtype="<u8")
    words(drawn)
    return drawn


def _uniform(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _laplace(words: np.ndarray) -> np.ndarray:
    sizes = -tail_logarithm(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return np.where((words & np.uint64(1)).astype(bool), sizes, -sizes).astype(np.float32)
