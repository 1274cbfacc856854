"""Is the declared defense on? What can be told from the updates alone, and from the truth, check by check."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from harness.datasets.public import NONE
from harness.evaluation.controls import with_other_key
from harness.experiment import CellSettings
from harness.judging.declared import noise_of
from harness.judging.evidence import LEVEL, Check, Evidence, bonferroni, level_of
from harness.judging.federation import CapturedClients
from harness.judging.noise_checks import GIVE_SIZE, drawn_levels, noise_checks
from harness.judging.place_checks import buffers, left_out, on_grid
from harness.judging.stage import SimulatedStage

# Of the norm, between what was sent and what the truth gives.
_UNLIKE = 0.02


def checks_of(captured: CapturedClients, settings: CellSettings) -> list[Check]:
    """All checks of the defense that ``settings`` declare."""
    evidence = Evidence(captured, settings)
    place = left_out(evidence)
    # Zeros in the place of coordinates have no noise, unless they were filled again behind it.
    filled = place is None or evidence.most_sent is None
    noise = [*noise_checks(evidence), on_grid(evidence)] if filled else []
    return [check for check in (place, *noise, buffers(evidence)) if check is not None]


def explained(captured: CapturedClients, settings: CellSettings, data_root: Path, chunk: int = 128) -> Check:
    """Whether what was sent is what the network, the settings and the truth give, up to the declared noise.

    A capture of which this does not hold is of another client than the one that controls simulate.
    """
    name, noise = "the truth explains what was sent", noise_of(captured, settings)
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
    apart = sent - made
    rounding = captured.grain.numpy() * apart.shape[1] ** 0.5
    if noise is None or level is None:
        check = _alike(name, apart, made, rounding, factor)
        return _with_other(check, sent, made) if check.outcome == "violated" else check
    freedom = apart.shape[1]
    p_value, evidence = _fits(apart, rounding, level, freedom), Evidence(captured, settings)
    found, unit = float(apart.square().mean().sqrt()), evidence.unit
    detail = f"what is left is noise of deviation {found * unit:.3g}, declared is {level * unit:.3g}{factor}"
    if p_value < LEVEL and (drawn := drawn_levels(evidence)) and drawn[0] <= found / level <= drawn[1]:
        return Check(name, "cannot tell", f"{detail}, as a Poisson batch may have it: {GIVE_SIZE}", p_value)
    if p_value >= LEVEL:
        return Check(name, "holds", detail, p_value)
    decay = _along_weights(captured.before.double(), apart, made)
    if decay is not None and _fits(decay[0], rounding, level, freedom - 2) >= LEVEL:
        said = f"the update also shrinks the weights, as weight decay does ({decay[1]:.2g} of them); none is declared"
        return Check(name, "cannot tell", f"{detail}; {said}", p_value)
    return _with_other(Check(name, "violated", detail, p_value), sent, made)


def _fits(apart: Tensor, rounding: np.ndarray, level: float, freedom: int) -> float:
    """The p-value of what is left in V clients' (V, P) as noise of this level, by its norm."""
    norms = apart.norm(dim=1).numpy()
    least, most = (np.square(np.clip(norms + side * rounding, 0, None) / level) for side in (-1, 1))
    return bonferroni(np.minimum(1, 2 * np.minimum(chi2.cdf(most, freedom), chi2.sf(least, freedom))))


def _along_weights(before: Tensor, apart: Tensor, made: Tensor) -> tuple[Tensor, float] | None:
    """What is left without weight decay, and its size; None where no client's weights shrink.

    Weight decay adds a multiple of the weights to a gradient, of which a clip then keeps a smaller part.
    """
    columns = torch.stack([before, made], 2)
    found = torch.linalg.lstsq(columns, apart[..., None]).solution
    shrunk = found[:, 0, 0]
    return (apart - (columns @ found)[..., 0], float(shrunk.mean())) if (shrunk > 0).all() else None


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
