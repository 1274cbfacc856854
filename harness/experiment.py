"""The validated settings of a run, and of each of its cells."""

import itertools
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.attacks import ATTACKS, Attack
from harness.building import build, one_line
from harness.datasets import default_model
from harness.defenses import DEFENSES, Cohort, Defense
from harness.errors import UsageError
from harness.surfaces import SURFACES, TAPS_OF_VARIATES, UpdateModel, check_tap, surface_of
from harness.training.trained_run import TrainedRun

Positive = Annotated[int, Field(ge=1)]


class CellSettings(BaseModel):
    """Everything that determines the numbers of one cell; its canonical form names the cell's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = "mnist-sample"
    model: str = "lenet"
    weights: str | None = None
    weights_hash: str | None = None
    server_state: str | None = None
    server_state_hash: str | None = None
    variates: str | None = None
    variates_hash: str | None = None
    defense: str = "none"
    defense_args: dict[str, Any] = Field(default_factory=dict)
    attack: str = "cpl"
    attack_args: dict[str, Any] = Field(default_factory=dict)
    tap: str = "T2.step"
    victims: Positive = 64
    batch_size: Positive = 1
    distinct_labels: bool = False
    seeds: tuple[int, ...] = (0,)
    clients: Positive = 100
    clients_per_round: Positive = 10
    rounds: Positive = 100
    steps_per_round: Positive = 100
    sampling_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    local_steps: Positive = 1
    update_model: UpdateModel = "first"
    observations: Positive = 1
    round: Annotated[int, Field(ge=0)] = 0
    labels: Literal["inferred", "known"] = "inferred"
    engine: Literal["batched", "reference"] = "batched"
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    noise_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    trained: TrainedRun | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "CellSettings":
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
        if self.local_steps > 1 and self.update_model == "first" and not self.tap.startswith("T2"):
            raise ValueError(
                "update model 'first' looks at one local step only; use --update-model avg or unroll with --local-steps"
            )
        self._fits_variates()
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError("seeds must be different non-negative numbers; for example --seed 0,1,2")
        return self

    def _fits_variates(self) -> None:
        if self.variates is None:
            if self.tap in TAPS_OF_VARIATES:
                raise ValueError(f"tap {self.tap} is of SCAFFOLD; name a run of it with --training, or --variates FILE")
        elif self.build_defense().changes_messages():
            raise ValueError(
                f"SCAFFOLD sends control variates beside the update, which {self.defense} would not protect; "
                "use a defense of the local step"
            )

    def identity(self) -> dict[str, Any]:
        """What tells this cell from others; a run it does not attack is left out."""
        return self.model_dump(mode="json", exclude=None if self.trained else {"trained"})

    @property
    def surface(self) -> int | None:
        """The surface number of the tap, None for a tap between surfaces."""
        return surface_of(self.tap)

    @property
    def examples(self) -> int:
        """Images hidden behind one observation."""
        own = self.batch_size if self.tap.startswith("T2") else self.batch_size * self.local_steps
        return own * self.together

    @property
    def together(self) -> int:
        """Clients behind one observation: a whole round's where the server gets nothing but their secure sum."""
        at_server = self.tap.startswith("T0")
        return self.clients_per_round if at_server and self.build_defense().acts_at("sum_securely") else 1

    @property
    def rate(self) -> float:
        """Share of a client's examples in a local step; by default the steps of a round are one pass over them."""
        return self.sampling_rate or 1 / self.steps_per_round

    def cohort(self) -> Cohort:
        """The federation's facts for the defense."""
        return Cohort(self.clients, self.clients_per_round, self.rounds, self.steps_per_round, self.batch_size)

    def build_defense(self) -> Defense:
        """The defense with its hyper-parameters."""
        return build(DEFENSES, self.defense, self.defense_args)

    def build_attack(self) -> Attack:
        """The attack with its hyper-parameters."""
        return build(ATTACKS, self.attack, self.attack_args)


def cell_settings(**values: Any) -> CellSettings:
    """Validated cell settings with canonical names; ``model`` None, or none at all, is the dataset's default network.

    Raises:
        UsageError: unknown names or settings, values out of range, impossible combinations.
    """
    values["defense"] = DEFENSES.resolve(values.get("defense", "none"))
    values["attack"] = ATTACKS.resolve(values.get("attack", "cpl"))
    if values.get("model") is None:
        values["model"] = default_model(values.get("dataset", CellSettings.model_fields["dataset"].default))
    check_tap(values.get("tap", "T2.step"))
    try:
        settings = CellSettings(**values)
    except ValidationError as error:
        raise UsageError(one_line(error)) from error
    settings.build_defense()
    settings.build_attack()
    return settings


def expand(grid: dict[str, list[Any]], **common: Any) -> list[CellSettings]:
    """Every combination of the listed values as a cell, in the order given.

    ``grid`` maps setting names to values; the entries ``defense`` and ``attack`` hold (name, arguments) pairs, and
    ``model_at`` holds settings that belong together: a round and its weights. Values listed go before ``common`` ones.
    """
    cells = []
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        for kind in ("defense", "attack"):
            values[kind], values[f"{kind}_args"] = values[kind]
        values |= values.pop("model_at", {})
        cells.append(cell_settings(**(common | values)))
    return cells


def taps_of(surfaces: list[int], taps: list[str]) -> list[str]:
    """Tap names of surface numbers and taps; all three surfaces when neither is given.

    Raises:
        UsageError: there is no such surface or tap.
    """
    for surface in surfaces:
        if surface not in SURFACES:
            raise UsageError(f"unknown surface {surface}; surfaces are 0 (server), 1 (update) and 2 (local step)")
    named = [SURFACES[surface] for surface in surfaces] + [check_tap(tap) for tap in taps]
    return list(dict.fromkeys(named)) or list(SURFACES.values())
