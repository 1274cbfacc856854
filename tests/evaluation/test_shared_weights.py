"""One network per seed for all its victims: who shares which, what the document says of it, and over what intervals."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from harness.base.errors import UsageError
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings
from harness.reports import columns
from harness.reports.html import wording
from harness.results import cell_key
from harness.scoring import rate_of, within_networks
from harness.scoring.success import clustered_interval

SEEDS = (3, 7)


def scene(**values: Any) -> Scene:
    settings = cell_settings(**{"dataset": "digits", "model": "mlp", "victims": 3, "seeds": SEEDS, **values})
    return Stage(Path("no data root"), 64).set(settings)


def test_victims_of_a_seed_share_a_network_and_those_of_another_have_another() -> None:
    own, shared = scene().observation, scene(shared_weights=True).observation
    assert len(own.weights.unique(dim=0)) == 6
    assert torch.equal(shared.weights, shared.weights[[0, 0, 0, 3, 3, 3]])
    assert not torch.equal(shared.weights[0], shared.weights[3])
    fewer = scene(shared_weights=True, seeds=SEEDS[:1], victims=2)
    assert torch.equal(fewer.observation.weights, shared.weights[:2])
    assert torch.equal(fewer.truth.indices, scene(shared_weights=True).truth.indices[:2])


def test_nothing_else_is_shared() -> None:
    """The same victims, each with noise of its own."""
    own, shared = (scene(shared_weights=share, defense="fed_cdp") for share in (False, True))
    assert torch.equal(own.truth.indices, shared.truth.indices)
    quiet = scene(shared_weights=True, defense="fed_cdp", noise_scale=0.0).observation.target
    assert len((shared.observation.target - quiet).unique(dim=0)) == 6


def test_it_is_part_of_a_cell_s_name_only_where_it_is_chosen() -> None:
    own, shared = cell_settings(), cell_settings(shared_weights=True)
    assert "shared_weights" not in own.identity() and shared.identity()["shared_weights"] is True
    assert cell_key(own.identity()) != cell_key(shared.identity())


def test_a_network_from_a_file_is_shared_already() -> None:
    with pytest.raises(UsageError, match="leave --shared-weights out"):
        cell_settings(weights="round3.pt", shared_weights=True)


@pytest.mark.parametrize(
    ("settings", "clusters"),
    [
        (CellSettings(victims=5, seeds=SEEDS), 10),
        (CellSettings(victims=5, shared_weights=True), 5),
        (CellSettings(victims=5, seeds=SEEDS, shared_weights=True), 2),
    ],
)
def test_victims_of_several_seeds_with_a_network_each_are_as_many_draws_as_networks(
    settings: CellSettings, clusters: int
) -> None:
    assert settings.clusters == clusters


def test_an_interval_over_networks_holds_what_other_networks_do() -> None:
    """Networks of which all victims fall or none: an interval over single victims would be far too narrow."""
    random, inside, naive, networks, each = np.random.default_rng(0), 0, 0, 12, 30
    for _ in range(200):
        flags = np.repeat(random.random(networks) < 0.3, each).reshape(networks, each)
        low, high = clustered_interval(flags)
        inside += low <= 0.3 <= high
        alone = rate_of(flags.reshape(-1)).ci95
        naive += alone is not None and alone[0] <= 0.3 <= alone[1]
    assert inside >= stats.binom.ppf(1e-3, 200, 0.95) > naive


def test_the_document_says_so_and_its_intervals_are_over_seeds(small: SimpleNamespace, tmp_path: Path) -> None:
    document = small.play([small.cell(shared_weights=True, seeds=SEEDS, victims=4)], tmp_path / "run")
    (cell,) = (one for one in document.cells if one.role == "cell")
    assert cell.shared_weights and document.summary[0].shared_weights
    assert all(one.shared_weights for one in document.cells)
    made = small.alone(small.cell(shared_weights=True, seeds=SEEDS, victims=4), tmp_path / "again")
    errors = np.array([victim.rmse for victim in made.victims]).reshape(2, 4).mean(1)
    margin = stats.t.ppf(0.975, 1) * errors.std(ddof=1) / np.sqrt(2)
    assert cell.metrics["rmse"].ci95 == pytest.approx((errors.mean() - margin, errors.mean() + margin))
    strict = cell.asr["strict"]
    assert strict.n == 8 and strict.successes in (0, 8)
    assert strict.ci95 == clustered_interval(np.full((2, 4), strict.successes == 8))


def test_resilience_is_claimed_of_the_networks_at_hand(small: SimpleNamespace, tmp_path: Path) -> None:
    assert within_networks("none fell", "resilient", 1) == "none fell; of this one network and no other"
    assert within_networks("none fell", "resilient", 3) == "none fell; of these 3 networks and no other"
    assert within_networks("three fell", "leaks", 3) == "three fell"
    document = small.play([small.cell(shared_weights=True)], tmp_path)
    assert "one network per seed" in columns.setting(document.summary[0])
    assert "one network per seed" in wording.setting(document.cells[0])
    assert "one network" not in columns.setting(small.play([small.cell()], tmp_path / "own").cells[0])
