"""Is the declared defense on? What can be told from the updates alone, check by check.

What a client sends under a clip and Gaussian noise of deviation s is c + z with ‖c‖ at most the bound and z of n
independent coordinates, so ‖c + z‖² / s² is noncentral chi-square: never smaller, in distribution, than chi-square with
n degrees, and its root never more than the bound beyond that of chi-square. Both tails therefore hold whatever the
client's data are. Bonferroni over the tensors of all clients keeps a check's error below ``LEVEL``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from harness.datasets.public import NONE
from harness.evaluation.controls import with_other_key
from harness.evaluation.played_round import server_state
from harness.experiment import CellSettings
from harness.judging.declared import noise_of
from harness.judging.federation import CapturedClients
from harness.judging.stage import SimulatedStage
from harness.models.networks import build_module
from harness.observation import Clipping, Noise
from harness.vectors.layout import Layout

LEVEL = 1e-3
# Beyond the bound by rounding alone: an update is the difference of two float32 models.
_ROUNDING = 1e-3
# Of the norm, between what was sent and what the truth gives.
_UNLIKE = 0.02


@dataclass(frozen=True)
class Check:
    """One check: what it asks, whether it holds, the p-value where it is a test, and a sentence."""

    name: str
    outcome: Literal["holds", "violated", "cannot tell"]
    detail: str
    p_value: float | None = None


def checks_of(captured: CapturedClients, settings: CellSettings) -> list[Check]:
    """All checks of the defense that ``settings`` declare."""
    defense, noise = settings.build_defense(), noise_of(captured, settings)
    clipping = defense.clipping_at(settings.tap, settings.learning_rate, server_state(settings))
    layout = Layout.of(build_module(settings.model, captured.record.image_shape, captured.record.classes, seed=0))
    if defense.sparse_at(settings.tap):
        return [_zeros(captured.target, settings)]
    return [
        _bound(captured.target, layout, clipping, noise),
        _noise(captured.target, layout, noise),
        _drawn_anew(captured.target, noise),
    ]


def explained(captured: CapturedClients, settings: CellSettings, data_root: Path, chunk: int = 128) -> Check:
    """Whether what was sent is what the network, the settings and the truth give, up to the declared noise.

    A capture of which this does not hold is of another client than the one that controls simulate.
    """
    name, noise = "the truth explains what was sent", noise_of(captured, settings)
    level = _levels(noise)
    if noise is not None and level is None:
        return Check(name, "cannot tell", "the noise's level is not declared as one number")
    quiet = settings.model_copy(update={"noise_scale": 0.0, "prior": NONE, "suite": None})
    stage = SimulatedStage(data_root, chunk, captured, quiet, None, None)
    made, again = (stage.set(one).observation.target.cpu() for one in (quiet, with_other_key(quiet)))
    if not torch.equal(made, again):
        return Check(name, "cannot tell", "the defense draws more than noise at random, such as coordinates")
    apart = captured.target - made
    if noise is None or level is None:
        worst = float((apart.norm(dim=1) / made.norm(dim=1).clamp_min(1e-30)).max())
        mend = "" if worst < _UNLIKE else "; check learning_rate, the optimizer, the truth's order and scale, BatchNorm"
        return Check(name, "violated" if mend else "holds", f"they differ by at most {worst:.2g} of its norm{mend}")
    freedom = apart.shape[1]
    sizes = apart.double().square().sum(1).numpy() / level**2
    p_value = _bonferroni(2 * np.minimum(chi2.cdf(sizes, freedom), chi2.sf(sizes, freedom)))
    found = level * float(np.sqrt(sizes.mean() / freedom))
    detail = f"what is left is noise of deviation {found:.3g}, declared is {level:.3g}"
    return Check(name, "holds" if p_value >= LEVEL else "violated", detail, p_value)


def _levels(noise: Noise | None) -> float | None:
    """The noise's deviation where it is one known number of a Gaussian (or of a sum that is all but one)."""
    if noise is None or noise.law not in ("gaussian", "skellam") or not isinstance(noise.deviation, int | float):
        return None
    return float(noise.deviation)


