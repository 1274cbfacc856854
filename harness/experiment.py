"""The one list of a run's settings: a field of :class:`CellSettings` is all that there is to say of an option.

Its name, type, range, default and help stand in the field. The command line, Python functions, TOML files, presets,
"make it again" commands, names of stored cells, cards, the board and reports follow from it. A new option is a field
that is marked :data:`LATER`, the code that uses it, and its test.
"""

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from harness.attacks import ATTACKS, SUITES, Attacker, Identifier, expanded, members
from harness.attacks.suites import reading, require_current
from harness.base.building import build, one_line
from harness.base.errors import UsageError
from harness.base.limits import require_steps, require_time
from harness.base.local_optimizer import LocalOptimizer, UpdateReading, optimizer_of, reading_of, settle_rate
from harness.base.ranges import NUMBER, Count, CountOrNone, NonNegative, Positive, Repeats, Share
from harness.datasets import DATASETS, choose_public, default_model
from harness.datasets.catalogue import is_own_data, source_of
from harness.datasets.public import AUTO, NONE
from harness.defenses import DEFENSES, Cohort, Defense
from harness.federation.taps import SURFACES, TAPS_OF_VARIATES, Tap, check_tap
from harness.models.networks import is_own
from harness.observation import UpdateModel
from harness.training.settings import TrainedRun

#: What stands in the place of a file of weights in the settings of captured clients.
AS_CAPTURED = "as captured"

Mark = Literal["later", "listed", "file"]
#: A setting that came after results were stored: at its default it is left out of them, so that they keep their names.
LATER: Mark = "later"
#: An option that takes several values; every one of them is a cell.
LISTED: Mark = "listed"
#: The path of a file. Its digest is another setting, with ``_hash`` behind its name.
FILE: Mark = "file"


@dataclass(frozen=True)
class Says:
    """Words by which reports name a setting that is not at its default: ``words``, where ``{}`` stands for its
    value."""

    words: str


