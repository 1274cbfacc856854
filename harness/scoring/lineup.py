"""The lineup test: is a reconstruction closer to its own truth than to look-alikes? (docs/verdicts.md)

Every true image stands in a lineup with images of its own class that no victim used. A defense that gives away no
more than the label makes all of them equally likely to be near, so the test asks whether the truth stands out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.base.randomness import derive_seed
from harness.results import Lineup, Rate
from harness.scoring.images import clamped_pixels, draws_of
from harness.scoring.lineup_pool import ClassPool, Compare, by_pixels, class_pools
from harness.scoring.success import Strict, image_strict, rate_of

# The usual number of permutations cannot give a p-value below 1e-4, which is what fails a negative control.
_USUAL, MANY, _SUSPICIOUS = 9_999, 99_999, 0.01
_BLOCK = 1_000
# Cells of one run mostly have the same victims: re-assignments of so many numbers or fewer are kept for the next one.
_KEPT = 2**20
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ranking:
    """Places of the true images in their lineups; V victims with B images each.

    A slot without decoys is uninformative: size 1, rank 1, ``first`` False, left out of all statistics.

    ``ranks``: (V, B) mid-rank by distance, 1 is nearest;
    ``sizes``: (V, B) images in the lineup, the truth included;
    ``first``: (V, B) whether the truth is strictly nearest (a tie is not a hit);
    ``lineup``: the test of all of them.
    """

    ranks: NDArray[np.float64]
    sizes: NDArray[np.int64]
    first: NDArray[np.bool_]
    lineup: Lineup

    def firsts(self, clusters: int, groups: NDArray[np.int64] | None) -> Rate:
        """The share of truths that are first, of those with look-alikes; arguments as of :func:`draws_of`."""
        return rate_of(*(draws_of(one, clusters, groups)[0] for one in (self.first, self.sizes > 1)))


def lineup_test(
    reconstruction: Tensor,
    truth_indices: Tensor,
    images: Tensor,
    labels: Tensor,
    seed: int,
    permutations: int = 9_999,
    max_decoys: int = 200,
    strict: Strict = image_strict,
) -> Ranking:
    """Rank every true image among unused examples of its class by clamped RMSE to the victim's reconstructions.

    A candidate's distance is that to the nearest of the victim's K reconstructions, so nothing has to be matched and
    batches are tested like single images. Null hypothesis: within a class, truths and decoys are exchangeable given
    the reconstructions. It is simulated by re-drawing, for all slots of a class jointly, which items are truths.
    This needs victims drawn at random within their classes. An image used twice is one item and moves as one.
    The same re-drawing tests how many images are first *and* accurate: a guess that is accurate for many images of a
    class, and nearer to some than to any decoy, is so whichever of them are the truths.

    Args:
        reconstruction: (V, K, C, H, W), finite.
        truth_indices: (V, B) int64, positions of the victims' images in ``images``.
        images: (N, C, H, W) in [0, 1], the split the victims were drawn from.
        labels: (N,) integer classes.
        seed: key of the decoys and re-assignments.
        permutations: number of re-assignments; the smallest possible p-value is 2 / (permutations + 1).
        max_decoys: most decoys per class.
        strict: the success rule, on truths and reconstructions (..., C, H, W): booleans (...).

    Raises:
        ValueError: a reconstruction is not finite.
    """
    pools = _pools(reconstruction, truth_indices, images, labels, seed, max_decoys, strict)
    return _test(pools, tuple(truth_indices.shape), seed, permutations)


def swap_control(
    reconstruction: Tensor,
    truth_indices: Tensor,
    images: Tensor,
    labels: Tensor,
    seed: int,
    permutations: int = 99_999,
    max_decoys: int = 200,
) -> Ranking | None:
    """The lineup test with every truth replaced by another victim's of the same class: it must not leak.

    Slots whose class no other victim has are left out (as uninformative); None when none remain. The many
    permutations, which a p-value below 1e-4 needs, are only run when 9,999 of them leave any suspicion.
    """
    pools = _pools(reconstruction, truth_indices, images, labels, seed, max_decoys)
    return _swapped(pools, truth_indices.cpu().numpy(), seed, permutations)


def identity_test(
    compare: Compare,
    truth_indices: Tensor,
    labels: Tensor,
    seed: int,
    permutations: int = _USUAL,
    max_decoys: int = 200,
) -> tuple[Ranking, Ranking | None]:
    """The lineup test and its swap control with distances that an attack gives to known images itself.

    Args:
        compare: gives the distances, once per class.
        truth_indices: (V, B) int64, positions of the victims' images in the dataset.
        labels: (N,) integer classes of the dataset.
        seed: key of the decoys and re-assignments.
        permutations: number of re-assignments; those beyond 9,999 are made where there is any suspicion.
        max_decoys: most decoys per class.
    """
    indices = truth_indices.cpu().numpy()
    pools = class_pools(compare, indices, labels.cpu().numpy(), seed, max_decoys)
    return _sharpened(pools, indices.shape, seed, permutations), _swapped(pools, indices, seed, MANY)


def _swapped(pools: list[ClassPool], truth_indices: NDArray[np.int64], seed: int, permutations: int) -> Ranking | None:
    swapped = [pool for pool in (_swap(pool, truth_indices, seed) for pool in pools) if len(pool.slots)]
    return _sharpened(swapped, truth_indices.shape, seed, permutations) if swapped else None


def _sharpened(pools: list[ClassPool], shape: tuple[int, ...], seed: int, permutations: int) -> Ranking:
    """The test with few permutations, and with all of them where few leave any suspicion."""
    quick = _test(pools, shape, seed, min(permutations, _USUAL))
    chance = quick.lineup.p_value
    sharp = chance is None or chance > _SUSPICIOUS or permutations <= _USUAL
    return quick if sharp else _test(pools, shape, seed, permutations)


def _pools(
    reconstruction: Tensor,
    truth_indices: Tensor,
    images: Tensor,
    labels: Tensor,
    seed: int,
    max_decoys: int,
    strict: Strict | None = None,
) -> list[ClassPool]:
    guesses, indices = clamped_pixels(reconstruction), truth_indices.cpu().numpy()
    compare = by_pixels(guesses, images, strict)
    return class_pools(compare, indices, labels.cpu().numpy(), seed, max_decoys)


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
    return replace(
        pool, slots=pool.slots[kept], items=np.array(items, dtype=np.int64), ranks=pool.ranks[kept],
        strict=pool.strict[kept], closeness=pool.closeness[kept],
    )  # fmt: skip


def _test(pools: list[ClassPool], shape: tuple[int, ...], seed: int, permutations: int) -> Ranking:
    ranks, sizes = np.ones(shape), np.ones(shape, dtype=np.int64)
    # Sums of relative ranks, of firsts, and of accurate firsts: as observed, and under each re-assignment.
    observed, null = np.zeros((1, 3)), np.zeros((permutations, 3))
    for pool in pools:
        actual = np.arange(pool.truths)[None]
        ranks[tuple(pool.slots.T)], sizes[tuple(pool.slots.T)] = lineup_ranks(pool, actual)[0], pool.lineup_size
        observed += _statistics(pool, actual)
        _add_null(pool, seed, null)
    informative = sizes > 1
    first, count = informative & (ranks == 1.0), int(informative.sum())
    if count == 0:
        return Ranking(ranks, sizes, first, Lineup(reason="no victim has unused examples of its class as decoys"))
    # Sums of the same ranks in another order may differ by rounding: count those as ties.
    ((rank_sum, hits, _),) = observed
    p_rank = (1 + (null[:, 0] <= rank_sum + _ROUNDING).sum()) / (1 + permutations)
    p_hits, p_confirmed = (1 + (null[:, 1:] >= observed[:, 1:]).sum(0)) / (1 + permutations)
    lineup = Lineup(
        rate=hits / count, mean_rank=rank_sum / count, p_value=min(1.0, 2.0 * min(p_rank, p_hits)),
        confirmed_p_value=_either(p_confirmed, _by_distance(pools)),
    )  # fmt: skip
    return Ranking(ranks, sizes, first, lineup)


def _either(permuted: float, near: float | None) -> float:
    """The p-value of two tests of which either may speak, or of the first one alone."""
    return permuted if near is None else min(1.0, 2 * min(permuted, near))


def _by_distance(pools: list[ClassPool]) -> float | None:
    """A p-value of the best image that several victims hold, which is one item however often it comes back; None where
    no image is held by several. That it is accurate is a part of the test: what comes back must not choose the test.

    Of an image drawn like P - 1 others of its class, the chance to be the nearest to a guess is 1 / P, and to be within
    a share u of the next one's distance at most u / P, where images of a class lie no denser within that ball than
    along a line. Of several guesses with p-values of any dependence, twice the median is one (Rueger 1978).
    """
    shared = [
        (pool, own, item) for pool in pools for item in range(pool.truths)
        if (own := np.flatnonzero(pool.items == item)).size > 1
    ]  # fmt: skip
    found = [
        2 * float(np.median(pool.closeness[own, item])) / pool.lineup_size
        for pool, own, item in shared if _accurate_in_most(pool, own, item)
    ]  # fmt: skip
    return min(1.0, min(found, default=1.0) * sum(pool.truths for pool in pools)) if shared else None


def _accurate_in_most(pool: ClassPool, slots: NDArray[np.int64], item: int) -> bool:
    return bool(pool.strict[slots, item].mean() > 0.5)


def _add_null(pool: ClassPool, seed: int, null: NDArray[np.float64]) -> None:
    """Add the class's share of the statistics under random re-assignments, one per row, in place."""
    drawn = derive_seed("lineup null", seed, pool.label), len(pool.images), pool.truths, len(null)
    blocks = _kept_reassignments(*drawn) if len(null) * pool.truths <= _KEPT else _reassignments(*drawn)
    for number, chosen in enumerate(blocks):
        null[number * _BLOCK : (number + 1) * _BLOCK] += _statistics(pool, chosen)


