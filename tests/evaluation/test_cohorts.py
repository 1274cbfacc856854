"""Sums of other cohorts in each round: single updates where the linear system determines them, the rank where not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.evaluation.cohorts import separated, taking_part
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.run import Run
from harness.experiment import cell_settings
from harness.results import RunFolder
from harness.secagg.simulate import SumSettings, sum_reals

CLIENTS, TOGETHER = 12, 10
CELL = {"dataset": "digits", "model": "logistic", "tap": "T0.agg", "victims": CLIENTS, "shared_weights": True,
        "clients_per_round": TOGETHER, "attack": "analytic", "learning_rate": 1.0}  # fmt: skip


def _scene(tmp_path: Path, **given: object) -> Scene:
    return Stage(tmp_path, 32).set(cell_settings(**CELL | given))


def _cohorts(rounds: int, seed: int = 0) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [[f"client-{one}" for one in random.permutation(CLIENTS)[:TOGETHER]] for _ in range(rounds)]


@pytest.mark.parametrize("rounds", [4, 40])
def test_single_updates_come_back_from_real_secure_sums_at_full_rank(rounds: int) -> None:
    """The sums are made by the protocol itself, rounded to its fixed point."""
    updates = torch.randn(CLIENTS, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names, part = taking_part(_cohorts(rounds))
    made = [sum_reals(updates[row.bool()].numpy(), 6.0, SumSettings(bits=48), ("cohorts", number))[0]
            for number, row in enumerate(part)]  # fmt: skip
    found = separated(torch.from_numpy(np.stack(made)), part)
    assert len(names) == CLIENTS and found.rank == min(rounds, CLIENTS)
    assert bool(found.determined.all()) == (rounds > CLIENTS)
    errors = (found.updates - updates).norm(dim=1) / updates.norm(dim=1)
    assert (errors.max() < 1e-4) if rounds > CLIENTS else (errors.min() > 0.05)


def test_who_is_determined_is_told_one_by_one() -> None:
    """Client 2 took part in one of two rounds that are otherwise alike; the others are only known as a sum."""
    updates = torch.randn(3, 5, dtype=torch.float64)
    part = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    found = separated(part.double() @ updates, part)
    assert found.determined.tolist() == [False, False, True] and found.rank == 2
    assert torch.allclose(found.updates[2], updates[2]) and not torch.allclose(found.updates[0], updates[0])
    assert found.gain[2] == pytest.approx(2**0.5)


def test_a_replayed_model_gives_single_updates_and_a_moving_one_an_error(tmp_path: Path) -> None:
    told = _scene(tmp_path, same_data="replayed", rounds_seen=30)
    alone = Stage(tmp_path, 32).set(cell_settings(**CELL | {"tap": "T1.out"}))
    assert told.recovered is not None and bool(told.recovered.determined.all())
    assert told.recovered.rank.tolist() == [CLIENTS] * CLIENTS
    assert float(told.recovered.error.max()) < 1e-4
    apart = (told.observation.target - alone.observation.target).norm(dim=1)
    assert float((apart / alone.observation.target.norm(dim=1)).max()) < 1e-4
    moving = _scene(tmp_path, same_data="cohorts", rounds_seen=30).recovered
    assert moving is not None and bool(moving.determined.all()) and float(moving.error.median()) > 1e-2
    few = _scene(tmp_path, same_data="replayed", rounds_seen=5).recovered
    assert few is not None and few.rank.tolist() == [5] * CLIENTS and not bool(few.determined.any())


def test_texts_are_read_off_sums_beside_what_span_tells_of_itself(tmp_path: Path) -> None:
    """Its rank is of a layer, and stands beside that of the sums."""
    run = Run(tmp_path, RunFolder(tmp_path / "out"))
    made = run.cell(cell_settings(
        dataset="notes", model="text_transformer", attack="span", tap="T0.agg", victims=3, clients_per_round=2,
        shared_weights=True, same_data="replayed", rounds_seen=8,
    )).cell  # fmt: skip
    assert made.metrics["rank_of_sums"].mean == 3 and made.metrics["rank"].mean > 3
    assert made.outcomes.success == 3


def test_each_seed_is_a_federation_of_its_own(tmp_path: Path) -> None:
    both = _scene(tmp_path, same_data="replayed", rounds_seen=30, seeds=(0, 1)).recovered
    assert both is not None and len(both.error) == 2 * CLIENTS and float(both.error.max()) < 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"tap": "T1.out"}, "choose a tap of sums"), ({"victims": 8}, "raise victims"),
     ({"clients_per_round": 1}, "a sum at T0.agg is of one client; raise clients_per_round"),
     ({"shared_weights": False}, "add --shared-weights"), ({"rounds_seen": 200}, "lower rounds_seen"),
     ({"defense": "jax_privacy:BandedToeplitz"}, "correlated")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        cell_settings(**CELL | {"same_data": "cohorts", "rounds_seen": 3} | changes)


@pytest.mark.parametrize("attack", ["analytic", "identify"])
def test_who_fails_on_updates_that_are_not_exact_makes_nothing_resilient(attack: str, tmp_path: Path) -> None:
    """Where the system is exact, a defense of single updates may be withstood."""
    hidden = {"defense": "fed_cdp", "defense_args": {"sigma": 0.0, "clip": 1.0}}
    run, verdicts = Run(tmp_path, RunFolder(tmp_path / "out")), []
    for same, rounds in (("cohorts", 2), ("replayed", 30)):
        given = CELL | hidden | {"attack": attack, "same_data": same, "rounds_seen": rounds}
        verdicts.append(run.cell(cell_settings(**given)).cell)
    inexact, exact = verdicts
    assert inexact.verdict != "resilient" and "read off sums with an error" in inexact.warnings[0]
    assert not any("read off sums" in one for one in exact.warnings)


def test_noise_on_sums_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="adds or leaves out"):
        _scene(tmp_path, same_data="replayed", rounds_seen=3, defense="tff:gaussian_fixed")


@pytest.mark.parametrize(
    ("cohorts", "words"),
    [([], "no round"), ([["a"], []], "round 1 has no clients"), ([["a", "b", "a"]], "'a' stands twice in round 0"),
     (["ab", ["c"]], "clients of round 0 are the text 'ab'; give a list"), ("ab", "the text 'a'")],
)  # fmt: skip
def test_cohorts_that_cannot_be_are_refused(cohorts: list[list[str]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        taking_part(cohorts)


def test_sums_without_their_cohort_are_refused() -> None:
    _, part = taking_part([["a", "b"], ["b"]])
    with pytest.raises(UsageError, match="3 sums of 2 cohorts"):
        separated(torch.zeros(3, 4), part)
    with pytest.raises(UsageError, match=r"sums are of shape \(2,\); give a matrix"):
        separated(torch.zeros(2), part)
    with pytest.raises(UsageError, match=r"cohorts are of shape \(2,\); give a matrix"):
        separated(torch.zeros(2, 4), part[:, 0])
    with pytest.raises(UsageError, match="NaN"):
        separated(torch.full((2, 4), torch.nan), part)
