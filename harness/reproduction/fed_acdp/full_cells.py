"""The cells of the accuracy at full scale: methods and levels of noise, and the command that makes a run alone."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.papers.accuracy import CODE_SIGMA, TABLE_5, TABLE_6_ACCURACY
from harness.papers.grid import grid
from harness.training import TrainSettings

#: Cheap ones first; a run may be stopped at any time.
DATASETS = ("cancer", "adult", "mnist", "lfw", "cifar10")
METHODS = ("non-private", "Fed-SDP", "Fed-CDP", "Fed-αCDP", "Fed-αCDP[σ]", "Quantile", "AdaClip")
#: Tried from the top, the same for every row.
LADDER = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
AS_PRINTED = None
#: Of the released scripts, tried for every row.
RELEASED = CODE_SIGMA
PRINTED_CLIP = 4.0

ADAPTIVE: dict[str, str] = grid("table10").facts["methods"]

# The printed schedules fall from 15 to 4.85 (Table VIII); one that starts lower keeps their shape.
_LEFT_AT_THE_END = 4.85 / 15


@dataclass(frozen=True)
class Cell:
    """A method on the paper's dataset; ``sigma``: its noise multiplier, the first one of Fed-αCDP[σ]; ``clip``: C."""

    data: str
    method: str
    sigma: float | None = AS_PRINTED
    clip: float = PRINTED_CLIP

    @property
    def name(self) -> str:
        """The method, with its C where that is another than the others'."""
        return self.method if self.clip == PRINTED_CLIP else f"{self.method}, C={self.clip:g}"

    @property
    def paper(self) -> float:
        """The printed accuracy."""
        if self.clip != PRINTED_CLIP:
            return TABLE_5[self.method, self.data, self.clip]
        found = TABLE_6_ACCURACY.get((self.method, self.data))
        if found is not None:
            return found
        row = next(row for row in grid("table10").printed() if row["data"] == self.data)
        return row["accuracies"][list(ADAPTIVE).index(self.method)]

    @property
    def noise(self) -> str:
        """The level in words."""
        if self.sigma is AS_PRINTED:
            return "as printed" if has_noise(self.method) else "no defense"
        return f"σ={self.sigma:g}" if self.sigma else "×0"

    def trained(self) -> tuple[str, dict[str, Any]]:
        """The name under which the tables train it, and what differs there."""
        name, changes = self._trained()
        return name, changes if self.clip == PRINTED_CLIP else changes | {"clip": self.clip}

    def _trained(self) -> tuple[str, dict[str, Any]]:
        name = ADAPTIVE.get(self.method, self.method)
        if self.sigma is None:
            return name, {}
        if name == self.method:
            return name, {"sigma": self.sigma}
        if self.sigma == 0:
            return "Fed-αCDP", {"sigma": 0.0}  # without noise nothing decays
        return name, {"schedule": "sigma", "sigma": self.sigma, "sigma_end": self.sigma * _LEFT_AT_THE_END}


#: Where Table V lets the noise grow: its four largest C, less the one that every row has.
BOUNDED = tuple(Cell("mnist", "Fed-SDP", RELEASED, clip) for clip in (8.0, 16.0, 32.0))


def has_noise(method: str) -> bool:
    """Whether its row has other levels of noise beside the printed one."""
    return method != "non-private"


def command(settings: TrainSettings, folder: Path) -> str:
    """What makes this run alone, into the folder where the table finds it."""
    fields = TrainSettings.model_fields
    chosen = {
        name: value for name, value in settings.model_dump().items()
        if name not in ("defense_args", "device") and (name in ("dataset", "seed") or value != fields[name].default)
    }  # fmt: skip
    words = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for name, value in settings.defense_args.items() for word in ("--defense-arg", f"{name}={value}")]
    return shlex.join(["harness", "train", *words, "--resume", "--out", str(folder)])