def _reassignments(seed: int, items: int, truths: int, count: int) -> Iterator[NDArray[np.integer]]:
    """Yield which of so many items are the truths, ``count`` times at random, in blocks (M, T)."""
    random = np.random.default_rng(seed)
    for start in range(0, count, _BLOCK):
        everyone = np.tile(np.arange(items), (min(_BLOCK, count - start), 1))
        yield random.permuted(everyone, axis=1, out=everyone)[:, :truths]


@lru_cache(maxsize=32)
def _kept_reassignments(seed: int, items: int, truths: int, count: int) -> list[NDArray[np.integer]]:
    return [block.astype(np.int32) for block in _reassignments(seed, items, truths, count)]


def _statistics(pool: ClassPool, chosen: NDArray[np.integer]) -> NDArray[np.float64]:
    """(M, 3): sums over the slots of relative ranks, of firsts, and of accurate firsts, if ``chosen`` were truths."""
    ranks = lineup_ranks(pool, chosen)
    first = ranks == 1.0
    accurate = pool.strict[np.arange(len(pool.slots)), chosen[:, pool.items]]
    return np.stack([_relative(ranks, pool).sum(1), first.sum(1), (first & accurate).sum(1)], axis=1)


def lineup_ranks(pool: ClassPool, chosen: NDArray[np.integer]) -> NDArray[np.float64]:
    """Mid-ranks (M, S) of the slots' truths in their lineups if item t had been pool item ``chosen[:, t]`` (M, T).

    A lineup holds a slot's truth and the items not chosen: the rank among the whole pool, less the other chosen items
    that are nearer and half of those that tie. Summed signs count both: (others + sum of signs) / 2.
    """
    ranks = np.empty((len(chosen), len(pool.slots)))
    there: NDArray[np.int16] | None = None
    for slots in _of_one_victim(pool):
        # They share a row of ranks.
        own, items = pool.ranks[slots[0]], chosen[:, pool.items[slots]]
        if len(slots) * pool.truths > len(pool.images):
            there = _membership(chosen, len(pool.images)) if there is None else there
            signs = _counted_signs(own, there, items) - pool.truths
        else:
            signs = _summed_signs(own, chosen, items)
        ranks[:, slots] = (own[items] - (pool.truths - 1 + signs)) / 2.0
    return ranks


