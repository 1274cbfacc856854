"""Identify: likelihoods of known images, against plain loops; the bound it must reach and never cross."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor, nn

from harness.attacks import identify
from harness.attacks.identify import Identify
from harness.attacks.residual import FLOOR, gaussian_tail, misfit
from harness.models import RowModel
from harness.observation import Clipping, Noise, Observation

Victims = Callable[..., Observation]
ROWS, CANDIDATES = 3, 4
DEVIATION = 0.02


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def candidates_of(digits: Callable[..., tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(R, C) images, each row's own first, and labels (R,)."""
    images, labels = digits(ROWS * CANDIDATES, 1)
    rows = images[:ROWS, None, 0]
    others = images[ROWS : ROWS + CANDIDATES - 1, 0].expand(ROWS, -1, *images.shape[2:])
    return torch.cat([rows, others], 1), labels[:ROWS, 0]


def plain_gradient(observation: Observation, row: int, image: Tensor, label: Tensor) -> Tensor:
    """One example's gradient (P,) by autograd of the plain network, clipped tensor by tensor where that is known."""
    module = observation.model.plain(observation.weights[row])
    loss = nn.functional.cross_entropy(module(image[None]), label[None])
    parts = torch.autograd.grad(loss, list(module.parameters()))
    if observation.clipping is not None and observation.clipping.bound is not None:
        parts = tuple(part * min(1.0, observation.clipping.bound / float(part.norm())) for part in parts)
    return torch.cat([part.reshape(-1) for part in parts]).double()


LAWS: dict[str, dict[str, Any]] = {
    "gaussian": {"noise": Noise("gaussian", DEVIATION)},
    "skellam counts as gaussian": {"noise": Noise("skellam", DEVIATION)},
    "unknown law, known level": {"noise": Noise("unknown", DEVIATION)},
    "laplace": {"noise": Noise("laplace", DEVIATION)},
    "uniform": {"noise": Noise("uniform", DEVIATION)},
    "level to be estimated": {"noise": Noise("gaussian", None)},
    "unknown law and level": {"noise": Noise("unknown", None)},
    "laplace of unknown level": {"noise": Noise("laplace", None)},
    "no noise": {"noise": None},
    "clipped": {"noise": Noise("gaussian", DEVIATION), "clipping": Clipping(0.05, "layer", "example")},
    "a level per tensor": {"noise": Noise("gaussian", None, "layer")},
    "left out": {"noise": Noise("gaussian", None), "sparse": True},
}


def expected(observation: Observation, row: int, image: Tensor, label: Tensor) -> float:
    """The negative log-likelihood less that of a gradient of zero, from densities written out."""
    target, candidate = observation.target[row].double(), plain_gradient(observation, row, image, label)
    if observation.sparse:
        candidate = candidate[target != 0]
        target = target[target != 0]
    noise, residual = observation.noise, target - candidate
    rounding = FLOOR * float(target.square().mean().sqrt())
    if noise is not None and noise.deviation is None:
        parts = [len(target)] if noise.grouping == "whole" else list(observation.model.layout.sizes)
        pairs = zip(residual.split(parts), target.split(parts), strict=True)
        if noise.law == "laplace":
            levels = [[float(part.abs().mean()) + rounding for part in pair] for pair in pairs]
        else:
            levels = [[math.hypot(float(part.square().mean().sqrt()), rounding) for part in pair] for pair in pairs]
        return sum(count * math.log(with_it / without) for count, (with_it, without) in zip(parts, levels, strict=True))
    if noise is not None and noise.law == "uniform":
        # A uniform number and a normal one for rounding: nowhere impossible.
        bound = math.sqrt(3) * float(noise.deviation) / rounding
        return float(
            (norm.logcdf(bound - (target / rounding).abs()) - norm.logcdf(bound - (residual / rounding).abs())).sum()
        )
    level = rounding if noise is None else math.hypot(float(noise.deviation), rounding)
    if noise is not None and noise.law == "laplace":
        law = torch.distributions.Laplace(0.0, level / math.sqrt(2))
    else:
        law = torch.distributions.Normal(0.0, level)
    return float(law.log_prob(target).sum() - law.log_prob(residual).sum())


