"""Runs of a whole suite: its name in every row, its controls shared, and flags where an attack was unfit."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.attacks import SUITES
from harness.base.errors import UsageError
from harness.evaluation.observe import Stage
from harness.evaluation.report_cell import flags_of
from harness.evaluation.scores import Scores
from harness.experiment import CellSettings, cell_settings, expand
from harness.functions import evaluate
from harness.results import Control, LabelInference, ResultDocument


def suite_cells(**values: Any) -> list[CellSettings]:
    grid = {"attack": [("auto", {})], "defense": [("none", {})]}
    return expand(
        grid, **{"dataset": "digits", "model": "logistic", "victims": 3, "prior": "auto", "device": "cpu"} | values
    )


@pytest.fixture(scope="module")
def document(small: Any, tmp_path_factory: pytest.TempPathFactory) -> ResultDocument:
    """Members on two images at a time, which seven of them refuse, and an attack named beside, without the slowest."""
    folder = tmp_path_factory.mktemp("suite")
    few = {"attack_args": {"max_iterations": 1}, "prior": "auto", "model": "logistic", "victims": 3, "batch_size": 2}
    quick = [cell for cell in suite_cells(batch_size=2) if cell.attack != "inverting_gradients"]
    return small.play([*quick, small.cell(attack="dlg", **few)], folder)


#: The first is slow; the others read texts, and the cells are of images.
LEFT_OUT = ("inverting_gradients", "token_rows", "span", "decode")


def test_the_suite_stands_in_every_row(document: ResultDocument) -> None:
    asked = {cell.attack: cell for cell in document.cells if cell.role == "cell"}
    assert list(asked) == [*(name for name in SUITES["auto-9"] if name not in LEFT_OUT), "dlg"]
    assert {name for name, cell in asked.items() if cell.suite == "auto-9"} == set(asked) - {"dlg"}
    (row,) = document.summary
    assert row.suite == "auto-9" and row.tier == "informed" and len(row.attacks) == 12 and row.headline


def test_what_is_impossible_is_recorded_and_fails_nothing(document: ResultDocument) -> None:
    impossible = {cell.attack for cell in document.cells if cell.not_applicable_reason and cell.role == "cell"}
    assert impossible == {"patches", "analytic", "spear", "rows", "learned", "levels", "intervals"} and document.valid


@pytest.mark.parametrize(
    ("attack", "place", "left_out"),
    [
        ("rows", {"dataset": "digits"}, True),
        ("rows", {"dataset": "cancer"}, False),
        ("intervals", {"dataset": "digits"}, True),
        ("intervals", {"dataset": "digits", "defense": "fed_cdp"}, True),
        ("intervals", {"dataset": "digits", "defense": "quantization", "tap": "T1.out"}, False),
    ],
)
def test_a_suite_leaves_out_what_other_members_do(attack: str, place: dict[str, Any], left_out: bool) -> None:
    """So that `resilient` behind rounded numbers rests on an attacker that reads them, and nobody waits elsewhere."""
    settings = cell_settings(**place, model="mlp", victims=2, prior="auto", attack=attack)
    seen = Stage(Path("no data root"), 64).set(settings).observation
    assert bool(settings.build_attack().superfluous(seen)) == left_out


def test_controls_are_nobodys_suite(document: ResultDocument) -> None:
    controls = [cell for cell in document.cells if cell.role == "control"]
    assert controls and not any(cell.suite or cell.flags for cell in controls)


def test_its_numbers_are_those_of_its_members(small: Any, tmp_path: Path) -> None:
    """A suite changes the cell's name, and what is attacked under it not at all."""
    own = [cell for cell in suite_cells() if cell.attack == "map"]
    alone = [one.model_copy(update={"suite": None}) for one in own]
    first, second = (small.play(cells, tmp_path, resume=True) for cells in (own, alone))
    assert first.cells[0].key != second.cells[0].key and first.cells[0].suite == "auto-9"
    assert first.cells[0].observation_id == second.cells[0].observation_id
    assert first.cells[0].metrics == second.cells[0].metrics
    assert len(list((tmp_path / "reconstructions").glob("*.npz"))) == 2  # the attack's and the blind control's


def test_only_where_all_are_impossible_it_is_a_mistake(tmp_path: Path) -> None:
    few = {"dataset": "digits", "model": "logistic", "victims": 2, "out": tmp_path, "data_root": tmp_path}
    with pytest.raises(UsageError):
        evaluate(defense="none", attack="auto", tap="T2.clip", **few)


def _scored(settings: CellSettings, **changes: Any) -> Any:
    """A scored cell of five victims on whom the attack failed but moved."""
    truth = Stage(Path("no data root"), 64).set(settings)
    values = {
        "evaluations": np.full(5, 9.0), "losses": np.full(5, 0.5), "first_losses": np.ones(5), "victims": 5,
        "success": {"strict": np.zeros(5, bool)}, "stop_reason": ["cap"] * 5, "label": LabelInference(p_value=0.001),
    } | changes  # fmt: skip
    empty = {name: None for name in Scores.__dataclass_fields__ if name not in values}
    return SimpleNamespace(settings=settings, scene=truth, scores=Scores(**empty, **values))


