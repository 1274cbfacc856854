"""The presets of the nightly gate hold what they promise."""

import itertools

import pytest

from harness.attacks import ATTACKS
from harness.base.errors import UsageError
from harness.cli.evaluate import cells_from, merge
from harness.defenses import DEFENSES
from harness.experiment import CellSettings
from harness.federation.taps import SURFACES
from harness.gate.comparing import VICTIMS_NEEDED


def cells(preset: str, **given: object) -> list[CellSettings]:
    return [cell for options in merge(given, preset, None) for cell in cells_from(options, "cpu")]


#: What a preset has once, beside images on small networks: texts, a transformer, a table in batches, few bits.
OTHERS = {
    ("notes", "text_transformer_64", "token_rows"), ("notes", "text_transformer_64", "span"),
    ("notes", "text_transformer_64", "decode"), ("cancer", "mlp2", "rows"),
}  # fmt: skip
OF_PRESETS = {
    "gate": OTHERS | {("digits", "vit", "patches"), ("digits", "mlp", "intervals")},
    "nightly": OTHERS | {
        ("notes", "text_transformer_64", "identify"), ("cifar10-sample", "vit", "patches"),
        ("mnist-sample", "lenet", "intervals"),
    },
}  # fmt: skip


def test_gate_is_small() -> None:
    assert len(cells("gate")) <= 33
    assert {cell.dataset for cell in cells("gate")} == {"digits", "notes", "cancer"}


@pytest.mark.parametrize("preset", OF_PRESETS)
def test_what_is_no_image_and_no_noise_is_there(preset: str) -> None:
    there = {(cell.dataset, cell.model, cell.attack) for cell in cells(preset)}
    assert there >= OF_PRESETS[preset]


@pytest.mark.parametrize(("preset", "rounds"), [("gate", 4), ("nightly", 16)])
def test_several_rounds_are_there(preset: str, rounds: int) -> None:
    assert {cell.rounds_seen for cell in cells(preset)} == {1, rounds}


def test_nightly_is_every_defense_attack_and_surface() -> None:
    night = [cell for cell in cells("nightly") if (cell.dataset, cell.model, cell.attack) not in OF_PRESETS["nightly"]]
    there = {(cell.defense, cell.attack, cell.tap) for cell in night if cell.dataset == "mnist-sample"}
    # The control of others; needs victims who share weights; for updates that are no sum.
    tried = set(ATTACKS) - {"blind", "learned", "membership"} - {attack for _, _, attack in OF_PRESETS["nightly"]}
    tried |= {"identify"}
    own = [name for name in DEFENSES if ":" not in name]
    assert there == set(itertools.product(own, tried, SURFACES.values()))
    for dataset in ("cifar10-sample", "cancer"):
        found = {(cell.defense, cell.attack, cell.tap) for cell in night if cell.dataset == dataset}
        assert found == set(itertools.product(own, ["cpl"], SURFACES.values()))


@pytest.mark.parametrize("preset", ["gate", "nightly"])
def test_no_victim_changes_because_an_informed_attack_joined(preset: str) -> None:
    """Public data leave other victims: only who knows them meets those, and the members of a suite that does."""
    public = {(ATTACKS[cell.attack].tier, cell.prior) for cell in cells(preset) if not cell.suite}
    assert {cell.prior for cell in cells(preset) if cell.suite} <= {"auto"}
    assert public <= {("plain", "none"), ("informed", "auto"), ("tampering", "auto")} and ("plain", "none") in public


def test_bins_are_capped_by_a_stated_argument() -> None:
    layers = [cell.attack_args["bins"] for cell in cells("nightly") if cell.attack in ("imprint", "loki")]
    assert set(layers) == {"128", "32"}


def test_inverting_gradients_is_capped_by_a_stated_argument() -> None:
    capped = [cell for cell in cells("nightly") if cell.attack == "inverting_gradients"]
    assert {cell.attack_args["max_iterations"] for cell in capped} == {"300"}


@pytest.mark.parametrize("preset", ["gate", "nightly"])
def test_every_cell_has_the_victims_that_the_test_needs(preset: str) -> None:
    assert min(cell.victims for cell in cells(preset)) >= VICTIMS_NEEDED


def test_the_command_line_wins_in_every_grid() -> None:
    assert {cell.seeds for cell in cells("gate", seed=["7"])} == {(7,)}
    assert {cell.victims for cell in cells("nightly", victims=48)} == {48}


def test_an_argument_of_a_grid_that_lacks_the_defense_is_told() -> None:
    with pytest.raises(UsageError, match="name it with --defense"):
        cells("gate", defense=["none"])