@pytest.mark.parametrize("facts", LAWS.values(), ids=LAWS)
def test_distances_are_those_of_plain_loops(facts: dict[str, Any], victims: Victims, digits: Callable) -> None:
    images, labels = candidates_of(digits)
    clean = replace(victims(ROWS, model="mlp"), **facts)
    observation = replace(clean, target=clean.target + DEVIATION * drawn(clean.target.shape))
    if observation.sparse:
        observation.target[:, ::3] = 0.0
    found = Identify().distances(observation, images, labels)
    wanted = [
        [expected(observation, row, images[row, column], labels[row]) for column in range(CANDIDATES)]
        for row in range(ROWS)
    ]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-4, atol=2e-3)


def test_one_example_in_several_steps_is_no_batch(victims: Victims, digits: Callable) -> None:
    """Three passes over one example: there are no others that the rest could be of, and distances were infinite."""
    candidates, labels = candidates_of(digits)
    alone = victims(ROWS)
    seen = replace(alone, examples=3, local_steps=3, update_model="avg", places=(0, 0, 0))
    found = Identify().distances(seen, candidates, labels)
    torch.testing.assert_close(found, Identify().distances(alone, candidates, labels), rtol=1e-4, atol=1e-4)
    assert found.argmin(1).tolist() == [0] * ROWS


