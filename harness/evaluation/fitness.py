"""Whether an attack was fit to find anything in a cell: what a failure of it is worth."""

from collections.abc import Sequence

from harness.attacks import reconstructing
from harness.evaluation.scores import Scored, Scores
from harness.results import CellResult, Control

AT_CHANCE = 0.05
"""From this p-value on, inferred labels are no better than guesses."""
# Of fewer victims the labels of all, exchanged, are right too often for any p-value below that.
_FEWEST = 4
_FOREIGN, _ERRORS = 1.5, 2.0
_BLIND_TO_LABELS = "label inference at chance; --labels known shows what comes back where they are known"


def flags_of(scored: Scored, controls: Sequence[Control]) -> list[str]:
    """Why the attack was not fit there, a sentence for each reason; a verdict of a suite looks at them."""
    failed = [check for check in controls if check.kind == "positive" and not check.held]
    flags = [f"positive control failed: {check.detail or check.name}" for check in failed]
    if isinstance(scored.scores, Scores):
        searches = not reconstructing(scored.settings.build_attack()).closed_form
        flags += (_stalled(scored.scores) if searches else []) + _labels(scored)
    return flags + _foreign(scored) + ([scored.scores.doubt] if scored.scores.doubt else [])


def needs_labels(cell: CellResult) -> bool:
    """Whether the attack has to be tried with labels known too: it found nothing, and its labels were guesses."""
    return cell.verdict != "leaks" and _BLIND_TO_LABELS in cell.flags


def _stalled(scores: Scores) -> list[str]:
    """An outer iteration of L-BFGS is up to 20 steps: gradient evaluations say how many were taken."""
    if scores.stalled.sum() <= scores.victims / 2:
        return []
    return ["stalled: the loss of most victims never left its start"]


def _labels(scored: Scored) -> list[str]:
    attack = scored.settings.build_attack()
    if scored.settings.labels == "known" or not isinstance(scored.scores, Scores):
        return []
    if not reconstructing(attack).uses_labels:
        return []
    label = scored.scores.label
    if label.p_value is None or label.p_value < AT_CHANCE or label.accuracy == 1:
        return []
    if scored.scores.victims < _FEWEST and (label.accuracy or 0) > (label.chance or 0):
        return []
    return [_BLIND_TO_LABELS]


def _foreign(scored: Scored) -> list[str]:
    """Truths lie as far from the class means of public data of their own kind as those data do."""
    prior, truth = scored.scene.observation.prior, scored.scene.truth
    if prior is None or scored.settings.build_attack().tier == "plain":
        return []
    labels = truth.labels.flatten()
    distances = (truth.images.flatten(0, 1).flatten(1).to(prior.means) - prior.means[labels]).square().sum(1)
    farther = (distances / prior.spread()[labels]).double()
    times, error = float(farther.mean()), float(farther.std()) / len(farther) ** 0.5
    if len(farther) < 2 or times - _ERRORS * error <= _FOREIGN:
        return []
    return [f"prior foreign: victims are {times:.1f} times as far from its class means as public data"]
