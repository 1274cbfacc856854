"""One example among several: the Gaussian by dense algebra, what it tells, what it must not, and what it refuses."""

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.among import _OTHERS, _PUBLIC, FEWEST, Others, Public, _cut, _Spread, example_gradients
from harness.attacks.identify import Identify
from harness.attacks.slope import Slope
from harness.base.errors import UsageError
from harness.models.batch_norm import KnownBatches
from harness.observation import Chosen, Clipping, Noise, NoiseLevel, Observation
from harness.testing import digits

Victims = Callable[..., Observation]
ROWS, EXAMPLES = 12, 3


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_covariance_is_that_of_dense_algebra() -> None:
    """The rows' own, the noise, and on every coordinate what a row has that the others lack, by least squares."""
    rows, variance, residuals = drawn((5, 30)).double(), drawn((30,), 1).double().exp(), drawn((4, 30), 2).double()
    rows = rows - rows.mean(0)
    scaled = rows / variance.sqrt()
    tied = torch.cat([scaled, scaled.square().sum(1).mean().sqrt() * torch.ones(5, 1)], 1)  # of weights that sum to 1
    beyond = 0.0
    for one in range(5):
        others = tied[torch.arange(5) != one].T
        weights = torch.linalg.lstsq(others, tied[one]).solution
        beyond += float((tied[one] - others @ weights).square().sum()) / 30
    whole = rows.T @ rows + torch.diag(variance * (1 + beyond))
    made = _Spread(rows, variance, torch.ones(5, 5).double())
    torch.testing.assert_close(made.solved(residuals), torch.linalg.solve(whole, residuals.T).T, rtol=1e-5, atol=1e-6)
    lengths = (residuals * torch.linalg.solve(whole, residuals.T).T).sum(1)
    torch.testing.assert_close(made.lengths(residuals), lengths, rtol=1e-5, atol=1e-6)


def test_the_slope_is_the_derivative_of_the_likelihood(victims: Victims) -> None:
    seen = replace(victims(1, EXAMPLES, model="logistic"), noise=Noise("gaussian", 0.05))
    public = Public.at(seen)
    others, gradients = Others(seen, public, 0), public.gradients[:2].clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(-others.improbability(gradients).sum(), gradients)
    torch.testing.assert_close(others.slope(gradients.detach()), expected)


@pytest.mark.parametrize("limit", [0.1, 1.0, 30.0])
def test_moments_of_cut_numbers_are_those_of_draws(limit: float) -> None:
    mean, width = torch.tensor([-2.0, 0.0, 0.4, 5.0]).double(), torch.tensor([1.0, 0.3, 2.0, 1.0]).double()
    draws = mean + width * drawn((400_000, 4), 3).double()
    cut = draws.clamp(-limit, limit)
    inside, expected, power = _cut(limit, mean, width.square())
    for found, wanted in ((inside, (draws == cut).double()), (expected, cut), (power, cut.square())):
        torch.testing.assert_close(found, wanted.mean(0), rtol=0.02, atol=0.01)


def hide(seen: Observation, name: str) -> Observation:
    """What a defense does to it, weakly, with what is known of that."""
    target, noise = seen.target, 0.02 * drawn(tuple(seen.target.shape), 5)
    lengths = target.norm(dim=1, keepdim=True)
    largest = target.abs() >= target.abs().quantile(0.7, dim=1, keepdim=True)
    known = Noise("gaussian", 0.02)
    if name == "noise":
        return replace(seen, target=target + noise, noise=known)
    if name == "update clipped":
        return replace(
            seen, target=target / lengths * 0.5 + noise / 4, noise=known.times(0.25),
            clipping=Clipping(0.5, "whole", "update"),
        )  # fmt: skip
    if name == "largest sent":
        return replace(seen, target=target.where(largest, 0.0), sparse=True)
    if name == "zeros covered":
        chosen = Chosen((int(0.3 * target.shape[1]),), choice="largest")
        return replace(seen, target=target.where(largest, 0.0) + noise / 4, noise=known.times(0.25), carrying=chosen)
    if name == "cut":
        return replace(seen, target=target.clamp(-0.02, 0.02), cut=0.02)
    return seen


