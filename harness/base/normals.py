"""From uniform words to normal and exponential numbers, in exactly rounded operations only: + - * / and square roots.

IEEE 754 fixes every bit of these, unlike logarithms and cosines, whose last bits differ between machines and libraries.
No result depends on how many numbers are drawn together. What takes "numbers" takes numpy's and torch's arrays alike,
so that a GPU makes the same ones.
"""

import math
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

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
    """What a standard normal number exceeds with a probability, from 2^-200 to 1/2 and a little more: float64."""
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
