"""Is the declared noise there, as strong as declared, and behind the declared clip?

What a client sends under a clip and Gaussian noise of deviation s is c + z with |c| at most the bound and z of n
independent coordinates, so |c + z|^2 / s^2 is noncentral chi-square: never smaller, in distribution, than chi-square
with n degrees, and its root never more than the bound beyond that of chi-square. Both tails therefore hold whatever
the client's data are, and so do those where a layer carries no signal (:mod:`harness.judging.no_signal`). Bonferroni
over the tensors of all clients keeps a check's error below ``LEVEL``.
"""

from dataclasses import replace

import numpy as np
import torch
from scipy.stats import binom, chi2

from harness.judging.evidence import ALARMS, LEVEL, UNKNOWN_LEVEL, Check, Evidence, bonferroni
from harness.judging.no_signal import no_signal
from harness.judging.noise_shape import shape

GIVE_SIZE = "give expected_batch_size, and in batch_size how many examples there were"
BOUND = "norms are within the bound"
ENOUGH = "noise is on every tensor"
NO_MORE = "noise is no more than declared"
ANEW = "noise is drawn anew each time"
UNROUNDED = "noise is not rounded"

# Of a norm, by the arithmetic of a client's clipping.
_ROUNDING = 1e-3
# Behind noise the bound holds where norms so many times as large would be seen.
_FORGOTTEN = 2.0
# Coordinates of a tensor that are compared with another tensor's, and with each other: of many, some are equal.
_FIRST, _FEW = 4096, 256


def noise_checks(evidence: Evidence) -> list[Check]:
    """All checks of a clip and of noise. No batch of Poisson sampling is accused of its size, where nobody gave it."""
    checks, low_and_high = _noise_checks(evidence), drawn_levels(evidence)
    if not low_and_high or not any(check.outcome in ALARMS for check in checks):
        return checks
    others = [_noise_checks(replace(evidence, times=times)) for times in low_and_high]
    return [
        Check(check.name, "cannot tell", f"{check.detail}; the size of a Poisson batch may explain it: {GIVE_SIZE}")
        if check.outcome in ALARMS and any(one.outcome not in ALARMS for one in same)
        else check
        for check, *same in zip(checks, *others, strict=True)
    ]


def drawn_levels(evidence: Evidence) -> tuple[float, ...]:
    """What the declared level is multiplied by at least and at most, where ``batch_size`` is the size of a Poisson
    batch and the noise that of the expected one; () where the batch is not known to be drawn."""
    if evidence.captured.sampling != "poisson" or not evidence.level:
        return ()
    count = evidence.captured.trained_on
    # Of expected numbers under which so many, or so few, are not improbable (Garwood 1936).
    least, most = chi2.ppf(LEVEL, 2 * count) / 2, chi2.isf(LEVEL, 2 * count + 2) / 2
    return float(count / most), float(count / max(least, 1e-9))


def _noise_checks(evidence: Evidence) -> list[Check]:
    names, weaker, stronger, found = no_signal(evidence)
    more = _no_more(evidence, names, stronger, found)
    bound = _bound(evidence)
    if bound.outcome == "violated" and more.outcome == "more than declared":
        bound = Check(BOUND, "cannot tell", "there is more noise than declared, behind which the clip is not seen")
    enough = _enough(evidence, names, weaker, found)
    return [bound, enough, more, shape(evidence, enough), _anew(evidence), _unrounded(evidence)]


def _bound(evidence: Evidence) -> Check:
    """Whether norms are as the clip and the noise make them, and not larger."""
    bound, level = evidence.bound, 0.0 if evidence.noise is None else evidence.level
    if bound is None or evidence.clipping is None:
        return Check(BOUND, "cannot tell", "no bound is declared, or it is not published")
    if level is None:
        return Check(BOUND, "cannot tell", UNKNOWN_LEVEL)
    norms, sizes = evidence.norms(evidence.clipping.grouping == "layer")
    rounding = evidence.rounding(evidence.sent.shape[1])[:, None]
    beyond = np.clip(norms - bound * (1 + _ROUNDING) - rounding, 0, None)
    if not level:
        worst, held = float((norms / bound).max()), not beyond.any()
        said = f"norms are {'at most' if held else 'up to'} {worst:.3g} times the bound {bound * evidence.unit:g}"
        return Check(BOUND, "holds" if held else "violated", said)
    p_value = bonferroni(chi2.sf((beyond / level) ** 2, sizes))
    if p_value >= LEVEL:
        said = f"bound {bound * evidence.unit:g} with noise of deviation {level * evidence.unit:.3g}"
        seen = bound + level * np.sqrt(chi2.isf(LEVEL / norms.size, sizes))
        if (np.sqrt(np.square(_FORGOTTEN * bound) + level**2 * sizes) < seen).any():
            return Check(BOUND, "cannot tell", f"{said}: so much noise hides whether the clip is there", p_value)
        return Check(BOUND, "holds", said, p_value)
    times = float((norms / np.sqrt(bound**2 + level**2 * sizes)).max())
    if (drawn := _of_drawn_batch(evidence, norms, sizes, times)) is not None:
        return drawn
    return Check(
        BOUND, "violated", f"norms are up to {times:.3g} times what the bound and the declared noise allow: clipped to "
        "more, or noisier, than declared", p_value,
    )  # fmt: skip


