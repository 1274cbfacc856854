"""Whole small runs on the table cancer: the same path as images, with errors and pictures of their own."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks import ATTACKS
from harness.base.errors import UsageError
from harness.evaluation import Run, evaluate
from harness.experiment import CellSettings, cell_settings
from harness.federation.taps import SURFACES
from harness.reports.cell_picture import save_cell_picture
from harness.results import ResultDocument, RunFolder

QUICK = {
    "analytic": {},
    "identify": {},
    "membership": {},
    "map": {"max_iterations": 6},
    "rows": {"draws": 40},
    "inverting_gradients": {"max_iterations": 400},
    "gradinversion": {"max_iterations": 3},
}


def cell(**values: Any) -> CellSettings:
    return cell_settings(**{"dataset": "cancer", "victims": 8, "attack_args": {"max_iterations": 4}, **values})


def play(cells: list[CellSettings], folder: Path, chunk: int = 64, draw: bool = False) -> ResultDocument:
    kept = RunFolder(folder)
    drawing = partial(save_cell_picture, kept) if draw else None
    return evaluate(cells, Run(Path("no data root"), kept, chunk=chunk, draw=drawing))


AT_ONCE = {"analytic", "blind", "cpl", "spear"}


@pytest.mark.parametrize("attack", [
    name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(set(ATTACKS) - {"patches"}) if ATTACKS[name].reads != "texts"  # a table has neither
])  # fmt: skip
def test_every_attack_reads_every_surface(attack: str, tmp_path: Path) -> None:
    arguments = QUICK.get(attack, {"max_iterations": 4})
    knows = attack in ("blind", "learned", "levels", "map", "slope") or ATTACKS[attack].tier == "tampering"
    public = {"prior": "auto" if knows else "none"}
    common = {"attack": attack, "attack_args": arguments, "shared_weights": attack == "learned", **public}
    document = play([cell(tap=tap, **common) for tap in SURFACES.values()], tmp_path)
    asked = [made for made in document.cells if made.role == "cell"]
    assert [made.surface for made in asked] == [0, 1, 2] and {made.model for made in asked} == {"mlp2"}
    assert document.valid and not any(made.not_applicable_reason for made in asked)
    if attack == "blind":
        assert {made.verdict for made in asked} == {"inconclusive"}
    # Three iterations only show that it runs; a slope is no row, and lengths tell of none.
    elif attack not in ("gradinversion", "levels", "slope", "membership"):
        assert all(made.succeeds for made in asked)
        assert {made.verdict for made in asked} == {"inconclusive" if attack == "identify" else "leaks"}


def test_what_a_table_cell_reports(tmp_path: Path) -> None:
    (made,) = play([cell(attack="analytic", attack_args={})], tmp_path, draw=True).cells
    assert made.metrics["continuous_rmse"].mean == pytest.approx(0, abs=1e-4)
    assert made.metrics["continuous_within"].mean == 1
    for name, reason in (("ssim", "a table row is none"), ("lpips", "a table row is none"), ("psnr", "none"),
                         ("categorical_accuracy", "no categorical columns")):  # fmt: skip
        assert made.metrics[name].mean is None and reason in (made.metrics[name].reason or "")
    assert set(made.asr) == {"strict"} and made.asr["strict"].rate == 1
    assert made.metrics["tau"].mean == 1
    records = [line for line in (tmp_path / "victims.jsonl").read_text().splitlines() if line]
    assert len(records) == 8 and all('"continuous_rmse"' in line for line in records)
    assert [path.suffix for path in (tmp_path / "pictures").iterdir()] == [".png"]


def test_rows_of_an_own_table_come_back(tmp_path: Path) -> None:
    wards, places = ("surgery", "cardio", "burns", ""), ("ZH", "BE", "GE")
    rows = [
        f"{30 + 7 * row % 61},{wards[row % 4]},{13 * row % 97 / 10},{places[row // 2 % 3]},{int(row % 5 < 2)}"
        for row in range(240)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["age,ward,dose,place,label", *rows]))
    values = {"dataset": str(tmp_path / "own.csv"), "victims": 4, "batch_size": 4, "prior": "auto", "attack_args": {}}
    document = play([cell(attack=attack, **values) for attack in ("rows", "blind")], tmp_path / "run")
    rows_made, blind = (made for made in document.cells if made.role == "cell")
    assert (rows_made.model, rows_made.verdict, rows_made.asr["strict"].rate) == ("mlp2", "leaks", 1)
    assert rows_made.metrics["categorical_accuracy"].mean == 1 and blind.verdict == "inconclusive"


def test_a_bottleneck_behind_it_hides_no_row_of_a_linear_layer(tmp_path: Path) -> None:
    values = {"attack": "analytic", "attack_args": {}, "defense": "paper:PRECODE", "model": "mlp2+precode"}
    document = play([cell(tap=tap, **values) for tap in SURFACES.values()], tmp_path)
    assert all(made.asr["strict"].rate == 1 for made in document.cells if made.role == "cell")


def test_noise_protects_a_table_too(tmp_path: Path) -> None:
    document = play([cell(defense="fed_cdp", attack="analytic", attack_args={"max_iterations": 3})], tmp_path)
    (made,) = (made for made in document.cells if made.role == "cell")
    held = {check.name: check.held for check in made.controls}
    # The closed form needs no optimizer step to leak, so its positive controls hold all the same.
    assert held["positive"] and held["positive_sigma0"] and held["swap"] and document.valid
    assert made.verdict != "leaks" and made.asr["strict"].successes == 0


@pytest.mark.parametrize("values", [
    {"batch_size": 3}, pytest.param({"attack": "analytic"}, marks=pytest.mark.slow),
    pytest.param({}, marks=pytest.mark.slow), pytest.param({"attack": "dlg"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_chunks_change_no_bit(values: dict[str, Any], tmp_path: Path) -> None:
    shared = {"victims": 4, "attack_args": {"max_iterations": 1}, "defense": "fed_cdp", "tap": "T1.out"}
    runs = (Run(Path("no data root"), RunFolder(tmp_path / str(chunk)), chunk=chunk) for chunk in (64, 3))
    whole, parts = (run.cell(cell(**shared | values)) for run in runs)
    assert whole.cell.model_dump(exclude={"seconds"}) == parts.cell.model_dump(exclude={"seconds"})
    assert whole.victims == parts.victims


@pytest.mark.parametrize("model", ["lenet", "cnn"])
def test_a_convolution_refuses_a_table(model: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs images, not table rows of 30 features; use --model mlp2"):
        play([cell(model=model)], tmp_path)


def test_the_networks_of_each_dataset() -> None:
    assert cell_settings(dataset="cancer").model == "mlp2" and cell_settings().model == "lenet"
    assert cell_settings(dataset="digits", model=None).model == "lenet"
    assert cell_settings(dataset="cancer", model="mlp").model == "mlp"


def test_the_oracle_agrees_with_the_iterative_attack(tmp_path: Path) -> None:
    run = Run(Path("no data root"), RunFolder(tmp_path))
    exact, matched = (
        torch.from_numpy(run.folder.read_arrays(_made(run, cell(attack=name, attack_args=arguments)))["images"])
        for name, arguments in (("analytic", {}), ("cpl", {"max_iterations": 40, "loss_stop": 1e-12}))
    )
    error = (exact - matched).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    assert error.median() < 1e-3


def _made(run: Run, settings: CellSettings) -> str:
    """Evaluates a cell; the key of its reconstructions."""
    before = {path.stem for path in run.folder.path.rglob("*.npz")}
    run.cell(settings, "positive")
    (new,) = {path.stem for path in run.folder.path.rglob("*.npz")} - before
    return new
