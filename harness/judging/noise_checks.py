"""Is the declared noise there, as strong as declared, and behind the declared clip?

What a client sends under a clip and Gaussian noise of deviation s is c + z with |c| at most the bound and z of n
independent coordinates, so |c + z|^2 / s^2 is noncentral chi-square: never smaller, in distribution, than chi-square
with n degrees, and its root never more than the bound beyond that of chi-square. Both tails therefore hold whatever
the client's data are, and so do those where a layer carries no signal. Bonferroni over the tensors of all clients keeps
a check's error below ``LEVEL``.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from scipy.stats import binom, chi2, norm
from torch import Tensor

from harness.base.kinds import plural
from harness.base.randomness import Stream
from harness.federation.taps import Hook
from harness.judging.declared import noise_of
from harness.judging.evidence import ALARMS, LEVEL, UNKNOWN_LEVEL, Check, Evidence, bonferroni, level_of

# Is the declared Gaussian noise Gaussian, or another kind of the same deviation?
#
# A coordinate is c + z with an unknown c and z of deviation s. Whatever c is, no interval of width w holds it with
# more than the chance that it has around nothing, P(|z| <= w / 2), and it is beyond t with no less than P(|z| > t)
# (T. W. Anderson, "The integral of a symmetric unimodal function", 1955). So, of n coordinates, the number in an
# interval is never more, in distribution, than binomial, and the number beyond t never less. Noise with a peak
# (Laplace) or with few values (tosses of a sign) crowds into an interval; noise without tails (uniform) is not found
# beyond t.

SHAPE = "noise is Gaussian"

# In deviations of the noise: middles and half the width of intervals, and where tails begin.
_MIDDLES, _HALF, _TAILS = (-1.0, 0.0, 1.0), 0.3, (1.5, 2.5, 3.0)


def shape(evidence: Evidence, enough: Check) -> Check:
    """Return whether the noise is crowded, or has no tails.

    Args:
        enough: the check of its level; noise that is weaker than declared is crowded, and has been named.
    """
    level, noise = evidence.level, evidence.noise
    if level is None or noise is None:
        return Check(SHAPE, "cannot tell", _unknown_level(evidence))
    if noise.law != "gaussian":
        return Check(SHAPE, "cannot tell", "another law is declared")
    if enough.outcome == "violated":
        return Check(SHAPE, "cannot tell", "there is less noise than declared")
    names, grain = evidence.layout.names, evidence.captured.grain.double().numpy() / level
    tensors = [values / level for values in evidence.tensors()]
    p_values = np.stack([np.stack([one(values, grain) for values in tensors], 1) for one in (crowded, tailless)])
    # A small tensor tells little, and more all of them together: their noises are independent.
    whole, most = torch.cat(tensors, 1).reshape(1, -1), grain.max()[None]
    together = np.concatenate([one(whole, most) for one in (crowded, tailless)])
    p_value = min(1.0, 2 * min(bonferroni(p_values), bonferroni(together)))
    if p_value >= LEVEL:
        return Check(SHAPE, "holds", "values spread as those under Gaussian noise do, or more", p_value)
    kind, row, column = np.unravel_index(int(p_values.argmin()), p_values.shape)
    where = f"of {names[column]} of client {row + 1}"
    if bonferroni(together) < bonferroni(p_values):
        kind, where = together.argmin(), "of all that was sent"
    what = "crowd, as noise with a peak or of a few values does" if kind == 0 else "have no tails"
    return Check(
        SHAPE, "violated", f"values {where} {what}: no Gaussian noise of deviation {level * evidence.unit:.3g} lets "
        "them", p_value,
    )  # fmt: skip


def crowded(values: Tensor, grain: np.ndarray) -> np.ndarray:
    """Return the p-value of the fullest interval of each client (V,); ``values`` (V, n) are in deviations."""
    counts = np.stack([((values - middle).abs() <= _HALF).sum(1).numpy() for middle in _MIDDLES])
    chance = norm.cdf(_HALF + grain) - norm.cdf(-_HALF - grain)
    return np.minimum(1, len(_MIDDLES) * binom.sf(counts.max(0) - 1, values.shape[1], chance))


def tailless(values: Tensor, grain: np.ndarray) -> np.ndarray:
    """Return the p-value of the emptiest tails of each client (V,)."""
    tested = [
        binom.cdf((values.abs() > start).sum(1).numpy(), values.shape[1], 2 * norm.sf(start + grain))
        for start in _TAILS
    ]
    return np.minimum(1, len(_TAILS) * np.min(tested, axis=0))


# Where a gradient carries no signal: beyond the rank that its examples can give it.
#
# The gradient of a fully connected layer's weights is a sum of one outer product for every row that it multiplied, so
# its rank is at most r, the rows of all examples, however they were weighted or clipped. For what was sent, G = C + Z
# with rank(C) <= r, let d_k be the distance to the nearest matrix of rank k (the root of the sum of all squared
# singular values but the k largest). As C plus a matrix of rank r has at most rank 2r,
#
#     d_2r(Z) <= d_r(G) <= |Z|,
#
# whatever the data. |Z|^2 is chi-square; d_2r is 1-Lipschitz in Z, so that it is below its mean by t with a chance of
# at most exp(-t^2 / 2) (Boucheron, Lugosi and Massart, "Concentration Inequalities", theorem 5.6).

# Of noise alone, to know the mean of d_2r: as many as are quick, of large matrices few, which vary as little.
_DRAWS, _NUMBERS = (8, 512), 2**21
# The mean of n draws that are 1-Lipschitz exceeds the true one by this over the root of n once in 10^5 at most.
_MARGIN = 4.8
FACTS = "what was sent fits the declared facts"
# Of a layer's norm, more than quantisers leave.
_UNLIKE = 0.05
# Larger matrices take minutes; the other tests have power enough there.
_LARGEST = 2**22


def no_signal(evidence: Evidence) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Return what noise alone leaves beyond the signal's rank, for V clients and the J layers that have room for it.

    Returns:
        names: J of them.
        weaker, stronger: (V, J), p-values of noise weaker and stronger than declared, never too small by chance.
        found: (V, J), estimates of the noise's deviation.
    """
    level, shapes = evidence.level, dict(zip(evidence.layout.names, evidence.layout.shapes, strict=True))
    names, columns = [], []
    for name, values in zip(evidence.layout.names, evidence.tensors(), strict=True):
        rank, shape = evidence.ranks.get(name), shapes[name]
        if level and rank is not None and 2 * rank < min(shape) and values.shape[1] <= _LARGEST:
            names.append(name)
            stray = evidence.rounding(values.shape[1]) + evidence.stray
            columns.append(noise_beyond(values.unflatten(1, shape), rank, level, stray))
    if not columns:
        none = np.empty((evidence.captured.clients, 0))
        return [], none, none, none
    weaker, stronger, found = (np.stack(one, 1) for one in zip(*columns, strict=True))
    return names, weaker, stronger, found


