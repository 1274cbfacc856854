"""Operations that make numbers coarser on their way to the server, and the memory of what was lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor

from harness.base.coding import ByChance, Coding, Kind
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.federation.context import RoundContext
from harness.federation.memory import Remembered
from harness.federation.operations import Operation, require_one_of, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Chosen
from harness.privacy import Statement

_DETERMINISTIC = "a deterministic function of the data has no epsilon"
# Of integers; with more, single precision has no room for them.
_FEWEST_BITS, _MOST_BITS = 2, 24


@dataclass(frozen=True)
class Quantise(Operation):
    """Rounds every number of an update to the nearest that a coarser form has (:mod:`harness.base.coding`).

    ``bits``: of integers (``int8``).
    """

    kind: Kind = "int8"
    bits: int = 8

    points = (Point.MESSAGE,)
    about = "updates"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "kind", self.kind, get_args(Kind))
        if not _FEWEST_BITS <= self.bits <= _MOST_BITS:
            raise UsageError(f"{self.title} has bits={self.bits!r}; give {_FEWEST_BITS} to {_MOST_BITS}")

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return self.coding.of(rows, context.layout.sizes)

    @property
    def coding(self) -> Coding:
        return Coding(self.kind, bits=self.bits)

    @property
    def most_values(self) -> int | None:
        if self.coding.signs:
            return 3  # with zeros, of whoever counts them as neither
        return 2**self.bits if self.kind == "int8" else self.coding.levels

    def words(self) -> str:
        return self.said or f"numbers are {self.coding.words()}"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        return states_nothing(_DETERMINISTIC, "client")


@dataclass(frozen=True)
class Sign(Quantise):
    """Sends the sign of every number: of size 1 (``sign``), or of the mean magnitude of its tensor (``mean_sign``)."""

    kind: Kind = "sign"


@dataclass(frozen=True)
class RoundByChance(Operation):
    """Rounds every number by chance to one of ``steps`` multiples of its tensor's largest magnitude, without bias.

    Source: Alistarh et al. 2017, "QSGD", with the largest magnitude in the place of the length, as in released code.
    """

    steps: int

    points = (Point.MESSAGE,)
    about = "updates"
    noises = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise UsageError(f"{self.title} has steps={self.steps!r}; give at least 1")

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        chances, made, start = context.uniform("rounding", rows), [], 0
        for part in rows.split(context.layout.sizes, dim=-1):
            step = part.abs().amax(-1, keepdim=True).clamp_min(1e-30) / self.steps
            drawn = (part.abs() / step + chances[..., start : start + part.shape[-1]].to(part)).floor()
            made.append(part.sign() * drawn.clamp_max(self.steps) * step)
            start += part.shape[-1]
        return torch.cat(made, dim=-1)

    @property
    def coding(self) -> Coding:
        return ByChance(steps=self.steps)

    @property
    def most_values(self) -> int:
        return 2 * self.steps + 1

    def words(self) -> str:
        return f"numbers are rounded by chance to {self.steps} steps of the largest magnitude of each tensor"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        return states_nothing("zeros stay zeros, so that neighbours differ with certainty", "client")


@dataclass(frozen=True)
class ErrorFeedback(Operation):
    """Lets ``inner`` act on an update and on what it lost of earlier ones, and keeps at the client what it loses now.

    What was lost carries earlier batches into later rounds. Sources: Seide et al. 2014; Karimireddy et al. 2019.

    Raises:
        UsageError: the inner operation acts elsewhere, or adds noise, which would be kept too.
    """

    inner: Operation = field(default_factory=Sign)

    points = (Point.MESSAGE,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.at is not self.at or self.inner.noises:
            raise UsageError(f"{self.inner.title} loses nothing that could be sent later; let a deterministic one act")

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        whole = rows + context.client.get("residual", 0.0)
        sent = self.inner.on_rows(whole, context)
        context.client["residual"] = whole - sent
        return sent

    def clients_remember(self) -> Mapping[str, Remembered]:
        return {**self.inner.clients_remember(), "residual": Remembered((None,))}

    @property
    def sends(self) -> Sequence[str]:
        return self.inner.sends

    @property
    def sparse(self) -> bool:
        return self.inner.sparse

    @property
    def most_values(self) -> int | None:
        return self.inner.most_values

    @property
    def coding(self) -> Coding | None:
        return self.inner.coding and replace(self.inner.coding, feedback=True)

    def chosen(self, layout: Layout) -> Chosen | None:
        # Of what was kept from earlier rounds nobody knows what it adds.
        chosen = self.inner.chosen(layout)
        return None if chosen is None else Chosen(chosen.counts, chosen.grouping, "unknown")

    @property
    def subject(self) -> str:
        return self.inner.subject

    def words(self) -> str:
        return f"{self.inner.words()}; what is lost is kept for the next round"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        return self.inner.statements(facts)
