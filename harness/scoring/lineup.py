"""The lineup test: is a reconstruction closer to its own truth than to look-alikes? (spec/attacks.md 9.3)

Every true image stands in a lineup with images of its own class that no victim used. A defense that gives away no
more than the label makes all of them equally likely to be near, so the test asks whether the truth stands out.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.randomness import derive_seed
from harness.scoring.lineup_pool import ClassPool, class_pools
from harness.scoring.pixels import clamped_pixels

_BLOCK = 1_000
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LineupResult:
    """Places of the true images in their lineups; V victims with B images each.

    A slot without decoys is uninformative: size 1, rank 1, ``first`` False, left out of all statistics, which are
    None when no slot is informative.

    ``ranks``: (V, B) mid-rank by distance, 1 is nearest;
    ``sizes``: (V, B) images in the lineup, the truth included;
    ``first``: (V, B) whether the truth is strictly nearest (a tie is not a hit);
    ``rate``: share of informative slots with ``first``;
    ``mean_rank``: mean of (rank - 1) / (size - 1): 0 when the truth is always nearest, 0.5 by chance;
    ``p_value``: one-sided towards leaking, min(1, 2 * min(p of mean_rank, p of hits)), in (0, 1].
    """

    ranks: NDArray[np.float64]
    sizes: NDArray[np.int64]
    first: NDArray[np.bool_]
    rate: float | None
    mean_rank: float | None
    p_value: float | None


def lineup_test(
    reconstruction: Tensor,
    truth_indices: Tensor,
    images: Tensor,
    labels: Tensor,
    seed: int,
    permutations: int = 9_999,
    max_decoys: int = 200,
) -> LineupResult:
    """Rank every true image among unused images of its class by clamped RMSE to the victim's reconstructions.

    A candidate's distance is that to the nearest of the victim's K reconstructions, so nothing has to be matched and
    batches are tested like single images. Null hypothesis: within a class, truths and decoys are exchangeable given
    the reconstructions. It is simulated by re-drawing, for all slots of a class jointly, which items are truths.
    This needs victims drawn at random within their classes. An image used twice is one item and moves as one.

    Args:
        reconstruction: (V, K, C, H, W), finite.
        truth_indices: (V, B) int64, positions of the victims' images in ``images``.
        images: (N, C, H, W) in [0, 1], the split the victims were drawn from.
        labels: (N,) integer classes.
        seed: key of the decoys and re-assignments.
        permutations: number of re-assignments; the smallest possible p-value is 2 / (permutations + 1).
        max_decoys: most decoys per class.

    Raises:
        ValueError: a reconstruction is not finite.
    """
    pools = _pools(reconstruction, truth_indices, images, labels, seed, max_decoys)
    return _test(pools, tuple(truth_indices.shape), seed, permutations)


def swap_control(
    reconstruction: Tensor,
    truth_indices: Tensor,
    images: Tensor,
    labels: Tensor,
    seed: int,
    permutations: int = 99_999,
    max_decoys: int = 200,
) -> LineupResult | None:
    """The lineup test with every truth replaced by another victim's of the same class: it must not leak.

    Slots whose class no other victim has are left out (as uninformative); None when none remain. The many
    permutations, which a p-value below 1e-4 needs, are only run when 9,999 of them leave any suspicion.
    """
    pools = _pools(reconstruction, truth_indices, images, labels, seed, max_decoys)
    swapped = [pool for pool in (_swap(pool, truth_indices.cpu().numpy(), seed) for pool in pools) if len(pool.slots)]
    if not swapped:
        return None
    shape = tuple(truth_indices.shape)
    quick = _test(swapped, shape, seed, min(permutations, 9_999))
    return quick if quick.p_value > 0.01 else _test(swapped, shape, seed, permutations)


def _pools(
    reconstruction: Tensor, truth_indices: Tensor, images: Tensor, labels: Tensor, seed: int, max_decoys: int
) -> list[ClassPool]:
    guesses = clamped_pixels(reconstruction).flatten(2)
    return class_pools(guesses, truth_indices.cpu().numpy(), images, labels.cpu().numpy(), seed, max_decoys)


def _swap(pool: ClassPool, truth_indices: NDArray[np.int64], seed: int) -> ClassPool:
    """Each slot gets the next truth, in a random cyclic order, that is not among its own victim's images."""
    order = np.random.default_rng(derive_seed("lineup swap", seed, pool.label)).permutation(pool.truths)
    place = np.argsort(order)
    kept, items = [], []
    for row, (victim, _) in enumerate(pool.slots):
        following = np.roll(order, -place[pool.items[row]] - 1)
        foreign = following[~np.isin(pool.images[following], truth_indices[victim])]
        if len(foreign):
            kept.append(row)
            items.append(foreign[0])
    return replace(pool, slots=pool.slots[kept], items=np.array(items, dtype=np.int64), ranks=pool.ranks[kept])