def _of_drawn_batch(evidence: Evidence, norms: np.ndarray, sizes: np.ndarray, times: float) -> Check | None:
    """Whether norms beyond the bound are those of a Poisson batch of more examples than declared; None where not.

    Of a batch without noise nobody draws the size, and one whose size is known needs no excuse.
    """
    count, level, bound = evidence.captured.trained_on, evidence.level or 0.0, evidence.bound or 0.0
    if evidence.captured.sampling == "fixed":
        return None
    rounding, most = evidence.rounding(evidence.sent.shape[1])[:, None], evidence.most_examples / count
    beyond = np.clip(norms - bound * most * (1 + _ROUNDING) - rounding, 0, None)
    p_value = bonferroni(chi2.sf((beyond / level) ** 2, sizes))
    if p_value < LEVEL:
        return None
    said = f"norms are up to {times:.3g} times what the bound and the declared noise allow {count} examples"
    return Check(BOUND, "cannot tell", f"{said}, as those of a larger Poisson batch are: {GIVE_SIZE}", p_value)


def _enough(evidence: Evidence, names: list[str], weaker: np.ndarray, found: np.ndarray) -> Check:
    """Whether there is as much noise on every tensor as declared, whatever the signal."""
    level, unit = evidence.level, evidence.unit
    if evidence.noise is None:
        return Check(ENOUGH, "cannot tell", "no noise is declared")
    if level is None:
        return Check(ENOUGH, "cannot tell", UNKNOWN_LEVEL)
    norms, sizes = evidence.norms(each=True)
    rounding = np.stack([evidence.rounding(size) for size in sizes], 1)
    p_values = np.concatenate([chi2.cdf(((norms + rounding) / level) ** 2, sizes), weaker], 1)
    p_value = bonferroni(p_values)
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


def _no_more(evidence: Evidence, names: list[str], stronger: np.ndarray, found: np.ndarray) -> Check:
    """Whether there is more noise than declared where there is nothing else: safe, but paid for."""
    if evidence.noise is None:
        return Check(NO_MORE, "cannot tell", "no noise is declared")
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


def _anew(evidence: Evidence) -> Check:
    """Whether two clients or rounds, or two tensors of one, share their noise: then its difference is gone."""
    level = evidence.level
    if level is None:
        return Check(ANEW, "cannot tell", "it takes noise of one known level")
    tensors, names = evidence.tensors(), evidence.layout.names
    found: list[tuple[np.ndarray, list[str]]] = []

    def compare(apart: torch.Tensor, rounding: np.ndarray, size: int, pairs: list[str]) -> None:
        """Distances of pairs whose ``size`` coordinates have noise of their own on both sides."""
        found.append((chi2.cdf((apart.numpy() + 2 * rounding) ** 2 / (2 * level**2), size), pairs))

    clients = torch.tril_indices(len(evidence.sent), len(evidence.sent), -1)
    labels = [f"clients {two + 1} and {one + 1}" for one, two in clients.T.tolist()]
    for values in tensors if labels else ():
        apart = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")[clients[0], clients[1]]
        compare(apart, evidence.rounding(values.shape[1]).max(), values.shape[1], labels)
    for one, two in torch.tril_indices(len(tensors), len(tensors), -1).T.tolist():
        shared = min(tensors[one].shape[1], tensors[two].shape[1], _FIRST)
        apart = (tensors[one][:, :shared] - tensors[two][:, :shared]).norm(dim=1)
        pairs = [f"{names[two]} and {names[one]} of client {row + 1}" for row in range(len(apart))]
        compare(apart, evidence.rounding(shared), shared, pairs)
    if not found:
        return Check(ANEW, "cannot tell", "it takes two captures, or two tensors")
    p_value = bonferroni(np.concatenate([p_values for p_values, _ in found]))
    if p_value >= LEVEL:
        what = "clients and tensors" if labels else "tensors (of one client only)"
        return Check(ANEW, "holds", f"{what} differ as independent noise does, or more", p_value)
    p_values, pairs = min(found, key=lambda one: one[0].min())
    return Check(
        ANEW, "violated", f"{pairs[int(p_values.argmin())]} differ by less than independent noise: it is off, weaker, "
        "or the same draw", p_value,
    )  # fmt: skip


def _unrounded(evidence: Evidence) -> Check:
    """Whether values repeat exactly, which continuous noise never lets them but for the rounding of floats.

    Noise of deviation s, rounded to steps of h, has a given value with a chance of at most h / (s sqrt(2 pi)), whatever
    is under it. Number i of a tensor repeats an earlier one with a chance of at most i - 1 times that, given all
    earlier ones. So there are at most as many repeats as successes of independent trials with these chances, whose
    upper tail is at most a binomial one of the same mean, from one above the mean on (Hoeffding 1956, theorem 4).
    """
    level, noise = evidence.level, evidence.noise
    if level is None or noise is None or noise.law != "gaussian":
        return Check(UNROUNDED, "cannot tell", "it takes Gaussian noise of one known level")
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
