"""The attack bench: it asks for no more victims than a dataset has beside what is public."""

from pathlib import Path

import pytest

import harness.bench.attack as bench


def test_as_many_victims_as_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "GROWTH", (1, 2, 1000))
    figures = dict(bench.bench_attack("digits", "blind", 1, 1000, True, "cpu", tmp_path))
    assert list(figures["seconds by victims"]) == ["1", "2"]
    assert figures["victims in memory test"] == 898  # of 1,797, of which 899 are public
