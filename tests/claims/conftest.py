"""Second computations of epsilons, which share nothing with the harness: closed forms in many digits, and contours.

And environments with packages from the index, for what they do themselves.
"""

import math
import os
import subprocess
import sysconfig
import venv
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

Moments = Callable[[np.ndarray], np.ndarray]


class Second:
    """Epsilons by other means."""

    @staticmethod
    def plain(value: float) -> float:
        """A sum that needs no computation."""
        return value

    @staticmethod
    @lru_cache
    def gaussian(mu: float, delta: float = 1e-5) -> float:
        """Balle and Wang's equation, in 60 digits and by bisection."""
        with mpmath.workdps(60):
            wide, goal = mpmath.mpf(mu), mpmath.mpf(delta)

            def excess(epsilon: mpmath.mpf) -> mpmath.mpf:
                first = mpmath.ncdf(wide / 2 - epsilon / wide)
                return first - mpmath.exp(epsilon) * mpmath.ncdf(-wide / 2 - epsilon / wide) - goal

            low, high = mpmath.mpf(0), wide**2 + 20 * wide + 1
            for _ in range(120):
                middle = (low + high) / 2
                low, high = (middle, high) if excess(middle) > 0 else (low, middle)
            return float(high)

    @staticmethod
    @lru_cache
    def gaussian_delta(mu: float, epsilon: float) -> float:
        """Balle and Wang's delta, in 60 digits."""
        with mpmath.workdps(60):
            wide, loss = mpmath.mpf(mu), mpmath.mpf(epsilon)
            first = mpmath.ncdf(wide / 2 - loss / wide)
            return float(first - mpmath.exp(loss) * mpmath.ncdf(-wide / 2 - loss / wide))

    @staticmethod
    @lru_cache
    def renyi(sigma: float, rate: float, steps: int, delta: float = 1e-5) -> float:
        """Samples, by Renyi divergences at Opacus' orders, which are integrals of analytic functions."""
        orders = np.array([*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64)])
        moments = _Moments(sigma, (rate, 1.0), (0.0, 0.0), steps)
        logs = np.array([moments.logs(np.array([order - 1 + 0j]))[0].real for order in orders])
        return float(np.min((logs - math.log(delta) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)))

    @staticmethod
    @lru_cache
    def laplace(epsilon: float, count: int, delta: float = 1e-5, added: float = 0.0) -> float:
        """Laplace noise, whose moments have a closed form, and what is ``added`` to it."""

        def logs(s: np.ndarray) -> np.ndarray:
            rest = (1 - np.exp(-epsilon * (1 + 2 * s))) / (2 * (1 + 2 * s))
            return s * epsilon + np.log(0.5 + np.exp(-epsilon * (1 + 2 * s)) / 2 + rest)

        return added + _contour_epsilon(lambda s: count * logs(s), delta)

    @staticmethod
    @lru_cache
    def poisson(sigma: float, rate: float, steps: int, delta: float = 1e-5, replace: bool = False) -> float:
        """Samples: the larger of both directions, whose moments are integrals of analytic functions."""
        mixture, apart = (rate, 1.0), (rate, -1.0) if replace else (0.0, 0.0)
        pairs = [(mixture, apart), (apart, mixture)]
        return max(_contour_epsilon(_Moments(sigma, *pair, steps).logs, delta) for pair in pairs)

    @staticmethod
    @lru_cache
    def drawn(sigma: float, clients: int, per_round: int, rounds: int, delta: float = 1e-5) -> float:
        """Samples without replacement, for replacing one, by the library dp-accounting; sigma is for that relation."""
        from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(list(range(2, 33)), NeighboringRelation.REPLACE_ONE)
        event = SampledWithoutReplacementDpEvent(clients, per_round, GaussianDpEvent(sigma))
        return float(accountant.compose(event, rounds).get_epsilon(delta))

    @staticmethod
    @lru_cache
    def accounted(
        sigma: float, rate: float, steps: int, delta: float = 1e-5, replace: bool = False, added: float = 0.0
    ) -> float:
        """Samples, by the library dp-accounting, and what is ``added`` to them."""
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
        from dp_accounting.privacy_accountant import NeighboringRelation

        relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
        one = from_gaussian_mechanism(
            sigma, value_discretization_interval=max(1e-4, 2e-4 / sigma**2), sampling_prob=rate,
            neighboring_relation=relation,
        )  # fmt: skip
        return added + float(one.self_compose(steps).get_epsilon_for_delta(delta))


