"""Is the declared defense on? What can be told from the updates alone, and from the truth, check by check."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from harness.datasets.public import NONE
from harness.evaluation.controls import with_other_key
from harness.experiment import CellSettings
from harness.judging.declared import context_of, steps_of
from harness.judging.evidence import LEVEL, Check, Evidence, Outcome, bonferroni, level_of
from harness.judging.federation import CapturedClients
from harness.judging.noise_checks import GIVE_SIZE, drawn_levels, noise_checks
from harness.judging.parts import STATISTICS
from harness.judging.stage import SimulatedStage

# Checks that need no statistics: what has to be zero, to lie on a grid, or not to be sent at all.

LEFT_OUT = "coordinates are left out"
ON_GRID = "values lie on the declared grid"
BUFFERS = "buffers carry no data"
BARE = "no array leaves bare"

# A grid of fewer steps of the floats than this is not told from none.
_FINEST = 16


def left_out(evidence: Evidence) -> Check | None:
    """Whether no more coordinates were sent than declared; None where none is to be left out."""
    if not evidence.defense.sparse_at(evidence.settings.tap):
        return None
    sent, total = int((evidence.sent != 0).sum(1).max()), evidence.sent.shape[1]
    most = evidence.most_sent
    said = f"a client sent at most {sent} of {total} coordinates ({sent / total:.1%})"
    if most is None:
        return Check(LEFT_OUT, "cannot tell", f"{said}; how many it may send is not declared")
    said = f"{said}, declared are {most} ({most / total:.1%})"
    return Check(LEFT_OUT, "holds" if sent <= most else _sent_more(evidence, most), said)


def _sent_more(evidence: Evidence, most: int) -> Outcome:
    """What more coordinates than declared say: nothing against a client that keeps those above a threshold, if the
    smallest that it sent are alike. Where all that it sent are alike, as behind a cut, how many tied is lost; a tenth
    more than declared is not of ties."""
    chosen = evidence.defense.chosen_at(evidence.settings.tap, evidence.layout)
    if chosen is None or chosen.choice != "largest":
        return "violated"
    sizes = evidence.sent.abs().double()
    least = sizes.where(sizes > 0, math.inf).amin(1, keepdim=True)
    above = (sizes > least + 2 * evidence.captured.grain.double().reshape(-1, 1)).sum(1)
    if int(above.max()) >= most or int((sizes > 0).sum(1).max()) > 1.1 * most:
        return "violated"
    return "holds" if bool((above > 0).all()) else "cannot tell"


def on_grid(evidence: Evidence) -> Check | None:
    """Whether every value is a multiple of the declared step, as integers of a secure sum are; None without a grid."""
    settings = evidence.settings
    step = evidence.defense.grid_of(settings.tap, context_of(evidence.captured, settings), steps_of(settings))
    if step is None:
        return None
    grain = float(evidence.captured.grain.max())
    if step < _FINEST * grain:
        return Check(ON_GRID, "cannot tell", f"its steps of {step:.3g} are too fine for the floats of the capture")
    steps = evidence.sent.double() / step
    off = float(((steps - steps.round()).abs() * step).max())
    said = f"values are up to {off:.2g} off a grid of {step:.3g}"
    return Check(ON_GRID, "holds" if off <= 2 * grain else "violated", said)


def buffers(evidence: Evidence) -> Check | None:
    """Whether statistics of the data travel beside what is defended; None where the network has none."""
    changed = evidence.captured.moved_buffers
    if evidence.captured.foreign or not any(one.is_floating_point() for _, one in evidence.module.named_buffers()):
        return None
    if not changed:
        return Check(BUFFERS, "holds", "none was sent, or all as they were")
    if covered := _covered(evidence):
        return covered
    first, *others = changed
    rest = f" and {len(others)} more" if others else ""
    fixed = next((name for name in changed if name.rpartition(".")[2] not in STATISTICS), None)
    if fixed is not None:
        return Check(
            BUFFERS, "violated", f"{fixed}{rest} came back changed, which the network does not train, and no clip and "
            "noise that are declared are on it; correct model or frozen, or the training",
        )  # fmt: skip
    return Check(
        BUFFERS, "violated", f"{first}{rest} came back changed: running statistics tell each batch's mean and "
        "variance, and no defense of the weights is on them; keep them at the client",
    )  # fmt: skip


def bare(evidence: Evidence) -> Check | None:
    """Whether clip and noise of an update are declared to pass arrays over, and whether counts came back as counts."""
    clipping, counted = evidence.clipping, evidence.captured.counted
    if evidence.noise is None or clipping is None or clipping.unit != "update" or not (evidence.bare or counted):
        return None
    if evidence.bare:
        first, *others = sorted(evidence.bare)
        return Check(
            BARE, "violated", f"{first}{f' and {len(others)} more' if others else ''} left without clip and noise, as "
            f"{evidence.settings.defense} leaves arrays without a dimension: nothing is proven; give it the shape (1,)",
        )  # fmt: skip
    record, (first, *_) = evidence.captured.record, counted
    batches = record.local_steps * record.accumulate
    if any(bool((one != batches).any()) for one in counted.values()):
        said = f"{first} moved by other numbers than the {batches} batches: noise that is cut to whole numbers is less"
        return Check(BARE, "cannot tell", said)
    said = f"{first} counts batches and left without noise: what is proven is of clients that take as many steps"
    return Check(BARE, "holds", said)


def _covered(evidence: Evidence) -> Check | None:
    """Whether the declared clip and noise are on what was sent beside the weights too; None where they are not.

    A buffer without noise moves less than noise does. One that moves by more than clip and noise let it is not clipped.
    """
    level, bound = evidence.level, evidence.bound
    # Noise of single examples is added before there is anything to send.
    if not level or evidence.clipping is None or evidence.clipping.unit != "update":
        return None
    moved = list(evidence.captured.moved_buffers.values())
    norms, sizes = np.stack([one.norm(dim=1).numpy() for one in moved], 1), np.array([one.shape[1] for one in moved])
    rounding = np.stack([evidence.rounding(size) for size in sizes], 1)
    beyond = np.zeros_like(norms) if bound is None else np.clip(norms - bound - rounding, 0, None)
    weaker = chi2.cdf(((norms + rounding) / level) ** 2, sizes)
    p_value = bonferroni(np.concatenate([weaker, chi2.sf((beyond / level) ** 2, sizes)], 1))
    if p_value < LEVEL:
        return None
    said = f"they came back changed, under the same clip and noise of deviation {level * evidence.unit:.3g}"
    return Check(BUFFERS, "holds", said, p_value)


# Of the norm, between what was sent and what the truth gives.
_UNLIKE = 0.02


def checks_of(captured: CapturedClients, settings: CellSettings) -> list[Check]:
    """All checks of the defense that ``settings`` declare."""
    evidence = Evidence(captured, settings)
    place = left_out(evidence)
    # Zeros in the place of coordinates have no noise, unless they were filled again behind it.
    filled = place is None or evidence.most_sent is None
    noise = [*noise_checks(evidence), on_grid(evidence)] if filled else []
    return [check for check in (place, *noise, bare(evidence), buffers(evidence)) if check is not None]


def explained(captured: CapturedClients, settings: CellSettings, data_root: Path, chunk: int = 128) -> Check:
    """Whether what was sent is what the network, the settings and the truth give, up to the declared noise.

    A capture of which this does not hold is of another client than the one that controls simulate.
    """
    name, noise = "the truth explains what was sent", Evidence(captured, settings).noise
    level = level_of(noise)
    if noise is not None and level is None:
        return Check(name, "cannot tell", "the noise's level is not declared as one number")
    quiet = settings.model_copy(update={"noise_scale": 0.0, "prior": NONE, "suite": None})
    stage = SimulatedStage(data_root, chunk, captured, quiet, None, None)
    made, again = (stage.set(one).observation.target.cpu() for one in (quiet, with_other_key(quiet)))
    if not torch.equal(made, again):
        return Check(name, "cannot tell", "the defense draws more than noise at random, such as coordinates")
    made, factor = _shrunk(captured, settings, made)
    sent, made = captured.target.double(), made.double()
    adaptive = settings.update_reading.adaptive
    if adaptive is not None:
        # Compared as they were sent: what is read of a step's large coordinates is next to nothing but rounding.
        sent, made = adaptive.step(sent), adaptive.step(made)
    apart = sent - made
    rounding = captured.grain.numpy() * apart.shape[1] ** 0.5
    if noise is None or level is None:
        check = _alike(name, apart, made, rounding, factor)
        if check.outcome == "violated" and not captured.sums:
            said = f"of steps of {captured.record.optimizer} rounding decides coordinates whose gradient is next to 0"
            return replace(check, outcome="cannot tell", detail=f"{check.detail}; {said}")
        return _with_reason(
            check, captured, sent, made, lambda left: _alike(name, left, made, rounding, "").outcome != "violated"
        )
    freedom = apart.shape[1]
    p_value, evidence = _fits(apart, rounding, level, freedom), Evidence(captured, settings)
    found, unit = float(apart.square().mean().sqrt()), evidence.unit
    detail = f"what is left is noise of deviation {found * unit:.3g}, declared is {level * unit:.3g}{factor}"
    if p_value < LEVEL and (drawn := drawn_levels(evidence)) and drawn[0] <= found / level <= drawn[1]:
        return Check(name, "cannot tell", f"{detail}, as a Poisson batch may have it: {GIVE_SIZE}", p_value)
    check = Check(name, "holds" if p_value >= LEVEL else "violated", detail, p_value)
    return _with_reason(check, captured, sent, made, lambda left: _fits(left, rounding, level, freedom - 2) >= LEVEL)


def _with_reason(
    check: Check, captured: CapturedClients, sent: Tensor, made: Tensor, fits: Callable[[Tensor], bool]
) -> Check:
    """A violation is no proof where weight decay explains it, and may have a reason that can be named.

    Weight decay adds a multiple of the weights to a gradient, of which a clip then keeps a smaller part. What a factor
    alone explains, such as another learning rate, is no weight decay.

    Args:
        fits: whether what is left, (V, P), is as small or as noisy as it must be.
    """
    if check.outcome != "violated":
        return check
    apart, columns = sent - made, torch.stack([made, captured.before.double()], 2)
    scaled, both = (torch.linalg.lstsq(one, apart[..., None]).solution for one in (columns[..., :1], columns))
    shrunk = both[:, 1, 0]
    alone, left = apart - (columns[..., :1] @ scaled)[..., 0], apart - (columns @ both)[..., 0]
    if (shrunk > 0).all() and fits(left) and not fits(alone):
        said = f"the update also shrinks the weights, as weight decay does ({float(shrunk.mean()):.2g} of them)"
        return replace(check, outcome="cannot tell", detail=f"{check.detail}; {said}; none is declared")
    return _with_other(check, sent, made)


def _fits(apart: Tensor, rounding: np.ndarray, level: float, freedom: int) -> float:
    """The p-value of what is left in V clients' (V, P) as noise of this level, by its norm."""
    norms = apart.norm(dim=1).numpy()
    least, most = (np.square(np.clip(norms + side * rounding, 0, None) / level) for side in (-1, 1))
    return bonferroni(np.minimum(1, 2 * np.minimum(chi2.cdf(most, freedom), chi2.sf(least, freedom))))