def fits_facts(evidence: Evidence) -> Check | None:
    """Return whether what was sent without noise can be the gradients of so many examples; None where that cannot be
    seen."""
    defense, settings = evidence.defense, evidence.settings
    if evidence.noise is not None or defense.sparse_at(settings.tap) or defense.sums_securely:
        return None
    if not defense.keeps_rank_at(settings.tap):  # such as signs of numbers
        return None
    shapes, worst, found = dict(zip(evidence.layout.names, evidence.layout.shapes, strict=True)), 0.0, None
    for name, values in zip(evidence.layout.names, evidence.tensors(), strict=True):
        rank, shape = evidence.ranks.get(name), shapes[name]
        if rank is None or rank >= min(shape) or values.shape[1] > _LARGEST:
            continue
        norms = values.norm(dim=1).clamp_min(1e-30).numpy()
        beyond = distance(values.unflatten(1, shape), rank).numpy() - evidence.rounding(values.shape[1])
        if found is None or (beyond / norms).max() > worst:
            worst, found = float((beyond / norms).max()), (name, int((beyond / norms).argmax()) + 1, rank)
    if found is None:
        return None
    name, client, rank = found
    gives = f"{plural(rank, 'row')} of examples would give"
    if worst < _UNLIKE:
        return Check(FACTS, "holds", f"no layer has more in it than {gives}")
    return Check(
        FACTS, "violated", f"{name} of client {client} has {worst:.2g} of its norm beyond what {gives}: check "
        "batch_size, local_steps and epochs, the optimizer (weight decay, Adam), and defenses not declared",
    )  # fmt: skip