class _Moments:
    """Log of E_P[(P/Q)^s] to the power of ``steps``, for mixtures P and Q of two Gaussians, by the trapezoid rule."""

    def __init__(self, sigma: float, one: tuple[float, float], other: tuple[float, float], steps: int) -> None:
        self.sigma, self.steps, self.pair = sigma, steps, (one, other)

    def _density(self, x: np.ndarray, rate: float, mean: float) -> np.ndarray:
        plain = -(x**2) / (2 * self.sigma**2)
        if rate:
            plain = np.logaddexp(math.log1p(-rate) + plain, math.log(rate) - (x - mean) ** 2 / (2 * self.sigma**2))
        return plain - math.log(self.sigma * math.sqrt(2 * math.pi))

    def logs(self, s: np.ndarray) -> np.ndarray:
        far = 12 * self.sigma + 1.5 + 2 * s[0].real
        apart = min(self.sigma / 6, self.sigma**2 / 3)
        x = np.arange(-far, far, apart)
        first, second = (self._density(x, *one) for one in self.pair)
        ratio, found = first - second, []
        for part in np.array_split(s, max(1, len(s) // 64)):
            power = first + part[:, None] * ratio
            top = power.real.max(axis=1, keepdims=True)
            found.append(top[:, 0] + np.log(np.exp(power - top).sum(axis=1) * apart))
        return self.steps * np.concatenate(found)


def _contour_epsilon(logs: Moments, delta: float) -> float:
    """Solves delta = 1/(2 pi i) times the integral of exp(K(s) - s epsilon) / (s (s + 1)) through its saddle point."""

    def height(order: float, epsilon: float) -> float:
        s = math.exp(order)
        return float(logs(np.array([s + 0j]))[0].real) - s * epsilon - math.log(s) - math.log1p(s)

    def log_delta(epsilon: float) -> float:
        order = minimize_scalar(height, bounds=(-6, 5), args=(epsilon,), method="bounded", options={"xatol": 1e-3}).x
        s = math.exp(order)
        bent = height(math.log(1.01 * s), epsilon) + height(math.log(0.99 * s), epsilon) - 2 * height(order, epsilon)
        width = 0.01 * s / math.sqrt(max(bent, 1e-9))
        step = min(s / 6, width / 6)
        path, values = s + 1j * step * np.arange(0, 2000), []
        for part in np.array_split(path, 20):  # until nothing is left of it
            value = np.exp(logs(part) - part * epsilon - np.log(part) - np.log1p(part) - height(order, epsilon))
            values.append(value.real)
            if np.abs(value).max() < 1e-11:
                break
        whole = np.concatenate(values)
        # Where much of the loss is in one place, the integrand falls slowly: a smooth end loses no smooth part.
        end = np.clip(2 * np.arange(len(whole)) / len(whole) - 1, 0, 1)
        whole *= 1 if len(whole) < 2000 else np.cos(math.pi / 2 * end**2) ** 2
        area = step * (whole.sum() - whole[0] / 2) / math.pi
        return height(order, epsilon) + math.log(max(area, 1e-300))

    high = 1.0
    while log_delta(high) > math.log(delta):
        high *= 2
    return float(brentq(lambda epsilon: log_delta(epsilon) - math.log(delta), high / 64, high, xtol=1e-9, rtol=1e-9))


@pytest.fixture(name="second")
def second_computation() -> type[Second]:
    return Second


#: In which steps a package is installed whose newest release asks for one that the index no longer has.
STEPS = {
    # It asks for jaxlib 0.4.14; 0.4.13 is there. What is not asked about here, such as Vizier, need not be whole.
    "tensorflow-federated==0.87.0": (
        "tensorflow-cpu==2.14.1 numpy==1.25.2 scipy==1.9.3 jax==0.4.13 jaxlib==0.4.13 attrs==23.2.0 cachetools==5.5.2 "
        "dm-tree==0.1.8 portpicker==1.6.0 tqdm==4.70.1 typing-extensions==4.5.0 absl-py==1.4.0",
        "tensorflow-federated==0.87.0 dp-accounting==0.4.3 tensorflow-privacy==0.9.0 tensorflow-probability==0.22.1 "
        "tensorflow-model-optimization==0.7.5 google-vizier==0.1.11 googleapis-common-protos==1.61.0 "
        "scikit-learn==1.2.2 joblib==1.4.2 threadpoolctl==3.5.0 cloudpickle==3.1.0 decorator==5.1.1 --no-deps",
    ),
}


@pytest.fixture(scope="session")
def python_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of an environment of its own with packages, made from the index.

    It lies under their names (``flwr==1.42.0``, or several with spaces between) in the folder that HARNESS_PACKAGES
    names. What they do not ask for, such as torch, comes from the environment of the tests.
    """
    folder = Path(os.environ.get("HARNESS_PACKAGES") or tmp_path_factory.mktemp("environments"))

    def made(packages: str) -> Path:
        python = folder / packages / "bin" / "python"
        if not python.exists():
            venv.create(folder / packages, with_pip=True)
            for step in STEPS.get(packages, (packages,)):
                subprocess.run([python, "-m", "pip", "install", "--quiet", *step.split()], check=True, timeout=1800)
        own = sysconfig.get_paths(vars={"base": str(folder / packages)})["purelib"]
        beside = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})"
        Path(own, "beside.pth").write_text(beside)
        return python

    return made
