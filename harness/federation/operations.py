"""Operations: what happens at which point of a round. A defense is a list of them.

Each operation knows everything about itself: how it runs for many clients at once, what it bounds, the law and level of
its noise, which coordinates it keeps, what it remembers, the words that describe it, and the theorem that it has.
Everything that is told to attackers, users and accountants follows from the list (:mod:`harness.federation.defense`).
Reading: jax-privacy and pfl-research, whose clips and mechanisms carry their bounds and noise in the same way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import ClassVar, cast, get_args

from torch import Tensor

from harness.base.coding import Coding
from harness.base.errors import UsageError
from harness.base.vectors import Grouping, Layout, example_factors, group_sums, spread
from harness.federation.context import RoundContext, State
from harness.federation.examples import ExampleGradients, LocalStep
from harness.federation.memory import Remembered
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Chosen, Clipping, Noise
from harness.privacy import Limit, NoLimit, Statement, make_statement

UNKNOWN = Noise("unknown", None)
OF_EXAMPLES, OF_UPDATES = (Point.EXAMPLES, Point.STEP), (Point.MESSAGE, Point.ARRIVAL, Point.AGGREGATE)
_SUBJECTS = {
    **dict.fromkeys(OF_EXAMPLES, "per-example gradients"), Point.INPUTS: "inputs", Point.NETWORK: "received weights",
    **dict.fromkeys((Point.APPLIED, Point.BROADCAST), "the global model's weights"),
}  # fmt: skip
_USUAL = cast(Point, None)
UPDATES = "updates (a gradient times the learning rate)"


class StepState:
    """A local step of N clients on its way through the operations at ``EXAMPLES`` and ``STEP``.

    Attributes:
        examples: gradients of the local batches.
        batch: the expected batch size, which means divide by.
        factors: (N, B, M), by which clips scaled each example's gradient per tensor; None without a clip.
        bounds: (N, 1), what a clip that adapts cut to, or what noise is scaled by otherwise.
        sanitised: (N, B, P), example gradients that carry noise of their own, or are changed otherwise.
        total: (N, P), the sum over the batch, where more than its clipped gradients is in it.
        direction: (N, P), what SGD consumes, where it is no longer the plain mean.
        noise: standard deviation of the noise on a coordinate of the direction, one number or (N,).
    """

    def __init__(self, examples: ExampleGradients, batch: int) -> None:
        self.examples, self.batch = examples, batch
        self.factors: Tensor | None = None
        self.bounds: Tensor | float = 1.0
        self.sanitised: Tensor | None = None
        self.total: Tensor | None = None
        self.direction: Tensor | None = None
        self.noise: Tensor | float | None = None

    @property
    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per tensor, as they are now."""
        if self.total is not None:
            return group_sums(self.gradients().square(), self.examples.sizes).sqrt()
        return self._own_norms if self.factors is None else self._own_norms * self.factors

    @cached_property
    def _own_norms(self) -> Tensor:
        return self.examples.norms()

    def clip(self, bound: float, grouping: Grouping) -> None:
        """Scales each example's gradient to an L2 norm of at most ``bound``."""
        self.scale(example_factors(self.norms, bound, grouping))

    def scale(self, factors: Tensor) -> None:
        """Multiplies each example's gradient by factors (N, B, M), one per tensor."""
        if self.total is not None:
            self.change(self.gradients() * spread(factors, self.examples.sizes))
        self.factors = factors if self.factors is None else self.factors * factors

    def gradients(self) -> Tensor:
        """The example gradients (N, B, P) as they are now; places without an example are zero.

        Raises:
            UsageError: noise for a batch of another size is in their sum, and belongs to none of them.
        """
        if self.sanitised is not None:
            return self.sanitised
        if self.total is not None:
            raise UsageError(
                "noise on each example of a batch that was drawn in another size belongs to none of them; let nothing "
                "act on examples after it"
            )
        values = self.examples.materialise()
        return values if self.factors is None else values * spread(self.factors, self.examples.sizes)

    def change(self, values: Tensor) -> None:
        """Takes other example gradients (N, B, P) from here on."""
        self.sanitised = values * self.examples.present[..., None]
        self.total = self.sanitised.sum(1)

    def mean(self) -> Tensor:
        """The direction (N, P) as it is now."""
        if self.direction is not None:
            return self.direction
        if self.total is not None:
            return self.total / self.batch
        if self.factors is None:
            return self.examples.mean()
        return self.examples.weighted_sum(self.factors) / self.batch

    def louder(self, deviation: Tensor | float) -> None:
        """Counts noise that was added to the direction."""
        self.noise = deviation if self.noise is None else (self.noise**2 + deviation**2) ** 0.5

    def made(self) -> LocalStep:
        """Return what came of it."""
        return LocalStep(self.mean(), self.factors, self.sanitised, self.noise)


