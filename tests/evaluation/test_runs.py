"""Whole small runs on the 8x8 digits: what the document says, what is attacked, and what changes no number."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.attacks import Reconstruction
from harness.attacks.engine import run_attack
from harness.attacks.stopping import CONVERGED
from harness.datasets import load_dataset, select_victims
from harness.errors import UsageError
from harness.evaluation import Run, attacking, evaluate, scores
from harness.experiment import CellSettings, cell_settings
from harness.results import CellResult, ResultDocument, RunFolder, StoredCell, read_results
from harness.scoring import LineupResult
from harness.surfaces import Observation

NO_DATA = Path("no data root")
CAP = 2


def cell(**values: Any) -> CellSettings:
    common = {"dataset": "digits", "model": "mlp", "victims": 5, "attack_args": {"max_iterations": CAP}}
    return cell_settings(**{**common, **values})


def play(
    cells: list[CellSettings],
    folder: Path,
    resume: bool = False,
    chunk: int = 64,
    on_cell: Callable[[CellResult], None] | None = None,
) -> ResultDocument:
    run = Run(NO_DATA, RunFolder(folder), chunk=chunk, resume=resume, pictures=False, on_cell=on_cell)
    return evaluate(cells, run)


def alone(settings: CellSettings, folder: Path, chunk: int = 64) -> StoredCell:
    """One cell without controls of its own, as a control is."""
    return Run(NO_DATA, RunFolder(folder), chunk=chunk, pictures=False).cell(settings, "positive")


def numbers(document: ResultDocument) -> dict[str, Any]:
    """Everything a run claims but the time it took and where."""
    whole = document.model_dump(exclude={"environment"})
    for made in whole["cells"]:
        del made["seconds"]
    return whole


def by_key(document: ResultDocument) -> dict[str, Any]:
    return {made["key"]: made for made in numbers(document)["cells"]}


def victims(folder: Path) -> list[str]:
    return (folder / "victims.jsonl").read_text().splitlines()


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fingerprints of the observations that are attacked from now on."""
    seen: list[str] = []

    def counting(attack: object, observation: Observation, *rest: Any) -> Reconstruction:
        seen.append(observation.fingerprint())
        return run_attack(attack, observation, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(attacking, "run_attack", counting)
    return seen


CELLS = [cell(), cell(defense="fed_sdp", defense_args={"noise_at": "client"}, tap="T1.out")]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResultDocument, Path]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return play(CELLS, folder), folder


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


def test_every_victim_is_counted_once(uninterrupted: tuple[ResultDocument, Path]) -> None:
    document, folder = uninterrupted
    for made in document.cells:
        assert sum(made.outcomes.model_dump().values()) == made.victims == 5
        assert all(rate.n == 5 for rate in made.asr.values())
        assert made.outcomes.success == made.asr["strict"].successes
    lines = victims(folder)
    assert len(lines) == 5 * len(document.cells)
    assert len(set(lines)) == len(lines)


def test_tau_is_the_cap_for_failures_and_small_for_successes(uninterrupted: tuple[ResultDocument, Path]) -> None:
    leaks, resists = uninterrupted[0].cells[:2]
    assert (resists.metrics["tau"].mean, resists.metrics["tau"].std) == (CAP, 0)
    assert leaks.metrics["tau"].mean is not None
    assert leaks.metrics["tau"].mean < CAP


def test_equal_observations_are_attacked_once(tmp_path: Path, attacks: list[str]) -> None:
    document = play([cell(tap=tap) for tap in ("T2.step", "T1.out", "T0.in")], tmp_path)
    assert len(document.cells) == 3
    assert {made.observation_id for made in document.cells} == set(attacks)
    assert len(attacks) == 1
    assert len({made.metrics["rmse"].mean for made in document.cells}) == 1


def test_other_attack_settings_are_attacked_again(tmp_path: Path, attacks: list[str]) -> None:
    play([cell(), cell(attack_args={"max_iterations": 1}), cell(dtype="float64")], tmp_path)
    assert len(attacks) == 3
    assert len(set(attacks)) == 2


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_the_chunk_size_changes_no_number(tmp_path: Path, model: str) -> None:
    settings = cell(model=model, defense="fed_cdp", attack_args={"max_iterations": 1})
    whole, parts = (alone(settings, tmp_path / str(chunk), chunk) for chunk in (64, 3))
    assert parts.cell.model_dump(exclude={"seconds"}) == whole.cell.model_dump(exclude={"seconds"})
    assert parts.victims == whole.victims


def test_other_cells_change_no_number(tmp_path: Path, uninterrupted: tuple[ResultDocument, Path]) -> None:
    lonely = by_key(play([CELLS[1]], tmp_path))
    assert len(lonely) == 4
    assert lonely.items() <= by_key(uninterrupted[0]).items()