def _with_other(check: Check, sent: Tensor, made: Tensor) -> Check:
    """The same with a word on truths that are another client's."""
    apart = torch.cdist(sent, made, compute_mode="donot_use_mm_for_euclid_dist")
    nearest, own = apart.min(1), apart.diagonal()
    rows = (nearest.values < own / 2).nonzero()[:, 0].tolist()
    if not rows:
        return check
    said = f"what client {rows[0] + 1} sent fits the truth of client {int(nearest.indices[rows[0]]) + 1} better"
    return replace(check, detail=f"{check.detail}; {said}: are their truths exchanged?")


def _shrunk(captured: CapturedClients, settings: CellSettings, made: Tensor) -> tuple[Tensor, str]:
    """What the truth gives, shrunk as much as a clip does that counts what is sent beside the weights too.

    Such a clip protects more than the declared one, so that what it does is explained and not accused.
    """
    clipping = settings.build_defense().clipping_at(settings.tap, settings.learning_rate)
    if not captured.moved_buffers or clipping is None or clipping.unit != "update" or clipping.grouping != "whole":
        return made, ""
    own = made.double()
    factors = ((captured.target.double() * own).sum(1) / own.square().sum(1).clamp_min(1e-30)).clamp(0, 1)
    least = float(factors.min())
    if least > 1 - _UNLIKE:
        return made, ""
    return own * factors[:, None], f"; the clip counts running statistics too, and shrinks the weights to {least:.3g}"


def _alike(name: str, apart: Tensor, made: Tensor, rounding: np.ndarray, factor: str) -> Check:
    """Without noise what is left is rounding, whose width is known."""
    norms = made.norm(dim=1).clamp_min(1e-30).numpy()
    worst = float((apart.norm(dim=1).numpy() / norms).max())
    beyond = float((np.clip(apart.norm(dim=1).numpy() - rounding, 0, None) / norms).max())
    said, width = f"they differ by at most {worst:.2g} of its norm", float((rounding / norms).max())
    if worst < _UNLIKE:
        return Check(name, "holds", f"{said}{factor}")
    if beyond < _UNLIKE:
        return Check(name, "cannot tell", f"{said}, the rounding of the floats that were sent by up to {width:.2g}")
    mend = "check learning_rate, the optimizer, the truth's order and scale, each layer's mode"
    return Check(name, "violated", f"{said}; {mend}")
