"""The prior is the Gaussian of the public examples it was fitted to, and reaches examples it has not seen."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.base.columns import Columns
from harness.base.randomness import generator
from harness.datasets import Dataset
from harness.datasets.prior import OWN_COVARIANCE, Prior, fit_prior

WIDTH = 24


def made(counts: list[int], width: int = WIDTH, key: str = "public", columns: Columns | None = None) -> Dataset:
    """Examples of Gaussian classes whose means and covariances differ; variances fall from 1 to 1/1000."""
    fixed = generator("classes", width)
    means = torch.randn(len(counts), width, generator=fixed)
    turns = [torch.linalg.qr(torch.randn(width, width, generator=fixed))[0] for _ in counts]
    deviations = torch.logspace(0, -1.5, width)
    random = generator(key)
    rows = [
        mean + torch.randn(count, width, generator=random) * deviations @ turn.T
        for mean, turn, count in zip(means, turns, counts, strict=True)
    ]
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    names = tuple(map(str, range(len(counts))))
    return Dataset("made", torch.cat(rows)[:, None, None], labels, names, "made up", columns)


def covariance(prior: Prior, label: int) -> torch.Tensor:
    """What ``place`` makes of the unit vectors, multiplied out."""
    units = torch.eye(prior.means.shape[1])[None]
    spread = prior.place(units, torch.full(units.shape[:2], label))[0] - prior.means[label]
    return spread.T @ spread


def from_class_means(data: Dataset) -> np.ndarray:
    rows, labels = data.images.flatten(1).numpy(), data.labels.numpy()
    return np.concatenate([rows[labels == label] - rows[labels == label].mean(0) for label in np.unique(labels)])


def test_a_class_of_many_has_its_own_mean_and_covariance() -> None:
    data = made([5000, 4000])
    prior = fit_prior(data)
    assert (prior.name, prior.size, prior.groups.tolist()) == ("made", 9000, [0, 1])
    for label in (0, 1):
        rows = data.images[data.labels == label].flatten(1).numpy()
        np.testing.assert_allclose(prior.means[label], rows.mean(0), atol=1e-5)
        np.testing.assert_allclose(covariance(prior, label), np.cov(rows.T), atol=0.005)
    assert (covariance(prior, 0) - covariance(prior, 1)).abs().max() > 0.1


def test_samples_have_the_covariance_of_the_examples() -> None:
    data = made([3000])
    prior = fit_prior(data)
    drawn = prior.place(torch.randn(1, 20000, WIDTH, generator=generator("draw")), torch.zeros(1, 20000).long())[0]
    rows = data.images.flatten(1).numpy()
    np.testing.assert_allclose(np.cov(drawn.T.numpy()), np.cov(rows.T), atol=0.04)
    np.testing.assert_allclose(drawn.mean(0).numpy(), rows.mean(0), atol=0.04)


@pytest.mark.parametrize(
    ("counts", "own"), [([399, 400], [1, 0]), ([50, 500, 60, 400], [2, 0, 2, 1]), ([30, 40], [0, 0])]
)
def test_classes_of_few_share_the_pooled_covariance(counts: list[int], own: list[int]) -> None:
    data = made(counts)
    prior = fit_prior(data)
    assert OWN_COVARIANCE == 400
    assert prior.groups.tolist() == own and len(prior.rest) == max(own) + 1
    few = min(range(len(counts)), key=counts.__getitem__)
    centred = from_class_means(data)
    pooled = centred.T @ centred / (len(centred) - len(counts))
    # Shrinkage moves a covariance from few examples; it keeps the trace.
    assert np.trace(covariance(prior, few)) == pytest.approx(np.trace(pooled), rel=1e-3)
    np.testing.assert_allclose(covariance(prior, few), pooled, atol=0.1)


def test_means_of_few_are_drawn_to_the_global_one_as_far_as_they_are_uncertain() -> None:
    data = made([5, 20, 100, 0])
    prior = fit_prior(data)
    rows = data.images.flatten(1)
    middle, weights = rows.mean(0), []
    for label in range(3):
        raw, kept = rows[data.labels == label].mean(0) - middle, prior.means[label] - middle
        weights.append(float(kept @ raw / raw.square().sum()))
        torch.testing.assert_close(kept, weights[-1] * raw, atol=1e-4, rtol=0)
    assert 0 < weights[0] < weights[1] < weights[2] < 1
    # B / (B + W / n): the odds are proportional to n.
    odds = [weight / (1 - weight) for weight in weights]
    assert odds[1] / odds[0] == pytest.approx(4, rel=0.01) and odds[2] / odds[1] == pytest.approx(5, rel=0.01)
    torch.testing.assert_close(prior.means[3], middle)


@pytest.mark.parametrize("width", [300, 900])
@pytest.mark.parametrize("counts", [[60, 60], [500, 500]])
def test_new_examples_are_within_its_reach(counts: list[int], width: int) -> None:
    """Whitened, they are standard normal, also along what few public examples never showed."""
    prior, new = fit_prior(made(counts, width)), made([100, 100], width, key="private")
    assert prior.scales.shape[1] == min(256, sum(counts) - 1) and (prior.rest > 0).all()
    whitened = []
    for row, label in zip(new.images.flatten(1), new.labels, strict=True):
        group = prior.groups[label]
        deviation, directions = row - prior.means[label], prior.directions[group]
        along = deviation @ directions
        rest = (deviation - directions @ along) / prior.rest[group]
        whitened.append((along / prior.scales[group]).square().sum() + rest.square().sum())
    assert 0.5 < float(torch.stack(whitened).mean()) / width < 2.5


def test_directions_are_orthonormal_even_where_nothing_varies() -> None:
    data = made([40, 40], width=100)
    data.images[..., 50:] = 0.25
    prior = fit_prior(data)
    turned = prior.directions[0].T @ prior.directions[0]
    torch.testing.assert_close(turned, torch.eye(len(turned)), atol=1e-4, rtol=0)
    assert torch.isfinite(prior.means).all() and (prior.scales > 0).all() and (prior.rest > 0).all()


def test_columns_of_a_table_count_in_their_own_units() -> None:
    """Few rows draw the variances together: a column of tiny spread would come out as wide as the others."""
    names = tuple(map(str, range(WIDTH)))
    data = made([40, 40], columns=Columns(names))
    data.images[..., 0] *= 1e-4
    spread = from_class_means(data).std(0)
    ratio = covariance(fit_prior(data), 0).diag().sqrt().numpy() / spread
    assert ratio[1:].min() > 0.5 and ratio[1:].max() < 2
    as_image = covariance(fit_prior(replace(data, columns=None)), 0)
    assert ratio[0] < 30 < 300 < float(as_image[0, 0].sqrt()) / spread[0]


def test_it_is_a_function_of_the_examples_alone() -> None:
    data = made([80, 450], width=500)
    torch.manual_seed(1)
    first = fit_prior(data).fingerprint()
    torch.manual_seed(2)
    assert fit_prior(data).fingerprint() == first != fit_prior(made([80, 450], 500, key="other")).fingerprint()


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    """To the bit, also where few rows are of its class: processors multiply few rows otherwise than many."""
    prior = fit_prior(made([600, 600]))
    coordinates = torch.randn(9, 1, WIDTH, generator=generator("rows"))
    labels = torch.tensor([0, 0, 1, 0, 1, 0, 0, 0, 0])[:, None]
    whole = prior.place(coordinates, labels)
    for rows in ([0], [2], [0, 1], [2, 4], [0, 1, 3], [0, 2, 3, 5], list(range(8))):
        assert torch.equal(prior.place(coordinates[rows], labels[rows]), whole[rows]), rows
    assert torch.allclose(prior.coordinates(whole, labels), coordinates, atol=1e-3)