def test_resuming_a_finished_run_attacks_nothing(
    tmp_path: Path, attacks: list[str], uninterrupted: tuple[ResultDocument, Path]
) -> None:
    first = play(CELLS, tmp_path)
    attacks.clear()
    lines = victims(tmp_path)
    again = play(CELLS, tmp_path, resume=True)
    assert attacks == []
    assert again.cells == first.cells
    assert numbers(again) == numbers(uninterrupted[0])
    assert victims(tmp_path) == lines


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("finished", [2, 4])
def test_a_run_killed_between_cells_resumes_to_the_same_numbers(
    tmp_path: Path, finished: int, attacks: list[str], uninterrupted: tuple[ResultDocument, Path]
) -> None:
    done: list[str | None] = []

    def die(made: CellResult) -> None:
        done.append(made.key)
        if len(done) == finished:
            raise Killed

    with pytest.raises(Killed):
        play(CELLS, tmp_path, on_cell=die)
    before = list(attacks)
    attacks.clear()
    resumed = play(CELLS, tmp_path, resume=True)
    assert numbers(resumed) == numbers(uninterrupted[0])
    assert victims(tmp_path) == victims(uninterrupted[1])
    assert not set(before) & set(attacks)


@pytest.mark.parametrize("written", [0, 3])
def test_a_run_killed_while_writing_a_cell_resumes_to_the_same_numbers(
    tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch, uninterrupted: tuple[ResultDocument, Path]
) -> None:
    real, keys = RunFolder.write_cell, list[str]()

    def half_write(self: RunFolder, key: str, *rest: Any) -> None:
        keys.append(key)
        real(self, key, *rest)
        if len(keys) > written:
            file = self.path / "cells" / f"{key}.json"
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "write_cell", half_write)
        play(CELLS, tmp_path)
    assert numbers(play(CELLS, tmp_path, resume=True)) == numbers(uninterrupted[0])


def test_damaged_and_lost_files_are_made_again(
    tmp_path: Path, attacks: list[str], uninterrupted: tuple[ResultDocument, Path]
) -> None:
    document = play(CELLS, tmp_path)
    damaged = document.cells[0]
    lost = next(made for made in document.cells if made.control == "noise_x100")
    (tmp_path / "cells" / f"{damaged.key}.json").write_text('{"schema_version": 1, "settings"')
    (tmp_path / "cells" / f"{lost.key}.json").unlink()
    for arrays in (tmp_path / "reconstructions").iterdir():
        arrays.write_bytes(arrays.read_bytes()[:100])
    attacks.clear()
    assert numbers(play(CELLS, tmp_path, resume=True)) == numbers(uninterrupted[0])
    assert {damaged.observation_id, lost.observation_id} <= set(attacks)


def test_without_resume_nothing_old_is_used(tmp_path: Path, attacks: list[str]) -> None:
    play([cell()], tmp_path)
    play([cell()], tmp_path)
    assert len(attacks) == 2


def failing_swap(failing: set[int]) -> Callable[..., LineupResult]:
    """A swap control that shows a leak at some of its calls, counted from 1."""
    calls = itertools.count(1)

    def swap(made: Tensor, indices: Tensor, *rest: Any) -> LineupResult:
        ones = np.ones(indices.shape)
        p_value = 1e-5 if next(calls) in failing else 0.5
        return LineupResult(ones, ones.astype(np.int64), ones.astype(bool), 1.0, 0.0, p_value)

    return swap


@pytest.mark.parametrize(("failing", "valid"), [({1}, True), ({2}, True), ({1, 2}, False)])
def test_a_swap_control_that_fails_twice_makes_the_run_invalid(
    tmp_path: Path, failing: set[int], valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Call 1 is the cell's; call 2 is made only to confirm a failure, with other random keys.
    monkeypatch.setattr(scores, "swap_control", failing_swap(failing))
    document = play([cell()], tmp_path)
    assert document.valid == valid
    if not valid:
        assert "negative control swap failed" in (document.valid_reason or "")
        assert "lineup p = 1e-05, 1e-05" in (document.valid_reason or "")
        assert not read_results(tmp_path).valid


def oracle(attack: object, observation: Observation, *rest: Any) -> Reconstruction:
    """An attack that knows the truth whatever it is shown: a pipeline that leaks it."""
    seed = observation.keys[0][0]
    assert isinstance(seed, int)
    truth = select_victims(load_dataset("digits", NO_DATA), observation.rows, observation.examples, seed, False)
    ones: Tensor = torch.ones(observation.rows)
    return Reconstruction(
        images=truth.images, labels=truth.labels, loss=0 * ones, initial_loss=ones,
        stop_reason=torch.full((observation.rows,), CONVERGED), iterations=ones.long(), evaluations=20 * ones,
        restart=0 * ones.long(),
    )  # fmt: skip


def test_an_attack_that_reads_through_a_hundredfold_noise_makes_the_run_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacking, "run_attack", oracle)
    document = play([cell(defense="fed_cdp")], tmp_path)
    drowned = [made for made in document.cells if made.control == "noise_x100"]
    assert [made.seeds for made in drowned] == [[0], [1_000_003]]
    assert all(made.lineup.p_value is not None and made.lineup.p_value < 1e-4 for made in drowned)
    assert not document.valid
    assert "negative control noise_x100 failed for cpl against fed_cdp at T2.step" in (document.valid_reason or "")


