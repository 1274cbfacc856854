"""A training run as what a statement about it depends on, for whoever attacks a model that it kept."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from harness.base.vectors import Layout
from harness.defenses import PrivacyFacts
from harness.training.settings import TrainSettings

Count = Annotated[int, Field(ge=1)]


class TrainedRun(BaseModel):
    """Where a run lies, its settings, the ``rounds`` it finished, and what its clients held (``spending.Holdings``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    settings: TrainSettings
    rounds: Count
    holders: Count
    copies: Count

    def facts(self, layout: Layout) -> PrivacyFacts:
        """What the privacy statement of the whole run depends on, for a model of this layout."""
        return self.settings.facts(layout, self.rounds, self.holders)
