"""Report of a training run: one record per round, and the document around them."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from harness.base.presence import lax
from harness.results import Statement

Number = float | None
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


class RoundRecord(BaseModel, extra="forbid", allow_inf_nan=True):
    """One round, counted from 1; what was not measured in it is null.

    Attributes:
        accuracy, loss: of the global model on the test part after the round.
        claimed_epsilon: by the paper's convention, after this round; null where the defense claims none.
        noise: largest standard deviation of the noise on a local step; 0 without.
        gradient_norm: mean L2 norm of a per-example gradient at the first local step, before the defense.
        update_norm: mean L2 norm of a client's raw update.
        participants: clients that took part.
    """

    round: AtLeastOne
    accuracy: Share | None = None
    loss: Number = None
    claimed_epsilon: Number = None
    noise: Number = None
    gradient_norm: Number = None
    update_norm: Number = None
    participants: Count
    seconds: Seconds


class TrainDocument(BaseModel, extra="forbid"):
    """A training run. ``overlap``: how many clients share an example on average; 1 for disjoint clients.

    ``holders``: the most that hold one; ``copies``: how often one client holds it at most (both null in runs of
    versions that did not count them). ``sources``: digests of the user's own files, see ``harness.own_sources``.
    ``secret``: whether noise and sampling took a secret key, so that the settings alone do not make the numbers again.

    ``weights`` maps rounds to the files of the models that were kept, relative to the folder; ``server_state`` those to
    what the server remembered by then, where it remembered anything (null in runs of versions that did not keep it).
    ``bayesian``: rows of :class:`harness.training.bayesian.Bayesian`, if the run took notes for it; they are not DP.
    """

    schema_version: Literal[1] = 1
    kind: Literal["training"] = "training"
    environment: dict[str, Any]
    settings: dict[str, Any]
    units: str
    parameters: Count
    train_examples: Count
    test_examples: Count
    overlap: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    sources: dict[str, str] = Field(default_factory=dict)
    holders: AtLeastOne | None = None
    copies: AtLeastOne | None = None
    secret: bool = False
    rounds: list[RoundRecord]
    stopped: str | None = None
    accuracy: Share | None = None
    privacy: list[Statement]
    weights: dict[int, str]
    server_state: dict[int, str] | None = None
    bayesian: list[dict[str, Any]] = Field(default_factory=list)
    seconds: Seconds

    def careless(self, one: Statement) -> str | None:
        """Return what is wrong with the delta of one of its statements, see :func:`harness.base.presence.lax`."""
        counts = {"example": self.train_examples, "client": self.settings.get("clients")}
        units = counts.get(one.unit or "")
        return lax(one.delta, one.unit, units) if isinstance(units, int) and one.epsilon is not None else None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if [record.round for record in self.rounds] != list(range(1, len(self.rounds) + 1)):
            raise ValueError("'rounds' are not the first ones, one after another")
        last = next((one.accuracy for one in reversed(self.rounds) if one.accuracy is not None), self.accuracy)
        if self.accuracy != last:
            raise ValueError(f"'accuracy' is {self.accuracy}, that of the last round which was measured is {last}")
        for name, files in (("weights", self.weights), ("server_state", self.server_state or {})):
            for number, file in files.items():
                if not re.fullmatch(rf"models/round_{number:05d}\.[a-z.]+", file):
                    raise ValueError(f"{name!r} names {file[:80]!r}, which is no file of round {number}")
        return self
