"""The points of a client's round at which a defense can act.

Every hook is the identity (or the plain mean) by default; a defense overrides only the points it changes. All hooks
are batched over the client axis N: messages are (N, P), per-example gradients (N, B, P).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from harness.federation.clipped_noise import LEFT_OUT, limit_of
from harness.federation.context import RoundContext, State
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.remembered import Remembered
from harness.federation.taps import Hook, Tap
from harness.observation import Chosen, Clipping, Noise
from harness.privacy import Limit, NoLimit, Statement, make_statement
from harness.vectors.layout import Layout

NoisePlace = Literal["server", "message", "step"]

# Where what a hook gives out is read, and what it has to clip itself for its noise to limit anything.
_CLIPPED_BY = {
    Hook.CLIENT_STEP: (Tap.STEP, "example"), Hook.CLIENT_MESSAGE: (Tap.SENT, "update"),
    Hook.SERVER_RECEIVE: (Tap.RECEIVED, "update"),
}  # fmt: skip


@dataclass(frozen=True)
class LocalStep:
    """Result of a local step: what SGD consumes, and what else exists in the client's memory.

    Attributes:
        step: (N, P), what SGD consumes.
        clip_factors: (N, B, M), the factor applied to each example's gradient per tensor; None without clipping.
        examples: (N, B, P), sanitised per-example gradients where noise is added per example, else None.
        noise: standard deviation of the noise on a coordinate of ``step``, one number or (N,); None without.
    """

    step: Tensor
    clip_factors: Tensor | None = None
    examples: Tensor | None = None
    noise: Tensor | float | None = None


@dataclass(frozen=True)
class FixedNoise:
    """Gaussian noise that a defense adds to clipped vectors, of the same scale and bound in every round of a run.

    Attributes:
        place: where it is added: by the ``server`` to the sum of the clients' clipped messages, by each client to its
            own clipped ``message``, or by each client in a local ``step`` to the sum of its clipped example gradients.
        deviation: its standard deviation on a coordinate.
        bound: largest L2 norm of one clipped vector as a whole: of a message, or of an example's gradient.
    """

    place: NoisePlace
    deviation: float
    bound: float


@validated(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Defense:
    """Base of every defense: a frozen record of hyper-parameters with hooks at fixed points."""

    name: ClassVar[str] = "abstract"

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        """Turns per-example gradients into what local SGD consumes (taps T2.clip, T2.examples, T2.step)."""
        return LocalStep(per_example.mean())

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        """Transforms the client's update (N, P) before it leaves the client (tap T1.out)."""
        return update

    def sum_securely(self, messages: Tensor, context: RoundContext) -> Tensor:
        """The sum (P,) of one round's messages (N, P); where overridden, it is all that the server gets of them."""
        return messages.sum(0)

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        """Transforms each client's message (N, P) at the server (tap T0.post)."""
        return message

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        """What the server applies (P,), from the sum (P,) of one round's messages (tap T0.agg)."""
        return total / context.cohort.clients_per_round

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        """The clipping an adversary at ``tap`` knows to have been applied, in gradient units; None without.

        ``server`` is what the server remembers, known to all clients (None, or empty, in round 0).
        """
        return None

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        """The noise that who knows these settings knows a hook to add; None without.

        Its deviation is that on a coordinate of what the hook gives out, ``context.noise_scale`` left aside: of the
        direction of ``context.local_step`` for ``client_step``, else of one client's update. Where clients' deviations
        differ it is None, or of ``context.clients``, if given, the root mean square. No tap shows what ``aggregate``
        gives out, so nobody asks for its noise.
        """
        return None

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        """The same for a sanitised per-example gradient (tap T2.examples); None where there is none."""
        return None

    def reconstruction_limit(self, hook: Hook, context: RoundContext) -> Limit | NoLimit:
        """How much anybody can reconstruct from what the hook gives out; ``context.noise_scale``, above 0, counts.

        Of one example in one local step (``context.local_step``) where examples are clipped, of all that a client
        holds where its update is; all else may be known. Here it follows from what the hook is declared to clip and
        to add; to be overridden where that is not all there is to say.
        """
        tap, unit = _CLIPPED_BY.get(hook, (None, None))
        if tap is not None and self.acts_at(hook) and self.sparse_at(tap):
            return NoLimit(LEFT_OUT)
        clipping = None if tap is None else self.clipping_at(tap, context.learning_rate, context.server)
        if clipping is not None and clipping.unit != unit:
            clipping = None
        moved = 1 / context.cohort.batch_size if unit == "example" else context.learning_rate
        return limit_of(self.noise_of(hook, context), clipping, moved, context)

    def reconstruction_limit_of_examples(self, context: RoundContext) -> Limit | NoLimit:
        """The same for a sanitised per-example gradient (tap T2.examples)."""
        clipping = self.clipping_at(Tap.EXAMPLES, context.learning_rate, context.server)
        return limit_of(self.noise_of_examples(context), clipping, 1.0, context)

    def only_adds(self, hook: Hook) -> bool:
        """Whether what it does at that hook keeps the noise of those before it as it was."""
        return not self.acts_at(hook)

    def chain(self) -> tuple[tuple[str, "Defense"], ...]:
        """The defenses that act one after the other at every hook, by name; a defense alone has no name."""
        return (("", self),)

    def sparse_at(self, tap: Tap) -> bool:
        """Whether an adversary at ``tap`` knows that coordinates were left out, with zeros in their place."""
        return False

    def chosen_at(self, tap: Tap, layout: Layout) -> Chosen | None:
        """Which coordinates may differ from zero at a tap that is sparse; None where nothing bounds how many."""
        return None

    def cut_at(self, tap: Tap) -> float | None:
        """The magnitude at which coordinates of an update are cut before ``tap``, in its units; None without."""
        return None

    def grid_of(self, tap: Tap, context: RoundContext, steps: int) -> float | None:
        """The step of the grid that all values at a tap lie on, in units of the gradient that is matched there.

        None where there is none, or where it takes what clients share in secret to see it. ``steps``: L, local ones
        behind an update.
        """
        return None

    def units(self) -> str:
        """One sentence naming what clipping and noise apply to, in which units and by which convention."""
        return "no clipping, no noise"

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        """One privacy statement per view (docs/defenses.md)."""
        nothing = "nothing is clipped and no calibrated noise is added, so no epsilon exists"
        return [make_statement("server", "none", nothing)]

    def server_remembers(self) -> Mapping[str, Remembered]:
        """All that the server remembers after any round (``context.server``) and goes by in later ones, by name."""
        return {}

    def clients_remember(self) -> Mapping[str, Remembered]:
        """What each client may remember of its rounds (``context.client``), by name."""
        return {}

    def refuses_module(self, module: str) -> bool:
        """Whether clients train no network that a server has put such a module before, named in words."""
        return False

    def adapts(self) -> bool:
        """Whether what the server remembers from earlier rounds changes later ones."""
        return bool(self.server_remembers())

    def needs_planned_rounds(self) -> str | None:
        """What in a round depends on how many rounds are planned, such as a decaying sigma; None for nothing."""
        return None

    def finished(self, facts: PrivacyFacts) -> str | None:
        """Why training must stop before the round that ``facts.cohort.rounds`` would include; None to go on."""
        return None

    def fixed_noise(self, facts: PrivacyFacts) -> FixedNoise | None:
        """The noise on clipped vectors; None where there is none, or where it follows the data or the round."""
        return None

    def acts_at(self, hook: Hook) -> bool:
        """Whether that hook may change anything under these settings; stacks rely on it."""
        return getattr(type(self), hook) is not getattr(Defense, hook)

    def changes_messages(self) -> bool:
        """Whether updates are changed after the local steps; what goes beside an update would then pass it by."""
        return any(self.acts_at(hook) for hook in Hook if hook is not Hook.CLIENT_STEP)

    @property
    def sums_securely(self) -> bool:
        """Whether the server gets nothing but the sum of a round's messages."""
        return self.acts_at(Hook.SUM_SECURELY)

    def parameters(self) -> dict[str, Any]:
        """Every hyper-parameter by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
