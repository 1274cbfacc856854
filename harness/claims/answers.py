"""Questions about a filter and their answers: facts of a federation, lines of claimed beside proven, conditions."""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from harness.base.errors import UsageError
from harness.claims.epsilons import Relation, gaussian_delta, gaussian_epsilon, sampled_epsilon

Weights = Literal["equal", "private"] | tuple[float, ...]
REQUIRED = "required"
_MOST, _BEYOND = 10**12, 1e30
#: How an epsilon was computed.
EXACT, PURE, LOSSES = "exact Gaussian", "pure epsilon, summed", "loss distribution"
SAMPLES = "Renyi divergences of samples without replacement"
LEAST = "the least of loss distribution, Renyi divergences and exact Gaussian"


#: Facts that are counted, and the options of those that have another name.
COUNTED = ("rounds", "participations", "clients", "per_round", "examples", "batch_size", "local_epochs", "local_steps",
           "numbers")  # fmt: skip
OPTIONS = {"numbers": "--parameters"}


def counted(name: str, value: Any, fix: str = "write such a number") -> None:
    """Refuses what is no whole number of 1 or more.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise UsageError(f"{name} must be a whole number from 1 to {_MOST:g}, got {value!r}; {fix}")


@dataclass(frozen=True)
class Facts:
    """Facts that are known of the federation. A fact is None where nobody stated it.

    Attributes:
        rounds: T, of one job.
        participations: rounds in which one client takes part; all of them by default.
        clients, per_round: N and K.
        weights: how the mean weighs clients: ``equal``, ``private`` numbers of examples, or public numbers.
        examples, batch_size, local_epochs, local_steps, drop_last: of one client's data and training.
        optimizer: of clients: ``sgd``, ``momentum`` or ``adam``.
        server_optimizer: the strategy that is wrapped: ``FedAvg``, ``FedAdam``, ...; None where nobody said it.
        secure_sum: whether the server reads sums alone.
        clients_clip: whether clients run the mod that clips.
        numbers, scalars: all numbers that an update has, buffers among them, and how many of its arrays are 0-d.
        buffers: ``none``, ``float`` or ``int``.
        delta: asked for; None for the source's own, else 1e-5.
        version: of the framework; None for the newest known.
        sampler: ``poisson`` where clients are known to be drawn so.
    """

    rounds: int = 1
    participations: int | None = None
    clients: int | None = None
    per_round: int | None = None
    weights: Weights | None = None
    examples: int | None = None
    batch_size: int | None = None
    local_epochs: int | None = None
    local_steps: int | None = None
    drop_last: bool = False
    optimizer: str | None = None
    server_optimizer: str | None = None
    secure_sum: bool = False
    clients_clip: bool | None = None
    numbers: int | None = None
    scalars: int | None = None
    buffers: str | None = None
    delta: float | None = None
    version: str | None = None
    sampler: str | None = None

    def __post_init__(self) -> None:
        for name in COUNTED:
            if (value := getattr(self, name)) is not None:
                counted(OPTIONS.get(name, "--" + name.replace("_", "-")), value)
        if self.clients and self.per_round and self.per_round > self.clients:
            raise UsageError(
                f"{self.per_round} clients per round of {self.clients}; lower --per-round or raise --clients"
            )
        if self.participations and self.participations > self.rounds:
            raise UsageError(
                f"{self.participations} participations of {self.rounds} rounds; lower that, or raise --rounds"
            )
        if self.local_steps and self.local_epochs:
            raise UsageError("--local-steps and --local-epochs both say how long a client trains; give one of them")
        if self.batches == 0:
            raise UsageError(
                f"{self.examples} examples make no batch of {self.batch_size} where --drop-last drops it, so that "
                f"nothing is trained (Opacus divides by zero); lower --batch-size to {self.examples}, or leave "
                "--drop-last out"
            )
        if self.scalars is not None and not 0 <= self.scalars <= (self.numbers or _MOST):
            most = "" if self.numbers is None else f" and no more than the {self.numbers} numbers"
            raise UsageError(f"--scalars must be 0 or more{most}, got {self.scalars}; give the number of 0-d arrays")
        if self.delta is not None and not 1 / _BEYOND <= self.delta < 1:
            raise UsageError(f"delta must lie in (0, 1), got {self.delta:g}; give for example --delta 1e-5")
        if isinstance(self.weights, tuple):
            self._weigh(self.weights)
        if self.version is not None and not re.fullmatch(r"\d{1,4}(\.\d{1,4})*\w*", self.version):
            raise UsageError(f"{self.version!r} is no version; give for example --framework-version 2.7.2")

    def _weigh(self, weights: tuple[float, ...]) -> None:
        """Refuses public weights that are none, or are not those of the clients that are known."""
        if not all(0 < one < _BEYOND for one in weights):
            raise UsageError("public weights must be above 0; give for example --weights public:100,200")
        if len(weights) != (self.clients or len(weights)) or len(weights) < (self.per_round or 0):
            known = self.clients or self.per_round
            raise UsageError(f"{len(weights)} public weights for {known} clients; give --weights one for each client")

    @property
    def batches(self) -> int | None:
        """Return the length of one client's loader; None where it is not known."""
        if self.examples is None or self.batch_size is None:
            return None
        whole, rest = divmod(self.examples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def taking_part(self) -> int:
        """Return R, the rounds of one client."""
        return self.participations or self.rounds

    def older_than(self, since: str) -> bool:
        """Return whether the version is known and below another, as packages are ordered: 2.7rc1 and 2 are below 2.8.

        Raises:
            UsageError: it is no version.
        """
        try:
            return self.version is not None and Version(self.version) < Version(since)
        except InvalidVersion:
            raise UsageError(f"{self.version!r} is no version; give for example --framework-version 2.7.2") from None


@dataclass(frozen=True)
class Line:
    """One number beside what is claimed: of a view, a unit, a relation, over so many rounds.

    Attributes:
        epsilon: what the theorem gives; None where there is none. It is proven only if no condition is known to fail.
        claimed, claimed_delta: None where nothing is claimed of it.
        judged: whether the claim stands or falls by this line.
        at_claim: epsilon at the claim's delta, by which the claim is judged; None where that is ``delta``.
        delta_at_claim: the exact delta at the claimed epsilon, of Gaussian noise without samples.
        ifs: conditions of this line alone that nobody said, as "cohorts are Poisson samples".
        conversion: how ``epsilon`` was computed; None without a number.
    """

    view: str
    unit: str
    relation: Relation
    rounds: int
    epsilon: float | None
    delta: float
    why: str
    mu: float | None = None
    claimed: float | None = None
    claimed_delta: float | None = None
    judged: bool = True
    sampler: str = "none"
    at_claim: float | None = None
    delta_at_claim: float | None = None
    ifs: tuple[str, ...] = ()
    conversion: str | None = None

    def filled(self, epsilon: Callable[[float], float], **changes: Any) -> "Line":
        """Return the line with ``epsilon`` of its own delta, and of the claim's where that is another."""
        made = replace(self, **changes)
        other = made.claimed is not None and made.claimed_delta not in (None, made.delta)
        return replace(
            made, epsilon=epsilon(made.delta), at_claim=epsilon(made.claimed_delta or 0.0) if other else None
        )

    @property
    def exceeded(self) -> bool:
        """Return whether more is lost than claimed, at the claim's own delta, or nothing is proven of the claim."""
        if self.claimed is None or self.epsilon is None:
            return self.claimed is not None
        lost = self.epsilon if self.at_claim is None else self.at_claim
        return lost > self.claimed * (1 + 1e-6)


@dataclass
class Answer:
    """Knowledge of a filter at its arguments.

    Attributes:
        lines: the numbers.
        fails: conditions of the theorem that are known to fail; with any of them nothing is proven.
        unknown: conditions that nobody said, as "the model has no 0-d arrays".
        warnings: faults that spoil usefulness, not the theorem. notes: what one must know to read the numbers.
    """

    lines: list[Line] = field(default_factory=list)
    fails: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def gaussian(
        self, line: Line, mus: Mapping[Relation, float], facts: Facts, judged: Relation = "replace",
        sampled: Callable[[float, int, float], float] | None = None, claims: Sequence[float | None] = (),
        lost: float = 0.0,
    ) -> None:  # fmt: skip
        """Adds the lines of Gaussian noise: for each relation one round, and all rounds if there are several.

        Args:
            line: what they have in common; its claim is for one round.
            mus: sensitivity over noise of one round, by relation.
            sampled: of mu of one round, rounds and delta: the bound for ``replace`` that counts random samples. It
                composes over all rounds; over those in which a client is known to take part nothing is random.
            claims: what is claimed of one round and of all, in place of the line's.
            lost: of delta, in every round.
        """
        *_, whole = counts = _counts(facts)
        for relation, mu in mus.items():
            for count in counts:
                counted = relation == "replace" and (count == whole or whole == facts.rounds)
                bound = _Bound(mu, count, lost, sampled if counted else None, facts.rounds if count == whole else 1)
                claimed = line.claimed if count == 1 else None
                if claims:
                    claimed = claims[-1] if count == whole else claims[0]
                drawn, whole_mu = bound.by_samples(line.delta), math.sqrt(count) * mu
                exact = claimed is not None and not drawn and not lost
                one = replace(
                    line, relation=relation, rounds=count, claimed=claimed, judged=relation == judged,
                    why=line.why + (bound.words() if drawn else ""), mu=None if drawn or lost else whole_mu,
                    delta_at_claim=gaussian_delta(whole_mu, claimed or 0.0) if exact else None,
                    conversion=SAMPLES if drawn else EXACT, sampler="without-replacement" if drawn else line.sampler,
                )  # fmt: skip
                self.lines.append(one.filled(bound.least))

    def sampled(self, line: Line, parts: Sequence[tuple[float, float, int]], **changes: Any) -> None:
        """Adds the lines of Gaussian noise on Poisson samples, by their loss distribution.

        Args:
            parts: noise multiplier, rate and number of the samples.
        """
        relations: tuple[Relation, ...] = ("zero-out", "replace")
        for relation in relations:
            self.lines.append(line.filled(
                lambda delta, of=relation: sampled_epsilon(parts, delta, of), relation=relation, sampler="poisson",
                judged=relation == "zero-out", conversion=LEAST, **changes,
            ))  # fmt: skip

    def nothing(self, line: Line, facts: Facts) -> None:
        """Adds the line that nothing is proven."""
        self.lines.append(replace(line, epsilon=None, mu=None, conversion=None, rounds=facts.taking_part))

    @property
    def proven(self) -> Iterator[Line]:
        """The lines with what is proven in them: nothing, where a condition is known to fail."""
        return (replace(line, epsilon=None, conversion=None) if self.fails else line for line in self.lines)

    @property
    def broken(self) -> bool:
        """Return whether a claim is exceeded, or has no proof."""
        return any(line.exceeded for line in self.proven if line.judged)


@dataclass(frozen=True)
class _Bound:
    """Bound for Gaussian noise of ``mu`` a round: over ``count`` rounds as such, and over ``drawn`` rounds by random
    samples."""

    mu: float
    count: int
    lost: float
    sampled: Callable[[float, int, float], float] | None
    drawn: int

    def least(self, delta: float) -> float:
        delta -= self.count * self.lost
        return min(self._plain(delta), self._sampled(delta))

    def words(self) -> str:
        over = "" if self.drawn == self.count else f" over all {self.drawn} rounds"
        return f"; sampling of the clients counted{over}"

    def by_samples(self, delta: float) -> bool:
        """Return whether samples give the smaller of both."""
        delta -= self.count * self.lost
        return self._sampled(delta) < self._plain(delta)

    def _plain(self, delta: float) -> float:
        return gaussian_epsilon(math.sqrt(self.count) * self.mu, delta)

    def _sampled(self, delta: float) -> float:
        return math.inf if self.sampled is None else self.sampled(self.mu, self.drawn, delta)


def _counts(facts: Facts) -> list[int]:
    return [1] if facts.taking_part == 1 else [1, facts.taking_part]


#: Arguments, whatever they change of an answer: bounds and numbers of something, rates of change that may be 0, shares.
_POSITIVE = (
    "clip", "clip_frequency", "clipping_bound", "clipping_norm", "clients_per_round", "initial_clipping_bound",
    "initial_clipping_norm", "initial_l2_norm_clip", "l2_norm_clip",
)  # fmt: skip
_RATES = ("learning_rate", "log_space_step_size", "sensitivity")
_SHARES = ("adaptive_clipping_norm_quantile", "target_clipped_quantile", "target_unclipped_quantile")
Arguments = Mapping[str, Any]
Asked = Callable[[Arguments, Facts], Answer]


@dataclass(frozen=True)
class Filter:
    """A defense of some framework, by its name there.

    Attributes:
        name: as ``flower:LocalDpMod``. aliases: other names of the same, as its class's in configurations.
        acts: the surface: ``s2`` per-example gradients, ``s1`` before the update leaves, ``s0`` at the server.
        source: package or repository with its version, and the file.
        does, claims, works: in a sentence each: what it does, what it claims, how to set it so that a theorem holds.
        settings: its arguments in their order, with defaults.
        asked: the answer to arguments and facts. ran: whether tests run the package itself.
        since: the version from which on it does what it says; older ones have an answer of their own.
    """

    name: str
    acts: str
    source: str
    does: str
    claims: str
    works: str
    settings: Mapping[str, Any]
    asked: Asked
    aliases: tuple[str, ...] = ()
    ran: bool = False
    since: str = "0"

    def arguments(self, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """All its arguments, defaults among them.

        Raises:
            UsageError: one is unknown or missing.
        """
        at = f"{where}: " if where else ""
        if unknown := next((name for name in given if name not in self.settings), None):
            known = ", ".join(self.settings) or "none"
            raise UsageError(f"{at}{self.name} has no argument {unknown!r}; it has: {known}")
        merged = {**self.settings, **given}
        if missing := next((name for name, value in merged.items() if value is REQUIRED), None):
            raise UsageError(f"{at}{self.name} needs {missing}; add --arg {missing}=...")
        try:
            for name in (name for name, value in merged.items() if value is not None):
                _check(merged, name)
        except UsageError as mistake:
            raise UsageError(f"{where or self.name}: {mistake}") from None
        return merged


def _check(arguments: Arguments, name: str) -> None:
    """Refuses an argument that can be of no kind of filter, by its name."""
    if name in _POSITIVE:
        positive(arguments, name)
    elif name in _SHARES:
        share(arguments, name, zero=True)
    elif name in _RATES and (value := number(arguments, name)) < 0:
        raise UsageError(f"{name} must be 0 or more, got {value:g}; set --arg {name}=NUMBER")


def positive(arguments: Arguments, *names: str) -> list[float]:
    """The named arguments as numbers above 0.

    Raises:
        UsageError: one is not.
    """
    return [number(arguments, name, above=0.0) for name in names]


def number(arguments: Arguments, name: str, above: float = -math.inf, below: float = math.inf) -> float:
    """One argument as a finite number strictly between two others.

    Raises:
        UsageError: it is not.
    """
    value = arguments[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UsageError(f"{name} must be a number, got {value!r}; set --arg {name}=NUMBER")
    if not (value == 0 or 1 / _BEYOND <= abs(value) < _BEYOND):
        sizes = f"between {1 / _BEYOND:g} and {_BEYOND:g} in size"
        raise UsageError(f"{name} must be {sizes}; set --arg {name}=NUMBER")
    if not above < value < below:
        limits = " and ".join([f"above {above:g}"] * (above > -math.inf) + [f"below {below:g}"] * (below < math.inf))
        raise UsageError(f"{name} must be {limits}, got {value:g}; set --arg {name}=NUMBER")
    return float(value)


def share(arguments: Arguments, name: str, zero: bool = False) -> float:
    """One argument as a number from 0 to 1, which may be ``zero`` or not.

    Raises:
        UsageError: it is not.
    """
    value = number(arguments, name)
    if not 0 <= value <= 1 or (value == 0 and not zero):
        limits = "from 0 to 1" if zero else "above 0, and 1 at most"
        raise UsageError(f"{name} must be {limits}, got {value:g}; set --arg {name}=NUMBER")
    return value


def whole(arguments: Arguments, name: str, least: int = 1) -> int:
    """One argument as a whole number of ``least`` or more.

    Raises:
        UsageError: it is not.
    """
    value = arguments[name]
    fits = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= _MOST
    if not fits or value != int(value):
        raise UsageError(
            f"{name} must be a whole number from {least} to {_MOST:g}, got {value!r}; set --arg {name}=NUMBER"
        )
    return int(value)


def agree(fact: str, known: float | None, name: str, value: float) -> None:
    """Refuses an argument that says something else than a fact that is known.

    Raises:
        UsageError: they differ.
    """
    if known is not None and not math.isclose(known, value, rel_tol=1e-9):
        raise UsageError(f"{fact} {known:g} contradicts {name} {value:g}; give both the same, or one of them")


def flag(arguments: Arguments, name: str) -> bool:
    """One argument as true or false; nothing else stands for either.

    Raises:
        UsageError: it is neither.
    """
    value = arguments[name]
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, got {value!r}; set --arg {name}=true or {name}=false")
    return value


def choice(arguments: Arguments, name: str, *allowed: str) -> str:
    """One argument as one of the allowed words.

    Raises:
        UsageError: it is none of them.
    """
    value = arguments[name]
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(f"unknown {name} {value!r}; set --arg {name}= to one of {', '.join(allowed)}")
    return value


# Sizes of updates by the name of a network: all numbers of its state, and how many arrays of them are 0-d. They are
# those of torchvision 0.26 with 1,000 classes, and of LeNet-5 with 10; a slow test counts again.
NETWORKS = {
    "lenet": (61_706, 0),
    "alexnet": (61_100_840, 0),
    "vgg11": (132_863_336, 0),
    "vgg16": (138_357_544, 0),
    "vgg16_bn": (138_374_453, 13),
    "resnet18": (11_699_132, 20),
    "resnet34": (21_814_732, 36),
    "resnet50": (25_610_205, 53),
    "resnet101": (44_654_608, 104),
    "densenet121": (8_062_625, 121),
    "mobilenet_v2": (3_539_036, 52),
    "mobilenet_v3_small": (2_555_002, 34),
    "mobilenet_v3_large": (5_507_478, 46),
    "efficientnet_b0": (5_330_613, 49),
    "squeezenet1_1": (1_235_496, 0),
    "shufflenet_v2_x1_0": (2_294_840, 56),
    "googlenet": (13_020_019, 59),
    "inception_v3": (27_197_584, 96),
    "convnext_tiny": (28_589_128, 0),
    "vit_b_16": (86_567_656, 0),
    "swin_t": (28_317_166, 0),
}


def network(name: str) -> tuple[int, int]:
    """Return the numbers of an update and its 0-d arrays.

    Raises:
        UsageError: an unknown name.
    """
    if found := NETWORKS.get(name.lower().replace("-", "_")):
        return found
    near = difflib.get_close_matches(name.lower(), NETWORKS, 1)
    meant = f"; did you mean {near[0]}" if near else ""
    raise UsageError(f"unknown --model {name!r}{meant}; or give --parameters and --scalars")
