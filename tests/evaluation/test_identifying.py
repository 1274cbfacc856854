"""Whole cells of an attack that reconstructs nothing: its controls, its words, and what it is handed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.attacks import Identifier
from harness.attacks.among import Public
from harness.attacks.identify import Identify
from harness.base.kinds import kind_of
from harness.evaluation.controls import hiding_factor, high_noise_control
from harness.evaluation.identifying import _Lineups, identify_scene
from harness.evaluation.observe import Stage
from harness.observation import Noise, Observation
from harness.results import CellResult

NOISY = {"defense": "noise", "defense_args": {"applies_to": "gradient", "amount": 0.01}}
HIGH_NOISE = {"defense": "noise", "defense_args": {"applies_to": "gradient", "amount": 30.0}}


def cells_of(small: Any, folder: Path, **values: Any) -> list[CellResult]:
    settings = small.cell(**{"attack": "identify", "attack_args": {}, "model": "logistic", "victims": 64} | values)
    return small.play([settings], folder, chunk=2_000).cells


def asked(cells: list[CellResult]) -> CellResult:
    (made,) = (cell for cell in cells if cell.role == "cell")
    return made


@pytest.mark.parametrize("attack", [pytest.param("identify", marks=pytest.mark.slow), "cpl"])
def test_an_example_of_every_pass_counts_once(attack: str, small: Any, tmp_path: Path) -> None:
    """Two clients of two examples, in a batch in each of two passes."""
    values = {"attack": attack, "attack_args": {} if attack == "identify" else {"max_iterations": 2}}
    passes = {"prior": "auto", "tap": "T1.out", "batch_size": 2, "epochs": 2, "client_examples": 2, "local_steps": 2}
    made = asked(cells_of(small, tmp_path, dataset="cancer", victims=2, update_model="unroll", **passes, **values))
    told = made.identified if attack == "identify" else made.asr["strict"]
    assert told is not None and told.n == 4
    records = [json.loads(line) for line in (tmp_path / "victims.jsonl").read_text().splitlines()]
    own = [record for record in records if record["cell"] == made.key]
    assert len(own) == 8 and sum(record["lineup_size"] > 1 for record in own) == 4


def test_it_identifies_through_weak_noise_and_leaks_nothing(small: Any, tmp_path: Path) -> None:
    made = asked(cells_of(small, tmp_path, victims=24, **NOISY))
    assert made.identified is not None and made.identified.identifies and (made.identified.rate or 0) > 0.9
    assert (made.verdict, made.tier, made.noise, made.confirmed) == ("inconclusive", "informed", "gaussian", 0)
    assert made.verdict_reason.startswith("identifies: ") and made.outcomes.identified > 20 and not made.warnings
    assert made.metrics["rmse"].mean is None and "reconstructs none" in (made.metrics["rmse"].reason or "")
    assert made.asr["strict"].rate is None and made.lineup.p_value is None and made.label.accuracy is None
    held = {check.name: check.held for check in made.controls}
    assert held == {"positive": True, "positive_sigma0": True, "noise_x100": True, "swap": True}
    detail = next(check.detail for check in made.controls if check.name == "positive")
    assert detail == "the attack identifies undefended"
    records = small.victims(tmp_path)
    assert any('"outcome": "identified"' in line or '"outcome":"identified"' in line for line in records)


def test_through_strong_noise_nobody_is_told(small: Any, tmp_path: Path) -> None:
    document = small.play(
        [small.cell(attack="identify", attack_args={}, model="logistic", victims=96, **HIGH_NOISE)], tmp_path,
        chunk=2_000,
    )  # fmt: skip
    made = asked(document.cells)
    assert made.identified is not None and not made.identified.identifies and document.valid
    assert made.verdict == "resilient" and "not identified among look-alikes" in made.verdict_reason
    (row,) = document.summary
    assert (row.verdict, row.identifies, row.tier) == ("inconclusive", False, "informed")
    assert row.verdict_reason == "no attack that reconstructs was tried"


@pytest.mark.parametrize("attack", ["analytic", "spear"])
def test_next_to_no_noise_is_high_noise_too(attack: str, small: Any, tmp_path: Path) -> None:
    """A hundred times of it is still next to none, to who does not know it as well."""
    weak = small.cell(
        defense="noise", defense_args={"amount": 1e-6, "applies_to": "gradient"}, attack=attack, attack_args={},
        model="mlp2", victims=12,
    )  # fmt: skip
    document = small.play([weak], tmp_path)
    assert document.valid and document.cells[0].verdict == "leaks"


def test_noise_is_high_noise_for_who_knows_it(small: Any) -> None:
    """A hundred times little is little: where the noise is weak the control has more."""
    stage = Stage(Path("no data root"), 64)
    weak = small.cell(attack="identify", attack_args={}, model="logistic", victims=6, **NOISY)
    quiet, noisy = (stage.set(weak.model_copy(update={"noise_scale": scale})).observation for scale in (0.0, 1.0))
    times = hiding_factor(quiet, noisy)
    assert times == pytest.approx(50 * float(quiet.target.norm(dim=1).max()) / 0.01, rel=0.1) and times > 100
    assert hiding_factor(quiet, replace(noisy, target=noisy.target * 1e4)) == 100
    assert high_noise_control(weak, times).noise_scale == times and high_noise_control(weak).noise_scale == 100


def test_without_a_defense_it_is_its_own_control(small: Any, tmp_path: Path) -> None:
    made = asked(cells_of(small, tmp_path, victims=20))
    assert [(check.name, check.held) for check in made.controls] == [("positive", True), ("swap", True)]
    assert made.identified is not None and made.identified.rate == 1 and made.noise is None


SEVERAL = {
    "a batch": {"batch_size": 3, "tap": "T2.step"},
    "local steps": {"tap": "T1.out", "local_steps": 3, "update_model": "avg"},
    "a sum of clients": {
        "tap": "T0.in", "defense": "secagg_ddp", "clients": 3, "clients_per_round": 3,
        "defense_args": {"clip": 1.0, "sigma": 0.05},
    },
}  # fmt: skip


@pytest.mark.parametrize("values", [
    pytest.param(values, id=name, marks=() if name == "a sum of clients" else pytest.mark.slow)
    for name, values in SEVERAL.items()
])  # fmt: skip
def test_who_is_among_several_is_told(values: dict[str, Any], small: Any, tmp_path: Path) -> None:
    """The controls hold for several examples too, and the p-value can fall below 1e-4."""
    cells = cells_of(small, tmp_path, victims=5, prior="auto", **NOISY | values)
    made = asked(cells)
    assert made.identified is not None and made.identified.identifies and made.verdict == "inconclusive"
    assert made.identified.p_value is not None and made.identified.p_value <= 1e-4
    assert {check.name: check.held for check in made.controls} == dict.fromkeys(
        ("positive", "positive_sigma0", "noise_x100", "swap"), True
    )


def test_public_gradients_are_computed_once_for_each_victim(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is found is the same as class by class."""
    settings = small.cell(
        attack="identify", attack_args={}, model="logistic", victims=4, prior="auto", **NOISY | SEVERAL["a batch"]
    )
    scene, count, at = Stage(Path("no data root"), 64).set(settings), [], Public.at
    monkeypatch.setattr(Public, "at", lambda *given: count.append(1) or at(*given))
    found = identify_scene(settings, Identify(), scene, 64)
    assert len(count) == 4
    monkeypatch.setattr(_Lineups, "_victim_by_victim", _Lineups._class_by_class)
    again = identify_scene(settings, Identify(), scene, 64)
    assert len(count) > 8 and again.ranking.lineup == found.ranking.lineup and again.swap_p == found.swap_p
    assert [again.of_image(*one) for one in np.ndindex(4, 3)] == [found.of_image(*one) for one in np.ndindex(4, 3)]