HIDDEN = ["nothing", "noise", "update clipped", "largest sent", "zeros covered", "cut"]


@pytest.mark.parametrize(("name", "known"), [
    *((name, True) for name in HIDDEN), ("noise", False),
    *(pytest.param(name, False, marks=pytest.mark.slow) for name in HIDDEN if name != "noise"),
])  # fmt: skip
def test_an_example_is_told_among_others(name: str, known: bool, victims: Victims) -> None:
    images, labels = digits(ROWS, EXAMPLES)
    seen = hide(victims(ROWS, EXAMPLES, model="logistic"), name)
    seen = replace(seen, labels=labels) if known else seen
    # All victims' images of a class stand in one lineup; those that are in a row rank before those that are not.
    flat, classes, ranks = images.flatten(0, 1), labels.flatten(), []
    for label in classes.unique().tolist():
        row = (labels == label).nonzero()[:, 0]
        candidates = flat[classes == label]
        shown = candidates.expand(len(row), *candidates.shape)
        found = Identify().distances(seen.take(row), shown, torch.full_like(row, label))
        own = found.gather(1, torch.arange(len(row))[:, None])
        ranks += ((found < own).double().mean(1)).tolist()
    assert np.mean(ranks) < 0.3, np.mean(ranks)


def test_slopes_and_labels_point_to_the_examples(victims: Victims) -> None:
    """Each image is nearer to its own than to others of its class."""
    images, labels = digits(ROWS, EXAMPLES)
    clean = victims(ROWS, EXAMPLES, model="logistic")
    seen = replace(clean, target=clean.target + 0.02 * drawn(tuple(clean.target.shape)), noise=Noise("gaussian", 0.02))
    made = run_attack(Slope(), seen)
    assert made.images.shape == images.shape and torch.equal(made.labels, made.labels.sort(1).values)
    assert float((made.labels == labels.sort(1).values).double().mean()) > 0.8
    told = run_attack(Slope(), replace(seen, labels=labels))
    assert torch.equal(told.labels, labels.sort(1).values)
    flat, classes, ranks = images.flatten(0, 1).flatten(1), labels.flatten(), []
    for row in range(ROWS):
        apart = torch.cdist(flat, told.images[row].flatten(1)).amin(1)
        for label, own in zip(labels[row].tolist(), range(row * EXAMPLES, (row + 1) * EXAMPLES), strict=True):
            ranks.append(float((apart[classes == label] < apart[own]).double().mean()))
    assert np.mean(ranks) < 0.35, np.mean(ranks)


def test_no_row_depends_on_others_or_on_chunks(victims: Victims) -> None:
    images, labels = digits(4, EXAMPLES)
    seen = replace(victims(4, EXAMPLES, model="logistic"), noise=Noise("gaussian", 0.02))
    candidates = images.flatten(0, 1)[:6].expand(4, 6, 1, 8, 8)
    whole = Identify().distances(seen, candidates, labels[:, 0])
    assert torch.equal(Identify().distances(seen, candidates, labels[:, 0], 5), whole)
    assert torch.equal(Identify().distances(seen.take(torch.tensor([2])), candidates[:1], labels[2:3, 0]), whole[2:3])
    made = run_attack(Slope(), seen)
    assert torch.equal(run_attack(Slope(), seen.take(torch.tensor([1, 3]))).images, made.images[[1, 3]])