def noise_beyond(sent: Tensor, rank: int, level: float, stray: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p-values of noise weaker and stronger than declared, and its deviation; ``stray`` (V,): a norm that is neither
    noise nor of that rank, such as rounding."""
    beyond = distance(sent, rank).numpy()
    short = _left_by_noise(rank, sent.shape[1], sent.shape[2]) - (beyond + stray) / level
    weaker = np.exp(-(np.clip(short, 0, None) ** 2) / 2)
    stronger = chi2.sf((np.clip(beyond - stray, 0, None) / level) ** 2, sent[0].numel())
    # Beside a signal that is not weak, this much of the noise is left.
    freedom = (sent.shape[1] - rank) * (sent.shape[2] - rank)
    return weaker, stronger, beyond / freedom**0.5


@cache
def _left_by_noise(rank: int, rows: int, columns: int) -> float:
    """The least that the mean of d_2r may be of noise of deviation 1."""
    count = min(max(_NUMBERS // (rows * columns), _DRAWS[0]), _DRAWS[1])
    draws = Stream("no signal", rank).normal((count, rows, columns)).double()
    return float(distance(draws, 2 * rank).mean()) - _MARGIN / count**0.5


def distance(matrices: Tensor, rank: int) -> Tensor:
    """Frobenius distances (V,) of matrices (V, a, b) to the nearest ones of that rank."""
    return torch.linalg.svdvals(matrices)[:, rank:].square().sum(1).sqrt()


GIVE_SIZE = "give expected_batch_size, and in batch_size how many examples there were"
GIVE_STEP = "if noise is added once a step, give the whole step as batch_size and leave accumulate out"
BOUND = "norms are within the bound"
ENOUGH = "noise is on every tensor"
NO_MORE = "noise is no more than declared"
ANEW = "noise is drawn anew each time"
UNROUNDED = "noise is not rounded"

#: Of a norm, by the arithmetic of a client's clipping.
ROUNDING = 1e-3
# Of the largest step of Adam, what a gradient next to 0 makes at most.
_SHORT = 0.9
# Of the largest step of Adam, what is next to nothing, and of which share of a tensor more is no first step of it.
_NOTHING, _BETWEEN = 0.1, 0.1
# Behind noise the bound holds where norms so many times as large would be seen.
_FORGOTTEN = 2.0
# Coordinates of a tensor that are compared with another tensor's, and with each other: of many, some are equal.
_FIRST, _FEW = 4096, 256
# Clients and coordinates that are compared at every lag, and coordinates that two of them share at least.
_MOST_MOVED, _MOVED, _LEAST_SHARED = 12, 32_768, 64


def noise_checks(evidence: Evidence) -> list[Check]:
    """All checks of a clip and of noise. No batch of Poisson sampling is accused of its size, where nobody gave it, and
    no step of several batches of noise that is on each of them."""
    checks, low_and_high = _noise_checks(evidence), levels(evidence)
    if not low_and_high or not evidence.level or not any(check.outcome in ALARMS for check in checks):
        return checks
    others = [_noise_checks(replace(evidence, times=times)) for times in low_and_high]
    why = " and ".join(words for words, known in (
        (f"the size of a Poisson batch may explain it: {GIVE_SIZE}", drawn_levels(evidence)),
        (f"noise on each batch of a step may explain it: {GIVE_STEP}", batch_levels(evidence)),
    ) if known)  # fmt: skip
    return [
        Check(check.name, "cannot tell", f"{check.detail}; {why}")
        if check.outcome in ALARMS and any(one.outcome not in ALARMS for one in same)
        else check
        for check, *same in zip(checks, *others, strict=True)
    ]


def noise_alone(evidence: Evidence) -> Check | None:
    """The first violated check of noise that holds for any data, where what was sent is little else than noise; None
    where none is."""
    enough = enough_noise(evidence)
    checks = enough, shape(evidence, enough), _anew(evidence)
    bad = (check for check in checks if check.outcome == "violated")
    return next((check for check in bad if len(checks) * (check.p_value or 0.0) < LEVEL), None)


def drawn_levels(evidence: Evidence) -> tuple[float, ...]:
    """Return what the declared level is multiplied by at least and at most, where ``batch_size`` is the size of a
    Poisson batch and the noise that of the expected one, as is the sum of examples; () where it is not known to be
    drawn."""
    if evidence.captured.sampling != "poisson":
        return ()
    count = evidence.captured.trained_on
    # Of expected numbers under which so many, or so few, are not improbable (Garwood 1936).
    least, most = chi2.ppf(LEVEL, 2 * count) / 2, chi2.isf(LEVEL, 2 * count + 2) / 2
    return float(count / most), float(count / max(least, 1e-9))


def batch_levels(evidence: Evidence) -> tuple[float, ...]:
    """Return what the declared level is multiplied by at least and at most, where each of the batches that make a step
    may have noise of its own: on a sum of k it is then the root of k times as strong, on a mean weaker by that."""
    each = evidence.captured.record.accumulate
    noisy = noise_of(evidence.captured, evidence.settings, within=True) is not None
    return (each**-0.5, each**0.5) if each > 1 and noisy and evidence.defense.acts_at(Hook.CLIENT_STEP) else ()


def levels(evidence: Evidence) -> tuple[float, ...]:
    """Return both together: :func:`drawn_levels` and :func:`batch_levels`."""
    known = [one for one in (drawn_levels(evidence), batch_levels(evidence)) if one]
    return tuple(float(np.prod(ends)) for ends in zip(*known, strict=True))


def _noise_checks(evidence: Evidence) -> list[Check]:
    names, weaker, stronger, found = no_signal(evidence)
    more = _no_more(evidence, names, stronger, found)
    bound = _bound(evidence)
    if bound.outcome == "violated" and more.outcome == "more than declared":
        bound = Check(BOUND, "cannot tell", "there is more noise than declared, behind which the clip is not seen")
    enough = enough_noise(evidence, (names, weaker, found))
    if evidence.noise is None:  # which says it once
        return [bound, enough]
    return [bound, enough, more, shape(evidence, enough), _anew(evidence), _unrounded(evidence)]


def _unknown_level(evidence: Evidence) -> str:
    """Return why the noise has no one known level."""
    within = level_of(noise_of(evidence.captured, evidence.settings, within=True))
    return UNKNOWN_LEVEL if within is None else "steps of the optimizer hide how strong the noise in them is"


_OF_UPDATES = "the declared defense is on updates, and gradients were captured: capture after.npz or update.npz"


_AT_SERVER = "it is declared at the server, and whoever reads what clients send sees it without"


def _not_declared(evidence: Evidence, words: str) -> str:
    """Return why nothing is looked for in what was captured; ``words`` where nothing else is known of it."""
    if _is_before(evidence):
        return _OF_UPDATES
    behind = any(evidence.defense.acts_at(hook) for hook in (Hook.SERVER_RECEIVE, Hook.AGGREGATE))
    return _AT_SERVER if behind else words


def _is_before(evidence: Evidence) -> bool:
    """Return whether what was captured is what a client has before its declared defense acts."""
    return not evidence.captured.of_update and evidence.defense.changes_messages()


def _bound(evidence: Evidence) -> Check:
    """Return whether norms are as the clip and the noise make them, and not larger."""
    bound, level = evidence.bound, 0.0 if evidence.noise is None else evidence.level
    if bound is None or evidence.clipping is None:
        return Check(BOUND, "cannot tell", _not_declared(evidence, "no bound is declared, or it is not published"))
    if level is None:
        return Check(BOUND, "cannot tell", _unknown_level(evidence))
    if evidence.clipping.unit != "update" and evidence.settings.update_reading.noise_shares is None:
        return Check(BOUND, "cannot tell", "steps of the optimizer hide how long the gradients in them are")
    norms, sizes = evidence.norms(evidence.clipping.grouping == "layer")
    rounding = evidence.rounding(evidence.sent.shape[1])[:, None]
    beyond = np.clip(norms - bound * (1 + ROUNDING) - rounding, 0, None)
    # A mean within the bound is one of clipped examples, of a clip of batches or of the update, or of no clip at all.
    together = evidence.clipping.unit != "update" and evidence.captured.trained_on > 1
    alike = f"; of {evidence.captured.trained_on} examples together, that is so too if batches are clipped, or none is"
    if not level:
        worst, held = float((norms / bound).max()), not beyond.any()
        larger = evidence.most_examples / evidence.captured.trained_on
        if not held and evidence.captured.sampling == "poisson" and worst <= larger:
            said = f"norms are up to {worst:.3g} times the bound {bound * evidence.unit:g}"
            return Check(BOUND, "cannot tell", f"{said}, as those of a larger Poisson batch are: {GIVE_SIZE}")
        said = f"norms are {'at most' if held else 'up to'} {worst:.3g} times the bound {bound * evidence.unit:g}"
        if held and together:
            return Check(BOUND, "cannot tell", f"{said}{alike}")
        return Check(BOUND, "holds" if held else "violated", said)
    p_value = bonferroni(chi2.sf((beyond / level) ** 2, sizes))
    if p_value >= LEVEL:
        said = f"bound {bound * evidence.unit:g} with noise of deviation {level * evidence.unit:.3g}"
        seen = bound + level * np.sqrt(chi2.isf(LEVEL / norms.size, sizes))
        if (np.sqrt(np.square(_FORGOTTEN * bound) + level**2 * sizes) < seen).any():
            return Check(BOUND, "cannot tell", f"{said}: so much noise hides whether the clip is there", p_value)
        if together:
            return Check(BOUND, "cannot tell", f"{said}{alike}", p_value)
        return Check(BOUND, "holds", said, p_value)
    times = float((norms / np.sqrt(bound**2 + level**2 * sizes)).max())
    if (drawn := _of_drawn_batch(evidence, norms, sizes, times)) is not None:
        return drawn
    return Check(
        BOUND, "violated", f"norms are up to {times:.3g} times what the bound and the declared noise allow: clipped to "
        "more, or noisier, than declared", p_value,
    )  # fmt: skip


def _of_drawn_batch(evidence: Evidence, norms: np.ndarray, sizes: np.ndarray, times: float) -> Check | None:
    """Return whether norms beyond the bound are those of a Poisson batch of more examples than declared; None where
    not.

    Of a batch without noise nobody draws the size, and one whose size is known needs no excuse.
    """
    count, level, bound = evidence.captured.trained_on, evidence.level or 0.0, evidence.bound or 0.0
    if evidence.captured.sampling == "fixed":
        return None
    rounding, most = evidence.rounding(evidence.sent.shape[1])[:, None], evidence.most_examples / count
    beyond = np.clip(norms - bound * most * (1 + ROUNDING) - rounding, 0, None)
    p_value = bonferroni(chi2.sf((beyond / level) ** 2, sizes))
    if p_value < LEVEL:
        return None
    said = f"norms are up to {times:.3g} times what the bound and the declared noise allow {plural(count, 'example')}"
    return Check(BOUND, "cannot tell", f"{said}, as those of a larger Poisson batch are: {GIVE_SIZE}", p_value)


def enough_noise(evidence: Evidence, hidden: tuple[list[str], np.ndarray, np.ndarray] | None = None) -> Check:
    """Return whether there is as much noise on every tensor as declared, whatever the signal.

    Args:
        hidden: the names, p-values of weaker noise and deviations of ``no_signal``.
    """
    none = np.empty((evidence.captured.clients, 0))
    names, weaker, found = hidden or ([], none, none)
    level, unit = evidence.level, evidence.unit
    if evidence.noise is None:
        return Check(ENOUGH, "cannot tell", _not_declared(evidence, "no noise is declared"))
    if level is None:
        return _in_first_step(evidence) or Check(ENOUGH, "cannot tell", _unknown_level(evidence))
    norms, sizes = evidence.norms(each=True)
    rounding = np.stack([evidence.rounding(size) for size in sizes], 1)
    squares = ((norms + rounding) / level) ** 2
    p_values = np.concatenate([chi2.cdf(squares, sizes), weaker], 1)
    p_value = min(1.0, 2 * bonferroni(p_values))
    # A small tensor tells little of one client, and more of all together: their noises are independent.
    together = chi2.cdf(squares.sum(0), len(squares) * sizes)
    if p_value >= LEVEL and (of_all := min(1.0, 2 * bonferroni(together))) < LEVEL:
        column = int(together.argmin())
        seen = float(np.sqrt(np.square(norms[:, column]).mean() / sizes[column])) * unit
        return Check(
            ENOUGH, "violated", f"{evidence.layout.names[column]} of all {len(squares)} clients together has a root "
            f"mean square of {seen:.3g}, declared is noise of deviation {level * unit:.3g}: it is off or weaker there",
            of_all,
        )  # fmt: skip
    if p_value >= LEVEL:
        said = f"every tensor varies as much as noise of deviation {level * unit:.3g} does, or more"
        return Check(ENOUGH, "holds", said, p_value)
    row, column = np.unravel_index(int(p_values.argmin()), p_values.shape)
    tensors, seen = [*evidence.layout.names, *names], np.concatenate([norms / np.sqrt(sizes), found], 1)
    what = "a root mean square" if column < len(sizes) else "noise, where it carries no signal,"
    return Check(
        ENOUGH, "violated", f"{tensors[column]} of client {row + 1} has {what} of {seen[row, column] * unit:.3g}, "
        f"declared is noise of deviation {level * unit:.3g}: it is off or weaker there", p_value,
    )  # fmt: skip


def _in_first_step(evidence: Evidence) -> Check | None:
    """The violation where one step of Adam or its like shows gradients next to 0 that the declared noise leaves to
    hardly a coordinate; None of other steps, or where none is seen.

    Whatever is under noise, a coordinate is within t of 0 with no more than the chance of the noise alone (Anderson).
    Steps at a smaller rate, or with a state of before, are short for another reason: few are next to nothing, or none
    is whole. Nobody is accused by these.
    """
    adaptive = evidence.settings.update_reading.adaptive
    level = None if adaptive is None else level_of(noise_of(evidence.captured, evidence.settings, within=True))
    if adaptive is None or not level:
        return None
    level *= min((1.0, *levels(evidence)))
    grain = 2 * evidence.captured.grain.double()[:, None]
    near = float(adaptive.gradient(torch.tensor(_SHORT / adaptive.root), torch.zeros(())))
    made = [adaptive.root * (adaptive.step(one).abs() + grain) for one in evidence.tensors()]
    counts, nothing = (
        np.stack([(one <= most).sum(1).numpy() for one in made], 1) for most in (_SHORT, _NOTHING)
    )  # fmt: skip
    sizes, whole = np.array(evidence.layout.sizes), torch.cat(made, 1).amax(1, keepdim=True).numpy() > _SHORT
    p_values = binom.sf(counts - 1, sizes, 2 * norm.cdf(near / level) - 1)
    if bonferroni(p_values) >= LEVEL:
        return None
    p_values = np.where(whole & (counts - nothing <= _BETWEEN * sizes), p_values, 1.0)
    if (p_value := bonferroni(p_values)) >= LEVEL:
        said = f"steps are smaller than the first one of {evidence.settings.optimizer} with this learning_rate: correct"
        return Check(ENOUGH, "cannot tell", f"{said} it, or make a new optimizer for the captured round")
    row, column = np.unravel_index(int(p_values.argmin()), p_values.shape)
    said = (
        f"{counts[row, column]} of {sizes[column]} coordinates of {evidence.layout.names[column]} of client {row + 1}"
    )
    return Check(
        ENOUGH, "violated", f"{said} had a gradient below {near:.2g}, which noise of deviation {level:.3g} "
        "leaves to hardly any: it is off or weaker there", p_value,
    )  # fmt: skip


def _no_more(evidence: Evidence, names: list[str], stronger: np.ndarray, found: np.ndarray) -> Check:
    """Return whether there is more noise than declared where there is nothing else: safe, but paid for."""
    if not stronger.size:
        return Check(NO_MORE, "cannot tell", "no layer is large enough to have a place without signal")
    level, unit = evidence.level or 0.0, evidence.unit
    p_value = bonferroni(stronger)
    row, column = np.unravel_index(int(stronger.argmin()), stronger.shape)
    said = (
        f"{names[column]} of client {row + 1} has noise of deviation {found[row, column] * unit:.3g} where it carries "
        f"no signal, declared is {level * unit:.3g}"
    )
    if p_value >= LEVEL:
        return Check(NO_MORE, "holds", said, p_value)
    why = "its price is paid and not declared, or steps share one draw"
    return Check(NO_MORE, "more than declared", f"{said}: {why}", p_value)


_DIFFER, _ADD_UP = "differ by", "add up to"


def _anew(evidence: Evidence) -> Check:
    """Return whether two clients or rounds, or two tensors of one, share their noise: then its difference is gone.

    Masks of a secure sum cancel out in the sum of two clients, of some or of all.
    """
    level = evidence.level
    if level is None:
        return Check(ANEW, "cannot tell", _unknown_level(evidence))
    tensors, names = [values / level for values in evidence.tensors()], evidence.layout.names
    found: list[tuple[np.ndarray, list[str]]] = []

    def compare(apart: torch.Tensor, rounding: np.ndarray, size: int, pairs: list[str]) -> None:
        """Lengths of what two noises make together, each with ``size`` coordinates of its own."""
        found.append((chi2.cdf((apart.numpy() + 2 * rounding) ** 2 / 2, size), pairs))

    count, both = len(evidence.sent), torch.tril_indices(len(evidence.sent), len(evidence.sent), -1)
    clients = [f"clients {two + 1} and {one + 1}" for one, two in both.T.tolist()]
    for values in tensors if clients else ():
        rounding, size = evidence.rounding(values.shape[1]).max() / level, values.shape[1]
        for others, verb in ((values, _DIFFER), (-values, _ADD_UP)):
            apart = torch.cdist(values, others, compute_mode="donot_use_mm_for_euclid_dist")[both[0], both[1]]
            compare(apart, rounding, size, [f"{one} {verb}" for one in clients])
        if 2 < count < size:
            together = [f"client {row + 1} and multiples of those before it {_ADD_UP}" for row in range(1, count)]
            found.append((beyond_others(values, rounding), together))
    if clients:
        few = torch.cat([values[:_MOST_MOVED] for values in tensors], 1)[:, :_MOVED]
        p_values, lags = moved(few, evidence.rounding(1).max() / level)
        at = [f"clients {two + 1} and {one + 1}, {lags[two, one]} numbers later," for two, one in np.argwhere(lags)]
        found.append((p_values[lags > 0], [f"{one} {_DIFFER}" for one in at]))
    for one, two in torch.tril_indices(len(tensors), len(tensors), -1).T.tolist():
        shared = min(tensors[one].shape[1], tensors[two].shape[1], _FIRST)
        apart = (tensors[one][:, :shared] - tensors[two][:, :shared]).norm(dim=1)
        pairs = [f"{names[two]} and {names[one]} of client {row + 1} {_DIFFER}" for row in range(len(apart))]
        compare(apart, evidence.rounding(shared) / level, shared, pairs)
    if not found:
        return Check(ANEW, "cannot tell", "it takes two captures, or two tensors")
    p_value = bonferroni(np.concatenate([p_values for p_values, _ in found]))
    if p_value >= LEVEL:
        what = "clients and tensors" if clients else "tensors (of one client only)"
        return Check(ANEW, "holds", f"{what} differ as independent noise does, or more", p_value)
    p_values, pairs = min(found, key=lambda one: one[0].min())
    said = pairs[int(p_values.argmin())]
    why = "cancels out in a sum, as masks do" if said.endswith(_ADD_UP) else "the same draw"
    return Check(ANEW, "violated", f"{said} less than independent noise: it is off, weaker, or {why}", p_value)


def beyond_others(values: Tensor, rounding: float) -> np.ndarray:
    """Return how probable it is at most that a client lies so near to the span of those before it, from the second
    client on: (V - 1,).

    Whatever the others sent and whatever signal is in it, independent noise of deviation 1 leaves outside of the span
    of k others a length that is never shorter, in distribution, than the root of a chi-square of n - k degrees.
    Rounding adds its own length, times each multiple of another client that was taken.

    Args:
        values: (V, n) of V clients, n > V.
    """
    count, size = values.shape
    triangle = torch.linalg.qr(values.T, mode="r").R
    triangle *= triangle.diagonal().sign()[:, None]
    # Behind a client that lies in the span of others nothing is told: the multiples have no bound.
    apart = triangle.diagonal().clamp_min_(1e-30)
    inverse = torch.linalg.solve_triangular(triangle, torch.eye(count).to(triangle), upper=True)
    off = rounding * (inverse * apart).abs().sum(0).nan_to_num(nan=torch.inf)
    return chi2.cdf(((apart + off) ** 2).numpy(), size - np.arange(count))[1:]


def apart_as_noise(values: Tensor, rounding: float) -> np.ndarray:
    """Return how probable it is at most that two clients are so near to each other, pair by pair; () of one alone.

    Args:
        values: (V, n) in deviations of the noise. rounding: of a single number.
    """
    rows, size = torch.tril_indices(len(values), len(values), -1), values.shape[1]
    apart = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")[rows[0], rows[1]].numpy()
    return chi2.cdf((apart + 2 * rounding * size**0.5) ** 2 / 2, size)


def moved(values: Tensor, rounding: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how probable it is at most that what one client sent is so near to what another sent some numbers later,
    as with one stream of random numbers of which one client used more: (V, V), over all lags, and the nearest lag
    (V, V). A lag of 0 says that none was compared.

    Args:
        values: (V, n) in deviations of the noise. rounding: of a single number.
    """
    rows = values.numpy()
    count, size = rows.shape
    spectra, squares = np.fft.rfft(rows, 2 * size), np.cumsum(rows**2, 1)
    lags = np.arange(1, size - _LEAST_SHARED + 1)
    nearest, found = np.zeros((count, count), dtype=int), np.ones((count, count))
    shared = size - lags
    for late, early in np.argwhere(~np.eye(count, dtype=bool) & (len(lags) > 0)):
        products = np.fft.irfft(spectra[late] * spectra[early].conj(), 2 * size)[lags]
        apart = squares[late, -1] - squares[late, lags - 1] + squares[early, shared - 1] - 2 * products
        half = (np.sqrt(apart.clip(0)) + 2 * rounding * shared**0.5) ** 2 / 2
        best = int(((half - shared) / shared**0.5).argmin())
        nearest[late, early] = lags[best]
        found[late, early] = min(1.0, len(lags) * chi2.cdf(half[best], shared[best]))
    return found, nearest


def anew_among(groups: Sequence[tuple[str, Evidence]]) -> Check | None:
    """The violation where two clients or rounds of different groups share their noise; None where none are seen to.

    Noise is compared in units of its own level, which groups may have different ones of.

    Args:
        groups: the words for each, and its clients.
    """
    known = [(words, one) for words, one in groups if one.level]
    known = [(words, one) for words, one in known if one.layout.shapes == known[0][1].layout.shapes]
    labels = [f"client {row + 1} of {words}" for words, one in known for row in range(len(one.sent))]
    place = torch.tensor([number for number, (_, one) in enumerate(known) for _ in range(len(one.sent))])
    pairs = torch.tril_indices(len(place), len(place), -1)
    pairs = pairs[:, place[pairs[0]] != place[pairs[1]]]
    if not pairs.shape[1]:
        return None
    grain = torch.cat([one.captured.grain.double() / (one.level or 1) for _, one in known])[pairs].sum(0).numpy()
    p_values = []
    for parts in zip(*([values / (one.level or 1) for values in one.tensors()] for _, one in known), strict=True):
        values = torch.cat(parts)
        apart = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")[pairs[0], pairs[1]].numpy()
        size = values.shape[1]
        p_values.append(chi2.cdf((apart + grain * size**0.5) ** 2 / 2, size))
    # What each group says of itself has a share of the chance too.
    if (p_value := min(1.0, 2 * bonferroni(np.stack(p_values)))) >= LEVEL:
        return None
    one, two = pairs[:, int(np.stack(p_values).min(0).argmin())].tolist()
    said = f"{labels[two]} and {labels[one]} differ by less than independent noise: it is off, weaker, or the same draw"
    return Check(ANEW, "violated", said, p_value)


def _unrounded(evidence: Evidence) -> Check:
    """Return whether values repeat exactly, which continuous noise never lets them but for the rounding of floats.

    Noise of deviation s, rounded to steps of h, has a given value with a chance of at most h / (s sqrt(2 pi)), whatever
    is under it. Number i of a tensor repeats an earlier one with a chance of at most i - 1 times that, given all
    earlier ones. So there are at most as many repeats as successes of independent trials with these chances, whose
    upper tail is at most a binomial one of the same mean, from one above the mean on (Hoeffding 1956, theorem 4).
    """
    level, noise = evidence.level, evidence.noise
    if level is None or noise is None or noise.law != "gaussian":
        other = noise is not None and noise.law not in ("gaussian", "unknown")
        why = "it takes Gaussian noise, and another law is declared" if other else _unknown_level(evidence)
        return Check(UNROUNDED, "cannot tell", why)
    parts = [values[:, :_FEW] for values in evidence.sent.split(evidence.layout.sizes, dim=1)]
    repeats = np.array(
        [sum(len(part[row]) - len(part[row].unique()) for part in parts) for row in range(len(parts[0]))]
    )
    total = sum(part.shape[1] for part in parts)
    earlier = sum(part.shape[1] * (part.shape[1] - 1) / 2 for part in parts)
    expected = earlier * evidence.captured.grain.double().numpy() / (level * (2 * np.pi) ** 0.5)

    def tail(count: np.ndarray) -> float:
        chance = binom.sf(count - 1, total, np.minimum(1, expected / total))
        return bonferroni(np.where(count >= expected + 1, chance, 1.0))

    if tail(np.full(len(repeats), total - len(parts))) >= LEVEL:
        return Check(UNROUNDED, "cannot tell", "the floats of the capture are too coarse beside the noise")
    p_value, worst = tail(repeats), int(repeats.argmax())
    said = f"{repeats[worst]} of {total} values of client {worst + 1} repeat another of their tensor"
    if p_value >= LEVEL:
        return Check(UNROUNDED, "holds", said, p_value)
    return Check(
        UNROUNDED, "violated", f"{said}: they lie on a grid, and no continuous noise was added last; if they are "
        "rounded after their noise, that is to be declared", p_value,
    )  # fmt: skip
