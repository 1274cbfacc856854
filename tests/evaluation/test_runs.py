"""Whole small runs: what the document says, what is attacked, and what changes no number."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UsageError
from harness.evaluation import controls
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings
from harness.results import ResultDocument, RunFolder, read_results


def test_the_document(uninterrupted: tuple[ResultDocument, Path]) -> None:
    document, folder = uninterrupted
    assert document.valid
    assert read_results(folder) == document
    asked = [made for made in document.cells if made.role == "cell"]
    assert [(made.defense, made.tap, made.surface) for made in asked] == [
        ("none", "T2.step", 2),
        ("fed_sdp", "T1.out", 1),
    ]
    assert [made.verdict for made in asked] == ["leaks", "inconclusive"]
    assert "too few" in asked[1].verdict_reason
    assert asked[0].asr["strict"].rate == 1.0
    assert asked[1].asr["strict"].rate == 0.0
    for made in document.cells:
        assert made.metrics["ssim"].mean is None
        assert "8x8" in (made.metrics["ssim"].reason or "")
        assert made.metrics["rmse"].mean is not None
        assert made.label.chance is not None
        assert made.units
        assert made.privacy


def test_controls_are_listed_and_at_hand(uninterrupted: tuple[ResultDocument, Path]) -> None:
    document, _ = uninterrupted
    controls = {made.key: made.control for made in document.cells if made.role == "control"}
    noise = ["positive", "swap", "positive_sigma0", "noise_x100"]
    for made, expected in zip(document.cells, [["positive", "swap"], noise], strict=False):
        assert [check.name for check in made.controls] == expected
        assert all(check.held for check in made.controls), made.controls
        for check in made.controls:
            alone = check.name == "swap" or (check.name == "positive" and made.defense == "none")
            assert [controls[key] for key in check.cells] == ([] if alone else [check.name])


def test_every_victim_is_counted_once(small: Any, uninterrupted: tuple[ResultDocument, Path]) -> None:
    document, folder = uninterrupted
    for made in document.cells:
        assert sum(made.outcomes.model_dump().values()) == made.victims == 5
        assert all(rate.n == 5 for rate in made.asr.values())
        assert made.outcomes.success == made.asr["strict"].successes
    lines = small.victims(folder)
    assert len(lines) == 5 * len(document.cells)
    assert len(set(lines)) == len(lines)


def test_tau_is_the_cap_for_failures_and_small_for_successes(
    small: Any, uninterrupted: tuple[ResultDocument, Path]
) -> None:
    leaks, resists = uninterrupted[0].cells[:2]
    assert (resists.metrics["tau"].mean, resists.metrics["tau"].std) == (small.cap, 0)
    assert leaks.metrics["tau"].mean is not None
    assert leaks.metrics["tau"].mean < small.cap


def test_equal_observations_are_attacked_once(small: Any, tmp_path: Path, attacks: list[str]) -> None:
    document = small.play([small.cell(tap=tap) for tap in ("T2.step", "T1.out", "T0.in")], tmp_path)
    assert len(document.cells) == 3
    assert {made.observation_id for made in document.cells} == set(attacks)
    assert len(attacks) == 1
    assert len({made.metrics["rmse"].mean for made in document.cells}) == 1


@pytest.mark.parametrize("values", [
    {},
    {"tap": "T2.raw", "batch_size": 2},
    pytest.param({"seeds": (0, 1), "victims": 3}, marks=pytest.mark.slow),
])  # fmt: skip
def test_an_undefended_cell_is_the_positive_control_of_others(
    small: Any, tmp_path: Path, attacks: list[str], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "CONTROL_VICTIMS", 3)
    defended = small.cell(**values, defense="fed_cdp")
    alone = small.play([defended], tmp_path / "alone")
    spent = len(attacks)
    attacks.clear()
    together = small.play([small.cell(**values), defended], tmp_path / "together")
    assert len(attacks) == spent  # one more cell, and no control to attack
    assert [made for made in small.numbers(alone)["cells"] if made not in small.numbers(together)["cells"]] == []


def test_other_attack_settings_are_attacked_again(small: Any, tmp_path: Path, attacks: list[str]) -> None:
    small.play([small.cell(), small.cell(attack_args={"max_iterations": 1}), small.cell(dtype="float64")], tmp_path)
    assert len(attacks) == 3
    assert len(set(attacks)) == 2


@pytest.mark.parametrize("model", ["mlp", pytest.param("lenet", marks=pytest.mark.slow)])
def test_the_chunk_size_changes_no_number(small: Any, tmp_path: Path, model: str) -> None:
    settings = small.cell(model=model, defense="fed_cdp", attack_args={"max_iterations": 1})
    whole, parts = (small.alone(settings, tmp_path / str(chunk), chunk) for chunk in (64, 3))
    assert parts.cell.model_dump(exclude={"seconds"}) == whole.cell.model_dump(exclude={"seconds"})
    assert parts.victims == whole.victims


def test_other_cells_change_no_number(small: Any, tmp_path: Path, uninterrupted: tuple[ResultDocument, Path]) -> None:
    def by_key(document: ResultDocument) -> dict[str, Any]:
        return {made["key"]: made for made in small.numbers(document)["cells"]}

    lonely = by_key(small.play([small.cells[1]], tmp_path))
    assert len(lonely) == 4
    assert lonely.items() <= by_key(uninterrupted[0]).items()


def test_an_impossible_cell_is_recorded_among_others(small: Any, tmp_path: Path) -> None:
    impossible = small.cell(tap="T2.examples", seeds=(0, 1))
    document = small.play([impossible, small.cell()], tmp_path)
    first, second = document.cells[:2]
    assert "'none' has nothing at tap 'T2.examples'; choose" in (first.not_applicable_reason or "")
    assert (first.outcomes.not_applicable, first.victims) == (10, 10)
    assert (first.verdict, first.metrics, first.controls) == ("inconclusive", {}, [])
    assert second.not_applicable_reason is None
    assert small.numbers(small.play([impossible, small.cell()], tmp_path, resume=True)) == small.numbers(document)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tap": "T2.examples"}, "choose T2.step or T2.raw"),
        ({"victims": 2_000}, "ask for fewer"),
        ({"model": "cnn"}, "use --model mlp"),
        ({"batch_size": 2, "attack_args": {"label_rule": "bias"}}, "use label_rule=count"),
    ],
)
def test_only_impossible_cells_are_a_mistake(small: Any, tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        small.play([small.cell(**values)], tmp_path)
    assert not any(tmp_path.iterdir())


def test_impossible_cells_before_the_first_possible_one_are_kept(small: Any, tmp_path: Path) -> None:
    play = partial(small.play, [small.cell(tap="T2.examples"), small.cell()], tmp_path)
    document = play()
    assert (tmp_path / "cells" / f"{document.cells[0].key}.json").is_file()
    assert play(resume=True).cells == document.cells


def test_what_is_no_longer_impossible_is_made(
    small: Any, tmp_path: Path, attacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play, stage_it = partial(small.play, small.cells, tmp_path), Stage.set

    def absent(stage: Stage, settings: CellSettings) -> Scene:
        if settings.defense == "fed_sdp":
            raise UsageError("the data is missing; fetch it")
        return stage_it(stage, settings)

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "set", absent)
        assert play().cells[1].not_applicable_reason
    assert attacks
    attacks.clear()
    assert not play(resume=True).cells[1].not_applicable_reason
    assert attacks


def test_examples_seen_one_by_one_are_folded_back_to_victims(small: Any, tmp_path: Path, attacks: list[str]) -> None:
    document = small.play([small.cell(tap="T2.raw", batch_size=2, victims=3)], tmp_path)
    made = document.cells[0]
    assert (made.victims, made.outcomes.success, made.verdict) == (3, 3, "leaks")
    assert made.asr["strict"].n == made.asr["strict"].successes == 6
    (file,) = (tmp_path / "reconstructions").iterdir()
    arrays = RunFolder(tmp_path).read_arrays(file.stem)
    assert arrays is not None
    assert (arrays["images"].shape, arrays["tau"].shape) == ((6, 1, 1, 8, 8), (6, 1))
    records = [line for line in small.victims(tmp_path) if made.key is not None and made.key in line]
    assert len(records) == 6
    assert made.label.accuracy == 1.0


def test_several_seeds_are_pooled(small: Any, tmp_path: Path) -> None:
    made = small.play([small.cell(victims=3, seeds=(0, 4))], tmp_path).cells[0]
    assert (made.victims, made.seeds, made.asr["strict"].n) == (6, [0, 4], 6)
    assert sum(made.outcomes.model_dump().values()) == 6


def test_known_labels_are_known(small: Any, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"defense": "fed_cdp", "batch_size": 2, "tap": "T1.out"}
    known, inferred = (
        small.alone(small.cell(**shared, labels=labels), tmp_path).cell for labels in ("known", "inferred")
    )
    assert known.label.accuracy == 1.0
    assert inferred.label.accuracy is not None
    assert inferred.label.accuracy < 1.0


@pytest.mark.parametrize("update_model", ["avg", "unroll"])
def test_several_local_steps(small: Any, tmp_path: Path, update_model: str) -> None:
    values: dict[str, Any] = {"local_steps": 2, "update_model": update_model, "labels": "known", "tap": "T0.in"}
    stored = small.alone(small.cell(victims=3, **values), tmp_path)
    made = stored.cell
    assert (made.local_steps, made.update_model, made.surface) == (2, update_model, 0)
    assert made.asr["strict"].n == len(stored.victims) == 6
    assert sum(made.outcomes.model_dump().values()) == 3


def test_a_run_sums_up(uninterrupted: tuple[ResultDocument, Path]) -> None:
    document, _ = uninterrupted
    assert [(row.defense, row.verdict, row.strongest) for row in document.summary] == [
        ("none", "leaks", "cpl"),
        ("fed_sdp", "inconclusive", "cpl"),
    ]
    assert [made.confirmed for made in document.cells[:2]] == [5, 0]