@pytest.mark.parametrize("told", [False, True], ids=["labels inferred", "labels known"])
def test_what_serves_all_classes_is_worked_out_once_and_let_go(
    told: bool, victims: Victims, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = digits(2, EXAMPLES)
    seen = replace(victims(2, EXAMPLES, model="logistic"), noise=Noise("gaussian", 0.02))
    seen, candidates = replace(seen, labels=labels if told else None), images.flatten(0, 1)
    apart = [Identify().distances(seen, candidates.expand(2, -1, 1, 8, 8), torch.full((2,), one)) for one in (0, 1)]
    count, at = [], Public.at
    monkeypatch.setattr(Public, "at", lambda *given: count.append(1) or at(*given))
    row = seen.take(torch.tensor([1]))
    for label, expected in enumerate(apart):
        found = Identify().distances(row, candidates[None], torch.tensor([label]))
        assert torch.equal(found, expected[1:])
    Slope().solved(row)
    assert len(count) == 1 and (row in _PUBLIC) and (row in _OTHERS) is not told
    del row
    assert not _PUBLIC and not _OTHERS


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e30])
def test_what_is_no_number_ends_in_no_error(wrong: float, victims: Victims) -> None:
    seen = replace(victims(3, EXAMPLES, model="logistic"), noise=Noise("gaussian", 0.05))
    weights, target = seen.weights.clone(), seen.target.clone()
    weights[0, 0], target[1, 0] = wrong, wrong
    seen, clean = replace(seen, weights=weights, target=target), seen
    candidates = digits(1, 4)[0].expand(3, 4, 1, 8, 8)
    found = Identify().distances(seen, candidates, torch.zeros(3).long())
    assert torch.equal(found[2], Identify().distances(clean, candidates, torch.zeros(3).long())[2])
    assert run_attack(Slope(), seen).images.isfinite().all()


def test_gradients_are_clipped_one_by_one(victims: Victims) -> None:
    seen = replace(victims(1, EXAMPLES, model="mlp"), clipping=Clipping(0.1, "layer", "example"))
    images, labels = digits(1, EXAMPLES)
    made = example_gradients(seen, images[0], labels[0])
    for part in made.split(seen.model.layout.sizes, 1):
        assert float(part.norm(dim=1).max()) <= 0.1 * (1 + 1e-5)
    update = replace(seen, clipping=Clipping(0.1, "layer", "update"))
    assert float(example_gradients(update, images[0], labels[0]).norm(dim=1).min()) > 0.5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no public data": ({"prior": None}, "needs public data; use --prior auto"),
    "a level that nobody publishes": ({"noise": Noise("gaussian", None)}, "noise of a known level"),
    "a level that is read in part": ({"noise": Noise("gaussian", 0.05, unread=True)}, "noise of a known level"),
    "a level that follows the example": (
        {"noise": Noise("gaussian", None, level=NoiseLevel(1.0, "whole"))}, "follows private data",
    ),
    "images that were transformed": (
        {"noise": Noise("unknown", None, unread=True, bare=True), "disguises": (torch.neg,)}, "images that are not",
    ),
    "a law that nobody knows": ({"noise": Noise("unknown", None, unread=True)}, "a model of all that the defense does"),
    "clips that nobody knows": ({"clipping": Clipping(None, "whole", "update")}, "a clip that all clients share"),
    "BatchNorm": ({"batches": KnownBatches(EXAMPLES)}, "which BatchNorm mixes"),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "said"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("attack", [Identify(), Slope()], ids=["identify", "slope"])
def test_it_is_refused_where_something_is_missing(
    attack: Identify | Slope, facts: dict[str, Any], said: str, victims: Victims
) -> None:
    seen = replace(victims(2, EXAMPLES, model="logistic"), **facts)
    with pytest.raises(UsageError, match=f"on {EXAMPLES} examples.*{said}") as caught:
        ask(attack, seen)
    assert "\n" not in str(caught.value) and "use " in str(caught.value)


