"""The noise of :mod:`harness.base.randomness` drawn where it is needed, on a GPU: the same bits, nothing waited for.

Words come from ChaCha20 in integer operations, and become numbers in the operations of :mod:`harness.base.normals`,
one at a time, each rounded exactly. What the host sends is 32 bytes per row, the row's key.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from harness.base.normals import FAR, ROOT_HALF, SHIFT, SIDE, TAIL_BITS, logarithm, ratio, table

_CONSTANTS = tuple(int.from_bytes(b"expand 32-byte k"[at : at + 4], "little") for at in range(0, 16, 4))
_BLOCK = 16  # words of 32 bits
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
    step = max(_MOST // max(rows, 1) // _BLOCK, 1) * _BLOCK
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _words(keys: Tensor, part: slice) -> Tensor:
    """Words (R, N) of keys (8, R), from a whole block on: int32."""
    first, last = part.start // _BLOCK, -(-part.stop // _BLOCK)
    counters = torch.arange(first, last, dtype=torch.int32, device=keys.device)
    rows, blocks = keys.shape[1], last - first
    made = _chacha(keys[:, :, None].expand(-1, -1, blocks), counters.expand(rows, -1))
    return made.permute(1, 2, 0).reshape(rows, -1)[:, : part.stop - part.start]


def _mapped(keys: list[bytes], count: int, device: torch.device, mapped: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What a map makes (R, ``count``) of the lower and upper halves of words of 64 bits, int64 and not negative."""
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
    exceeded = _far_quantile((whole + (part + 0.5) * 2.0**-64) * 2.0**-32)
    padded[at] = torch.where(word < 0, -exceeded, exceeded).float()


def _far_quantile(probability: Tensor) -> Tensor:
    root = (-_tail_logarithm(probability)).sqrt()
    return torch.where(root <= 5, ratio(SIDE, root - 1.6), ratio(FAR, root - 5))


def _tail_logarithm(values: Tensor) -> Tensor:
    fraction, exponent = torch.frexp(values)
    low = fraction < ROOT_HALF
    return logarithm(torch.where(low, 2 * fraction, fraction), (exponent - low.int()).double())