def _bound(target: Tensor, layout: Layout, clipping: Clipping | None, noise: Noise | None) -> Check:
    """Whether norms are as the clip and the noise make them, and not larger."""
    name = "norms are within the bound"
    if clipping is None or clipping.bound is None:
        return Check(name, "cannot tell", "no bound is declared, or it is not published")
    level = 0.0 if noise is None else _levels(noise)
    if level is None:
        return Check(name, "cannot tell", "the noise's level is not declared as one number")
    norms, sizes = _norms(target, layout, clipping.grouping == "layer")
    beyond = np.clip(norms - clipping.bound * (1 + _ROUNDING), 0, None)
    if not level:
        worst = float((norms / clipping.bound).max())
        held = not beyond.any()
        said = "at most" if held else "up to"
        return Check(
            name, "holds" if held else "violated", f"norms are {said} {worst:.3g} times the bound {clipping.bound:g}"
        )
    p_value = _bonferroni(chi2.sf((beyond / level) ** 2, sizes))
    if p_value >= LEVEL:
        return Check(name, "holds", f"bound {clipping.bound:g} with noise of deviation {level:.3g}", p_value)
    times = float((norms / np.sqrt(clipping.bound**2 + level**2 * sizes)).max())
    return Check(
        name, "violated", f"norms are up to {times:.3g} times what the bound and the declared noise allow: clipped to "
        "more, or noisier, than declared", p_value,
    )  # fmt: skip


def _noise(target: Tensor, layout: Layout, noise: Noise | None) -> Check:
    """Whether there is as much noise on every tensor as declared, whatever the signal."""
    name = "noise is on every tensor"
    level = _levels(noise)
    if noise is None:
        return Check(name, "cannot tell", "no noise is declared")
    if level is None:
        return Check(name, "cannot tell", "the noise's level is not declared as one number")
    norms, sizes = _norms(target, layout, each=True)
    p_values = chi2.cdf((norms / level) ** 2, sizes)
    p_value = _bonferroni(p_values)
    if p_value >= LEVEL:
        return Check(
            name, "holds", f"every tensor varies as much as noise of deviation {level:.3g} does, or more", p_value
        )
    row, tensor = np.unravel_index(int(p_values.argmin()), p_values.shape)
    found = float(norms[row, tensor] / np.sqrt(sizes[tensor]))
    return Check(
        name, "violated",
        f"{layout.names[tensor]} of client {row + 1} has a root mean square of {found:.3g}, declared is noise "
        f"of deviation {level:.3g}: it is off or weaker there", p_value,
    )  # fmt: skip


def _drawn_anew(target: Tensor, noise: Noise | None) -> Check:
    """Whether any two clients, or rounds, share their noise: then its difference is gone."""
    name = "noise is drawn anew each time"
    level = _levels(noise)
    if level is None or len(target) < 2:
        what = "two captures" if level is not None else "noise of one known level"
        return Check(name, "cannot tell", f"it takes {what}")
    pairs = torch.tril_indices(len(target), len(target), -1)
    apart = torch.cdist(target.double(), target.double())[pairs[0], pairs[1]].square().numpy()
    p_values = chi2.cdf(apart / (2 * level**2), target.shape[1])
    p_value = _bonferroni(p_values)
    if p_value >= LEVEL:
        return Check(name, "holds", f"{len(apart)} pairs differ as independent noise does, or more", p_value)
    one, two = pairs[:, int(p_values.argmin())].tolist()
    return Check(
        name, "violated", f"clients {two + 1} and {one + 1} differ by less than independent noise: it is off, "
        "weaker, or the same draw", p_value,
    )  # fmt: skip


def _zeros(target: Tensor, settings: CellSettings) -> Check:
    name, shares = "coordinates are left out", (target == 0).double().mean(1)
    declared = settings.build_defense().parameters().get("threshold")
    least = float(shares.min())
    if not isinstance(declared, int | float):
        outcome: Literal["holds", "violated"] = "holds" if least > 0 else "violated"
        return Check(name, outcome, f"at least {least:.1%} of a client's coordinates are zero")
    held = least >= float(declared) - 0.5 / target.shape[1] ** 0.5
    return Check(
        name,
        "holds" if held else "violated",
        f"at least {least:.1%} of a client's coordinates are zero, {declared:.1%} declared",
    )


def _norms(target: Tensor, layout: Layout, each: bool) -> tuple[np.ndarray, np.ndarray]:
    """Norms (V, M) of every client's tensors, or (V, 1) of all of it, and the coordinates behind each (M,)."""
    sizes = layout.groups("layer" if each else "whole")
    rows = target.double().split(sizes, dim=1)
    return np.stack([part.norm(dim=1).numpy() for part in rows], 1), np.array(sizes)


def _bonferroni(p_values: np.ndarray | Sequence[float]) -> float:
    """The smallest p-value of many, as one."""
    flat = np.asarray(p_values).reshape(-1)
    return float(min(1.0, flat.min() * len(flat)))
