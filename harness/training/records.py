"""What a training run reports: one record per round, and the document around them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.results import PrivacyStatement

Number = float | None


class RoundRecord(BaseModel):
    """One round, counted from 1; what was not measured in it is null.

    Attributes:
        accuracy, loss: of the global model on the test part after the round.
        claimed_epsilon: by the paper's convention, after this round; null where the defense claims none.
        noise: largest standard deviation of the noise on a local step; 0 without.
        gradient_norm: mean L2 norm of a per-example gradient at the first local step, before the defense.
        update_norm: mean L2 norm of a client's raw update.
        participants: clients that took part.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=True)

    round: int
    accuracy: Number = None
    loss: Number = None
    claimed_epsilon: Number = None
    noise: Number = None
    gradient_norm: Number = None
    update_norm: Number = None
    participants: int
    seconds: float


class TrainDocument(BaseModel):
    """A training run. ``overlap``: how many clients share an example on average; 1 for disjoint clients.

    ``holders``: the most that hold one; ``copies``: how often one client holds it at most (both null in runs of
    versions that did not count them). ``sources``: digests of the user's own files, see ``harness.own_sources``.

    ``weights`` maps rounds to the files of the models that were kept, relative to the folder; ``server_state`` those to
    what the server remembered by then, where it remembered anything (null in runs of versions that did not keep it).
    ``bayesian``: rows of :class:`harness.training.bayesian.Bayesian`, if the run took notes for it; they are not DP.
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = 1
    kind: Literal["training"] = "training"
    environment: dict[str, Any]
    settings: dict[str, Any]
    units: str
    parameters: int
    train_examples: int
    test_examples: int
    overlap: float
    sources: dict[str, str] = Field(default_factory=dict)
    holders: int | None = None
    copies: int | None = None
    rounds: list[RoundRecord]
    stopped: str | None = None
    accuracy: Number = None
    privacy: list[PrivacyStatement]
    weights: dict[int, str]
    server_state: dict[int, str] | None = None
    bayesian: list[dict[str, Any]] = Field(default_factory=list)
    seconds: float