def test_examples_of_a_batch_that_are_read_one_by_one_are_told(small: Any, tmp_path: Path) -> None:
    made = asked(cells_of(small, tmp_path, victims=12, batch_size=3, tap="T2.raw"))
    assert made.identified is not None and (made.identified.n, made.identified.rate) == (36, 1.0)


class Prefers(Identifier):
    """It takes what it is handed first."""

    def distances(self, observation: Observation, candidates: Tensor, labels: Tensor, chunk: int = 128) -> Tensor:
        return torch.arange(candidates.shape[1], dtype=torch.float64).expand(candidates.shape[:2])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_order_of_candidates_says_nothing(seed: int, small: Any) -> None:
    settings = small.cell(attack="identify", attack_args={}, model="logistic", victims=64, seeds=(seed,))
    scene = Stage(Path("no data root"), 64).set(settings)
    assert (identify_scene(settings, Prefers(), scene, 64).identified.p_value or 0) > 0.01


@pytest.mark.parametrize(("dataset", "model", "said"), [("mnist-sample", "logistic", "images"),
                                                        ("notes", "text_transformer_64", "texts")])  # fmt: skip
def test_examples_have_the_name_of_their_kind(dataset: str, model: str, said: str, small: Any) -> None:
    """Even where an attack reconstructs none of them."""
    settings = small.cell(attack="identify", attack_args={}, dataset=dataset, model=model, victims=2)
    scene = Stage(Path("no data root"), 64).set(settings)
    assert kind_of(identify_scene(settings, Prefers(), scene, 64).claims()["metrics"]).many == said


def test_chunks_change_nothing(small: Any, tmp_path: Path) -> None:
    settings = small.cell(attack="identify", attack_args={}, model="logistic", victims=4, **NOISY)
    whole, parts = (small.numbers(small.play([settings], tmp_path / str(n), chunk=n)) for n in (5_000, 61))
    assert whole == parts


def test_noise_that_is_not_as_declared_is_a_warning_in_the_row(small: Any) -> None:
    settings = small.cell(attack="identify", attack_args={}, model="logistic", victims=20, **NOISY)
    scene = Stage(Path("no data root"), 64).set(settings)
    assert identify_scene(settings, Identify(), scene, 2_000).doubt is None
    for declared in (0.008, 0.012):
        wrong = replace(scene, observation=replace(scene.observation, noise=Noise("gaussian", declared)))
        scores = identify_scene(settings, Identify(), wrong, 2_000)
        times = float(str(scores.doubt).split("about ")[1].split(" times")[0])
        assert times == pytest.approx(0.01 / declared, rel=0.05)
        assert scores.claims()["warnings"] == [scores.doubt]
