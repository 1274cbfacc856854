"""The server's step: FedAvg with momentum, and adaptive ones.

Sources: Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv:2003.00295), Algorithm 2; momentum is FedAvgM
of Hsu et al. 2019 (arXiv:1909.06335). It is computed from what a defense lets out, so it costs no privacy.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from harness.base.building import one_line
from harness.base.errors import UsageError
from harness.base.local_optimizer import facts_of_text
from harness.base.ranges import Positive

_BelowOne = Annotated[float, Field(ge=0, lt=1)]
_ARGUMENTS = {
    "fedavg": set[str](), "fedavgm": {"momentum"}, "fedadagrad": {"beta1", "tau"},
    "fedadam": {"beta1", "beta2", "tau"}, "fedyogi": {"beta1", "beta2", "tau"},
}  # fmt: skip


class ServerOptimizer(BaseModel):
    """What the server makes of the mean update of a round. Its state is kept from round to round.

    Attributes:
        name: fedavg, fedavgm, fedadagrad, fedadam or fedyogi.
        momentum: of fedavgm, heavy-ball: v <- momentum v + update.
        beta1: of the adaptive ones: m <- beta1 m + (1 - beta1) update.
        beta2: of fedadam and fedyogi, for the squares.
        tau: how little adaptive steps adapt: the step is m / (sqrt(squares) + tau), and squares begin with tau^2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"] = "fedavg"
    momentum: _BelowOne = 0.0
    beta1: _BelowOne = 0.9
    beta2: _BelowOne = 0.99
    tau: Positive = 1e-3

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """FedAdagrad has no momentum by default."""
        if not isinstance(given, Mapping):
            return given
        name = str(given.get("name", "fedavg")).lower()
        return ({"beta1": 0.0} if name == "fedadagrad" else {}) | dict(given) | {"name": name}

    @model_validator(mode="after")
    def _has_them(self) -> "ServerOptimizer":
        foreign = sorted(self.model_fields_set - {"name"} - _ARGUMENTS[self.name])
        if foreign:
            own = ", ".join(sorted(_ARGUMENTS[self.name])) or "no arguments but lr"
            raise ValueError(f"{self.name} has no {foreign[0]}; it has {own}")
        return self

    @property
    def adapts(self) -> bool:
        """Whether it keeps squares of updates."""
        return not self.name.startswith("fedavg")

    @property
    def text(self) -> str:
        """As an option has it; momentum alone is fedavgm."""
        if not self.adapts:
            return f"fedavgm:momentum={self.momentum}" if self.momentum else "fedavg"
        told = ",".join(f"{name}={getattr(self, name)}" for name in sorted(_ARGUMENTS[self.name]))
        return f"{self.name}:{told}"

    def beginning(self, weights: Tensor) -> Tensor | None:
        """The squares (P,) in float64 before the first round; None of what keeps none."""
        return torch.full_like(weights, self.tau**2, dtype=torch.float64) if self.adapts else None

    def step(self, mean: Tensor, squares: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the weights move by over the learning rate, and the mean and the squares that are kept.

        Args:
            mean, squares: (P,) in float64, as they were kept.
            update: (P,) in float64, of this round.
        """
        if squares is None:
            velocity = self.momentum * mean + update
            return velocity, velocity, None
        mean, new = self.beta1 * mean + (1 - self.beta1) * update, update.square()
        if self.name == "fedadagrad":
            squares = squares + new
        elif self.name == "fedadam":
            squares = self.beta2 * squares + (1 - self.beta2) * new
        else:
            squares = squares - (1 - self.beta2) * new * (squares - new).sign()
        return mean / (squares.sqrt() + self.tau), mean, squares


def server_optimizer_of(given: object) -> tuple[ServerOptimizer, float | None]:
    """A server's optimizer and its learning rate, where ``lr`` is among its arguments.

    Args:
        given: a text such as ``fedadam:lr=0.01,tau=0.001``, or a table with the ``name``.

    Raises:
        UsageError: there is no such optimizer or argument, or its value is out of range.
    """
    try:
        facts = dict(given) if isinstance(given, Mapping) else facts_of_text(str(given))
        rate = None if "lr" not in facts else float(facts.pop("lr"))
        if rate is not None and not 0 < rate < float("inf"):
            raise ValueError("lr must be above 0")
        return ServerOptimizer(**facts), rate
    except (ValidationError, TypeError, ValueError) as error:
        what = one_line(error) if isinstance(error, ValidationError) else str(error)
        raise UsageError(
            f"server optimizer {given!r}: {what}; write for example fedadam:lr=0.01,beta1=0.9,tau=0.001"
        ) from error
