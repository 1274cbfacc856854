"""From uniform words to normal and exponential numbers, in exactly rounded operations only: + - * / and square roots.

IEEE 754 fixes every bit of these, unlike logarithms and cosines, whose last bits differ between machines and
libraries. No result depends on how many numbers are drawn together.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

Fill = Callable[[np.ndarray], None]

_CHUNK = 1 << 15
_LOG2 = 0.6931471805599453
# Words of fewer bits, of numbers beyond 4.6, are drawn more finely.
_TAIL_BITS = 14
_SEGMENTS = 8  # bits of them in each octave of the tail probability
_SHIFT = 23 - _SEGMENTS

# Wichura's algorithm AS 241 (Applied Statistics 37, 1988), routine PPND16: numerators and denominators of its three
# ranges, highest power first; relative error about 1e-16.
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_SIDE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def tail_logarithm(values: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive float64 numbers, to about 2e-16 of its size below 1/2."""
    fraction, exponent = np.frexp(values)
    low = fraction < 0.7071067811865476
    fraction, exponent = np.where(low, 2 * fraction, fraction), exponent - low
    # log f = 2 artanh((f - 1) / (f + 1)); the series' terms fall by 34 each.
    ratio = (fraction - 1) / (fraction + 1)
    square, total = ratio * ratio, np.zeros_like(ratio)
    for power in range(25, 0, -2):
        total = total * square + 1 / power
    return exponent * _LOG2 + 2 * ratio * total


def tail_quantile(probability: np.ndarray) -> np.ndarray:
    """What a standard normal number exceeds with a probability, from 2^-200 to 1/2 and a little more: float64."""
    half = 0.5 - probability
    root = np.sqrt(-tail_logarithm(np.minimum(probability, 0.25)))
    ranges = (
        (half <= 0.425, lambda: half * _ratio(_MIDDLE, 0.180625 - half * half)),
        (root <= 5, lambda: _ratio(_SIDE, root - 1.6)),
        (root > 5, lambda: _ratio(_FAR, root - 5)),
    )
    inside = [(where, made()) for where, made in ranges if where.any()]
    return np.select([where for where, _ in inside], [made for _, made in inside])


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], at: np.ndarray) -> np.ndarray:
    top, bottom = (np.zeros_like(at) for _ in range(2))
    for over, below in zip(*polynomials, strict=True):
        top, bottom = top * at + over, bottom * at + below
    return top / bottom


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    """Coefficients (square, linear, constant) of the quantile in a word, by the top bits of the word as float32.

    Each octave of the tail probability is cut into equal segments; a parabola meets the quantile at both ends and in
    the middle of its segment. What is left to :func:`_tail` is NaN.
    """
    table = np.full((3, 1 << (9 + _SEGMENTS)), np.nan, dtype=np.float32)
    for octave in range(_TAIL_BITS, 32):
        width = 2.0 ** (octave - _SEGMENTS)
        # Beyond 2^31, the middle, lies no word.
        low = 2.0**octave + width * np.arange(1 if octave == 31 else 1 << _SEGMENTS)
        for sign, half in ((1.0, 0.5), (-1.0, -0.5)):
            first, centre, last = (sign * tail_quantile((low + part * width + half) * 2.0**-32) for part in (0, 0.5, 1))
            bend = 2 * (first - 2 * centre + last) / (width * width)
            slope = (last - first) / width - bend * (2 * low + width)
            place = (sign * low).astype(np.float32).view(np.uint32) >> _SHIFT
            table[:, place] = bend, sign * slope, first - low * (slope + bend * low)
    return table


def normals(count: int, words: Fill, tails: Fill) -> np.ndarray:
    """Standard normal numbers as float32: the normal quantile of one word of 32 bits each, to 3e-7 of its value or 1.

    The sign of a word is that of its number, its size the probability of a larger one. A word of less than 2^14, one
    in 2^17 and of a number beyond 4.6, takes 64 bits more from ``tails``, so that tails are as fine as they are rare.
    """
    drawn, (square, linear, constant) = np.empty(count, dtype=np.float32), _table()
    size = min(count, _CHUNK)
    word, place = np.empty(size, dtype="<i4"), np.empty(size, dtype=np.intp)
    value, term, sum_ = (np.empty(size, dtype=np.float32) for _ in range(3))
    places, rare = [], []
    for start in range(0, count, _CHUNK):
        out = drawn[start : start + _CHUNK]
        if len(out) < size:
            word, place, value, term, sum_ = (one[: len(out)] for one in (word, place, value, term, sum_))
        words(word)
        value[...] = word
        np.right_shift(value.view(np.uint32), _SHIFT, out=place, casting="unsafe")
        # Places are within the tables; any mode but "raise" writes without a copy.
        square.take(place, out=sum_, mode="clip")
        linear.take(place, out=term, mode="clip")
        constant.take(place, out=out, mode="clip")
        np.multiply(sum_, value, out=sum_)
        np.add(sum_, term, out=sum_)
        np.multiply(sum_, value, out=sum_)
        np.add(out, sum_, out=out)
        near = (out != out).nonzero()[0]
        if near.size:
            places.append(near + start)
            rare.append(word[near])
    if places:
        drawn[np.concatenate(places)] = _tail(np.concatenate(rare), tails)
    return drawn


def _tail(words: np.ndarray, tails: Fill) -> np.ndarray:
    finer = np.empty(len(words), dtype="<u8")
    tails(finer)
    whole = np.where(words < 0, ~words, words).astype(np.float64)
    # Where the whole is 0, the part keeps all its digits.
    exceeded = tail_quantile((whole + (finer.astype(np.float64) + 0.5) * 2.0**-64) * 2.0**-32)
    return np.where(words < 0, -exceeded, exceeded)
