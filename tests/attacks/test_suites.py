"""Suites of attacks: what is in them for good, and what a name of one becomes."""

from typing import Any

import pytest

from harness.attacks import ATTACKS, SUITES, expanded, members
from harness.attacks.suites import DROPPED, EXHAUSTIVE, LATEST, Chosen, resolve
from harness.base.errors import UsageError
from harness.experiment import CellSettings, cell_settings, expand, usual_prior

MEMBERS = ("cpl", "map", "identify", "analytic", "spear", "learned", "slope", "levels")
LAST = {"inverting_gradients": {"max_iterations": 1000}}


def test_a_suite_never_changes() -> None:
    """Whoever changes this line changes what published verdicts mean: other members are another version."""
    members_now: dict[str, dict[str, Any]] = {name: {} for name in MEMBERS} | LAST
    more = {"token_rows": {}, "span": {}, "decode": {}, "patches": {}}
    joined = more | {"rows": {}, "intervals": {}}
    assert {"auto-7": members_now, "auto-8": more | members_now, "auto-9": joined | members_now} == SUITES
    assert EXHAUSTIVE == ("auto-7",)
    assert list(SUITES["auto-9"]) == [
        *more, "analytic", "rows", "spear", "learned", "levels", "slope", "identify", "cpl", "intervals", "map",
        "inverting_gradients",
    ]  # fmt: skip
    assert [name for name in SUITES["auto-9"] if name not in joined or name in more] == list(SUITES["auto-8"])
    assert LATEST["auto"] in SUITES and not (set(LATEST) | set(SUITES) | set(DROPPED)) & set(ATTACKS)
    assert [f"auto-{number}" for number in range(1, 10)] == [*DROPPED, *SUITES]


@pytest.mark.parametrize("name", SUITES)
def test_its_members_exist_with_such_settings(name: str) -> None:
    for member, settings in SUITES[name].items():
        assert ATTACKS.resolve(member) == member
        assert ATTACKS[member](**settings).parameters() == ATTACKS[member]().parameters() | settings
    assert "blind" not in SUITES[name]


def suite(name: str = "auto-9") -> list[Chosen]:
    return [Chosen(member, settings, name) for member, settings in SUITES[name].items()]


EXPANDED: dict[str, tuple[list[tuple[str, dict[str, Any]]], list[Chosen]]] = {
    "the latest": ([("auto", {})], suite()),
    "by its version": ([("auto-9", {})], suite()),
    "an older one": ([("auto-8", {})], suite("auto-8")),
    "an attack alone": ([("cpl", {})], [Chosen("cpl")]),
    "a member beside it is its own": ([("auto", {}), ("cpl", {})], suite()),
    "and before it": ([("cpl", {}), ("auto", {})], suite()),
    "by another name": ([("auto", {}), ("gradinv", {"max_iterations": 1000})], suite()),
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
    of_images = {name: own for name, own in SUITES["auto-9"].items() if name not in ("token_rows", "span", "decode")}
    assert [(cell.attack, cell.attack_args, cell.suite) for cell in cells] == [
        *((name, settings, "auto-9") for name, settings in of_images.items()), ("dlg", {}, None),
    ]  # fmt: skip
    texts = expand(grid, prior="auto", dataset="notes")
    assert [cell.attack for cell in texts] == ["token_rows", "span", "decode", "identify", "dlg"]
    assert {cell.model for cell in texts} == {"text_transformer"}
    assert cells[0].identity()["suite"] == "auto-9" and "suite" not in cells[-1].identity()


@pytest.mark.parametrize(
    ("attacks", "prior"),
    [(["auto"], "auto"), (["cpl", "auto-9"], "auto"), (["identify"], "auto"), (["cpl", "dlg"], "none")],
)
def test_a_suite_knows_public_data(attacks: list[str], prior: str) -> None:
    assert usual_prior(attacks) == prior


MISTAKES: dict[str, tuple[Any, str]] = {
    "settings": (lambda: expanded([("auto", {"tv": 1})]), "'auto-9' is a suite, which takes no settings; leave"),
    "nothing public": (
        lambda: expand({"attack": [("auto", {})], "defense": [("none", {})]}, prior="none"), "use --prior auto",
    ),
    "a version to come": (lambda: resolve("auto-10"), "unknown attack 'auto-10'"),
    "an earlier version": (lambda: expanded([("auto-5", {})]), "^suite auto-5 belongs to 0.1.7; use auto$"),
    "a stored cell of an earlier version": (
        lambda: cell_settings(attack="cpl", suite="auto-1", prior="auto"), "^suite auto-1 belongs to 0.1.7; use auto$",
    ),
    "no member": (lambda: cell_settings(attack="dlg", suite="auto-9", prior="auto"), "use attack 'auto'"),
    "a member with settings": (
        lambda: cell_settings(attack="cpl", attack_args={"tv": 1}, suite="auto-9", prior="auto"), "use attack 'auto'",
    ),
    "a member without its settings": (
        lambda: cell_settings(attack="inverting_gradients", suite="auto-9", prior="auto"), "use attack 'auto'",
    ),
    "no suite": (lambda: cell_settings(attack="cpl", suite="auto", prior="auto"), "use attack 'auto'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    call, fix = MISTAKES[case]
    with pytest.raises(UsageError, match=fix) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_whom_it_is_tried_for_is_no_setting_to_compare() -> None:
    from harness.gate.settings import _COMPARED

    assert "suite" in CellSettings.model_fields and "suite" not in _COMPARED
