"""The attack bench: the same work for both engines, no more victims than there are, and no more time than it has."""

from pathlib import Path
from typing import Any

import pytest

import harness.bench.measurements as bench


def figures(folder: Path, attack: str, seconds: float, victims: int = 2, growth: int = 1024) -> dict[str, Any]:
    return dict(bench.bench_attack("digits", attack, victims, 1000, growth, seconds, "cpu", folder, 2))


@pytest.mark.slow
def test_as_many_victims_as_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "GROWTH", (1, 2, 1000))
    found = figures(tmp_path, "blind", 1e6)
    assert [name for name in found if name.startswith("seconds for")] == [
        "seconds for 1 victims",
        "seconds for 2 victims",
    ]
    assert found["peak memory MiB (898 victims)"] > 0  # of 1,797, of which 899 are public
    assert found["victims of the reference"] == 2 and found["ratio, whole machine"] > 0 and found["ratio, per core"] > 0


@pytest.mark.slow
def test_what_there_is_no_time_for_is_said(tmp_path: Path) -> None:
    """One victim of the reference is always timed, with every number of threads."""
    found = figures(tmp_path, "blind", 0.0)
    assert found["victims of the reference"] == 1
    assert found["seconds for 1 victims"] == found["peak memory MiB (898 victims)"] == bench.LEFT_OUT


@pytest.mark.slow
def test_both_engines_find_the_same(tmp_path: Path) -> None:
    found = figures(tmp_path, "cpl", 20.0, growth=0)
    assert found["ASR strict batched, reference's"] == found["ASR strict reference"]
    assert 0 < found["arithmetic's share of batched"] < 1
    assert not any(name.startswith("seconds for") for name in found)