def test_few_public_examples_are_refused(victims: Victims) -> None:
    seen = victims(2, EXAMPLES, model="logistic")
    assert seen.prior is not None
    few = replace(seen, prior=replace(seen.prior, size=FEWEST - 1))
    with pytest.raises(UsageError, match=f"needs {FEWEST} public examples for the covariance .* not {FEWEST - 1}; use"):
        ask(Identify(), few)
    assert ask(Identify(), replace(seen, prior=replace(seen.prior, size=FEWEST))) is None


@pytest.mark.parametrize("attack", [Identify(), Slope()], ids=["identify", "slope"])
def test_a_network_whose_gradients_memory_does_not_hold_is_refused(
    attack: Identify | Slope, victims: Victims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where a part of the coordinates serves: of a clipped update, each depends on all others."""
    seen = victims(2, EXAMPLES, model="logistic")
    seen = seen if isinstance(attack, Slope) else replace(seen, clipping=Clipping(0.5, "whole", "update"))
    monkeypatch.setattr("harness.attacks.among._HELD", FEWEST * seen.target.shape[1])
    assert ask(attack, seen) is None
    monkeypatch.setattr("harness.attacks.among._HELD", FEWEST * seen.target.shape[1] - 1)
    with pytest.raises(UsageError, match=f"needs {FEWEST} public gradients of .* memory does not hold; use a smaller"):
        ask(attack, seen)


def test_a_part_of_a_large_network_tells_examples_apart(victims: Victims, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the coordinates, as if memory held no more, each with noise of its own."""
    images, labels = digits(ROWS, EXAMPLES)
    seen = victims(ROWS, EXAMPLES, model="mlp")
    deviation = torch.full_like(seen.target[0], 0.002)
    deviation[:100] = 100.0
    noise = deviation * drawn(tuple(seen.target.shape), 5)
    seen = replace(seen, target=seen.target + noise, noise=Noise("gaussian", deviation))
    monkeypatch.setattr("harness.attacks.among._HELD", FEWEST * seen.target.shape[1] - 1)
    flat, classes, ranks = images.flatten(0, 1), labels.flatten(), []
    for row in range(ROWS):
        label = labels[row, :1]
        others = flat[(classes == label) & (torch.arange(len(flat)) // EXAMPLES != row)]
        candidates = torch.cat([images[row, :1], others])
        found = Identify().distances(seen.take(torch.tensor([row])), candidates[None], label)[0]
        ranks.append(float((found < found[0]).double().mean()))
    public = Public.at(seen.take(torch.tensor([0])))
    assert public.kept is not None and len(public.kept) == public.gradients.shape[1] < seen.target.shape[1] / 2
    assert np.mean(ranks) < 0.2, np.mean(ranks)


def ask(attack: Identify | Slope, seen: Observation) -> None:
    if isinstance(attack, Slope):
        run_attack(attack, seen)
    else:
        attack.distances(seen, torch.zeros(seen.rows, 2, *seen.model.image_shape), torch.zeros(seen.rows).long())


SIMULATIONS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "honest_statistics.py"))


@pytest.mark.parametrize("count", [6, pytest.param(500, marks=pytest.mark.slow)])
def test_independent_examples_are_not_told(count: int) -> None:
    """The test's p-value is twice the smaller of two, at most 1: never too small. That of the ranks is uniform."""
    simulated = [SIMULATIONS["null_p_values"](9_000 + seed) for seed in range(count)]
    for attacker in ("identify", "slope"):
        p_values, of_ranks = np.array([found[attacker] for found in simulated]).T
        assert kstest(of_ranks, "uniform").pvalue > 1e-3, attacker
        assert kstest(p_values, "uniform", alternative="greater").pvalue > 1e-3, attacker
        for found in (p_values, of_ranks):
            share = (found <= 0.05).mean()
            assert share <= 0.075 + 3 * (0.05 / count) ** 0.5 * (count < 500) and found.min() >= 1e-4, (attacker, share)
        assert count < 500 or (of_ranks <= 0.05).mean() >= 0.03, attacker
