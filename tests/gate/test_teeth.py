"""Planted faults on the gate preset: each must be caught, and for the right reason.

A fault changes code, never settings. Only the cells it concerns are run again, the others stand as they were, so the
correction over all cells is that of a whole run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.attacks import adam, attack, labels
from harness.defenses import dssgd, fed_cdp
from harness.evaluation import observe, played_round, run
from harness.experiment import CellSettings
from harness.federation import operations
from harness.federation.context import RoundContext
from harness.federation.recorders import KeepTap
from harness.federation.taps import Tap
from harness.gate import GateCell, Report, as_baseline, check

pytestmark = pytest.mark.slow

VERSIONS = {"harness": "0.1.0", "torch": "2.11.0"}
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """What is done to the code, which cells it concerns, and what the gate must call it.

    ``attacks`` says that the fault is in the attack, so that no earlier attack may be taken over.
    """

    plant: Plant
    concerns: dict[str, Any]
    kind: str
    attacks: bool = False

    def chosen(self, settings: list[CellSettings]) -> list[CellSettings]:
        return [one for one in settings if all(getattr(one, name) == value for name, value in self.concerns.items())]


def noise_times(factor: float) -> Plant:
    whole = RoundContext.gaussian
    return lambda patch: patch.setattr(RoundContext, "gaussian", lambda *given: whole(*given) * factor)


def clipping_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operations, "example_factors", lambda norms, *rest: torch.ones_like(norms))


def everything_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dssgd.DSSGD, "client_message", lambda self, update, context: update)


def read_instead(taps: dict[str, str]) -> Plant:
    class ReadInstead(KeepTap):
        def __init__(self, tap: Tap) -> None:
            super().__init__(Tap(taps.get(tap, tap)))

        def seen(self, defense_name: str) -> torch.Tensor:
            found = super().seen(defense_name)
            return found.mean(1) if found.dim() == 3 else found

    return lambda patch: patch.setattr(played_round, "KeepTap", ReadInstead)


def client_learns_faster(patch: pytest.MonkeyPatch) -> None:
    whole = played_round.play_round

    def hurried(*given: Any, **named: Any) -> Any:
        context = replace(given[3], learning_rate=100 * given[3].learning_rate)
        return whole(*given[:3], context, *given[4:], **named)

    patch.setattr(played_round, "play_round", hurried)


def attack_learns_faster(patch: pytest.MonkeyPatch) -> None:
    """For ever: a rate that still decays a thousandfold comes right in the end, and nothing less leaks."""
    patch.setattr(adam.Adam, "rate", lambda self, iteration: 100 * self.learning_rate)


def labels_off_by_one(patch: pytest.MonkeyPatch) -> None:
    for name in ("bias", "count"):
        whole = labels.LABEL_RULES[name]
        patch.setitem(labels.LABEL_RULES, name, lambda seen, whole=whole: (whole(seen) + 1) % seen.model.classes)


def gradient_sign_flipped(patch: pytest.MonkeyPatch) -> None:
    whole = attack.dummy_gradient
    patch.setattr(attack, "dummy_gradient", lambda *given: -whole(*given))


def clipping_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fed_cdp.FedCDP, "clipping_at", lambda *given: None)


def truth_shuffled(patch: pytest.MonkeyPatch) -> None:
    whole = run.score

    def shuffled(settings: CellSettings, scene: observe.Scene, *rest: Any, **named: Any) -> Any:
        truth = scene.truth
        rolled = replace(
            truth, images=truth.images.roll(1, 0), labels=truth.labels.roll(1, 0), indices=truth.indices.roll(1, 0)
        )
        return whole(settings, replace(scene, truth=rolled), *rest, **named)

    patch.setattr(run, "score", shuffled)


def another_network(patch: pytest.MonkeyPatch) -> None:
    """The attacker's weights are not those the clients used."""
    whole = observe.Stage._observation

    def stale(*given: Any) -> Any:
        seen = whole(*given)
        return replace(seen, weights=seen.weights.roll(1, 0))

    patch.setattr(observe.Stage, "_observation", stale)


