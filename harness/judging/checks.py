"""Is the declared defense on? What can be told from the updates alone, and from the truth, check by check."""

from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2

from harness.datasets.public import NONE
from harness.evaluation.controls import with_other_key
from harness.experiment import CellSettings
from harness.judging.declared import noise_of
from harness.judging.evidence import LEVEL, Check, Evidence, bonferroni, level_of
from harness.judging.federation import CapturedClients
from harness.judging.noise_checks import noise_checks
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
    apart = captured.target - made
    if noise is None or level is None:
        worst = float((apart.norm(dim=1) / made.norm(dim=1).clamp_min(1e-30)).max())
        mend = (
            ""
            if worst < _UNLIKE
            else "; check learning_rate, the optimizer, the truth's order and scale, each layer's mode"
        )
        return Check(name, "violated" if mend else "holds", f"they differ by at most {worst:.2g} of its norm{mend}")
    freedom = apart.shape[1]
    sizes = apart.double().square().sum(1).numpy() / level**2
    p_value = bonferroni(2 * np.minimum(chi2.cdf(sizes, freedom), chi2.sf(sizes, freedom)))
    found = level * float(np.sqrt(sizes.mean() / freedom))
    detail = f"what is left is noise of deviation {found:.3g}, declared is {level:.3g}"
    return Check(name, "holds" if p_value >= LEVEL else "violated", detail, p_value)