class CellSettings(BaseModel, frozen=True, extra="forbid"):
    """Everything that determines the numbers of one cell; its canonical form names the cell's file.

    A field with a description is an option of ``harness evaluate``, and the description is its help.
    """

    dataset: str = "mnist-sample"
    model: str = "lenet"
    weights: Annotated[str | None, FILE] = Field(None, description="File with a state dictionary, for all victims.")
    weights_hash: str | None = None
    server_state: Annotated[str | None, FILE] = Field(
        None, description="File with the server's state at --round, for --weights."
    )
    server_state_hash: str | None = None
    variates: Annotated[str | None, FILE] = Field(
        None, description="File with SCAFFOLD's control variates at --round, for --weights."
    )
    variates_hash: str | None = None
    defense: str = "none"
    defense_args: dict[str, Any] = Field(default_factory=dict)
    attack: str = "cpl"
    attack_args: dict[str, Any] = Field(default_factory=dict)
    suite: Annotated[str | None, LATER] = None
    tap: Tap = Tap.STEP
    victims: Count = Field(64, description="Victims per seed")
    batch_size: Annotated[Count, LISTED] = Field(1, description="Examples per local step")
    distinct_labels: bool = Field(False, strict=True, description="No label twice in a batch.")
    seeds: Annotated[tuple[int, ...], NUMBER] = (0,)
    shared_weights: Annotated[bool, LATER, Says("one network per seed")] = Field(
        False, strict=True, description="One network per seed, shared by all its victims."
    )
    clients: Count = Field(100, description="Clients in the federation")
    clients_per_round: Count = Field(10, description="Clients sampled per round")
    rounds: Count = Field(100, description="Training rounds that epsilon and noise schedules cover")
    steps_per_round: Count = Field(
        100, description="Local steps per round that epsilon counts; all of them with --epochs or --client-examples"
    )
    sampling_rate: Share | None = Field(
        None,
        description="Share of a client's examples per local step (--batch-size / --client-examples, "
        "or 1 / --steps-per-round)",
    )
    learning_rate: Positive = Field(0.05, description="Learning rate of local SGD")
    local_steps: Count = Field(1, description="Local steps before an update is sent")
    optimizer: Annotated[str, LATER, Says("local optimizer {}")] = Field(
        "sgd", description="Local optimizer, with torch's arguments: sgd:momentum=0.9, adam:weight_decay=0.01"
    )
    epochs: Annotated[Count, LATER, Says("{} local epochs")] = Field(
        1, description="Passes over a client's own examples, each in a new order"
    )
    client_examples: Annotated[Count | None, LATER, Says("{} examples per client")] = Field(
        None, description="Examples per client; they set the local steps, and the last batch may be smaller"
    )
    sent_as: Annotated[Literal["float16", "bfloat16"] | None, LATER, Says("sent in {}")] = Field(
        None, description="Number format of all sent weights: float16 or bfloat16"
    )
    update_model: UpdateModel = Field("first", description="How attacks model local steps: first, avg, path or unroll")
    observations: Annotated[Repeats, LISTED] = Field(
        1, description="Observations of the same record, each with new noise"
    )
    rounds_seen: Annotated[Repeats, LATER, LISTED, Says("{} rounds seen")] = Field(
        1, description="Observed rounds; --same-data says of which examples and models"
    )
    same_data: Annotated[Literal["batch", "client", "cohorts", "replayed"], LATER, Says("same data: {}")] = Field(
        "batch",
        description="With --rounds-seen. batch: the same examples; client: some of --client-examples; cohorts: sums of "
        "changing clients; replayed: such sums, of one model",
    )
    batch_norm: Annotated[Literal["sent", "hidden"] | None, LATER, Says("BatchNorm's statistics {}")] = Field(
        None, description="Running statistics of BatchNorm: sent with the update (default), or hidden"
    )
    round: Annotated[CountOrNone, LISTED] = Field(
        0, description="Training rounds whose model is attacked, with --training or --weights"
    )
    prior: Annotated[str, LATER] = Field(
        NONE,
        description="Public data that informed attacks know: auto (usual with them), none, a dataset, FILE.npz",
    )
    labels: Literal["inferred", "known"] = Field("inferred", description="Labels that attacks use: inferred or known")
    engine: Literal["batched", "reference"] = Field("batched", description="batched, or reference (sequential)")
    dtype: Literal["float32", "float64"] = Field("float32", description="float32 or float64")
    device: str = "cpu"
    noise_scale: NonNegative = 1.0
    trained: Annotated[TrainedRun | None, LATER] = None

    @model_validator(mode="before")
    @classmethod
    def _one_learning_rate(cls, given: Any) -> Any:
        """An optimizer's ``lr`` is the learning rate; a table of its arguments is a text, as an option has it."""
        if not isinstance(given, Mapping) or "optimizer" not in given:
            return given
        return settle_rate(given)

    @model_validator(mode="before")
    @classmethod
    def _steps_to_count(cls, given: Any) -> Any:
        """Epsilon counts the local steps of a client whose examples are said, and of others no fewer than it takes."""
        if not isinstance(given, Mapping) or "steps_per_round" in given:
            return given
        taken, least = given.get("local_steps", 1), cls.model_fields["steps_per_round"].default
        said = given.get("client_examples") is not None or given.get("epochs", 1) != 1
        return {**given, "steps_per_round": taken} if said or (isinstance(taken, int) and taken > least) else given

    @model_validator(mode="before")
    @classmethod
    def _steps_of_epochs(cls, given: Any) -> Any:
        """Local steps follow from the passes over a client's examples, unless they are given too."""
        if not isinstance(given, Mapping) or "local_steps" in given or given.get("same_data") == "client":
            return given
        values = [given.get(name, usual) for name, usual in (("epochs", 1), ("client_examples", None))]
        batch = given.get("batch_size", 1)
        if values == [1, None] or not all(isinstance(one, int | None) and one != 0 for one in (*values, batch)):
            return given
        return {**given, "local_steps": values[0] * -(-(values[1] or batch) // batch)}

    @model_validator(mode="after")
    def _fits_together(self) -> "CellSettings":
        self._fits_epochs()
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"{self.clients_per_round} clients per round out of {self.clients} clients; lower clients_per_round"
            )
        if self.round >= self.rounds:
            raise ValueError(f"round {self.round} lies beyond the last of {self.rounds} rounds; raise rounds")
        if self.round > 0 and self.weights is None:
            raise ValueError(
                f"round {self.round} needs that round's model; name a run with --training, or a file with --weights"
            )
        if self.local_steps > self.steps_per_round:
            raise ValueError(
                f"a client takes {self.local_steps} local steps, and epsilon counts {self.steps_per_round} of a round; "
                "raise steps_per_round, or lower local_steps"
            )
        if self.local_steps > 1 and self.update_model == "first" and self.tap.of_update:
            raise ValueError("update model 'first' is for one local step; for several use --update-model avg or unroll")
        if self.tap.of_update:
            self.build_optimizer().require_steps(self.local_steps)
        if self.batch_size % self.build_optimizer().accumulate:
            raise ValueError(
                f"{self.build_optimizer().accumulate} batches of one size cannot make a step of {self.batch_size} "
                "examples; let accumulate divide the batch size"
            )
        if self.sent_as and (self.variates is not None or self.build_defense().sums_securely):
            raise ValueError(f"control variates and secure sums do not travel in {self.sent_as}; leave --sent-as out")
        if self.variates is not None and not self.build_optimizer().is_plain:
            raise ValueError(f"SCAFFOLD takes plain local steps; leave out --optimizer {self.optimizer}")
        if self.shared_weights and self.weights is not None:
            raise ValueError("victims share the network of a file or training already; leave --shared-weights out")
        self._fits_variates()
        self._fits_rounds_seen()
        self._fits_suite()
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError("seeds must be different non-negative numbers; for example --seed 0,1,2")
        return self

    def _fits_epochs(self) -> None:
        own = self.client_examples
        if own is not None and own < self.batch_size:
            raise ValueError(f"batches of {self.batch_size} from {own} examples; lower batch_size")
        if self.draws:
            return
        if self.local_steps % self.epochs or (own and self.local_steps != self.epochs * -(-own // self.batch_size)):
            raise ValueError(
                f"{self.epochs} epoch(s) over {own or 'the same'} examples in batches of {self.batch_size} are not "
                f"{self.local_steps} local_steps; leave local_steps out"
            )
        if self.step_sizes and self.build_optimizer().accumulate > 1:
            raise ValueError("a smaller last batch weighs otherwise where several make a step; leave accumulate out")

    def _fits_variates(self) -> None:
        if self.variates is None:
            if self.tap in TAPS_OF_VARIATES:
                raise ValueError(f"tap {self.tap} is of SCAFFOLD; name a run of it with --training, or --variates FILE")
        elif self.build_defense().changes_messages():
            raise ValueError(
                f"SCAFFOLD sends control variates beside the update, which {self.defense} would not protect; "
                "use a defense of the local step"
            )

    @property
    def draws(self) -> bool:
        """Return whether a client draws each round's examples from all that it has, and nobody else knows which."""
        return self.same_data == "client"

    def _fits_draws(self) -> None:
        own, used = self.client_examples, self.examples
        obstacles = {
            "same_data 'client' is of one client; choose a tap that shows each by itself": self.together > 1,
            "same_data 'client' draws from a client's examples; say how many it has with client_examples": own is None,
            f"a round takes {used} of {own} examples; raise client_examples, or lower batch_size": (own or used) < used,
            "same_data 'client' has one pass in a round; leave epochs out": self.epochs > 1,
            "same_data 'client' reads whole batches; choose a tap of a step or an update": self.tap.unit == "example",
        }
        for reason, there in obstacles.items():
            if there:
                raise ValueError(reason)

    @property
    def separates(self) -> bool:
        """Return whether only sums are seen, of other clients in each round, that are to be told apart."""
        return self.same_data in ("cohorts", "replayed")

    def _fits_cohorts(self) -> None:
        once = self.in_round(0)
        together = once.together
        obstacles = {
            f"a sum at {self.tap} is of one client; raise clients_per_round": (
                together == 1 and once.model_copy(update={"clients_per_round": 2}).together == 2
            ),
            f"one client's message is seen at {self.tap}; choose a tap of sums, such as T0.agg": together == 1,
            f"cohorts of {together} from {self.victims} clients; raise victims, or lower clients_per_round": (
                together > self.victims
            ),
            "clients of one federation have one model; add --shared-weights, or --weights FILE": (
                not self.networks_are_shared
            ),
        }
        for reason, there in obstacles.items():
            if there:
                raise ValueError(reason)

    def _fits_rounds_seen(self) -> None:
        if self.draws:
            self._fits_draws()
        elif self.separates:
            self._fits_cohorts()
        elif self.rounds_seen == 1:
            return
        if self.round + self.rounds_seen > self.rounds:
            raise ValueError(
                f"{self.rounds_seen} rounds from round {self.round} on lie beyond the last of {self.rounds} rounds; "
                "lower rounds_seen, or raise rounds"
            )
        defense, attack = self.build_defense(), self.build_attack()
        # Of an empty memory all that error feedback keeps is known from the rounds that were seen.
        coding = None if self.round or defense.server_remembers() else defense.coding_at(self.tap)
        feeds = coding is not None and coding.feedback and self.together == 1 and not self.draws
        known = {"residual"} if feeds else set[str]()
        kept = defense.server_remembers() and not defense.replays
        remembers = kept or defense.clients_remember().keys() - known
        obstacles = {
            f"attack {self.attack!r} makes a round of its own": attack.tier == "tampering",
            "engine 'reference' reads one round": self.engine == "reference",
            "SCAFFOLD's clients remember earlier rounds": self.variates is not None,
            f"defense {self.defense!r} remembers earlier rounds": bool(remembers),
            f"noise of {self.defense!r} goes on from a run's": defense.replays and self.server_state is not None,
            f"noise of {self.defense!r} is correlated, and clients' data or cohorts change": (
                defense.replays and self.same_data != "batch"
            ),
            f"defense {self.defense!r} changes inputs or the network": defense.needs_network,
        }
        for reason, there in obstacles.items():
            if there:
                raise ValueError(f"{reason}, which is not combined over rounds; leave --rounds-seen out")

    def in_round(self, number: int) -> "CellSettings":
        """Return the same cell in a later round alone, counted from this one; nothing else of it changes."""
        if self.draws:
            one = {"round": self.round + number, "rounds_seen": 1, "same_data": "batch", "client_examples": None}
            return self.model_copy(update=one)
        if self.rounds_seen == 1 and not self.separates:
            return self
        at = self.round + (0 if self.same_data == "replayed" else number)
        return self.model_copy(update={"round": at, "rounds_seen": 1, "same_data": "batch"})

    def _fits_suite(self) -> None:
        if self.suite is None:
            return
        require_current(self.suite)
        if SUITES.get(self.suite, {}).get(self.attack) != self.attack_args:
            raise ValueError(
                f"attack {self.attack!r} with such settings is not of a suite {self.suite!r}; use attack 'auto'"
            )
        if self.prior == NONE:
            raise ValueError(
                f"attack {self.suite!r} needs public data; use --prior auto, or --prior FILE.npz with data of your own"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that tell this cell from others; those that came later only where they are not usual."""
        return self.model_dump(mode="json", exclude={name for name in LATER_SETTINGS if self._is_usual(name)})

    def beside(self, stored: Collection[str]) -> dict[str, Any]:
        """Return options that came later, are not at their defaults, and are none of the ``stored`` names."""
        later = (name for name in OPTIONS if name in LATER_SETTINGS and name not in stored)
        return self.model_dump(mode="json", include={name for name in later if not self._is_usual(name)})

    def _is_usual(self, name: str) -> bool:
        return getattr(self, name) == CellSettings.model_fields[name].default

    @property
    def surface(self) -> int | None:
        """The surface number of the tap, None for a tap between surfaces."""
        return self.tap.surface

    @property
    def examples(self) -> int:
        """Images hidden behind one observation."""
        own = self.batch_size * self.local_steps if self.tap.of_update else self.batch_size
        return own * self.together

    @property
    def distinct(self) -> int:
        """Different images of a client among them: it trains on its own in every pass."""
        if self.draws:
            return self.client_examples or self.batch_size
        if not self.tap.of_update:
            return self.batch_size
        return self.client_examples or self.batch_size * self.local_steps // self.epochs

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Examples in each local step of an update; empty where all batches are whole."""
        left = (self.client_examples or 0) % self.batch_size
        if not left or not self.tap.of_update or self.draws:
            return ()
        return ((self.batch_size,) * (self.local_steps // self.epochs - 1) + (left,)) * self.epochs

    @property
    def places(self) -> tuple[int, ...] | None:
        """Numbers of the client's examples that an attacker takes to be in each place of its local steps. None where no
        example comes twice.

        The order of a pass is known to nobody but the client. It is taken to be the same in every pass: a wrong order
        within the round costs little, and one image more for each place would cost much.
        """
        own, steps = self.examples, self.local_steps // self.epochs
        if not self.tap.of_update or self.together > 1 or self.distinct == own or self.draws:
            return None
        sizes = self.step_sizes[:steps] or (self.batch_size,) * steps
        batches = zip(itertools.accumulate(sizes, initial=0), sizes, strict=False)
        return tuple(start + place % size for start, size in batches for place in range(self.batch_size)) * self.epochs

    @property
    def together(self) -> int:
        """Clients behind one observation: a whole round's where nothing but their sum is read.

        Sums that are to be told apart count as what they are to tell.
        """
        if self.separates:
            return 1
        summed = self.tap.of_round or (self.tap.at_server and self.build_defense().sums_securely)
        return self.clients_per_round if summed else 1

    @property
    def networks_are_shared(self) -> bool:
        """Return whether all victims of a seed have the same weights."""
        return self.shared_weights or self.weights is not None

    @property
    def clusters(self) -> int:
        """Independent draws behind the victims: each has a network of its own, or those of a seed share one.

        With a single seed nothing can be said of other networks, and victims are independent given this one.
        """
        shared = self.shared_weights and len(self.seeds) > 1
        return len(self.seeds) * (1 if shared else self.victims)

    @property
    def rate(self) -> float:
        """Share of a client's examples in a local step; where nobody says how many it has, a round is one pass."""
        own = self.client_examples or (self.epochs > 1 and self.batch_size * self.local_steps // self.epochs)
        return self.sampling_rate or (self.batch_size / own if own else 1 / self.steps_per_round)

    def cohort(self) -> Cohort:
        """The federation's facts for the defense."""
        return Cohort(self.clients, self.clients_per_round, self.rounds, self.steps_per_round, self.batch_size)

    def build_defense(self) -> Defense:
        """The defense with its hyper-parameters."""
        return build(DEFENSES, self.defense, self.defense_args)

    def build_optimizer(self) -> LocalOptimizer:
        """The optimizer of local steps."""
        return optimizer_of(self.optimizer)

    @property
    def update_reading(self) -> UpdateReading:
        """Rule by which what is read at the tap becomes what an attacker matches. A step's gradient stays as it is."""
        if not self.tap.of_update:
            return UpdateReading(1, self.learning_rate, (1.0,))
        optimizer = self.build_optimizer()
        changed = not (optimizer.is_plain and self.sent_as is None) and (
            self.build_defense().changes_messages() or self.together > 1
        )
        return reading_of(optimizer, self.local_steps, self.learning_rate, changed, self.sent_as)

    def build_attack(self) -> Attacker:
        """The attack with its hyper-parameters."""
        return build(ATTACKS, self.attack, self.attack_args)


def usual_defense(name: str, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return a defense's arguments: those given, and the others as they are by default.

    Raises:
        UsageError: there is no such defense or argument, or it has arguments without a default.
    """
    return build(DEFENSES, name, given).parameters()


def usual_attack(name: str) -> dict[str, Any]:
    """Return an attack's arguments as they are by default.

    Raises:
        UsageError: there is no such attack, or it has arguments without a default.
    """
    return build(ATTACKS, name, {}).parameters()


def _marked(mark: Mark) -> tuple[str, ...]:
    return tuple(name for name, field in CellSettings.model_fields.items() if mark in field.metadata)


#: Settings that are options of a command, in the order of the record.
OPTIONS = tuple(name for name, field in CellSettings.model_fields.items() if field.description is not None)
LATER_SETTINGS, LISTED_SETTINGS, FILE_SETTINGS = _marked(LATER), _marked(LISTED), _marked(FILE)
_WORDS = {
    name: mark.words
    for name, field in CellSettings.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, Says)
}


def named_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return how reports name those of some settings that are not at their defaults."""
    fields = CellSettings.model_fields
    return [
        words.format(settings[name])
        for name, words in _WORDS.items()
        if settings.get(name) not in (None, fields[name].default)
    ]


def cell_settings(**values: Any) -> CellSettings:
    """Validated cell settings with canonical names; ``model`` None, or none at all, is the dataset's default network.

    Raises:
        UsageError: unknown names or settings, values out of range, impossible combinations.
    """
    values["defense"] = DEFENSES.resolve(values.get("defense", "none"))
    values["attack"] = ATTACKS.resolve(values.get("attack", "cpl"))
    if isinstance(values.get("prior"), str):
        values["prior"] = choose_public(values["prior"])
    if values.get("model") is None:
        values["model"] = default_model(values.get("dataset", CellSettings.model_fields["dataset"].default))
    check_tap(values.get("tap", "T2.step"))
    try:
        settings = CellSettings(**values)
    except ValidationError as error:
        raise UsageError(one_line(error)) from error
    settings.build_defense()
    settings.build_attack()
    require_steps(settings.rounds, settings.steps_per_round)
    observed = settings.victims * len(settings.seeds) * settings.observations * settings.together * settings.rounds_seen
    require_time(observed * settings.local_steps * settings.batch_size, "lower victims, observations or local_steps")
    return settings


def expand(grid: dict[str, list[Any]], **common: Any) -> list[CellSettings]:
    """Every combination of the listed values as a cell, in the order given.

    ``grid`` maps setting names to values; the entries ``defense`` and ``attack`` hold (name, arguments) pairs, and
    ``model_at`` holds settings that belong together: a round and its weights. Values listed go before ``common`` ones.
    A suite stands for its attacks.

    Raises:
        UsageError: see :func:`cell_settings`; or a suite has arguments.
    """
    cells = []
    grid = grid | {"attack": expanded(grid["attack"])}
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        values["defense"], values["defense_args"] = values["defense"]
        chosen = values["attack"]
        dataset = (common | values).get("dataset", "")
        if chosen.suite and chosen.attack not in read_by(chosen.suite, dataset):
            continue
        values |= {"attack": chosen.attack, "attack_args": dict(chosen.arguments), "suite": chosen.suite}
        values |= values.pop("model_at", {})
        cells.append(cell_settings(**(common | values)))
    return cells


def check_adversary(adversary: str | None, cells: list[CellSettings]) -> None:
    """Refuses attacks beyond what the server is said to do; a tampering attack that is named implies its server.

    Raises:
        UsageError: there is no such adversary; an honest server would have to tamper, or a tampering one has no attack.
    """
    if adversary not in (None, "honest", "tampering"):
        raise UsageError(f"unknown adversary {adversary!r}; use --adversary honest or tampering")
    tampers = [cell.attack for cell in cells if cell.build_attack().tier == "tampering"]
    if adversary == "honest" and tampers:
        raise UsageError(
            f"attack {tampers[0]!r} sends manipulated weights, which an honest server does not; use --adversary "
            "tampering, or another attack"
        )
    if adversary == "tampering" and not tampers:
        known = ", ".join(name for name in ATTACKS if ATTACKS[name].tier == "tampering")
        raise UsageError(
            f"no attack that was named tampers with the model; use --attack {known}, or --adversary honest"
        )


def usual_prior(attacks: list[str]) -> str:
    """Return what is public unless said otherwise.

    Where any attack of a run knows public data, all are tried on the victims that these leave: none else is fair.
    """
    return AUTO if any(ATTACKS[name].tier != "plain" for name in members(attacks)) else NONE


def taps_of(surfaces: list[int], taps: list[str]) -> list[str]:
    """Tap names of surface numbers and taps; all three surfaces when neither is given.

    Raises:
        UsageError: there is no such surface or tap, or both are given.
    """
    if surfaces and taps:
        raise UsageError("both --surface and --tap were given; choose one, a surface is a tap by its number")
    for surface in surfaces:
        if surface not in SURFACES:
            raise UsageError(f"unknown surface {surface}; surfaces are 0 (server), 1 (update) and 2 (local step)")
    named = [SURFACES[surface] for surface in surfaces] + [check_tap(tap) for tap in taps]
    return list(dict.fromkeys(named)) or list(SURFACES.values())


def own_files(settings: Mapping[str, Any]) -> list[str]:
    """The data and networks that settings name and that are a user's own."""
    named = [str(settings.get(name, "")) for name in ("dataset", "model", "prior")]
    return [name for name in named if is_own(name) or is_own_data(name)]


def is_of_project(settings: Mapping[str, Any]) -> bool:
    """Return whether all code that settings name is of this project, so that nobody's is run because a file names
    it."""
    run = settings.get("trained")
    if run and not is_of_project(run.get("settings", {}) | {"attack": None}):
        return False
    registries = {"dataset": DATASETS, "defense": DEFENSES, "attack": ATTACKS}
    outside = [kind for kind, one in registries.items() if settings.get(kind) and one.outside(str(settings[kind]))]
    return not outside and not is_own(str(settings.get("model")))


def read_by(suite: str, dataset: str) -> list[str]:
    """The members of a suite that read data of that name."""
    return reading(suite, source_of(dataset).text)


# What names in stored settings say.


def only_tells(attack: str) -> bool:
    """Return whether an attack only tells examples apart. One whose name is not known here makes examples."""
    return attack in ATTACKS and issubclass(ATTACKS[attack], Identifier)


def reads_sums(defense: str, tap: str) -> bool:
    """Return whether sums of clients alone are read at a tap, and no client's message. Of a defense that is not known
    here, messages are."""
    try:
        place = Tap(tap)
        return place.of_round or (place.at_server and build(DEFENSES, defense, {}).sums_securely)
    except (ValueError, UsageError):  # an older tap, or a defense of another package
        return False
