"""What was evaluated where: the settings that a cell has in common with those that differ only in the attack."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from harness.results.record import Count, Facts, Record

#: Which and how many victims were drawn; they may change between runs that are compared.
WHOM = ("seeds", "victims")


class PublicData(Record):
    """The data of an informed attacker's prior: ``size`` examples."""

    name: str
    size: Count


class Place(Record):
    """``prior`` is None where nothing was public; where a half of the dataset was, the other is attacked.

    ``shared_weights``: victims of a seed share one network, where otherwise each has its own.
    ``batch_norm``: whether running statistics travel beside updates; None where the network trains no BatchNorm.
    ``surface`` is None where only a tap is named; ``observations``: how often the adversary saw the same record.
    ``options``: every other option that is not at its default; a document leaves it out where there is none."""

    dataset: str
    model: str
    defense: str
    defense_args: Facts = Field(default_factory=dict)
    surface: Literal[0, 1, 2] | None = None
    tap: str
    seeds: list[int]
    shared_weights: bool = False
    victims: Count
    prior: PublicData | None = None
    batch_size: Annotated[int, Field(ge=1)] = 1
    local_steps: Annotated[int, Field(ge=1)] = 1
    update_model: Literal["first", "avg", "unroll"] = "first"
    round: Count = 0
    batch_norm: Literal["sent", "hidden"] | None = None
    observations: Annotated[int, Field(ge=1)] = 1
    cohort: Facts = Field(default_factory=dict)
    options: Facts = Field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything above by its name, and every other option by its own."""
        return dict(self) | self.options

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        if not values.get("options"):
            values.pop("options", None)
        return values
