"""The theorem of a cell: of what was read there, of the model's own training, and what contradicts it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from harness.base.vectors import Layout
from harness.defenses.fed_cdp import FedCDP
from harness.evaluation.observe import Scene
from harness.evaluation.report_cell import limit_of
from harness.experiment import CellSettings, cell_settings
from harness.federation.context import RoundContext
from harness.federation.defense import LocalStep
from harness.federation.taps import Tap
from harness.privacy import GaussianLimit, NoLimit, RunLimit
from harness.scoring.verdict import fault_of
from harness.training.settings import TrainedRun, train_settings

LAYOUT = Layout(("a", "b", "c", "d"), ((3,),) * 4)


def test_a_clip_that_is_not_the_one_declared_makes_the_run_invalid(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small.cell(defense="fed_cdp", victims=8, attack_args={"max_iterations": 5})
    honest = small.alone(settings, tmp_path / "honest").cell
    assert fault_of([honest]) is None
    lineup, strict = honest.bound.events
    assert (lineup.event, lineup.measured.n, strict.measured.n) == ("first in its lineup", 8, 8)
    assert honest.bound.mu == pytest.approx(6**0.5 / 6)  # six tensors, sigma 6
    assert lineup.kappa < lineup.ceiling < 0.1 < strict.kappa < strict.ceiling

    applied = FedCDP.client_step

    def too_loud(self: FedCDP, per_example: Any, context: RoundContext) -> LocalStep:
        # A hundred times as much noise, in the negative control, is still enough to hide everything.
        quiet, made = (applied(self, per_example, each) for each in (replace(context, noise_scale=0.0), context))
        return replace(made, step=made.step + 3000 * quiet.step)

    monkeypatch.setattr(FedCDP, "client_step", too_loud)
    planted = small.play([settings], tmp_path / "planted")
    assert planted.cells[0].bound == honest.bound.model_copy(update={"events": planted.cells[0].bound.events})
    assert not planted.valid
    assert "cpl against fed_cdp at T2.step did what no attacker can: first in its lineup " in (
        planted.valid_reason or ""
    )
    assert "the noise or the clip is not what fed_cdp declares" in (planted.valid_reason or "")


def test_a_cell_without_a_theorem_says_why_and_still_what_was_measured(small: Any, tmp_path: Path) -> None:
    (made, *_) = small.play([small.cell(defense="fed_acdp")], tmp_path).cells
    assert made.bound.theorem is None and "follows private data" in made.bound.reason
    assert [(event.measured.n, event.ceiling, event.p_value) for event in made.bound.events] == [(5, None, None)] * 2
    assert all(0 < event.kappa < 1 for event in made.bound.events)


def scene(**changes: Any) -> Any:
    model = SimpleNamespace(uncovered=None, layout=LAYOUT)
    values = {"model": model, "dataset": SimpleNamespace(uncovered=None), "indices": torch.arange(6).reshape(3, 2)}
    values |= changes
    values["model"].of_one_round = values["model"]  # type: ignore[attr-defined]
    return Scene(
        cast(Any, SimpleNamespace(model=values["model"], batches=None)),
        cast(Any, SimpleNamespace(indices=values["indices"])), cast(Any, values["dataset"]),
    )  # fmt: skip


def cell(**values: Any) -> CellSettings:
    return cell_settings(**{"dataset": "digits", "model": "mlp", "defense": "fed_cdp", **values})


def run_of(copies: int = 1, **values: Any) -> TrainedRun:
    settings = train_settings(**{
        "dataset": "digits", "model": "mlp", "defense": "fed_cdp", "rounds": 3, "local_steps": 2, **values,
    })  # fmt: skip
    return TrainedRun(folder="run", settings=settings, rounds=3, holders=1, copies=copies)


def trained(**values: Any) -> CellSettings:
    return cell(weights="w", trained=run_of(**values))


def test_looks_and_control_noise_count() -> None:
    assert limit_of(cell(observations=9), scene()) == GaussianLimit(pytest.approx(1.0))
    assert limit_of(cell(noise_scale=2.0), scene()) == GaussianLimit(pytest.approx(1 / 6))


UNKNOWN: dict[str, tuple[CellSettings, dict[str, Any], str]] = {
    "weights of a file": (cell(weights="w"), {}, "nobody says"),
    "fitted to the victims": (cell(), {"model": SimpleNamespace(uncovered="fitted", layout=LAYOUT)}, "fitted"),
    "data that no epsilon covers": (cell(), {"dataset": SimpleNamespace(uncovered="scaled")}, "scaled"),
    "an image twice in a batch": (cell(), {"indices": torch.tensor([[0, 1], [2, 2]])}, "more than once"),
    "a run whose noise follows data": (
        trained().model_copy(update={"trained": run_of(defense="fed_acdp")}), {}, "no theorem",
    ),
    "a record held twice": (trained(copies=2), {}, "up to 2 times"),
    "no noise that adds up with a run's": (
        trained().model_copy(update={"defense": "dssgd", "defense_args": {"epsilon": 2.0}, "tap": Tap.SENT}), {},
        "only Gaussian",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "changes", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_no_theorem(settings: CellSettings, changes: dict[str, Any], why: str) -> None:
    found = limit_of(settings, scene(**changes))
    assert isinstance(found, NoLimit) and why in found.reason


@pytest.mark.parametrize(
    ("run", "releases", "mu"),
    [
        # Each record is in one batch of a pass, so in one step of each of three rounds.
        ({"defense": "fed_cdp"}, 3, 2 / 6),
        ({"defense": "fed_cdp", "defense_args": {"sigma": 60.0}}, 3, 2 / 60),
        # Replacing a client: twice the norm.
        ({"defense": "fed_sdp", "defense_args": {"noise_at": "client"}}, 3, 2 * 2 / 6),
        ({"defense": "fed_sdp"}, 3, 2 / 6),
        ({"defense": "global_dp"}, 3, 1 / 6),
    ],
)
def test_a_trained_model_is_counted_with_what_is_read(run: dict[str, Any], releases: int, mu: float) -> None:
    found = limit_of(trained().model_copy(update={"trained": run_of(**run)}), scene())
    assert isinstance(found, RunLimit)
    both = GaussianLimit((releases * mu**2 + (2 / 6) ** 2) ** 0.5)
    assert found.ceiling(0.1) == pytest.approx(both.ceiling(0.1), rel=5e-3)
