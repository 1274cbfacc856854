"""A person's mistakes in naming attacks and their settings are answered in one line that says how to fix them."""

from typing import Any

import pytest

from harness.attacks import ATTACKS
from harness.base.building import build, parse_assignments
from harness.base.errors import UsageError


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cpll", {}, "unknown attack 'cpll'; did you mean 'cpl'?"),
        ("gradinversin", {}, "did you mean 'gradinversion'?"),
        ("xyzzy", {}, "known: analytic, blind, cpl, decode, dlg, gradinversion, identify, idlg, imprint"),
        ("cpl", {"restart": 2}, "attack 'cpl' has no setting 'restart'; did you mean 'restarts'?"),
        ("cpl", {"zzz": 2}, "has no setting 'zzz'; it has: objective"),
        ("cpl", {"langevin": 0.1}, "has no setting 'langevin'"),
        ("cpl", {"tv": float("nan")}, "tv: .*finite.*nan"),
        ("cpl", {"tv": "nan"}, "tv: "),
        ("cpl", {"tv": float("inf")}, "tv: .*inf"),
        ("cpl", {"tv": -1}, "tv: .*greater than or equal to 0, got -1"),
        ("cpl", {"loss_stop": -1e-9}, "loss_stop: "),
        ("cpl", {"patience_drop": float("nan")}, "patience_drop: "),
        ("cpl", {"restarts": 0}, "restarts: .*greater than or equal to 1, got 0"),
        ("cpl", {"max_iterations": -5}, "max_iterations: "),
        ("cpl", {"max_iterations": "many"}, "max_iterations: .*got 'many'"),
        ("cpl", {"max_iterations": 1.5}, "max_iterations: .*got 1.5"),
        ("cpl", {"patience": -1}, "patience: "),
        ("cpl", {"objective": "l1"}, "objective: .*'l2' or 'cosine', got 'l1'"),
        ("cpl", {"scale": "none"}, "scale: "),
        ("cpl", {"masked": "perhaps"}, "masked: .*'auto', 'yes' or 'no'"),
        ("analytic", {"box": True}, "has no box; drop box"),
        ("cpl", {"box": "perhaps"}, "box: "),
        ("gradinv", {"rate": 0}, "rate: .*greater than 0"),
        ("gradinversion", {"rate": float("nan")}, "rate: "),
        ("gradinversion", {"warm_up": -1}, "warm_up: "),
        ("gradinversion", {"group": float("inf")}, "group: "),
    ],
)
def test_mistakes(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")) as caught:
        build(ATTACKS, name, arguments)
    assert "\n" not in str(caught.value)


def test_strings_from_a_command_line_become_settings() -> None:
    attack = build(ATTACKS, "gradinv", {"tv": "1e-2", "restarts": "3", "box": "false", "init": "uniform"})
    assert type(attack) is ATTACKS["inverting_gradients"]
    parameters = attack.parameters()
    assert {name: parameters[name] for name in ("tv", "restarts", "box", "init")} == {
        "tv": 0.01, "restarts": 3, "box": False, "init": "uniform",
    }  # fmt: skip
    for name, value in parameters.items():  # the repr lists every hyper-parameter
        assert f"{name}={value!r}" in repr(attack)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ([], {"cpl": {}, "inverting_gradients": {}}),
        (["tv=0.1"], {"cpl": {"tv": "0.1"}, "inverting_gradients": {"tv": "0.1"}}),
        (["rate=0.2"], {"cpl": {}, "inverting_gradients": {"rate": "0.2"}}),
        (["cpl.tv=0.1"], {"cpl": {"tv": "0.1"}, "inverting_gradients": {}}),
        (["gradinv.tv=0.1"], {"cpl": {}, "inverting_gradients": {"tv": "0.1"}}),
        (["tv=0.1", "cpl.tv=0.3"], {"cpl": {"tv": "0.3"}, "inverting_gradients": {"tv": "0.1"}}),
        (["cpl.tv=0.3", "tv=0.1"], {"cpl": {"tv": "0.3"}, "inverting_gradients": {"tv": "0.1"}}),
        (["tv=0.1", "tv=0.1"], {"cpl": {"tv": "0.1"}, "inverting_gradients": {"tv": "0.1"}}),
        (["init=pattern-1/4", "label_rule=a=b"], {name: {"init": "pattern-1/4", "label_rule": "a=b"}
                                                  for name in ("cpl", "inverting_gradients")}),
    ],
)  # fmt: skip
def test_assignments(assignments: list[str], expected: dict[str, dict[str, str]]) -> None:
    assert parse_assignments(assignments, ["cpl", "inverting_gradients"], ATTACKS) == expected


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("tv", "'tv' is not key=value"),
        ("=3", "'=3' is not key=value"),
        ("dlg.tv=1", "attack 'dlg' is not part of this run; name it with --attack"),
        ("dgl.tv=1", "unknown attack 'dgl'; did you mean 'dlg'?"),
        ("restart=2", "no named attack has a setting 'restart'; did you mean 'restarts'?"),
        ("langevin=2", "no named attack has a setting 'langevin'; choose .*max_iterations, .*restarts"),
    ],
)
def test_refused_assignments(assignment: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")) as caught:
        parse_assignments([assignment], ["cpl", "inverting_gradients"], ATTACKS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("twice", [["tv=0.1", "tv=0.2"], ["cpl.tv=0.1", "tv=0.3", "cpl.tv=0.2"]])
def test_two_values_of_one_setting_are_refused(twice: list[str]) -> None:
    with pytest.raises(UsageError, match=r"tv was given as '0.1' and as '0.2'; give it once"):
        parse_assignments(twice, ["cpl", "inverting_gradients"], ATTACKS)
