"""What every part of a result document is made of: plain JSON values, fixed once made."""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

VerdictWord = Literal["leaks", "resilient", "inconclusive"]
LabelsWord = Literal["inferred", "known"]
TierWord = Literal["plain", "informed", "tampering"]
BLIND = "blind"
"""The control that guesses the victims without a gradient, as an attack."""
TIERS: tuple[TierWord, ...] = ("plain", "informed", "tampering")
"""From who knows least to who may do most."""


def without_non_finite(value: Any) -> Any:
    """The same value with every NaN and infinity replaced by None; tuples become lists, as in JSON."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: without_non_finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_non_finite(entry) for entry in value]
    return value


def _whole(interval: tuple[float | None, float | None] | None) -> tuple[float | None, float | None] | None:
    """None unless both ends are there: half an interval says nothing."""
    return None if interval is None or None in interval else interval


# After conversion, so that every kind of number (a numpy float32, say) is a float by then.
Number = Annotated[float | None, AfterValidator(without_non_finite)]
Interval = Annotated[tuple[Number, Number] | None, AfterValidator(_whole)]
Facts = Annotated[dict[str, JsonValue], BeforeValidator(without_non_finite)]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A part of the document: fixed once made, and nothing in it that the schema does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
