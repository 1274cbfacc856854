"""The published aggregate (T0.agg): what servers add is on it, and noise that is correlated over rounds is whitened."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import norm, wilcoxon
from torch import Tensor

from harness.attacks import ATTACKS
from harness.attacks.candidates import dummy_gradient
from harness.attacks.residual import misfit
from harness.base.errors import UsageError
from harness.base.vectors import clip
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.report_cell import limit_of
from harness.evaluation.rounds_seen import combined
from harness.experiment import CellSettings, cell_settings
from harness.federation.context import RoundContext
from harness.federation.knowledge import noise_at
from harness.models import RowModel
from harness.observation import Clipping, Noise, Observation
from harness.privacy import GaussianLimit, NoLimit

CELL = {"dataset": "digits", "model": "logistic", "attack": "identify", "prior": "auto", "tap": "T0.agg", "victims": 6,
        "clients_per_round": 1, "learning_rate": 1.0}  # fmt: skip
LOUD = {
    "tff:tree_aggregation": {"noise_multiplier": 4.0},
    "jax_privacy:BandedToeplitz": {"noise_multiplier": 1.5, "bands": 16},
    "jax_privacy:BufferedToeplitz": {"noise_multiplier": 1.5, "buf_decay": (0.9,), "output_scale": (0.6,)},
    "pfl:BandedMatrixFactorization": {
        "epsilon": 50.0, "cohort_size": 1, "population": 10, "num_iterations": 16, "min_separation": 8,
    },
}  # fmt: skip


def _played(folder: Path, **values: Any) -> tuple[CellSettings, Scene]:
    settings = cell_settings(**CELL | values)
    return settings, Stage(folder, 128).set(settings)


def test_it_is_the_mean_of_clipped_updates_and_the_servers_noise(tmp_path: Path) -> None:
    """By hand, of three clients with one example each; the noise of each victim's server is its own."""
    arguments = {"noise_multiplier": 0.5, "clip": 0.2}
    given = {"defense": "tff:gaussian_fixed", "defense_args": arguments, "clients_per_round": 3, "victims": 40}
    quiet, noisy = (_played(tmp_path, **given, noise_scale=scale)[1] for scale in (0.0, 1.0))
    seen, truth = quiet.observation, quiet.truth
    gradients = seen.model.per_example_gradients(seen.weights, truth.images, truth.labels).double()
    assert gradients.shape[1] == 3 and (gradients.norm(dim=2) > 0.2).all()
    means = (gradients * (0.2 / gradients.norm(dim=2, keepdim=True))).mean(1)
    assert torch.allclose(seen.target.double(), means, atol=1e-6)
    assert seen.clipping == Clipping(0.2, "whole", "example")
    added = (noisy.observation.target - seen.target).double()
    assert noisy.observation.noise is not None
    assert noisy.observation.noise.deviation == pytest.approx(0.5 * 0.2 / 3)
    assert float(added.std()) == pytest.approx(0.1 / 3, rel=0.03)
    assert float(torch.corrcoef(added).fill_diagonal_(0).abs().max()) < 6 / math.sqrt(added.shape[1])


def test_what_the_mean_of_clients_does_not_say(tmp_path: Path) -> None:
    """Of clients with several examples no length is known; of coordinates that each leaves out no pattern is."""
    given = {"clients_per_round": 3, "defense_args": {"noise_multiplier": 0.5}, "defense": "tff:gaussian_fixed"}
    seen = _played(tmp_path, **given, batch_size=2)[1].observation
    assert seen.clipping == Clipping(None, "whole", "update") and seen.examples == 6
    pruned = {"defense": "pruning", "defense_args": {}}
    several = _played(tmp_path, **pruned, clients_per_round=3)[1].observation
    assert not several.sparse and several.noise == Noise("unknown", None, unread=True, bare=True)
    alone = _played(tmp_path, **pruned)[1].observation
    assert alone.sparse and alone.noise is None


