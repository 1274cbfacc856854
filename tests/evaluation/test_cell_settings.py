"""Which settings make a cell, and what is said about those that do not."""

from typing import Any

import pytest

from harness.base.errors import UsageError
from harness.experiment import LATER_SETTINGS, CellSettings, cell_settings, expand, named_settings, taps_of
from harness.federation.taps import SURFACES, Tap
from harness.results import Place

BAD: list[tuple[dict[str, Any], str]] = [
    ({"defense": "fed_cpd"}, "did you mean 'fed_cdp'?"),
    ({"attack": "cpi"}, "did you mean 'cpl'?"),
    ({"tap": "T3"}, "known taps: T2.raw"),
    ({"defense": "fed_cdp", "defense_args": {"sigm": 1}}, "did you mean 'sigma'?"),
    ({"defense": "fed_cdp", "defense_args": {"sigma": -1}}, "sigma: Input should be greater than or equal to 0"),
    ({"attack_args": {"max_iteration": 1}}, "did you mean 'max_iterations'?"),
    ({"attack_args": {"max_iterations": 0}}, "max_iterations: Input should be greater than or equal to 1"),
    ({"victims": 0}, "victims: Input should be greater than or equal to 1"),
    ({"victims": "many"}, "victims: Input should be a valid integer"),
    ({"batch_size": 0}, "batch_size: Input should be greater than or equal to 1"),
    ({"learning_rate": 0}, "learning_rate: Input should be greater than 0"),
    ({"learning_rate": float("inf")}, "learning_rate: Input should be a finite number"),
    ({"noise_scale": -1}, "noise_scale: Input should be greater than or equal to 0"),
    ({"update_model": "last"}, "'first', 'avg', 'path' or 'unroll'"),
    ({"labels": "guessed"}, "'inferred' or 'known'"),
    ({"engine": "quick"}, "'batched' or 'reference'"),
    ({"dtype": "float16"}, "'float32' or 'float64'"),
    ({"clients": 5}, "lower clients_per_round"),
    ({"round": 100}, "raise rounds"),
    ({"round": -1}, "round: Input should be greater than or equal to 0"),
    ({"round": 3}, "name a run with --training"),
    ({"local_steps": 2, "tap": "T1.out"}, "use --update-model avg or unroll"),
    ({"local_steps": 8, "steps_per_round": 2}, "a client takes 8 local steps, and epsilon counts 2 of a round"),
    ({"seeds": ()}, "for example --seed 0,1,2"),
    ({"seeds": (1, 1)}, "for example --seed 0,1,2"),
    ({"seeds": (0, -1)}, "for example --seed 0,1,2"),
    ({"colour": "red"}, "colour: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("values", "words"), BAD)
def test_bad_combinations_are_refused_in_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        cell_settings(**values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD: list[dict[str, Any]] = [
    {},
    {"round": 3, "weights": "round3.pt"},
    {"round": 99, "weights": "round99.pt"},
    {"local_steps": 2, "tap": "T2.step"},
    {"local_steps": 2, "tap": "T0.in", "update_model": "unroll"},
    {"clients": 10},
    {"seeds": (0, 5)},
]


@pytest.mark.parametrize("values", GOOD)
def test_good_combinations(values: dict[str, Any]) -> None:
    settings = cell_settings(**values)
    assert all(getattr(settings, name) == value for name, value in values.items())


def test_names_become_canonical() -> None:
    settings = cell_settings(defense="fed_alphacdp", attack="gradinv")
    assert (settings.defense, settings.attack) == ("fed_acdp", "inverting_gradients")


@pytest.mark.parametrize(
    ("tap", "surface", "examples"), [("T2.step", 2, 3), ("T1.out", 1, 6), ("T0.in", 0, 6), ("T0.post", None, 6)]
)
def test_what_a_tap_stands_for(tap: str, surface: int | None, examples: int) -> None:
    settings = cell_settings(tap=tap, batch_size=3, local_steps=2, update_model="avg")
    assert (settings.surface, settings.examples) == (surface, examples)


def test_the_cohort_comes_from_the_settings() -> None:
    cohort = cell_settings(clients=50, clients_per_round=5, rounds=7, steps_per_round=3, batch_size=2).cohort()
    assert (cohort.clients, cohort.clients_per_round, cohort.rounds) == (50, 5, 7)
    assert (cohort.steps_per_round, cohort.batch_size) == (3, 2)


@pytest.mark.parametrize(
    ("values", "steps", "rate"),
    [
        ({}, 100, 0.01),
        ({"batch_size": 4, "steps_per_round": 20}, 20, 0.05),
        ({"local_steps": 150}, 150, 1 / 150),
        ({"batch_size": 4, "client_examples": 16}, 4, 0.25),
        ({"batch_size": 4, "client_examples": 10, "epochs": 3}, 9, 0.4),
        ({"batch_size": 2, "epochs": 3}, 3, 1.0),
        ({"batch_size": 4, "client_examples": 16, "same_data": "client", "rounds_seen": 2}, 1, 0.25),
        ({"batch_size": 4, "client_examples": 16, "steps_per_round": 50, "sampling_rate": 0.5}, 50, 0.5),
    ],
)
def test_epsilon_counts_the_examples_and_steps_that_are_said(values: dict[str, Any], steps: int, rate: float) -> None:
    settings = cell_settings(update_model="avg", **values)
    assert (settings.cohort().steps_per_round, settings.rate) == (steps, pytest.approx(rate))


@pytest.mark.parametrize(
    ("surfaces", "taps", "expected"),
    [
        ([], [], ["T0.in", "T1.out", "T2.step"]),
        ([2], [], ["T2.step"]),
        ([2, 0], [], ["T2.step", "T0.in"]),
        ([], ["T0.post"], ["T0.post"]),
        ([], ["T2.raw", "T1.out", "T2.raw"], ["T2.raw", "T1.out"]),
        ([1, 1], [], ["T1.out"]),
    ],
)
def test_taps_of(surfaces: list[int], taps: list[str], expected: list[str]) -> None:
    assert taps_of(surfaces, taps) == expected


@pytest.mark.parametrize(
    ("surfaces", "taps", "words"),
    [([3], [], "surfaces are 0"), ([], ["T0.sum"], "known taps: T2.raw"), ([1], ["T2.raw"], "choose one")],
)
def test_taps_of_refuses(surfaces: list[int], taps: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        taps_of(surfaces, taps)


def test_every_surface_is_a_tap() -> None:
    assert set(SURFACES.values()) <= set(Tap)


def test_expand_makes_every_combination_in_order() -> None:
    grid = {
        "dataset": ["digits"],
        "defense": [("none", {}), ("fed_cdp", {"sigma": 2})],
        "attack": [("cpl", {"restarts": 2})],
        "tap": ["T2.step", "T0.in"],
    }
    cells = expand(grid, victims=3)
    assert [(cell.defense, cell.tap) for cell in cells] == [
        ("none", "T2.step"), ("none", "T0.in"), ("fed_cdp", "T2.step"), ("fed_cdp", "T0.in"),
    ]  # fmt: skip
    assert all(isinstance(cell, CellSettings) and cell.victims == 3 for cell in cells)
    assert [cell.defense_args for cell in cells] == [{}, {}, {"sigma": 2}, {"sigma": 2}]
    assert {cell.build_attack().restarts for cell in cells} == {2}


def test_a_later_setting_at_its_default_is_in_no_key_and_no_document() -> None:
    cell = cell_settings(defense="none")
    assert not set(LATER_SETTINGS) & cell.identity().keys()
    assert "shared_weights" in cell_settings(defense="none", shared_weights=True).identity()
    assert cell.beside(()) == {} and cell_settings(defense="none", shared_weights=True).beside(()) == {
        "shared_weights": True
    }
    place = Place(dataset="digits", model="mlp", defense="none", tap="T2.step", seeds=[0], victims=1)
    assert "options" not in place.model_dump() and "options" not in place.model_dump_json()
    other = place.model_copy(update={"options": {"new_option": 2}})
    assert Place.model_validate_json(other.model_dump_json()) == other and other.settings["new_option"] == 2


def test_reports_name_settings_by_the_words_of_the_list() -> None:
    assert named_settings({"shared_weights": True, "batch_norm": "hidden"}) == [
        "one network per seed", "BatchNorm's statistics hidden",
    ]  # fmt: skip
    assert named_settings({"shared_weights": False, "batch_norm": None}) == []