def _test(pools: list[ClassPool], shape: tuple[int, int], seed: int, permutations: int) -> LineupResult:
    ranks, sizes = np.ones(shape), np.ones(shape, dtype=np.int64)
    rank_sum, hits = 0.0, 0
    null_rank_sums, null_hits = np.zeros(permutations), np.zeros(permutations, dtype=np.int64)
    for pool in pools:
        actual = lineup_ranks(pool, np.arange(pool.truths)[None])
        ranks[tuple(pool.slots.T)], sizes[tuple(pool.slots.T)] = actual[0], pool.lineup_size
        rank_sum += float(_relative(actual, pool).sum())
        hits += int((actual == 1.0).sum())
        _add_null(pool, seed, null_rank_sums, null_hits)
    informative = sizes > 1
    first = informative & (ranks == 1.0)
    count = int(informative.sum())
    if count == 0:
        return LineupResult(ranks, sizes, first, None, None, None)
    # Sums of the same ranks in another order may differ by rounding: count those as ties.
    p_rank = (1 + (null_rank_sums <= rank_sum + _ROUNDING).sum()) / (1 + permutations)
    p_hits = (1 + (null_hits >= hits).sum()) / (1 + permutations)
    p_value = float(min(1.0, 2.0 * min(p_rank, p_hits)))
    return LineupResult(ranks, sizes, first, hits / count, rank_sum / count, p_value)


def _add_null(pool: ClassPool, seed: int, rank_sums: NDArray[np.float64], hits: NDArray[np.int64]) -> None:
    """Add the class's share of both statistics under random re-assignments, one per element, in place."""
    random = np.random.default_rng(derive_seed("lineup null", seed, pool.label))
    for start in range(0, len(hits), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(hits)))
        everyone = np.tile(np.arange(len(pool.images)), (block.stop - start, 1))
        ranks = lineup_ranks(pool, random.permuted(everyone, axis=1)[:, : pool.truths])
        rank_sums[block] += _relative(ranks, pool).sum(axis=1)
        hits[block] += (ranks == 1.0).sum(axis=1)


def lineup_ranks(pool: ClassPool, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mid-ranks (M, S) of the slots' truths in their lineups if item t had been pool item ``chosen[:, t]`` (M, T).

    A lineup holds a slot's truth and the items not chosen: the rank among the whole pool, less the other chosen items
    that are nearer and half of those that tie. Summed signs count both: (others + sum of signs) / 2.
    """
    ranks = np.empty((len(chosen), len(pool.slots)))
    for slot, (pool_ranks, item) in enumerate(zip(pool.ranks, pool.items, strict=True)):
        values = pool_ranks[chosen]
        own = values[:, item]
        signs = np.sign(own[:, None] - values).sum(axis=1)
        ranks[:, slot] = (own - (pool.truths - 1 + signs)) / 2.0
    return ranks


def _relative(ranks: NDArray[np.float64], pool: ClassPool) -> NDArray[np.float64]:
    """Ranks scaled to [0, 1], so that classes with few decoys weigh as much as others."""
    return (ranks - 1.0) / (pool.lineup_size - 1)
