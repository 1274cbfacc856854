"""What must not leak and does makes a run invalid; what never moves proves nothing."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, Reconstruction
from harness.attacks.engine import CONVERGED
from harness.base.building import build
from harness.datasets import load_dataset, select_victims
from harness.evaluation import attacking, scores
from harness.evaluation.controls import is_hidden_by_more
from harness.observation import Noise, NoiseLevel, Observation
from harness.results import Lineup, read_results
from harness.scoring import Ranking
from harness.testing import digits, undefended


def failing_swap(failing: set[int]) -> Callable[..., Ranking]:
    """A swap control that shows a leak at some of its calls, counted from 1."""
    calls = itertools.count(1)

    def swap(made: Tensor, indices: Tensor, *rest: Any) -> Ranking:
        ones = np.ones(indices.shape)
        p_value = 1e-5 if next(calls) in failing else 0.5
        return Ranking(ones, ones.astype(np.int64), ones.astype(bool), Lineup(p_value=p_value))

    return swap


@pytest.mark.parametrize(
    ("failing", "valid"),
    [
        pytest.param({1}, True, marks=pytest.mark.slow),
        pytest.param({2}, True, marks=pytest.mark.slow),
        ({1, 2}, False),
    ],
)
def test_a_swap_control_that_fails_twice_makes_the_run_invalid(
    small: Any, tmp_path: Path, failing: set[int], valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Call 1 is the cell's; call 2 is made only to confirm a failure, with other random keys.
    monkeypatch.setattr(scores, "swap_control", failing_swap(failing))
    document = small.play([small.cell()], tmp_path)
    assert document.valid == valid
    if not valid:
        assert "negative control swap failed" in (document.valid_reason or "")
        assert "lineup p = 1e-05, 1e-05" in (document.valid_reason or "")
        assert not read_results(tmp_path).valid


def oracle(attack: object, observation: Observation, *rest: Any) -> Reconstruction:
    """An attack that knows the truth whatever it is shown: a pipeline that leaks it."""
    seed = observation.keys[0][0]
    assert isinstance(seed, int)
    truth = select_victims(
        load_dataset("digits", Path("no data root")), observation.rows, observation.examples, seed, False
    )
    ones: Tensor = torch.ones(observation.rows)
    return Reconstruction(
        images=truth.images, labels=truth.labels, loss=0 * ones, initial_loss=ones,
        stop_reason=torch.full((observation.rows,), CONVERGED), iterations=ones.long(), evaluations=20 * ones,
        restart=0 * ones.long(),
    )  # fmt: skip


def test_an_attack_that_reads_through_a_hundredfold_noise_makes_the_run_invalid(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacking, "run_attack", oracle)
    document = small.play([small.cell(defense="fed_cdp")], tmp_path)
    high_noise = [made for made in document.cells if made.control == "noise_x100"]
    assert [made.seeds for made in high_noise] == [[0], [1_000_003]]
    assert all(made.lineup.p_value is not None and made.lineup.p_value < 1e-4 for made in high_noise)
    assert not document.valid
    assert "negative control noise_x100 failed for cpl against fed_cdp at T2.step" in (document.valid_reason or "")


def test_an_attack_that_never_moves_proves_nothing(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def still(attack: object, observation: Observation, *rest: Any) -> Reconstruction:
        made = oracle(attack, observation)
        return replace(made, images=torch.zeros_like(made.images), evaluations=torch.ones(observation.rows))

    monkeypatch.setattr(attacking, "run_attack", still)
    document = small.play([small.cell(defense="fed_cdp")], tmp_path)
    held = {check.name: (check.held, check.detail) for check in document.cells[0].controls}
    stood_still = (False, "no optimizer step was taken")
    assert [held[name] for name in ("positive", "positive_sigma0", "noise_x100")] == [stood_still] * 3
    assert document.valid
    assert document.cells[0].verdict == "inconclusive"


def test_more_noise_hides_nothing_where_there_is_none() -> None:
    seen, identify = undefended(*digits(2)), build(ATTACKS, "identify", {})
    everywhere = torch.full((seen.target.shape[1],), 0.1)
    bare = everywhere.clone()
    bare[-1] = 0.0
    assert is_hidden_by_more(replace(seen, noise=Noise("gaussian", everywhere)), identify)
    beneath = Noise("gaussian", bare).changed(None)
    assert beneath.deviation is None and not beneath.plus(Noise("gaussian", 1.0)).leaves_some_bare
    assert beneath.plus(Noise("gaussian", bare)).averaged(3).times(2.0).leaves_some_bare
    for some in (Noise("gaussian", bare), beneath):
        assert not is_hidden_by_more(replace(seen, noise=some), identify)
    follows = replace(seen, noise=Noise("gaussian", None, level=NoiseLevel(1.0, "each")))
    assert not is_hidden_by_more(follows, identify) and is_hidden_by_more(follows, build(ATTACKS, "cpl", {}))
