"""LoRA: the network's weights are frozen, and only adapters of low rank are trained and sent.

Sources: Hu et al. 2021, "LoRA", section 4.1: W + (alpha / r) B A, with B = 0 and A random at first; Sun et al. 2024,
"Improving LoRA in Privacy-preserving Federated Learning" (FFA-LoRA), section 4, where A stays frozen too. In the first
step the two are the same, since then the gradient of A is zero. B is kept here as what it adds to W: a step of it is
the gradient of W times (alpha / r)^2 A^T A, which A, known to everyone, turns into the gradient of B and back.
"""

from dataclasses import dataclass

from harness.base.coding import Adapted
from harness.base.ranges import Count, Positive
from harness.base.vectors import Layout
from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState, states_nothing
from harness.federation.privacy_facts import NEVER_SENT, PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Chosen
from harness.privacy import NoLimit, Statement


@dataclass(frozen=True)
class TrainAdapters(Operation):
    """Moves every weight matrix only as an adapter of ``rank`` and ``alpha`` can, and nothing else."""

    rank: int
    alpha: float

    points = (Point.STEP,)
    about = "gradients of a local step"
    zeroes = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        state.direction = self.coding.at(1.0, context.layout.shapes).of(state.mean(), context.layout.sizes)

    @property
    def coding(self) -> Adapted:
        return Adapted("adapters", rank=self.rank, scale=self.alpha / self.rank)

    def chosen(self, layout: Layout) -> Chosen:
        counts = tuple(size if len(shape) > 1 else 0 for size, shape in zip(layout.sizes, layout.shapes, strict=True))
        return Chosen(counts, "layer", "unknown")

    def limit(self, context: RoundContext) -> NoLimit:
        return NoLimit(NEVER_SENT)

    def words(self) -> str:
        return f"only adapters of rank {self.rank} (LoRA, A frozen) are trained and sent"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        return states_nothing("a deterministic function of the data has no epsilon", "client")


@DEFENSES.register("paper:LoRA")
@validated_defense
class LoRA(Defense):
    """Trains and sends adapters of ``rank`` r alone, scaled by ``alpha`` / r; defaults of Flower's flowertune-llm."""

    rank: Count = 32
    alpha: Positive = 64.0

    def operations(self, cohort: Cohort) -> list[Operation]:
        adapters = TrainAdapters(self.rank, self.alpha)
        return [adapters, of_filter("paper:LoRA", self, (), adapters)]
