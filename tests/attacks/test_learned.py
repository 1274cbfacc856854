"""The learned inverse is the estimator it says it is, chosen by the error it says, and asks for what it needs."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.learned import GRID, Learned, _Spectrum, fit_inverse, inverse
from harness.base.errors import UsageError
from harness.observation import Observation, Simulated
from harness.testing import digits as draw_digits

Victims = Callable[..., Observation]
PAIRS, PIXELS, COORDINATES, DEVIATION = 40, 6, 15, 0.7


def pairs(seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Correlated images (N, D), gradients (N, P) that are linear in them, and the same with noise."""
    random = torch.Generator().manual_seed(seed)
    draw = {"generator": random, "dtype": torch.float64}
    images = torch.randn(PAIRS, PIXELS, **draw) @ torch.randn(PIXELS, PIXELS, **draw) + 2
    quiet = images @ torch.randn(PIXELS, COORDINATES, **draw) - 1
    return images, quiet, quiet + DEVIATION * torch.randn(PAIRS, COORDINATES, **draw)


def test_it_is_the_posterior_mean_of_a_linear_gaussian_problem() -> None:
    """x ~ N(mean, S) and g = A x + b + noise: the mean of x given g, from S and A themselves."""
    images, quiet, read = pairs()
    mean, spread = images.mean(0), torch.cov(images.T, correction=0)
    slope = torch.linalg.lstsq(images - mean, quiet - quiet.mean(0)).solution.T  # (P, D), exact
    precision = torch.linalg.inv(spread) + slope.T @ slope / DEVIATION**2
    made = inverse(images, quiet, PAIRS * DEVIATION**2)
    for gradient in read[:5]:
        expected = mean + torch.linalg.solve(precision, slope.T @ (gradient - quiet.mean(0)) / DEVIATION**2)
        torch.testing.assert_close(made.of(gradient), expected, rtol=0, atol=1e-8)
        assert (made.of(gradient) - mean).abs().max() > 1e-2


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("penalty", [0.05, 3.0, 400.0])
def test_the_error_of_leaving_one_out_is_that_of_leaving_one_out(penalty: float, noisy: bool) -> None:
    images, quiet, loud = pairs()
    read, errors = loud if noisy else quiet, []
    for left in range(PAIRS):
        others = torch.arange(PAIRS) != left
        errors.append((inverse(images[others], quiet[others], penalty).of(read[left]) - images[left]).square())
    found = _Spectrum.of(images, quiet, read).error(penalty)
    assert found == pytest.approx(float(torch.stack(errors).mean()), rel=1e-6)


def test_the_penalty_leaves_the_least_error_of_the_grid() -> None:
    images, quiet, read = pairs()
    spectrum = _Spectrum.of(images, quiet, read)
    errors = {penalty: spectrum.error(penalty) for penalty in spectrum.penalties()}
    chosen = fit_inverse(images, quiet, read).penalty
    assert len(errors) == len(GRID) and errors[chosen] == min(errors.values())
    assert chosen > fit_inverse(images, quiet).penalty  # without noise there is less to hold back for
    with_noise_known = PAIRS * DEVIATION**2
    assert with_noise_known / 10 < chosen < with_noise_known * 10


def test_pairs_with_nothing_between_them_give_the_mean() -> None:
    images, _, read = pairs()
    made = fit_inverse(images, torch.zeros_like(read), read)
    torch.testing.assert_close(made.of(read[0]), images.mean(0))


@pytest.mark.slow
def test_it_estimates_what_was_read_better_than_the_mean_does(victims: Victims) -> None:
    seen, truth = victims(12, model="mlp"), draw_digits(12)[0]
    assert seen.simulation is not None
    public = seen.simulation.play(seen.weights[0], 300, True).images.mean(0)
    estimated = run_attack(Learned(simulations=300), seen).images
    made, guess = ((images - truth).square().mean() for images in (estimated, public[None]))
    assert made < guess / 2


def test_images_of_a_batch_come_in_the_order_of_their_labels(victims: Victims) -> None:
    """Slots are told apart by nothing else: of equal images, the one with the smaller label comes first."""
    seen = victims(3, 2, model="mlp")
    lines = torch.stack([torch.full((1, 8, 8), level) for level in (0.2, 0.8)])

    def play(weights: Tensor, count: int, quiet: bool) -> Simulated:
        labels = torch.tensor([[1, 0], [0, 1]]).repeat(count // 2, 1)
        return Simulated(lines[labels], labels, torch.zeros(count, weights.shape[0]))

    assert seen.simulation is not None
    made = run_attack(Learned(simulations=20), replace(seen, simulation=replace(seen.simulation, play=play)))
    torch.testing.assert_close(made.images, lines.expand(3, 2, 1, 8, 8))


def test_every_network_has_its_own_inverse(victims: Victims) -> None:
    seen, learned = victims(3, model="mlp"), Learned(simulations=100)
    together = run_attack(learned, seen)
    for row in range(3):
        alone = run_attack(learned, seen.take(torch.tensor([row])))
        assert torch.equal(alone.images[0], together.images[row])
    shared = replace(seen, weights=seen.weights[:1].expand(3, -1))
    assert not torch.equal(run_attack(learned, shared).images[2], together.images[2])


def test_a_network_too_large_to_hold_simulations_of_is_refused(
    victims: Victims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.attacks.learned.FLOATS", 1000)
    with pytest.raises(UsageError, match="smaller --model"):
        run_attack(Learned(), victims(2, model="mlp"))