def _of_one_victim(pool: ClassPool) -> list[NDArray[np.int64]]:
    victims = pool.slots[:, 0]
    return [np.flatnonzero(victims == victim) for victim in np.unique(victims)]


def _summed_signs(
    ranks: NDArray[np.int32], chosen: NDArray[np.integer], items: NDArray[np.integer]
) -> NDArray[np.int64]:
    """(M, S): over the chosen items (M, T), the signs of how much farther each of ``items`` (M, S) is."""
    values = ranks[chosen]
    return np.stack([np.sign(ranks[one][:, None] - values).sum(axis=1) for one in items.T], axis=1)


def _membership(chosen: NDArray[np.integer], items: int) -> NDArray[np.int16]:
    """(P, M): 1 where an item is among the chosen (M, T)."""
    there = np.zeros((items, len(chosen)), dtype=np.int16)
    there[chosen.T, np.arange(len(chosen))] = 1
    return there


def _counted_signs(ranks: NDArray[np.int32], there: NDArray[np.int16], items: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return T more than the sums of :func:`_summed_signs` (M, S), where several are asked for. Who is ``there`` (P, M)
    is counted once, in order of ranks."""
    order = np.argsort(ranks)
    nearer = np.zeros((len(ranks) + 1, there.shape[1]), dtype=np.int16)
    np.cumsum(there[order], axis=0, dtype=np.int16, out=nearer[1:])
    below, upto = (np.searchsorted(ranks[order], ranks, side)[items] for side in ("left", "right"))
    columns = np.arange(there.shape[1])[:, None]
    return nearer[below, columns].astype(np.int64) + nearer[upto, columns]


def _relative(ranks: NDArray[np.float64], pool: ClassPool) -> NDArray[np.float64]:
    """Ranks scaled to [0, 1], so that classes with few decoys weigh as much as others."""
    return (ranks - 1.0) / (pool.lineup_size - 1)
