"""Is the declared defense on? Honest clients pass every check, and what is planted is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.capture.reading import read_capture
from harness.errors import UsageError
from harness.judging.checks import Check, checks_of, explained
from harness.judging.declared import cells_of
from harness.judging.federation import gathered

Federation = Callable[..., list[Path]]
CDP = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 6.0, "clipping": "whole"}}
BOUND, NOISE, ANEW = "norms are within the bound", "noise is on every tensor", "noise is drawn anew each time"


def checked(folders: list[Path]) -> dict[str, Check]:
    captured = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")
    return {check.name: check for check in checks_of(captured, cell)}


HONEST: dict[str, dict[str, Any]] = {
    "one example": {}, "a batch": {"batch": 4}, "two steps": {"batch": 2, "steps": 2}, "one client": {"count": 1},
}  # fmt: skip


@pytest.mark.parametrize("how", HONEST.values(), ids=HONEST.keys())
def test_an_honest_client_raises_no_alarm(federation: Federation, how: dict[str, Any]) -> None:
    found = checked(federation(**({"count": 4} | how), declared=CDP, clip=1.0, sigma=6.0))
    assert "violated" not in {check.outcome for check in found.values()}
    assert found[NOISE].outcome == found[BOUND].outcome == "holds"
    assert found[ANEW].outcome == ("cannot tell" if how.get("count") == 1 else "holds")


PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "noise off": ({"sigma": 0.0}, NOISE),
    "a tenth of the noise": ({"sigma": 0.6}, NOISE),
    "half of the noise": ({"sigma": 3.0}, NOISE),
    "ten times the clip": ({"clip": 10.0}, BOUND),
    "noise as for a sum on the mean": ({"batch": 4, "sigma": 24.0}, BOUND),
    "noise as for the mean of a batch once more": ({"batch": 4, "sigma": 1.5}, NOISE),
    "only the last layer is noisy": ({"noise_on_last_layer_only": True}, NOISE),
    "the same noise every time": ({"noise_seed": 5}, ANEW),
}  # fmt: skip


@pytest.mark.parametrize(("how", "name"), PLANTED.values(), ids=PLANTED.keys())
def test_what_is_planted_is_named(federation: Federation, how: dict[str, Any], name: str) -> None:
    found = checked(federation(4, **({"declared": CDP, "clip": 1.0, "sigma": 6.0} | how)))
    assert found[name].outcome == "violated", found[name]
    assert (found[name].p_value or 0.0) < 1e-3


def test_a_clip_without_noise_is_held_against_its_bound(federation: Federation) -> None:
    declared = {"name": "fed_cdp", "settings": {"clip": 0.1, "sigma": 0.0, "clipping": "whole"}}
    assert checked(federation(3, declared=declared, clip=0.1))[BOUND].outcome == "holds"
    for wrong in ({"clip": 0.2}, {"clip": 0.1, "per_layer": True}):
        found = checked(federation(3, declared=declared, **wrong))
        assert found[BOUND].outcome == "violated" and "times the bound" in found[BOUND].detail
        assert found[NOISE].outcome == "cannot tell"


def test_pruning_leaves_coordinates_out(federation: Federation) -> None:
    (check,) = checked(federation(2, declared={"name": "pruning", "settings": {"threshold": 0.9}})).values()
    assert check.outcome == "violated" and "90.0% declared" in check.detail


def told(folders: list[Path], root: Path) -> Check:
    captured = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")
    return explained(captured, cell, root)


EXPLAINED: dict[str, dict[str, Any]] = {
    "no defense": {}, "two steps of batches": {"batch": 3, "steps": 2},
    "a clip": {"declared": CDP | {"settings": CDP["settings"] | {"sigma": 0.0}}, "clip": 1.0},
    "noise": {"declared": CDP, "clip": 1.0, "sigma": 6.0, "batch": 2},
}  # fmt: skip


@pytest.mark.parametrize("how", EXPLAINED.values(), ids=EXPLAINED.keys())
def test_the_truth_explains_an_honest_client(federation: Federation, how: dict[str, Any], tmp_path: Path) -> None:
    check = told(federation(4, **how), tmp_path)
    assert check.outcome == "holds", check


UNEXPLAINED: dict[str, dict[str, Any]] = {
    "a tenth more noise": {"declared": CDP, "clip": 1.0, "sigma": 6.6},
    "a tenth less noise": {"declared": CDP, "clip": 1.0, "sigma": 5.4},
    "a clip that nobody declared": {"clip": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("how", UNEXPLAINED.values(), ids=UNEXPLAINED.keys())
def test_it_does_not_explain_another_client(federation: Federation, how: dict[str, Any], tmp_path: Path) -> None:
    assert told(federation(4, **how), tmp_path).outcome == "violated"


def test_nor_another_learning_rate(federation: Federation, tmp_path: Path) -> None:
    folders = federation(2)
    for folder in folders:
        facts = folder / "capture.json"
        facts.write_text(facts.read_text().replace("0.05", "0.1"))
    check = told(folders, tmp_path)
    assert check.outcome == "violated" and "check learning_rate" in check.detail


def test_of_a_defense_that_draws_coordinates_it_cannot_tell(federation: Federation, tmp_path: Path) -> None:
    assert told(federation(2, declared={"name": "dssgd", "settings": {}}), tmp_path).outcome == "cannot tell"


def test_a_bound_that_has_moved_is_refused(federation: Federation) -> None:
    (folder,) = federation(1, declared={"name": "quantile", "settings": {}})
    facts = folder / "capture.json"
    facts.write_text(facts.read_text().replace('"round": 0', '"round": 3'))
    with pytest.raises(UsageError, match="remembers by round 3"):
        checked([folder])


def test_noise_that_depends_on_the_federation_is_that_of_its_facts(federation: Federation) -> None:
    declared = {"name": "fed_sdp", "settings": {"noise_at": "client", "clip": 1.0, "sigma": 6.0}}
    (folder,) = federation(1, declared=declared)
    captured = gathered([read_capture(folder)])
    known = replace(captured, record=captured.record.model_copy(update={"clients": 5, "clients_per_round": 4}))
    (cell,) = cells_of(known, "test", ["cpl"], "none", "cpu")
    assert (cell.clients, cell.clients_per_round) == (5, 4)
