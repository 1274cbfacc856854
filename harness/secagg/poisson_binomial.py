"""The Poisson-binomial mechanism: a coordinate becomes a count of coin tosses whose bias encodes it.

Chen, Ozgur, Kairouz: The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation, ICML 2022.
"""

import math
from dataclasses import dataclass

import numpy as np

from harness.base.errors import UsageError
from harness.secagg.integers import clip_rows, rotate, unrotate


@dataclass(frozen=True, eq=False)
class PoissonBinomial:
    """The noise is the tosses' own: nothing is added, and an absent vector tosses fair coins.

    Attributes:
        dimension: p, length of the vectors.
        clip: C, bound of the norm of each vector.
        trials: m, tosses per coordinate.
        theta: in (0, 1/4], how far the bias goes from one half.
        signs: of the rotation (padded dimension,); None goes without rotation.
        spread: K0; rotated coordinates are cut to C K0 / sqrt(d), beyond which few of them lie.
        slots: vectors that a client encodes at least; missing ones are replaced by zeros.
        tossed: whether coins are tossed; else each count is its mean, rounded: the same, cut alike, without the noise.
    """

    dimension: int
    clip: float
    trials: int = 64
    theta: float = 0.25
    signs: np.ndarray | None = None
    spread: float = 2.0
    slots: int = 1
    tossed: bool = True

    def __post_init__(self) -> None:
        if not (self.trials >= 1 and 0 < self.theta <= 0.25 and self.spread > 0 and self.slots >= 1):
            raise UsageError(
                "Poisson-binomial takes trials of 1 and more, theta above 0 and up to 0.25, a positive spread and slots"
            )

    @property
    def length(self) -> int:
        """Integers per vector."""
        return self.dimension if self.signs is None else self.signs.size

    @property
    def bound(self) -> float:
        """c, the largest absolute value of a coordinate that is encoded as it is."""
        return self.clip if self.signs is None else self.clip * self.spread / math.sqrt(self.length)

    @property
    def deviation(self) -> float:
        """Standard deviation, at most, of a client's decoded coordinate: c / (2 theta sqrt m) for each slot."""
        if not self.tossed:
            return 0.0
        return self.bound * math.sqrt(self.slots) / (2 * self.theta * math.sqrt(self.trials))

    @property
    def levels(self) -> tuple[float, float]:
        """Least and largest standard deviation of a decoded coordinate: tosses are surer the larger what they encode.

        Rotation shares the vector's length among all coordinates; without it one may have all of it.
        """
        filled = 1.0 if self.signs is None else min(1.0, self.clip**2 / (self.length * self.bound**2))
        return self.deviation * math.sqrt(1 - 4 * self.theta**2 * filled), self.deviation

    def require_ring(self, bits: int, clients: int) -> None:
        """Raises:
        UsageError: counts of that many clients would overflow the ring.
        """
        if 2 * self.trials * self.slots * clients >= 2**bits:
            raise UsageError(
                f"{bits} bits cannot hold {self.trials} tosses for {self.slots * clients} vectors; raise bits"
            )

    def encode(self, rows: np.ndarray, numbers: np.random.Generator) -> np.ndarray:
        """Heads minus tails (length,) over all tosses for rows (B, p), each clipped to C and cut to c."""
        absent = np.zeros((max(0, self.slots - len(rows)), self.length))
        values = np.concatenate([np.clip(self._turned(rows), -self.bound, self.bound), absent])
        if not self.tossed:
            return np.rint(2 * self.trials * self.theta * values / self.bound).astype(np.int64).sum(axis=0)
        heads = numbers.binomial(self.trials, 0.5 + self.theta * values / self.bound)
        return (2 * heads - self.trials).sum(axis=0)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Unbiased estimates (..., p) of sums of vectors from sums of counts (..., length)."""
        values = total * self.bound / (2 * self.trials * self.theta)
        return values if self.signs is None else unrotate(values, self.signs, self.dimension)

    def residual(self, rows: np.ndarray) -> float:
        """What cutting coordinates to c takes away, as a share of the clipped rows' norm."""
        turned = self._turned(rows)
        cut = turned - np.clip(turned, -self.bound, self.bound)
        return float(np.linalg.norm(cut) / max(np.linalg.norm(turned), np.finfo(np.float64).tiny))

    def _turned(self, rows: np.ndarray) -> np.ndarray:
        clipped = clip_rows(np.asarray(rows, dtype=np.float64), self.clip)
        return clipped if self.signs is None else rotate(clipped, self.signs)