HELD = Control(name="positive", held=True)
LOST = Control(name="positive", held=False, detail="the attack does not leak even undefended")
UNFIT: dict[str, tuple[dict[str, Any], Control, str | None]] = {
    "fit": ({}, HELD, None),
    "control": ({}, LOST, "positive control failed: the attack does not leak even undefended"),
    "a negative control is none of its own": ({}, Control(name="swap", held=False), None),
    "loss": ({"losses": np.array([1, 1, 1, 0.5, 0.5])}, HELD, "stalled"),
    "no number": ({"losses": np.array([np.nan] * 3 + [0.5] * 2)}, HELD, "stalled"),
    "steps": ({"evaluations": np.array([2.0, 1, 0, 9, 9])}, HELD, "stalled"),
    "the smaller part": ({"losses": np.array([1, 1, 0.5, 0.5, 0.5])}, HELD, None),
    "done at the start": (
        {"evaluations": np.ones(5), "success": {"strict": np.ones(5, bool)}}, HELD, None,
    ),
    "labels": ({"label": LabelInference(p_value=0.2)}, HELD, "label inference at chance"),
    "labels that are all right": ({"label": LabelInference(accuracy=1, chance=0.1, p_value=1)}, HELD, None),
    "labels of victims too few to test": (
        {"label": LabelInference(accuracy=0.8, chance=0.2, p_value=1), "victims": 2,
         "losses": np.full(2, 0.5), "first_losses": np.ones(2), "evaluations": np.full(2, 9.0),
         "success": {"strict": np.zeros(2, bool)}, "stop_reason": ["cap"] * 2}, HELD, None,
    ),
    "labels of which nothing is said": ({"label": LabelInference()}, HELD, None),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_flags(case: str) -> None:
    changes, control, words = UNFIT[case]
    settings = cell_settings(dataset="digits", model="mlp", victims=5, attack="map", prior="auto")
    flags = flags_of(_scored(settings, **changes), [control])
    assert [flag[: len(words)] for flag in flags] == [words] if words else not flags
    known = flags_of(_scored(settings.model_copy(update={"labels": "known"}), **changes), [control])
    assert (known == flags) == (case != "labels")


def test_a_prior_of_other_data_is_foreign(tmp_path: Path) -> None:
    """Digits in white on black as public data of digits in black on white; and half of the same digits."""
    from harness.datasets import load_dataset

    digits = load_dataset("digits", tmp_path)
    np.savez(tmp_path / "dark.npz", images=1 - digits.images.numpy(), labels=digits.labels.numpy())
    flags = {}
    for prior in ("auto", str(tmp_path / "dark.npz")):
        for attack in ("map", "cpl"):
            settings = cell_settings(dataset="digits", model="mlp", victims=24, attack=attack, prior=prior)
            flags[prior[-4:], attack] = flags_of(_scored(settings), [HELD])
    assert flags["auto", "map"] == flags["auto", "cpl"] == flags[".npz", "cpl"] == []
    assert "prior foreign: victims are" in flags[".npz", "map"][0]


def test_the_spread_of_a_prior_is_that_of_its_draws() -> None:
    prior = Stage(Path("no data root"), 64).set(suite_cells()[0]).observation.prior
    assert prior is not None
    noise = torch.randn(4_000, 1, prior.means.shape[1], generator=torch.Generator().manual_seed(0))
    for label in (0, 7):
        drawn = prior.place(noise.to(prior.means), torch.full((len(noise), 1), label))[:, 0]
        measured = (drawn - prior.means[label]).square().sum(1).mean()
        assert float(prior.spread()[label]) == pytest.approx(float(measured), rel=0.03)


@pytest.fixture(scope="module")
def high_noise(small: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[CellSettings], Path, ResultDocument]:
    """Two members under so much noise that labels are guesses: one that uses labels, one that does not."""
    folder = tmp_path_factory.mktemp("high_noise")
    values = {"victims": 24, "defense": ("fed_cdp", {"sigma": 60.0})}
    grid = {"attack": [("auto", {})], "defense": [values.pop("defense")]}
    own = {"dataset": "digits", "model": "logistic", "prior": "auto", "device": "cpu", **values}
    cells = [one for one in expand(grid, **own) if one.attack in ("map", "analytic")]
    return cells, folder, small.play(cells, folder)


def test_where_labels_are_guessed_who_uses_them_is_told(high_noise: Any) -> None:
    _, _, document = high_noise
    asked = [cell for cell in document.cells if cell.role == "cell"]
    assert [(cell.attack, cell.labels) for cell in asked] == [
        ("analytic", "inferred"), ("map", "inferred"), ("map", "known"),
    ]  # fmt: skip
    assert asked[1].flags and asked[1].told == asked[2].key and not asked[2].flags and not asked[0].told
    keys = {cell.key for cell in document.cells}
    assert all(key in keys for cell in document.cells for key in cell.needed) and document.planned == 3
    (row,) = document.summary
    assert [one.told for one in row.attacks] == [False, False, True]


def test_a_resumed_run_takes_over_who_was_told(small: Any, high_noise: Any) -> None:
    cells, folder, document = high_noise
    assert small.play(cells, folder, resume=True).cells == document.cells
