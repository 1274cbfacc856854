"""The validated settings of a federated training run, and a finished run as a statement about it sees it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from torch import Tensor

from harness.base.building import build, one_line
from harness.base.errors import UsageError
from harness.base.limits import require_steps, require_time
from harness.base.local_optimizer import LocalOptimizer, facts_of_text, optimizer_of, settle_rate
from harness.base.ranges import NUMBER, Count, Delta, NonNegative, Positive
from harness.base.vectors import Layout
from harness.datasets.partition import NATURAL, SPLITS
from harness.defenses import DEFENSES, Cohort, Defense, PrivacyFacts
from harness.privacy.events import Sampler

# --------------------------------------------------------------------------------------
# The server's step: FedAvg with momentum, and adaptive ones.
#
# Sources: Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv:2003.00295), Algorithm 2; momentum is FedAvgM
# of Hsu et al. 2019 (arXiv:1909.06335). It is computed from what a defense lets out, so it costs no privacy.


_BelowOne = Annotated[float, Field(ge=0, lt=1)]
_ARGUMENTS = {
    "fedavg": set[str](), "fedavgm": {"momentum"}, "fedadagrad": {"beta1", "tau"},
    "fedadam": {"beta1", "beta2", "tau"}, "fedyogi": {"beta1", "beta2", "tau"},
}  # fmt: skip


class ServerOptimizer(BaseModel, frozen=True, extra="forbid"):
    """Rule by which the server applies the mean update of a round. Its state is kept from round to round.

    Attributes:
        name: fedavg, fedavgm, fedadagrad, fedadam or fedyogi.
        momentum: of fedavgm, heavy-ball: v <- momentum v + update.
        beta1: of the adaptive ones: m <- beta1 m + (1 - beta1) update.
        beta2: of fedadam and fedyogi, for the squares.
        tau: how little adaptive steps adapt: the step is m / (sqrt(squares) + tau), and squares begin with tau^2.
    """

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
        """Return whether it keeps squares of updates."""
        return not self.name.startswith("fedavg")

    @property
    def text(self) -> str:
        """Text of the optimizer as an option has it; momentum alone is fedavgm."""
        if not self.adapts:
            return f"fedavgm:momentum={self.momentum}" if self.momentum else "fedavg"
        told = ",".join(f"{name}={getattr(self, name)}" for name in sorted(_ARGUMENTS[self.name]))
        return f"{self.name}:{told}"

    def beginning(self, weights: Tensor) -> Tensor | None:
        """The squares (P,) in float64 before the first round; None of what keeps none."""
        return torch.full_like(weights, self.tau**2, dtype=torch.float64) if self.adapts else None

    def step(self, mean: Tensor, squares: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what the weights move by over the learning rate, and the mean and the squares that are kept.

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


# --------------------------------------------------------------------------------------
# The settings of a training.


Momentum = Annotated[float, Field(ge=0, lt=1)]
ClientSampling = Literal["fixed", "poisson", "all"]
BatchSampling = Literal["shuffle", "partition", "poisson", "without-replacement"]

_CLIENT_SAMPLERS: dict[str, Sampler] = {"fixed": "without-replacement", "poisson": "poisson", "all": "none"}
_BATCH_SAMPLERS: dict[str, Sampler] = {
    "shuffle": "none", "partition": "none", "poisson": "poisson", "without-replacement": "without-replacement",
}  # fmt: skip


class TrainSettings(BaseModel, frozen=True, extra="forbid"):
    """Everything that determines the numbers of a training run.

    ``algorithm``: ``fedavg``; ``fedsgd`` (one local step); ``scaffold``, and ``scaffold-warm``, whose first rounds only
    collect control variates. ``model`` None is the papers' accuracy network: ``cnn`` for images, ``mlp2`` for tables.
    ``optimizer`` and ``server_optimizer`` are texts or tables; ``local_momentum`` and ``server_momentum`` are their
    earlier names, and what is stored of those that heavy-ball momentum describes: v <- momentum v + step. What clients'
    optimizers remember begins empty in every round, the server's is kept. ``epochs`` leaves out what fills no batch.
    ``examples`` None means one local epoch per round: local_steps * batch_size. ``budget`` stops before the round that
    would exceed ``target_epsilon``, counted as the paper ``claimed`` it or as it is ``valid``.
    """

    dataset: str = Field("mnist-sample", description="Its train part trains, its test part measures accuracy.")
    model: str | None = Field(None, description="cnn for images, mlp2 for tables by default.")
    defense: str = Field("none", description="See harness list defenses.")
    defense_args: dict[str, Any] = Field(default_factory=dict)
    clients: Count = Field(100, description="N, clients of the federation.")
    clients_per_round: Count = Field(10, description="K, clients per round.")
    rounds: Count = Field(20, description="T, rounds.")
    local_steps: Count = Field(100, description="L, local steps per round.")
    batch_size: Count = Field(5, description="B, examples per local step.")
    examples: Count | None = Field(None, description="Examples per client; by default L times B (one pass).")
    algorithm: Literal["fedavg", "fedsgd", "scaffold", "scaffold-warm"] = Field(
        "fedavg", description="fedavg, fedsgd, scaffold or scaffold-warm."
    )
    split: str = Field("shards", description="shards, iid, dirichlet, similarity, sorted or natural.")
    level: NonNegative = Field(
        0.5, description="Concentration of dirichlet; share of uniform labels of similarity and sorted."
    )
    client_sampling: ClientSampling = Field("fixed", description="fixed (K of N), poisson (rate K/N) or all.")
    batch_sampling: BatchSampling = Field("shuffle", description="shuffle, partition, poisson or without-replacement.")
    learning_rate: Positive = Field(0.05, description="Learning rate of local SGD.")
    server_learning_rate: Positive = Field(1.0, description="Learning rate of the server.")
    local_momentum: Momentum = Field(0.0, description="Short for --optimizer sgd:momentum=...")
    server_momentum: Momentum = Field(0.0, description="Short for --server-optimizer fedavgm:momentum=...")
    optimizer: str = Field("sgd", description="Local optimizer, new in every round: adam:lr=0.001, sgd:momentum=0.9")
    server_optimizer: str = Field(
        "fedavg",
        description="fedavg, fedavgm, fedadagrad, fedadam or fedyogi, such as fedadam:lr=0.01,beta1=0.9,tau=0.001",
    )
    epochs: Count | None = Field(None, description="Passes per round over --examples, instead of --local-steps.")
    target_epsilon: Positive | None = Field(None, description="Stop before the round that would exceed this epsilon.")
    budget: Literal["claimed", "valid"] = Field(
        "valid", description="Epsilon that --target-epsilon limits: valid or claimed."
    )
    delta: Delta = Field(1e-5, description="Delta of every epsilon.")
    seed: Annotated[int, Field(ge=0), NUMBER] = Field(
        0, description="Random seed of splits and weights (0), and of noise and sampling."
    )
    device: str = "cpu"

    @model_validator(mode="before")
    @classmethod
    def _in_one_form(cls, given: Any) -> Any:
        """Optimizers are texts, and what is short for one of them says the same."""
        if not isinstance(given, Mapping):
            return given
        found, usual = dict(given), {name: field.default for name, field in cls.model_fields.items()}
        # What stands at its default was perhaps not given at all.
        told = {name for name, value in found.items() if value != usual.get(name)}
        try:
            if "optimizer" in told:
                rate = {"learning_rate": found["learning_rate"]} if "learning_rate" in told else {}
                found |= settle_rate({"optimizer": found["optimizer"]} | rate)
                found |= _momentum(found, "local_momentum", optimizer_of(found["optimizer"]), told)
            elif isinstance(momentum := found.get("local_momentum"), int | float) and 0 < momentum < 1:
                found["optimizer"] = LocalOptimizer(momentum=momentum).text
            if "server_optimizer" in told:
                server, rate = server_optimizer_of(found["server_optimizer"])
                if rate is not None and "server_learning_rate" in told and found["server_learning_rate"] != rate:
                    raise UsageError(
                        f"the server optimizer's lr is {rate:g}, server_learning_rate "
                        f"{found['server_learning_rate']}; give one"
                    )
                found |= {"server_optimizer": server.text} | ({} if rate is None else {"server_learning_rate": rate})
                found |= _momentum(found, "server_momentum", server, told)
            elif isinstance(momentum := found.get("server_momentum"), int | float) and 0 < momentum < 1:
                found["server_optimizer"] = ServerOptimizer(name="fedavgm", momentum=momentum).text
        except UsageError as problem:
            raise ValueError(str(problem)) from problem
        examples, batch = found.get("examples"), found.get("batch_size", usual["batch_size"])
        if isinstance(epochs := found.get("epochs"), int) and epochs > 0 and "local_steps" not in told:
            if not isinstance(examples, int) or not isinstance(batch, int) or not 0 < batch <= examples:
                raise ValueError(
                    "epochs are passes over a client's examples; give examples, at least as many as batch_size"
                )
            found["local_steps"] = epochs * (examples // batch)
        return found

    @model_serializer(mode="wrap")
    def _as_stored(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the values to store. Where nothing but momentum is there, they are as ever: runs and cells keep their
        names."""
        made = write(self)
        if self.local_optimizer == LocalOptimizer(momentum=self.local_momentum):
            made.pop("optimizer", None)
        if not self.build_server_optimizer().adapts:
            made.pop("server_optimizer", None)
        if self.epochs is None:
            made.pop("epochs", None)
        return made

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainSettings":
        self.local_optimizer.require_steps(self.local_steps)
        if self.batch_size % self.local_optimizer.accumulate:
            raise ValueError(f"{self.local_optimizer.accumulate} batches make a step; let that divide batch_size")
        if self.epochs and self.local_steps != self.epochs * (self.client_examples // self.batch_size):
            raise ValueError(
                f"{self.epochs} epochs over {self.client_examples} examples in batches of {self.batch_size} are not "
                f"{self.local_steps} local_steps; leave local_steps out"
            )
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"{self.clients_per_round} clients per round out of {self.clients} clients; lower clients_per_round"
            )
        if self.client_sampling == "all" and self.clients_per_round != self.clients:
            raise ValueError("client_sampling all needs clients_per_round equal to clients")
        if self.algorithm == "fedsgd" and self.local_steps != 1:
            raise ValueError("fedsgd takes one local step per round; set local_steps to 1")
        if self.has_variates and self.build_defense().changes_messages():
            raise ValueError(
                f"{self.algorithm} sends control variates beside the update, which {self.defense} would not protect; "
                "use a defense of the local step, or --algorithm fedavg"
            )
        if self.build_defense().sums_securely and not self.local_optimizer.is_linear:
            raise ValueError(
                "noise of a secure sum adds up in updates that are linear in it, which "
                f"{self.local_optimizer.text} does not make; use an sgd without clip_grad_norm, or another defense"
            )
        if self.has_variates and not self.local_optimizer.is_plain:
            raise ValueError(f"{self.algorithm} takes plain local steps; drop the optimizer, or use --algorithm fedavg")
        if self.batch_size > self.client_examples:
            raise ValueError(f"batches of {self.batch_size} from {self.client_examples} examples; lower batch_size")
        if self.split not in (*SPLITS, NATURAL):
            raise ValueError(f"unknown split {self.split!r}; choose {', '.join([*SPLITS, NATURAL])}")
        if (self.split == "dirichlet" and self.level <= 0) or (
            self.split in ("similarity", "sorted") and self.level > 1
        ):
            fits = "more than 0" if self.split == "dirichlet" else "0 to 1"
            raise ValueError(f"--level {self.level:g} does not fit --split {self.split}; give {fits}")
        return self

    @property
    def local_optimizer(self) -> LocalOptimizer:
        """The optimizer of the clients' local steps."""
        return optimizer_of(self.optimizer)

    def build_server_optimizer(self) -> ServerOptimizer:
        """The optimizer of the server's step."""
        return server_optimizer_of(self.server_optimizer)[0]

    @property
    def has_variates(self) -> bool:
        """Return whether clients keep control variates (SCAFFOLD)."""
        return self.algorithm.startswith("scaffold")

    @property
    def warm_up_rounds(self) -> int:
        """Rounds at the start that only collect control variates: enough to reach nearly every client (4N/K)."""
        return round(4 * self.clients / self.clients_per_round) if self.algorithm == "scaffold-warm" else 0

    @property
    def client_examples(self) -> int:
        """Examples that every client holds, n."""
        return self.examples or self.local_steps * self.batch_size

    def cohort(self, rounds: int | None = None) -> Cohort:
        """The federation's facts for the defense, over the planned rounds or another number of them."""
        return Cohort(
            self.clients, self.clients_per_round, self.rounds if rounds is None else rounds, self.local_steps,
            self.batch_size,
        )  # fmt: skip

    def facts(self, layout: Layout, rounds: int, holders: int = 1) -> PrivacyFacts:
        """Return the facts for the statement after ``rounds``; ``holders``: the most clients that hold one example."""
        client_sampler = _CLIENT_SAMPLERS[self.client_sampling]
        if self.clients_per_round == self.clients:
            client_sampler = "none"
        rate = min(1.0, self.batch_size / self.client_examples)
        if _BATCH_SAMPLERS[self.batch_sampling] == "none":
            # An example is in at most one batch of a pass, which leaves out what fills no batch.
            rate = 1 / (self.client_examples // self.batch_size)
        return PrivacyFacts(
            self.cohort(rounds), len(layout.sizes), client_sampler, _BATCH_SAMPLERS[self.batch_sampling], rate,
            self.delta, layout.total, self.has_variates, self.rounds, holders, len(layout.scalars),
            self.local_optimizer.is_linear,
        )  # fmt: skip

    def build_defense(self) -> Defense:
        """The defense with its hyper-parameters."""
        return build(DEFENSES, self.defense, self.defense_args)


def _momentum(
    found: Mapping[str, Any], short: str, made: LocalOptimizer | ServerOptimizer, told: set[str]
) -> dict[str, Any]:
    """Return what the short form of momentum is beside an optimizer: the same, or 0 where it does not describe it.

    Raises:
        UsageError: it was given and says something else.
    """
    alone = made == LocalOptimizer(momentum=made.momentum) if isinstance(made, LocalOptimizer) else not made.adapts
    momentum = made.momentum if alone else 0.0
    if short in told and found[short] != momentum:
        raise UsageError(f"{short} is {found[short]} and the optimizer is {made.text}; give one")
    return {short: momentum}


def train_settings(**values: Any) -> TrainSettings:
    """Validated training settings with canonical names.

    Raises:
        UsageError: unknown names or settings, values out of range, impossible combinations.
    """
    try:
        settings = TrainSettings(**values)
    except ValidationError as error:
        raise UsageError(one_line(error)) from error
    settings.build_defense()
    require_steps(settings.rounds, settings.local_steps)
    taken = settings.rounds * settings.clients_per_round * settings.local_steps * settings.batch_size
    require_time(taken, "lower rounds, clients_per_round, local_steps or batch_size")
    return settings


Number = Annotated[int, Field(ge=1)]


class TrainedRun(BaseModel, frozen=True, extra="forbid"):
    """Trained run: its folder, its settings, the ``rounds`` it finished, and what its clients held
    (``spending.Holdings``)."""

    folder: str
    settings: TrainSettings
    rounds: Number
    holders: Number
    copies: Number

    def facts(self, layout: Layout) -> PrivacyFacts:
        """Return what the privacy statement of the whole run depends on, for a model of this layout."""
        return self.settings.facts(layout, self.rounds, self.holders)
