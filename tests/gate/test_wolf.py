"""Honest re-runs must not cry wolf: forty of them raise at most two alarms.

Half run the gate preset with other seeds, that is other victims, networks and noise; half draw, from the stored
records of one run, victims for two runs that differ in nothing.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.gate import GateCell, as_baseline, check, read_baseline

pytestmark = pytest.mark.slow

VERSIONS = {"harness": "0.1.0", "torch": "2.11.0"}
# Twenty take eight minutes of one idle core; set it lower for a first look.
SEEDS = int(os.environ.get("HARNESS_HONEST_RUNS", "20"))
COMMITTED = Path(__file__).parents[2] / "baselines"


def test_other_seeds_raise_at_most_one_alarm(gate: SimpleNamespace, tmp_path: Path) -> None:
    alarms = []
    for seed in range(1, SEEDS + 1):
        settings = [one.model_copy(update={"seeds": (seed,)}) for one in gate.settings]
        report = check(as_baseline(gate.cells, VERSIONS), gate.play(settings, tmp_path / str(seed)), VERSIONS)
        assert {found.movement.pairing for found in report.findings} == {"two samples"}
        alarms += [f"seed {seed}: {found.kind} {found.cell} p={found.p}" for found in report.findings if found.fails]
    print(f"{SEEDS} honest runs with other seeds: alarms {alarms}")
    assert len({alarm.partition(":")[0] for alarm in alarms}) <= 1


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json")), ids=lambda path: path.stem)
def test_resampled_records_raise_at_most_one_alarm(path: Path, paired: bool) -> None:
    """Of other victims, and of the same ones, whose differences' signs are then flipped."""
    baseline, alarms = read_baseline(path), 0
    for draw in range(20):
        halves = [resampled(cell, draw, paired) for cell in baseline.cells]
        old, new = ([pair[side] for pair in halves] for side in (0, 1))
        alarms += check(as_baseline(old, VERSIONS), new, VERSIONS).failed
    print(f"20 resampled runs of {path.stem}, {'the same' if paired else 'other'} victims: {alarms} alarms")
    assert alarms <= 1


def resampled(cell: GateCell, draw: int, paired: bool) -> tuple[GateCell, GateCell]:
    """Two runs of 32 victims each, drawn from the same records with replacement: honest by construction."""
    random = np.random.default_rng([draw, len(cell.title), *cell.title.encode()])
    records = list(cell.victims.values())
    return tuple(
        GateCell(cell.settings, {f"{0 if paired else side}.{place}": records[pick] for place, pick in enumerate(picks)})
        for side, picks in enumerate(random.integers(0, len(records), (2, 32)))
    )