def test_the_model_moves_by_what_was_seen(tmp_path: Path) -> None:
    for name in ("tff:tree_aggregation", "tff:gaussian_fixed"):
        seen = _played(tmp_path, defense=name, rounds_seen=3, clients_per_round=2, learning_rate=0.5)[1].observation
        weights, read = (part.unflatten(1, (3, -1)) for part in (seen.weights, seen.target))
        for number in (0, 1):
            moved = weights[:, number] - 0.5 * read[:, number]
            assert torch.allclose(weights[:, number + 1], moved, atol=1e-5)


def test_noise_of_a_run_that_went_on_is_not_drawn_again() -> None:
    given = CELL | {"defense": "tff:tree_aggregation", "weights": "w.pt", "rounds": 9, "round": 1, "server_state": "s"}
    with pytest.raises(UsageError, match="goes on from a run's"):
        cell_settings(**given, rounds_seen=2)


@pytest.mark.parametrize("rounds", [1, 4, 16])
def test_candidates_behind_a_tree_are_told_apart_as_well_as_the_theorem_allows(rounds: int) -> None:
    """Two antipodal gradients at the bound, at the same weights in every round: their distance after whitening."""
    trials, bound, shape = 4000, 1e-3, (1, 3, 3)
    model, random = RowModel("logistic", shape, 2), torch.Generator().manual_seed(rounds)
    truth, image = torch.randint(2, (trials,), generator=random), torch.rand(1, 1, *shape, generator=random)
    weights = 0.1 * torch.randn(trials, model.layout.total, generator=random)
    gradient = clip(model.gradient(weights, image.expand(trials, 1, *shape), truth[:, None]), bound, (20,))
    sigma = 3.0 * math.sqrt(rounds)
    # Noise in the sums of rounds is that of the nodes of a binary tree, by the definition.
    nodes = {node: sigma * bound * torch.randn(trials, 20, generator=random)
             for done in range(rounds) for node in _nodes(done + 1)}  # fmt: skip
    sums = [torch.stack([nodes[node] for node in _nodes(done + 1)]).sum(0) for done in range(rounds)]
    added = [now - before for now, before in zip(sums, [torch.zeros(trials, 20), *sums[:-1]], strict=True)]
    tree = {"defense": "tff:tree_aggregation", "defense_args": {"use_efficient": False}}
    settings = cell_settings(**CELL | tree)
    parts = []
    for number, noise in enumerate(added):
        declared = _declared(settings, number, sigma * bound)
        parts.append(
            Observation(
                model, weights, gradient + noise, 1, tuple((0, row) for row in range(trials)),
                clipping=Clipping(bound, "whole", "example"), noise=declared,
            )
        )  # fmt: skip
    seen, identify = combined(parts), ATTACKS["identify"]()
    told = [identify.distances(seen, image.expand(trials, 1, *shape), torch.full((trials,), label), 1000)[:, 0]
            for label in (0, 1)]  # fmt: skip
    found = float(((told[1] < told[0]).long() == truth).double().mean())
    mixed = torch.zeros(rounds, rounds, dtype=torch.float64)  # the covariance of the noise, from the tree
    for one in range(rounds):
        for other in range(rounds):
            mixed[one, other] = _covariance(one, other)
    mu = math.sqrt(float(torch.linalg.inv(mixed).sum())) / sigma
    assert found == pytest.approx(norm.cdf(mu), abs=0.02)


def _nodes(done: int) -> list[tuple[int, int]]:
    """The nodes, as level and end, whose leaves are the first so many."""
    found, end = [], done
    while end:
        level = (end & -end).bit_length() - 1
        found.append((level, end))
        end -= 1 << level
    return found


def _covariance(one: int, other: int) -> float:
    """Of the noise of two rounds of a tree whose nodes have variance 1."""

    def of_sums(first: int, second: int) -> int:
        return len(set(_nodes(first)) & set(_nodes(second)))

    a, b = one + 1, other + 1
    return of_sums(a, b) - of_sums(a - 1, b) - of_sums(a, b - 1) + of_sums(a - 1, b - 1)