@dataclass(frozen=True)
class Operation:
    """One thing that happens at one point of a round: a frozen record, the base of all.

    Where it acts (``at``) says which of the ``on_`` methods runs; each is the identity until it is overridden. Its
    facts are declared nowhere else. Rows are clients, and must not influence each other.

    Attributes:
        at: the point; None for the usual one. said: the words that describe it, in place of its own.
        of: the operation whose bound it goes by; together they are one mechanism.

    Raises:
        UsageError: it cannot act there.
    """

    _: KW_ONLY
    at: Point = _USUAL
    said: str = ""
    of: "Operation | None" = None

    points: ClassVar[tuple[Point, ...]] = (Point.MESSAGE, *(point for point in Point if point is not Point.MESSAGE))
    """Where it can act, first where it usually does."""
    clips: ClassVar[bool] = False
    noises: ClassVar[bool] = False
    """Whether it cuts lengths, and whether it adds noise; or says in its own words that it does not."""
    acts: ClassVar[bool] = True
    """Whether it changes or reads anything of a round."""
    silent: ClassVar[bool] = False
    about: ClassVar[str] = ""
    """Whether nothing is said of it, and what it changes, in words; "" for what is usual at its point."""
    zeroes: ClassVar[bool] = False
    reads_network: ClassVar[bool] = False
    """Whether it always leaves zeros in the place of coordinates, and whether it reads ``context.batch``: the network,
    its weights and the examples of a local step."""

    def __post_init__(self) -> None:
        if self.at is None:
            object.__setattr__(self, "at", self._usual())
        if self.at in self.points:
            object.__setattr__(self, "at", Point(self.at))  # its name is taken too
        else:
            where = " or ".join(f"Point.{point.name}" for point in self.points)
            raise UsageError(f"{type(self).__name__} cannot act at {self.at!s}; let it act at {where}")

    def _usual(self) -> Point:
        return self.points[0]

    # How it runs.

    def on_step(self, state: StepState, context: RoundContext) -> None:
        """Changes a local step (``EXAMPLES``, ``STEP``)."""

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        """Return N clients' rows after it (``NETWORK``, ``INPUTS``, ``MESSAGE``, ``ARRIVAL``), in the same shape."""
        return rows

    def on_messages(self, messages: Tensor, context: RoundContext) -> Tensor:
        """The sum (P,) of one round's messages (N, P), which is all that the server gets (``SUM``)."""
        return messages.sum(0)

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        """Return one vector (P,) of the server after it (``AGGREGATE``, ``APPLIED``, ``BROADCAST``)."""
        return total

    # What is known of it, to who knows the settings.

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        """Return the lengths that it cuts to, in units of a gradient; None where it cuts none."""
        return None

    def noise(self, context: RoundContext) -> Noise | None:
        """The noise that it adds to a coordinate of what its stage gives out, at a noise scale of 1; None without."""
        return None

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        """Return the noise on one example's gradient (``EXAMPLES``)."""
        return None

    def limit(self, context: RoundContext) -> Limit | NoLimit | None:
        """The most that can be reconstructed behind it, by a theorem of its own; None without one."""
        return None

    @property
    def only_adds(self) -> bool:
        """Return whether it keeps the noise of those before it as it was."""
        return False

    @property
    def sparse(self) -> bool:
        """Return whether it leaves coordinates out, with zeros in their place."""
        return self.zeroes

    def chosen(self, layout: Layout) -> Chosen | None:
        """Return which coordinates may differ from zero behind it; None where nothing bounds how many."""
        return None

    @property
    def cut(self) -> float | None:
        """The magnitude at which it cuts single coordinates of an update; None without."""
        return None

    @property
    def coding(self) -> Coding | None:
        """Return the coarser form that numbers of an update are written in; None without."""
        return None

    def trained(self, weights: Tensor, gradients: Tensor, layout: Layout) -> Tensor:
        """Return what can be told of weights (R, P) that clients trained, from those they got and a gradient.

        At ``NETWORK``; the gradient (R, P) is of one example.
        """
        return weights

    def disguises(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Every change that it may make of images (..., C, H, W) at ``INPUTS``, where these are few and known."""
        yield from ()

    def grid(self, context: RoundContext, steps: int) -> float | None:
        """The step of the grid that values behind it lie on, in units of a gradient after L ``steps``."""
        return None

    @property
    def most_values(self) -> int | None:
        """Return how many different numbers a tensor behind it holds at most; None where any number may be."""
        return None

    replays: ClassVar[bool] = False
    """Whether what it keeps in ``context.server`` follows from its random streams alone, and is no one else's."""

    def server_remembers(self) -> Mapping[str, Remembered]:
        """Return all that it keeps in ``context.server`` after any round, by name."""
        return {}

    def clients_remember(self) -> Mapping[str, Remembered]:
        """Return the tensors that it may keep in ``context.client``, by name."""
        return {}

    @property
    def sends(self) -> Sequence[str]:
        """Names of what clients send in clear beside the update (``context.sent``)."""
        return ()

    @property
    def needs_network(self) -> bool:
        """Return whether it reads ``context.batch``, at some points or always."""
        return self.reads_network or self.at is Point.INPUTS

    @property
    def planned(self) -> str | None:
        """Return its part that depends on the planned rounds, in words; None for nothing."""
        return None

    def refuses(self, module: str) -> bool:
        """Return whether clients train no network that a server has put such a module before, named in words."""
        return False

    def finished(self, facts: PrivacyFacts) -> str | None:
        """Return the reason to stop before the round that ``facts.cohort.rounds`` would include; None to continue."""
        return None

    # What is said of it.

    @property
    def title(self) -> str:
        """Return its name for people."""
        return type(self).__name__

    @property
    def subject(self) -> str:
        """Return its subject, in words."""
        return self.about or _SUBJECTS.get(self.at, UPDATES)

    def words(self) -> str:
        """Return its effect, in half a sentence."""
        return "" if self.silent else self.said or type(self).__name__

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        """Its privacy statements, one for each view; None where another operation of its mechanism states them."""
        return None


def states_nothing(why: str, unit: str | None = None) -> list[Statement]:
    """The statement that no epsilon exists, and why."""
    return [make_statement("server", "none", why, unit=unit)]


@dataclass(frozen=True)
class Bookkeeping(Operation):
    """The base of operations that change what is remembered or sent beside updates, and no update."""

    points = (Point.AGGREGATE,)
    silent = True

    @property
    def only_adds(self) -> bool:
        return True


@dataclass(frozen=True)
class Custom(Operation):
    """A research idea in plain tensors: ``function`` gives what becomes of what it is handed, in the same shape.

    It is handed, and returns, what its point says: rows of N clients, example gradients (N, B, P) at ``EXAMPLES``, one
    vector (P,) of the server; at ``SUM`` all messages (N, P), for their sum. No theorem covers it. Attackers know of
    its noise what ``adds`` says, and every run measures whether that is so.

    Attributes:
        function: of the values and the context, which holds all randomness, memory and, with ``network``, the batch.
        adds: its noise, on a coordinate of what the stage gives out, or how that follows from the context; None for
            none, unknown unless you say otherwise.
        cuts: the L2 norm and grouping that it cuts rows (or examples) to; ``cuts_at``: the magnitude of coordinates.
        keeps: which coordinates it sends, where it leaves others out; ``leaves_out``: that it does.
        server, client: what it remembers, by name. beside: names of what it puts into ``context.sent``, in clear.
        network: whether it reads ``context.batch``.
    """

    function: Callable[[Tensor, RoundContext], Tensor]
    _: KW_ONLY
    adds: Noise | Callable[[RoundContext], Noise | None] | None = UNKNOWN
    cuts: tuple[float, Grouping] | None = None
    cuts_at: float | None = None
    keeps: Callable[[Layout], Chosen] | None = None
    leaves_out: bool = False
    server: Mapping[str, Remembered] = field(default_factory=dict)
    client: Mapping[str, Remembered] = field(default_factory=dict)
    beside: Sequence[str] = ()
    network: bool = False

    clips = noises = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuts is not None:
            require_one_of(self, "cuts", self.cuts[1], get_args(Grouping))

    def on_step(self, state: StepState, context: RoundContext) -> None:
        if self.at is Point.EXAMPLES:
            state.change(self._called(state.gradients(), context))
        else:
            state.direction = self._called(state.mean(), context)

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return self._called(rows, context)

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        return self._called(total, context)

    def on_messages(self, messages: Tensor, context: RoundContext) -> Tensor:
        return self._called(messages, context, messages[0] if len(messages) else messages.sum(0))

    def _called(self, given: Tensor, context: RoundContext, like: Tensor | None = None) -> Tensor:
        """Return what the function makes of values.

        Raises:
            UsageError: it changes what it was given, which others still read; or gives another shape, dtype or device.
        """
        before = _version(given)
        made: object = self.function(given, context)
        if _version(given) != before:
            who = f"{self.title} at {self.at!s}"
            raise UsageError(f"{who} changes what it is given in place, which others still read; work on a copy")
        return require_alike(self, made, given if like is None else like)

    @property
    def title(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        if self.cuts is None:
            return None
        bound, grouping = self.cuts
        if self.at in OF_EXAMPLES:
            return Clipping(bound, grouping, "example")
        return Clipping(bound / learning_rate, grouping, "update")

    def noise(self, context: RoundContext) -> Noise | None:
        if self.at.hook is None:
            return None
        return self.adds(context) if callable(self.adds) else self.adds

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        return UNKNOWN if self.adds and self.at is Point.EXAMPLES else None

    @property
    def sparse(self) -> bool:
        return self.leaves_out or self.keeps is not None

    def chosen(self, layout: Layout) -> Chosen | None:
        return None if self.keeps is None else self.keeps(layout)

    @property
    def cut(self) -> float | None:
        return self.cuts_at

    def server_remembers(self) -> Mapping[str, Remembered]:
        return self.server

    def clients_remember(self) -> Mapping[str, Remembered]:
        return self.client

    @property
    def sends(self) -> Sequence[str]:
        return self.beside

    @property
    def needs_network(self) -> bool:
        return self.network or super().needs_network

    def words(self) -> str:
        return self.said or f"{self.title} (research code)"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        return states_nothing(f"no theorem here covers {self.title}")


def require_one_of(one: Operation, setting: str, found: object, known: Sequence[str]) -> None:
    """Raises UsageError: a setting of an operation has another value than the known ones."""
    if found not in known:
        raise UsageError(f"{one.title} has {setting}={found!r}; write {' or '.join(map(repr, known))}")


def require_alike(one: Operation, made: object, like: Tensor) -> Tensor:
    """Return what an operation made, in the shape, dtype and device of ``like``.

    Raises:
        UsageError: it is something else.
    """
    wanted = f"a tensor {tuple(like.shape)} of {like.dtype} on {like.device}"
    found = f"a {type(made).__name__}"
    if isinstance(made, Tensor):
        if (made.shape, made.dtype, made.device) == (like.shape, like.dtype, like.device):
            return made
        found = f"a tensor {tuple(made.shape)} of {made.dtype} on {made.device}"
    raise UsageError(f"{one.title} at {one.at!s} returns {found}; let it return {wanted}")


def _version(values: Tensor) -> int | None:
    """Grows with every change in place; None where torch does not count, for what was made for inference alone."""
    return None if values.is_inference() else values._version