NOISY: dict[str, dict[str, Any]] = {
    "fed_cdp": {"defense": "fed_cdp", "defense_args": {"sigma": "0.002"}},
    "fed_acdp": {"defense": "fed_acdp"},
    "quantile": {"defense": "quantile"},
    "noise": {"defense": "noise", "attack": "cpl"},
    "noise that is known": {"defense": "noise", "attack": "map"},
    "fed_sdp at the client": {"defense": "fed_sdp", "tap": "T1.out"},
    "fed_sdp on arrival": {"defense": "fed_sdp", "tap": "T0.post"},
}
UNDEFENDED = {"defense": "none", "attack": "cpl", "tap": "T2.step", "batch_size": 1}

FAULTS: dict[str, Fault] = {
    **{f"half the noise of {who}": Fault(noise_times(0.5), cells, "regression") for who, cells in NOISY.items()},
    **{f"no noise of {who}": Fault(noise_times(0.0), cells, "regression") for who, cells in NOISY.items()},
    "clipping off": Fault(clipping_off, {"defense": "fed_cdp"}, "regression"),
    "all coordinates sent": Fault(everything_sent, {"defense": "dssgd"}, "regression"),
    "the raw gradient is read": Fault(read_instead({"T2.step": "T2.raw"}), {"defense": "fed_acdp"}, "regression"),
    "the raw update is read": Fault(
        read_instead({"T1.out": "T1.raw"}), {"defense": "fed_sdp", "tap": "T1.out"}, "regression"
    ),
    "another tap is read": Fault(
        read_instead({"T1.out": "T2.step"}), {"defense": "none", "tap": "T1.out"}, "broken attack"
    ),
    "clients learn 100 times faster": Fault(
        client_learns_faster, {"defense": "none", "tap": "T1.out"}, "broken attack"
    ),
    "the attack learns 100 times faster": Fault(
        attack_learns_faster, {"attack": "inverting_gradients"}, "broken attack", attacks=True
    ),
    "labels off by one": Fault(labels_off_by_one, UNDEFENDED, "broken attack", attacks=True),
    "gradient sign flipped for who knows the noise": Fault(
        gradient_sign_flipped, {"attack": "map"}, "broken attack", attacks=True
    ),
    "gradient sign flipped": Fault(gradient_sign_flipped, UNDEFENDED, "broken attack", attacks=True),
    "clipping forgotten by the attack": Fault(clipping_forgotten, NOISY["fed_cdp"], "broken attack"),
    "truth shuffled": Fault(truth_shuffled, UNDEFENDED, "broken attack"),
    "another network": Fault(another_network, UNDEFENDED, "broken attack"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(
    gate: SimpleNamespace, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    again = gate.play(fault.chosen(gate.settings), tmp_path / "run", None if fault.attacks else gate.folder)
    report = check(as_baseline(gate.cells, VERSIONS), among(gate.cells, again), VERSIONS)
    told = [f"{found.kind}: {found.cell} {found.movement} p={found.p}" for found in report.findings if found.fails]
    print(f"{name}: {told or explained(report)}")
    assert fault.kind in [finding.kind for finding in report.findings]


def test_without_a_fault_nothing_is_caught(gate: SimpleNamespace, tmp_path: Path) -> None:
    """The very same procedure, so that what is caught above is the fault."""
    chosen = [one for one in gate.settings if one.defense in ("none", "fed_cdp")]
    again = gate.play(chosen, tmp_path / "run")
    report = check(as_baseline(gate.cells, VERSIONS), among(gate.cells, again), VERSIONS)
    assert {finding.kind for finding in report.findings} == {"unmoved"}
    assert all(finding.movement.effect == 0 for finding in report.findings)


def among(old: list[GateCell], again: list[GateCell]) -> list[GateCell]:
    """All cells, those that were run again in their new state."""
    settings = [cell.settings for cell in again]
    return again + [cell for cell in old if cell.settings not in settings]


def explained(report: Report) -> list[str]:
    """For a fault that was missed: which cells moved at all."""
    return [f"{f.cell} {f.movement.asr} {f.movement.rank} p={f.p}" for f in report.findings if f.movement.effect]
