"""What ``harness account`` takes a step to be: sampling, adjacency, clipping, whose noise, and of which kind."""

import math
from typing import Any

from harness.base.errors import UsageError
from harness.privacy import GaussianRelease, MechanismRelease, effective_sigma, skellam_sum
from harness.privacy.accountant import choice
from harness.secagg import SkellamGrid


class Releases:
    """The sampling behind every step, and what one costs at a configured sigma.

    ``clients`` add their noise each and only the sum is seen; with more than one local step per sum, what is proven is
    each client's own noise (``harness.privacy.distributed_noise``).

    Raises:
        UsageError: a value is out of its range, or the combination has no analysis.
    """

    def __init__(
        self,
        rate: float | None,
        sampler: str | None,
        adjacency: str | None,
        layers: int,
        clients: int = 1,
        mechanism: str = "gaussian",
        bits: int = 32,
        dimensions: int = 10_000,
    ) -> None:
        if rate is None and sampler == "poisson":
            raise UsageError("a sampler needs a rate; add --sampling-rate 0.01")
        self.rate = 1.0 if rate is None else rate
        self.sampler: Any = sampler or ("none" if rate is None else "poisson")
        self.adjacency: Any = adjacency or ("replace" if self.sampler == "without-replacement" else "add/remove")
        self.layers = layers
        self.clients = clients
        self.mechanism = choice(mechanism, ("gaussian", "skellam"), "mechanism")
        self.bits, self.dimensions = bits, dimensions
        self._check()
        self.of(1.0, 1)  # tells of a mistake before anything is computed

    def _check(self) -> None:
        if self.clients < 1:
            raise UsageError(f"--clients must be at least 1, got {self.clients}; leave it out for one")
        if self.mechanism == "gaussian":
            return
        if self.adjacency != "add/remove" or self.layers != 1:
            raise UsageError(
                "skellam is analysed for whole vectors under add/remove; leave --layers and --adjacency out"
            )
        if not 2 <= self.bits <= 64 or self.dimensions < 1:
            raise UsageError("skellam needs a ring of 2 to 64 bits and at least 1 dimension; choose --bits 32")

    @property
    def accountants(self) -> list[str]:
        """Those that know the mechanism."""
        return ["all"] if self.mechanism == "gaussian" else ["rdp"]

    def of(self, sigma: float, steps: int) -> GaussianRelease | MechanismRelease:
        """So many steps at a configured sigma."""
        common = (self.rate, self.sampler, self.adjacency, steps)
        if self.mechanism == "gaussian":
            return GaussianRelease(self._effective(sigma), *common)
        grid = SkellamGrid(self.dimensions, 1.0, sigma, self.clients, self.bits)
        return MechanismRelease(skellam_sum(grid), *common)

    def _effective(self, sigma: float) -> float:
        return effective_sigma(sigma, self.layers, self.adjacency) * math.sqrt(self.clients)

    def settings(self) -> dict[str, Any]:
        """What was assumed, and by how much it scales a configured sigma."""
        skellam = {"bits": self.bits, "dimensions": self.dimensions} if self.mechanism == "skellam" else {}
        return {
            "mechanism": self.mechanism, **skellam, "sampling_rate": self.rate, "sampler": self.sampler,
            "adjacency": self.adjacency, "layers": self.layers, "clients": self.clients,
            "effective_sigma_per_sigma": self._effective(1.0),
        }  # fmt: skip
