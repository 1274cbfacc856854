"""Suites of attacks: what is in them for good, and what a name of one becomes."""

from typing import Any

import pytest

from harness.attacks import ATTACKS, SUITES, expanded, members
from harness.attacks.suites import LATEST, Chosen, resolve
from harness.errors import UsageError
from harness.experiment import CellSettings, cell_settings, expand, usual_prior

MEMBERS = ("cpl", "inverting_gradients", "map", "identify", "analytic")
CAPPED = {"max_iterations": 1000}


def test_a_suite_never_changes() -> None:
    """Whoever changes this line changes what published verdicts mean: other members are another version."""
    defaults: dict[str, dict[str, Any]] = {name: {} for name in MEMBERS}
    published = {"auto-1": defaults, "auto-2": defaults | {"inverting_gradients": CAPPED}}
    published["auto-3"] = published["auto-2"] | {"spear": {}}
    published["auto-4"] = published["auto-3"] | {"learned": {}}
    published["auto-5"] = published["auto-4"] | {"slope": {}}
    published["auto-6"] = published["auto-5"] | {"levels": {}}
    published["auto-7"] = published["auto-6"]
    assert published == SUITES
    assert LATEST["auto"] in SUITES and not (set(LATEST) | set(SUITES)) & set(ATTACKS)


@pytest.mark.parametrize("name", SUITES)
def test_its_members_exist_with_such_settings(name: str) -> None:
    for member, settings in SUITES[name].items():
        assert ATTACKS.resolve(member) == member
        assert ATTACKS[member](**settings).parameters() == ATTACKS[member]().parameters() | settings
    assert "blind" not in SUITES[name]


def suite(name: str = "auto-7") -> list[Chosen]:
    return [Chosen(member, settings, name) for member, settings in SUITES[name].items()]


EXPANDED: dict[str, tuple[list[tuple[str, dict[str, Any]]], list[Chosen]]] = {
    "the latest": ([("auto", {})], suite()),
    "by its version": ([("auto-1", {})], suite("auto-1")),
    "an attack alone": ([("cpl", {})], [Chosen("cpl")]),
    "a member beside it is its own": ([("auto", {}), ("cpl", {})], suite()),
    "and before it": ([("cpl", {}), ("auto", {})], suite()),
    "by another name": ([("auto-1", {}), ("gradinv", {})], suite("auto-1")),
    "another attack beside it": ([("auto", {}), ("dlg", {})], [*suite(), Chosen("dlg")]),
    "a member with settings of its own": (
        [("auto", {}), ("cpl", {"restarts": 2})], [*suite(), Chosen("cpl", {"restarts": 2})],
    ),
    "a member at its defaults beside the suite's settings": (
        [("auto", {}), ("gradinv", {})], [*suite(), Chosen("inverting_gradients")],
    ),
    "twice the same": ([("dlg", {}), ("dlg", {})], [Chosen("dlg")]),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPANDED)
def test_what_a_name_stands_for(case: str) -> None:
    named, expected = EXPANDED[case]
    assert expanded(named) == expected
    assert members(name for name, _ in named) == list(dict.fromkeys(chosen.attack for chosen in expected))


def test_cells_of_a_suite() -> None:
    grid = {"attack": [("auto", {}), ("dlg", {})], "defense": [("none", {})]}
    cells = expand(grid, prior="auto", dataset="digits")
    assert [(cell.attack, cell.attack_args, cell.suite) for cell in cells] == [
        *((name, settings, "auto-7") for name, settings in SUITES["auto-7"].items()), ("dlg", {}, None),
    ]  # fmt: skip
    assert cells[0].identity()["suite"] == "auto-7" and "suite" not in cells[-1].identity()


@pytest.mark.parametrize(
    ("attacks", "prior"),
    [(["auto"], "auto"), (["cpl", "auto-1"], "auto"), (["identify"], "auto"), (["cpl", "dlg"], "none")],
)
def test_a_suite_knows_public_data(attacks: list[str], prior: str) -> None:
    assert usual_prior(attacks) == prior


MISTAKES: dict[str, tuple[Any, str]] = {
    "settings": (lambda: expanded([("auto", {"tv": 1})]), "'auto-7' is a suite, which takes no settings; leave"),
    "nothing public": (
        lambda: expand({"attack": [("auto", {})], "defense": [("none", {})]}, prior="none"), "use --prior auto",
    ),
    "a version to come": (lambda: resolve("auto-9"), "unknown attack 'auto-9'"),
    "no member": (lambda: cell_settings(attack="dlg", suite="auto-1", prior="auto"), "use attack 'auto'"),
    "a member with settings": (
        lambda: cell_settings(attack="cpl", attack_args={"tv": 1}, suite="auto-1", prior="auto"), "use attack 'auto'",
    ),
    "a member without its settings": (
        lambda: cell_settings(attack="inverting_gradients", suite="auto-2", prior="auto"), "use attack 'auto'",
    ),
    "no suite": (lambda: cell_settings(attack="cpl", suite="auto", prior="auto"), "use attack 'auto'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    call, mend = MISTAKES[case]
    with pytest.raises(UsageError, match=mend) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_whom_it_is_tried_for_is_no_setting_to_compare() -> None:
    from harness.gate.settings import _COMPARED

    assert "suite" in CellSettings.model_fields and "suite" not in _COMPARED
