"""Numbers known beforehand: the papers', and independent ones by the formulas of docs/accounting.md."""

import math

import pytest

from harness.privacy import GaussianRelease, compose, effective_sigma, make_accountant
from harness.privacy.rdp import Renyi

DELTA = 1e-5


def local_steps(count: int, sigma: float = 6.0, q: float = 0.01) -> GaussianRelease:
    return GaussianRelease(sigma, q, "poisson", count=count)


def paper(event: GaussianRelease) -> float:
    return Renyi("mironov", "paper").epsilon(event, DELTA).epsilon


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("base", {"e0": "rounded"}, 123.354),
        ("base", {}, 123.457),
        ("advanced", {"e0": "rounded"}, 7.450),
        ("advanced", {"formula": "kov"}, 6.686),
        ("advanced", {"formula": "optimal"}, 6.740),
        ("zcdp", {}, 1.1588),
        ("rdp", {"conversion_rule": "mironov", "orders": "paper"}, 0.8227),
        ("rdp", {}, 0.6592),
        ("pld", {}, 0.601),
    ],
)
def test_the_mnist_setting(name: str, options: dict, expected: float) -> None:
    assert make_accountant(name, **options).epsilon(local_steps(10000), DELTA).epsilon == pytest.approx(
        expected, abs=1e-3
    )


def test_the_accountants_order() -> None:
    names = [
        ("pld", {}),
        ("rdp", {}),
        ("rdp", {"conversion_rule": "mironov"}),
        ("zcdp", {}),
        ("advanced", {}),
        ("base", {}),
    ]
    values = [make_accountant(name, **options).epsilon(local_steps(10000), DELTA).epsilon for name, options in names]
    assert values == sorted(values)
    assert len(set(values)) == len(values)


@pytest.mark.parametrize(
    ("steps", "q", "expected"),
    [
        (6000, 0.01, 0.6356), (1000, 0.01, 0.2760), (300, 0.01, 0.1467), (101, 0.1, 0.8536), (61, 0.1, 0.6677),
        (11, 0.1, 0.3025), (100, 0.1, 0.8494), (1100, 0.01, 0.2850), (6700, 0.01, 0.6719), (3400, 0.01, 0.4776),
        (500, 0.01, 0.1841), (100, 0.01, 0.0841),
    ],
)  # fmt: skip
def test_the_papers_tables(steps: int, q: float, expected: float) -> None:
    assert paper(local_steps(steps, q=q)) == pytest.approx(expected, abs=1e-4)


def test_dense_orders_close_the_gap_of_the_papers() -> None:
    dense = Renyi("mironov", "dense")
    assert dense.epsilon(local_steps(1000), DELTA).epsilon == pytest.approx(0.2593, abs=1e-4)
    assert dense.epsilon(local_steps(300), DELTA).epsilon == pytest.approx(0.1432, abs=1e-4)


@pytest.mark.parametrize(("layers", "expected"), [(1, 0.823), (3, 1.468), (6, 2.156), (8, 2.551), (10, 2.917)])
def test_layers_clipped_apart(layers: int, expected: float) -> None:
    assert paper(local_steps(10000, effective_sigma(6, layers))) == pytest.approx(expected, abs=1e-3)


def test_replacing_doubles_the_sensitivity() -> None:
    assert paper(local_steps(10000, effective_sigma(6, adjacency="replace"))) == pytest.approx(1.718, abs=1e-3)


def test_the_released_noise() -> None:
    assert paper(local_steps(10000, 0.5)) == pytest.approx(49.3, abs=0.05)


@pytest.mark.parametrize(
    ("steps", "q", "expected"), [(6000, 0.01, 0.455), (1000, 0.01, 0.172), (300, 0.01, 0.090), (100, 0.1, 0.616)]
)
def test_loss_distributions(steps: int, q: float, expected: float) -> None:
    assert make_accountant("pld").epsilon(local_steps(steps, q=q), DELTA).epsilon == pytest.approx(expected, abs=1e-3)


def test_without_amplification() -> None:
    release = GaussianRelease(6.0, count=100)
    assert make_accountant("pld").epsilon(release, DELTA).epsilon == pytest.approx(8.00, abs=5e-3)


@pytest.mark.parametrize(
    ("sigma", "clients", "q", "steps"),
    [
        (0.43265, 10, 128 / 5600, 20), (2.15733, 10, 512 / 5600, 220), (0.43710, 10, 128 / 4800, 10),
        (0.44715, 10, 128 / 4800, 20), (0.47071, 10, 128 / 4800, 40), (0.51573, 10, 128 / 4800, 80),
        (0.62198, 10, 128 / 4800, 160), (1.21006, 10, 256 / 4800, 190), (1.66145, 10, 256 / 4800, 380),
        (2.31435, 10, 256 / 4800, 760), (3.24804, 10, 256 / 4800, 1520), (4.57577, 10, 256 / 4800, 3040),
        (0.22685, 51, 0.05, 10), (0.51646, 51, 0.05, 200),
    ],
)  # fmt: skip
def test_every_configuration_with_secure_aggregation_spends_one(
    sigma: float, clients: int, q: float, steps: int
) -> None:
    accountant = Renyi("mironov", tuple(range(2, 256)))
    release = local_steps(steps, sigma * math.sqrt(clients), q)
    assert accountant.epsilon(release, DELTA).epsilon == pytest.approx(1, abs=1e-4)


def test_the_true_delta_of_composition() -> None:
    total = make_accountant("base").epsilon(local_steps(10000), DELTA).delta_total
    assert total == pytest.approx(1e-3)
    assert make_accountant("advanced").epsilon(local_steps(10000), DELTA).delta_total == pytest.approx(1e-3 + 1e-5)


def test_numbers_without_a_theorem_are_nominal() -> None:
    assert make_accountant("zcdp").epsilon(local_steps(10), DELTA).nominal
    assert not make_accountant("zcdp").epsilon(GaussianRelease(6.0), DELTA).nominal
    assert make_accountant("base").epsilon(local_steps(10, 1.0), DELTA).nominal
    assert not make_accountant("base").epsilon(local_steps(10), DELTA).nominal
    replaced = GaussianRelease(6.0, 0.01, "poisson", "replace")
    assert make_accountant("rdp").epsilon(replaced, DELTA).nominal
    assert not make_accountant("pld").epsilon(replaced, DELTA).nominal


def test_unsampled_gaussian_in_closed_form() -> None:
    rho = sum(count / (2 * sigma**2) for sigma, count in ((3.0, 2), (5.0, 4)))
    event = compose([GaussianRelease(3.0, count=2), GaussianRelease(5.0, count=4)])
    closed = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    assert make_accountant("zcdp").epsilon(event, DELTA).epsilon == pytest.approx(closed, rel=1e-12)
    assert Renyi("mironov", "dense").epsilon(event, DELTA).epsilon == pytest.approx(closed, rel=1e-3)


def test_replacing_under_poisson_sampling_reaches_no_sampling() -> None:
    nearly_all = GaussianRelease(2.0, 0.999999, "poisson", "replace", 4)
    everybody = GaussianRelease(2.0, adjacency="replace", count=4)
    tight = make_accountant("pld")
    expected = tight.epsilon(everybody, DELTA).epsilon
    assert tight.epsilon(nearly_all, DELTA).epsilon == pytest.approx(expected, rel=1e-4)