def _declared(settings: CellSettings, number: int, deviation: float) -> Noise:
    """What the defense says of a round's noise, of that deviation at a node."""
    layout = RowModel("logistic", (1, 3, 3), 2).layout
    context = RoundContext(number, 0, 1.0, settings.cohort(), layout, ((0, 0),))
    made = noise_at(settings.build_defense(), settings.tap, context)
    assert made is not None
    return made.times(deviation)


@pytest.mark.parametrize(
    ("name", "victims"),
    [("jax_privacy:BufferedToeplitz", 24), *(pytest.param(one, 64, marks=pytest.mark.slow) for one in LOUD)],
)
def test_whitened_rounds_tell_more(name: str, victims: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The place of each truth among 64 images of its class, in the same rounds, with the strategy and without."""
    _, scene = _played(tmp_path, defense=name, defense_args=LOUD[name], victims=victims, rounds_seen=16)
    seen, identify = scene.observation, ATTACKS["identify"]()
    candidates, labels = _line_up(scene, 63), scene.truth.labels[:, 0]

    def places(observation: Observation) -> Tensor:
        told = identify.distances(observation, candidates, labels)
        return (told[:, 1:] < told[:, :1]).double().mean(1)

    assert seen.noise is not None
    white, plain = places(seen), places(replace(seen, noise=replace(seen.noise, whitening=None)))
    chance = float(wilcoxon(white, plain, alternative="less").pvalue)
    with capsys.disabled():
        firsts = ", ".join(f"{float((one == 0).double().mean()):.1%}" for one in (white, plain))
        print(f"\n{name}, 16 rounds: first with the strategy, and without: {firsts}; p = {chance:.1e}")
    assert chance <= 0.01


def _line_up(scene: Scene, others: int) -> Tensor:
    """Each victim's image (V, 1 + others, ...), and others of its class."""
    random, made, data = torch.Generator().manual_seed(0), [], scene.dataset
    for row, label in enumerate(scene.truth.labels[:, 0].tolist()):
        same = ((data.labels == label) & (torch.arange(len(data.labels)) != scene.truth.indices[row, 0])).nonzero()[
            :, 0
        ]
        chosen = same[torch.randperm(len(same), generator=random)[:others]]
        made.append(torch.cat([scene.truth.images[row], data.images[chosen]]))
    return torch.stack(made)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_a_wrong_strategy_is_noticed(seed: int, tmp_path: Path) -> None:
    """Every strategy passes on its own rounds, and none of the others does."""
    for name, arguments in LOUD.items():
        _, scene = _played(tmp_path, defense=name, defense_args=arguments, rounds_seen=8, seeds=(seed,))
        seen, truth = scene.observation, scene.truth
        own = dummy_gradient(seen, truth.images, truth.labels, True, differentiable=False).detach()
        assert misfit(seen, own) is None, name
        for other in LOUD.keys() - {name}:
            wrong = _played(tmp_path, defense=other, defense_args=LOUD[other], rounds_seen=8)[1].observation.noise
            assert misfit(replace(seen, noise=wrong), own) is not None, (name, other)


def test_the_theorem_over_rounds_is_that_of_the_strategy(tmp_path: Path) -> None:
    """The column sums of a Toeplitz strategy by hand: sensitivity over sigma, of a client in every round."""
    column, sigma = [1.0, 0.5, 0.375], 2.0  # the square root of 1 / (1 - x), made to have length 1
    given = {"defense": "jax_privacy:BandedToeplitz", "defense_args": {"noise_multiplier": sigma, "bands": 3}}
    settings, scene = _played(tmp_path, **given, rounds_seen=4)
    sums = [sum(column[: number + 1]) for number in range(4)]
    found = limit_of(settings, scene)
    assert isinstance(found, GaussianLimit)
    assert found.mu == pytest.approx(math.hypot(*sums) / math.hypot(*column) / sigma, rel=1e-5)
    single = limit_of(*_played(tmp_path, **given))
    assert isinstance(single, GaussianLimit) and single.mu == pytest.approx(1 / math.hypot(*column) / sigma)
    both = {"defense": "noise+jax_privacy:BandedToeplitz", "defense_args": {"noise.amount": 0.1}}
    assert isinstance(limit_of(*_played(tmp_path, **both, rounds_seen=4)), NoLimit)
