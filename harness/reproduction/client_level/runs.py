"""The federations of S003 and S001: what the papers leave open is chosen here, once for all cells."""

import statistics
from typing import Any

from harness.reproduction.chance import chance_level
from harness.reproduction.comparison import Request
from harness.reproduction.data import at_hand
from harness.reproduction.measured import Measured
from harness.reproduction.trained import TrainedRuns
from harness.training import TrainDocument, TrainSettings, train_settings

LEARNING_RATE = 0.1
EXAMPLES, QUICK_EXAMPLES = {"mnist": 600, "retina": 350}, 60
# The paper retrains the last layer of a ResNet-50; random filters stand in for its pretrained features.
MODELS = {"retina": "frozen_linear"}
_WARM_UP = 0.1


class ClientRuns:
    """Trains what the tables ask for, each run once."""

    def __init__(self, request: Request) -> None:
        self.request, self.trained = request, TrainedRuns(request)

    def settings(self, data: str, **changes: Any) -> TrainSettings | None:
        """Training settings with one pass over a client's data per round; None where the data is not at hand."""
        name = at_hand(data, self.request.data_root)[0]
        if name is None:
            return None
        small = self.request.quick or name.endswith("-sample")
        examples = QUICK_EXAMPLES if small else EXAMPLES[data]
        values = {
            "dataset": name, "model": MODELS.get(data, "cnn"), "local_steps": 1, "batch_size": examples,
            "examples": examples, "client_sampling": "poisson", "learning_rate": LEARNING_RATE,
            "seed": self.request.seeds[0], "device": self.request.device,
        }  # fmt: skip
        return train_settings(**(values | changes))

    def run(self, title: str, settings: TrainSettings, bayesian: bool = False) -> TrainDocument | None:
        """The run; None where it diverged."""
        return self.trained.document(title, settings, bayesian=bayesian)

    def measured(self, settings: TrainSettings, document: TrainDocument | None, after: int | None = None) -> Measured:
        """Accuracy after so many rounds (all by default), and whether it needs no training."""
        curve = {one.round: one.accuracy for one in document.rounds if one.accuracy is not None} if document else {}
        last = after or max(curve, default=0)
        accuracy = curve.get(last, 0.0)
        level = chance_level(settings.dataset, settings.model, self.request.data_root)
        return Measured(accuracy, accuracy <= level, curve, settings.rounds)

    def data_line(self, data: str) -> str:
        """One line on the data that is used."""
        name, line = at_hand(data, self.request.data_root)
        if name is None and data == "retina":
            return "APTOS 2019 (retina): not at hand; put its images into one folder per class below retina/"
        return line

    def sizes(self) -> str:
        """How many examples a client holds."""
        full = ", ".join(f"{count} ({data})" for data, count in EXAMPLES.items())
        if self.request.quick:
            return f"scaled down by --quick: {QUICK_EXAMPLES} examples per client instead of {full}"
        return f"examples per client: {full}; {QUICK_EXAMPLES} where only a bundled sample is at hand"


def clipping_bound(document: TrainDocument) -> float:
    """The median, over the first tenth of a run's rounds, of the mean norm of an update."""
    first = document.rounds[: max(round(_WARM_UP * len(document.rounds)), 1)]
    return statistics.median(record.update_norm for record in first if record.update_norm is not None)
