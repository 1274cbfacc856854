"""``harness.judge(...)``: what the command finds, and nothing written unless asked for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.base.errors import UsageError
from harness.cli import run

Federation = Callable[..., list[Path]]


def test_it_finds_what_the_command_finds(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = federation(3)
    there = sorted(tmp_path.rglob("*"))
    found = harness.judge(folders, prior="digits", attack="cpl")
    assert sorted(tmp_path.rglob("*")) == there
    assert found.valid and {check.outcome for check in found.checks} == {"holds"}
    assert found.document is not None and found.document.summary[0].verdict == "leaks"
    capsys.readouterr()
    line = ["judge", *map(str, folders), "--prior", "digits", "--attack", "cpl", "--json", "--jobs", "1"]
    assert run(line) == 0
    told = json.loads(capsys.readouterr().out)
    assert quiet(json.loads(json.dumps(found.record()))) == quiet(told)


def quiet(record: Any) -> Any:
    """A document without times."""
    if isinstance(record, dict):
        return {name: quiet(value) for name, value in record.items() if name not in ("seconds", "environment")}
    return [quiet(one) for one in record] if isinstance(record, list) else record


def test_files_are_written_where_out_says(federation: Federation, tmp_path: Path) -> None:
    harness.judge(federation(2), prior="digits", attack="cpl", out=tmp_path / "judged")
    assert {"judged.json", "results.json"} <= {one.name for one in (tmp_path / "judged").iterdir()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"captures": []}, "no capture named"),
        ({"captures": "absent"}, "absent"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"rounds_seen": 0}, "rounds_seen must be at least 1"),
        ({"attack": "cpll"}, "did you mean 'cpl'"),
        ({"prior": "digitz"}, "digits"),
        ({"truth": "x.npz"}, "truth is of one capture"),
        ({"captures": 3}, "captures: "),
    ],
)
def test_a_mistake_is_one_line(given: dict[str, Any], said: str, federation: Federation) -> None:
    with pytest.raises(UsageError, match=said) as told:
        harness.judge(**{"captures": federation(2), "prior": "digits"} | given)
    assert "\n" not in str(told.value)