def test_an_attack_that_never_moves_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def still(attack: object, observation: Observation, *rest: Any) -> Reconstruction:
        made = oracle(attack, observation)
        return replace(made, images=torch.zeros_like(made.images), evaluations=torch.ones(observation.rows))

    monkeypatch.setattr(attacking, "run_attack", still)
    document = play([cell(defense="fed_cdp")], tmp_path)
    held = {check.name: (check.held, check.detail) for check in document.cells[0].controls}
    stood_still = (False, "no optimizer step was taken")
    assert [held[name] for name in ("positive", "positive_sigma0", "noise_x100")] == [stood_still] * 3
    assert document.valid
    assert document.cells[0].verdict == "inconclusive"


def test_an_impossible_cell_is_recorded_among_others(tmp_path: Path) -> None:
    impossible = cell(tap="T2.examples", seeds=(0, 1))
    document = play([impossible, cell()], tmp_path)
    first, second = document.cells[:2]
    assert "'none' has nothing at tap 'T2.examples'; choose" in (first.not_applicable_reason or "")
    assert (first.outcomes.not_applicable, first.victims) == (10, 10)
    assert (first.verdict, first.metrics, first.controls) == ("inconclusive", {}, [])
    assert second.not_applicable_reason is None
    assert numbers(play([impossible, cell()], tmp_path, resume=True)) == numbers(document)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tap": "T2.examples"}, "choose T2.step or T2.raw"),
        ({"victims": 2_000}, "ask for fewer"),
        ({"model": "cnn"}, "use --model mlp"),
        ({"batch_size": 2, "attack_args": {"label_rule": "bias"}}, "use label_rule=count"),
    ],
)
def test_only_impossible_cells_are_a_mistake(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        play([cell(**values)], tmp_path)


def test_examples_seen_one_by_one_are_folded_back_to_victims(tmp_path: Path, attacks: list[str]) -> None:
    document = play([cell(tap="T2.raw", batch_size=2, victims=3)], tmp_path)
    made = document.cells[0]
    assert (made.victims, made.outcomes.success, made.verdict) == (3, 3, "leaks")
    assert made.asr["strict"].n == made.asr["strict"].successes == 6
    (file,) = (tmp_path / "reconstructions").iterdir()
    arrays = RunFolder(tmp_path).read_arrays(file.stem)
    assert arrays is not None
    assert (arrays["images"].shape, arrays["tau"].shape) == ((6, 1, 1, 8, 8), (6, 1))
    records = [line for line in victims(tmp_path) if made.key is not None and made.key in line]
    assert len(records) == 6
    assert made.label.accuracy == 1.0


def test_several_seeds_are_pooled(tmp_path: Path) -> None:
    made = play([cell(victims=3, seeds=(0, 4))], tmp_path).cells[0]
    assert (made.victims, made.seeds, made.asr["strict"].n) == (6, [0, 4], 6)
    assert sum(made.outcomes.model_dump().values()) == 6


def test_known_labels_are_known(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"defense": "fed_cdp", "batch_size": 2, "tap": "T1.out"}
    known, inferred = (alone(cell(**shared, labels=labels), tmp_path).cell for labels in ("known", "inferred"))
    assert known.label.accuracy == 1.0
    assert inferred.label.accuracy is not None
    assert inferred.label.accuracy < 1.0


@pytest.mark.parametrize("update_model", ["avg", "unroll"])
def test_several_local_steps(tmp_path: Path, update_model: str) -> None:
    values: dict[str, Any] = {"local_steps": 2, "update_model": update_model, "labels": "known", "tap": "T0.in"}
    stored = alone(cell(victims=3, **values), tmp_path)
    made = stored.cell
    assert (made.local_steps, made.update_model, made.surface) == (2, update_model, 0)
    assert made.asr["strict"].n == len(stored.victims) == 6
    assert sum(made.outcomes.model_dump().values()) == 3
