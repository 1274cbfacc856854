"""What a capture's ``capture.json`` says: which client this was, and how it trained."""

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.base.ranges import Count, CountOrNone, Positive

#: The names of a capture's files: what it says, and arrays before and after the client's training.
FACTS, BEFORE, TRUTH = "capture.json", "before", "truth"
#: What the client sent, one of three: its model, the model's change, or the gradient of one step.
Sent = Literal["after", "update", "gradient"]
SENT: tuple[Sent, ...] = ("after", "update", "gradient")

# Frameworks whose first round is 1.
_FROM_ONE = {"flower", "flwr"}

_Side = Annotated[int, Field(ge=1, le=100_000)]


class Declared(BaseModel):
    """The defense that the client is said to train under, as ``--defense`` and ``--defense-arg`` name it, or as a
    framework does: a class with its arguments (:mod:`harness.judging.frameworks`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    settings: Mapping[str, Any] = Field(default_factory=dict)


class CaptureRecord(BaseModel):
    """The facts of a capture; the numbers are in the arrays beside it.

    Attributes:
        model: ``module:factory``, called with ``image_shape`` and ``classes``, or a model of this project.
        image_shape: (C, H, W).
        classes: K, of the network's output.
        learning_rate: of local training.
        local_steps: L, before the client sent.
        batch_size: B, examples in a step; of Poisson batches, how many there really were.
        expected_batch_size: what a step's sum was divided by, where that is not the batch's own size (Poisson batches).
        epochs: E, passes over the client's ``examples`` in the local steps.
        frozen: names of parameters that were not trained.
        optimizer: of local training. An adaptive one does not send gradients; of one step momentum does.
        examples: of the client, where it is known.
        clients, clients_per_round, rounds: of the federation, where the declared noise depends on them.
        defense: None where none is declared.
        framework, client, round: where it comes from, in the federation's own words.
        first_round: the number of its first round, 0 or 1; None for what its framework has: Flower counts from 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    model: str
    image_shape: tuple[_Side, _Side, _Side]
    classes: Annotated[int, Field(ge=2, le=100_000)]
    learning_rate: Positive
    batch_size: Count
    expected_batch_size: Positive | None = None
    local_steps: Count = 1
    epochs: Count | None = None
    frozen: tuple[str, ...] = ()
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    examples: Count | None = None
    clients: Count | None = None
    clients_per_round: Count | None = None
    rounds: Count | None = None
    defense: Declared | None = None
    framework: str | None = None
    client: str | None = None
    round: CountOrNone = 0
    first_round: Literal[0, 1] | None = None

    @model_validator(mode="after")
    def _facts_agree(self) -> "CaptureRecord":
        examples, size = self.examples, self.expected_batch_size or self.batch_size
        if examples is None:
            return self
        if size > examples:
            raise ValueError(f"batch_size {size:g} is more than the client's {examples} examples; correct one of them")
        steps = {(self.epochs or 1) * part for part in (math.ceil(examples / size), math.floor(examples / size))}
        if self.epochs is not None and self.local_steps not in steps:
            raise ValueError(
                f"epochs {self.epochs} over {examples} examples in batches of {size:g} are {max(steps)} local_steps, "
                f"and {self.local_steps} are declared; correct one of them"
            )
        return self

    @property
    def rate(self) -> float:
        """The learning rate of the mean over the examples that really were in a step."""
        return self.learning_rate * self.batch_size / (self.expected_batch_size or self.batch_size)

    @property
    def truths(self) -> int:
        """Examples behind the local steps, each as often as it was trained on."""
        return sum(self.step_sizes())

    def slots(self) -> list[int]:
        """Return the example in each place of L steps with B places each.

        A smaller last batch fills its places by turns, whose mean is its own where its size divides B.
        """
        starts = accumulate(self.step_sizes(), initial=0)
        return [
            start + place % size
            for start, size in zip(starts, self.step_sizes(), strict=False)
            for place in range(self.batch_size)
        ]

    def step_sizes(self) -> tuple[int, ...]:
        """Examples in each local step: a pass over the client's examples ends with those that are left."""
        passes, left = self.epochs or 1, (self.examples or 0) % self.batch_size
        steps = -(-(self.examples or 0) // self.batch_size)
        if not left or self.expected_batch_size or steps * passes != self.local_steps:
            return (self.batch_size,) * self.local_steps
        return ((self.batch_size,) * (steps - 1) + (left,)) * passes

    @property
    def rounds_before(self) -> int:
        """Rounds that came before this one."""
        usual = 1 if (self.framework or "").lower() in _FROM_ONE else 0
        return max(0, self.round - (usual if self.first_round is None else self.first_round))