@pytest.mark.parametrize("clipping", [None, Clipping(0.5, "layer", "example"), Clipping(0.5, "whole", "example")])
def test_inner_products_tell_as_much(
    clipping: Clipping | None, victims: Victims, digits: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large networks in strong noise of one level, where nothing but products is computed; and nowhere else."""
    images, labels = candidates_of(digits)
    quiet = victims(ROWS, weights=None, clipping=clipping)
    noisy = replace(quiet, target=quiet.target + drawn(quiet.target.shape), noise=Noise("gaussian", 1.0))
    known = Identify().distances(noisy, images, labels)
    monkeypatch.setattr(RowModel, "evaluates_alone", True)
    called = [0]
    products = identify.group_products
    monkeypatch.setattr(identify, "group_products", lambda *given: called.__setitem__(0, 1) or products(*given))
    torch.testing.assert_close(Identify().distances(noisy, images, labels), known, rtol=1e-4, atol=1e-3)
    assert called == [1]
    called[0] = 0
    for other in (
        replace(noisy, noise=Noise("gaussian", 1e-3)), replace(noisy, noise=Noise("laplace", 1.0)),
        replace(noisy, noise=None), replace(noisy, sparse=True), replace(noisy, cut=0.1),
    ):  # fmt: skip
        Identify().distances(other, images, labels)
    assert called == [0]


def test_bounds_of_uniform_noise_tell_what_its_size_does_not(victims: Victims, digits: Callable) -> None:
    clean, (images, labels) = victims(16), digits(16, 1)
    candidates = images[:, 0].expand(16, *images[:, 0].shape)
    noise = torch.rand(clean.target.shape, generator=torch.Generator().manual_seed(3)) * 2 - 1
    seen = replace(clean, target=clean.target + 0.5 * math.sqrt(3) * noise)
    right = {
        law: int((Identify().distances(replace(seen, noise=Noise(law, 0.5)), candidates, labels[:, 0]).argmin(1)
                  == torch.arange(16)).sum())
        for law in ("uniform", "gaussian")
    }  # fmt: skip
    assert right["uniform"] == 16 and right["gaussian"] <= 12, right


def test_a_deviation_per_coordinate_weighs_each(victims: Victims, digits: Callable) -> None:
    images, labels = candidates_of(digits)
    observation = victims(ROWS, model="mlp")
    levels = torch.linspace(0.01, 0.1, observation.target.shape[1])
    observation = replace(
        observation, target=observation.target + levels * drawn(observation.target.shape),
        noise=Noise("gaussian", levels),
    )  # fmt: skip
    found = Identify().distances(observation, images, labels)
    for row in range(ROWS):
        candidate = plain_gradient(observation, row, images[row, 1], labels[row])
        target, scale = observation.target[row].double(), levels.double()
        wanted = (((target - candidate) / scale).square() - (target / scale).square()).sum() / 2
        assert float(found[row, 1]) == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.parametrize("level", [1.0, *(pytest.param(level, marks=pytest.mark.slow) for level in (1e3, 1e7)), 1e12])
def test_noise_elsewhere_hides_no_coordinate_without_any(level: float, victims: Victims, digits: Callable) -> None:
    """Biases are read as they are, and however strong the noise on all else is, their differences tell."""
    clean, (images, labels) = victims(16, model="mlp"), digits(16, 1)
    levels = torch.full_like(clean.target[0], level)
    levels[-clean.model.layout.sizes[-1] :] = 0.0
    seen = replace(clean, target=clean.target + levels * drawn(tuple(clean.target.shape)))
    candidates = images[:, 0].expand(16, *images[:, 0].shape)
    found = Identify().distances(replace(seen, noise=Noise("gaussian", levels)), candidates, labels[:, 0])
    assert found.argmin(1).tolist() == list(range(16))


def test_bounds_that_nobody_knows_are_free_scales(victims: Victims, digits: Callable) -> None:
    """Each tensor of what was read has a length of its own: the truth is found all the same."""
    images, labels = candidates_of(digits)
    observation = replace(victims(ROWS, model="mlp"), clipping=Clipping(None, "layer", "update"))
    sizes = observation.model.layout.sizes
    scales = torch.cat([torch.full((size,), 0.1 * (number + 1)) for number, size in enumerate(sizes)])
    scaled = replace(observation, target=observation.target * scales)
    assert Identify().distances(scaled, images, labels).argmin(1).tolist() == [0] * ROWS


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_chunks_change_no_bit(chunk: int, victims: Victims, digits: Callable) -> None:
    images, labels = candidates_of(digits)
    observation = replace(victims(ROWS, model="lenet"), noise=Noise("gaussian", DEVIATION))
    whole = Identify().distances(observation, images, labels)
    assert torch.equal(Identify().distances(observation, images, labels, chunk), whole)


@pytest.mark.parametrize("noise", [Noise("gaussian", None), Noise("gaussian", DEVIATION * 1e22)], ids=["open", "known"])
def test_noise_whose_squares_no_single_precision_holds(noise: Noise, victims: Victims, digits: Callable) -> None:
    images, labels = candidates_of(digits)
    seen = victims(ROWS, model="mlp")
    huge = replace(seen, target=seen.target + DEVIATION * 1e22 * drawn(tuple(seen.target.shape)), noise=noise)
    assert Identify().distances(huge, images, labels).isfinite().all()


# A linear model: softmax regression at zero weights, whose gradient of the weights is the image times what the label
# fixes. Its only other gradient, of the biases, is the same for all images.


def linear(points: Tensor, truth: Tensor, deviation: float, seed: int, declared: float | None = None) -> Observation:
    """What is read of R victims, each one of K points (K, D), with Gaussian noise, at zero weights."""
    features = points.shape[1]
    model = RowModel("logistic", (1, 1, features), 2)
    weights = torch.zeros(len(truth), model.layout.total)
    labels = torch.zeros(len(truth), 1, dtype=torch.long)
    gradients = model.gradient(weights, points[truth][:, None, None, None], labels)
    target = gradients + deviation * drawn(gradients.shape, seed)
    noise = Noise("gaussian", deviation if declared is None else declared)
    return Observation(model, weights, target, 1, tuple((0, row) for row in range(len(truth))), noise=noise)


def firsts(points: Tensor, truth: Tensor, observation: Observation) -> float:
    """Share of victims whose own point is the most probable."""
    rows = len(truth)
    images = points[None, :, None, None].expand(rows, -1, 1, 1, points.shape[1])
    found = Identify().distances(observation, images, torch.zeros(rows, dtype=torch.long), 20_000)
    return float((found.argmin(1) == truth).double().mean())


def sphere(count: int, antipodal: bool) -> tuple[Tensor, float]:
    """K points at distance 1 from their centre, and the length of their gradients' differences from the centre's."""
    if antipodal:
        return torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), math.sqrt(0.5)
    return torch.eye(count), math.sqrt(0.5)  # the error of both logits is 1/2


def ceiling(guess: float, mu: float) -> float:
    return float(norm.cdf(norm.ppf(guess) + mu))


MU = 0.527


@pytest.mark.parametrize(("count", "victims_count", "optimal"), [
    (2, 20_000, 0.701), (10, 20_000, 0.213), pytest.param(100, 5_000, 0.034, marks=pytest.mark.slow),
])  # fmt: skip
def test_it_comes_within_two_points_of_the_bound(count: int, victims_count: int, optimal: float) -> None:
    points, radius = sphere(count, antipodal=count == 2)
    truth = torch.arange(victims_count) % count
    rate = firsts(points, truth, linear(points, truth, radius / MU, seed=count))
    error = math.sqrt(optimal * (1 - optimal) / victims_count)
    assert ceiling(1 / count, MU) - 0.02 <= rate <= ceiling(1 / count, MU) + 3 * error
    assert rate == pytest.approx(optimal, abs=3 * error + 0.001)


def crossings(declared_share: float, cells: int = 200, victims_count: int = 64) -> int:
    """How many of the cells cross the bound of the noise they declare, by Holm's test at 5%."""
    random = np.random.default_rng(5)
    p_values = []
    for cell in range(cells):
        count, mu = int(random.integers(2, 30)), float(random.uniform(0.1, 3))
        points, radius = sphere(count, antipodal=count == 2)
        truth = torch.from_numpy(random.integers(0, count, victims_count))
        observation = linear(points, truth, radius / mu, seed=1_000 + cell)
        hits = round(firsts(points, truth, observation) * victims_count)
        p_values.append(binom.sf(hits - 1, victims_count, ceiling(1 / count, mu * declared_share)))
    ordered = np.sort(p_values)
    beyond = ordered > 0.05 / np.arange(cells, 0, -1)
    return int(beyond.argmax()) if beyond.any() else cells


def test_no_cell_crosses_the_bound_significantly() -> None:
    assert crossings(1.0) == 0


def test_a_noise_that_is_half_of_what_is_declared_crosses_it() -> None:
    assert crossings(0.5) >= 20


@pytest.mark.parametrize(("law", "wrong"), [("gaussian", 0.8), ("gaussian", 1.2), ("laplace", 1.2), ("uniform", 0.8)])
def test_a_level_that_is_wrong_by_a_fifth_is_named(law: str, wrong: float) -> None:
    points = 0.1 * drawn((10, 400), 1)
    truth = torch.arange(10)
    named = silent = 0
    for seed in range(20):
        observation = linear(points, truth, 0.05, seed)
        if law != "gaussian":
            half = 0.05 * math.sqrt(3)
            noise = {
                "laplace": torch.distributions.Laplace(0.0, 0.05 / math.sqrt(2)),
                "uniform": torch.distributions.Uniform(-half, half),
            }[law]
            torch.manual_seed(seed)
            clean = linear(points, truth, 0.0, seed).target
            observation = replace(observation, target=clean + noise.sample(clean.shape))
        own = linear(points, truth, 0.0, seed).target
        for level in (0.05, 0.05 * wrong):
            said = misfit(replace(observation, noise=Noise(law, level)), own)
            named += said is not None and level != 0.05
            silent += said is None and level == 0.05
    assert (named, silent) == (20, 20)
    assert float(str(said).split("about ")[1].split(" times the noise")[0]) == pytest.approx(1 / wrong, rel=0.05)


def test_a_noise_that_was_not_applied_is_named_at_the_best_candidate(victims: Victims, digits: Callable) -> None:
    images, labels = candidates_of(digits)
    observation = replace(victims(ROWS, model="mlp"), noise=Noise("gaussian", 0.1))
    assert "times the noise" in str(Identify().doubt(observation, images[:, 0], labels))
    noisy = replace(observation, target=observation.target + 0.1 * drawn(observation.target.shape))
    assert Identify().doubt(noisy, images[:, 0], labels) is None
    for noise in (None, Noise("unknown", None)):
        assert Identify().doubt(replace(noisy, noise=noise), images[:, 0], labels) is None
    follows = Identify().doubt(replace(noisy, noise=Noise("gaussian", None)), images[:, 0], labels)
    assert follows and "follows private data" in follows


def test_far_beyond_uniform_noise_the_way_back_is_known() -> None:
    beyond = torch.tensor([-5.0, 0.0, 5.0, 29.0, 31.0, 1e3, 1e5, 1e12], requires_grad=True)
    found = gaussian_tail(beyond)
    (slope,) = torch.autograd.grad(found.sum(), beyond)
    truth = -norm.logsf(beyond.detach().double().numpy())
    torch.testing.assert_close(found.double(), torch.from_numpy(truth), rtol=1e-5, atol=1e-9)
    far = beyond.detach() >= 29
    torch.testing.assert_close(slope[far], beyond.detach()[far], rtol=2e-3, atol=0.0)
    assert gaussian_tail(torch.tensor([1e30])).isfinite().all()
