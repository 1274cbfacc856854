"""The files of a training run: a checkpoint to go on from, and the models of the rounds that were asked for."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.results.atomic import write_atomic
from harness.training.records import RoundRecord, TrainDocument
from harness.training.settings import TrainSettings

DOCUMENT = "training.json"


class TrainFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, settings: TrainSettings, weights: Tensor, memory: dict[str, Any], done: list[RoundRecord]) -> None:
        """Writes the checkpoint after a round, whole or not at all."""
        content = {
            "settings": settings.model_dump_json(), "weights": weights.cpu(), "memory": memory,
            "rounds": json.dumps([record.model_dump() for record in done]),
        }  # fmt: skip
        write_atomic(self.path / "checkpoint.pt", _bytes(content))

    def load(self, settings: TrainSettings) -> tuple[Tensor, dict[str, Any], list[RoundRecord]] | None:
        """Weights, memory and finished rounds of the checkpoint; None where there is none.

        Raises:
            UsageError: the checkpoint is damaged, or of other settings.
        """
        path = self.path / "checkpoint.pt"
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            made_with, weights, memory = saved["settings"], saved["weights"], saved["memory"]
            rounds = [RoundRecord(**record) for record in json.loads(saved["rounds"])]
        except FileNotFoundError:
            return None
        except Exception as error:  # torch.load raises a dozen types for a damaged file
            raise UsageError(f"checkpoint {str(path)!r} is damaged; delete it, or choose another --out") from error
        if _comparable(made_with) != _comparable(settings.model_dump_json()):
            raise UsageError(
                f"checkpoint {str(path)!r} is of other settings ({_difference(made_with, settings)}); "
                "choose another --out, or leave out --resume"
            )
        return weights, memory, rounds

    def keep(self, round_index: int, named: dict[str, Tensor]) -> str:
        """Writes the model after ``round_index`` rounds as a state dictionary; its path relative to the folder."""
        name = model_file(round_index)
        write_atomic(self.path / name, _bytes({key: value.detach().cpu().clone() for key, value in named.items()}))
        return name

    def write(self, document: TrainDocument) -> None:
        """Writes ``training.json``."""
        write_atomic(self.path / DOCUMENT, document.model_dump_json(indent=1).encode())


def model_file(round_index: int) -> str:
    """Name of the model after a number of rounds, relative to the run's folder."""
    return f"models/round_{round_index:05d}.pt"


def read_training(folder: Path) -> TrainDocument:
    """The document of a finished or stopped run.

    Raises:
        UsageError: the folder has none, or it is damaged.
    """
    path = folder / DOCUMENT
    try:
        return TrainDocument.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"no training run in {str(folder)!r}; make one with: harness train --out {folder}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)!r} is not a training run of this version; train again") from error


def _bytes(content: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _comparable(settings: str) -> dict[str, Any]:
    """Settings without what may differ between a run and the one that goes on from it."""
    return {name: value for name, value in json.loads(settings).items() if name != "device"}


def _difference(made_with: str, settings: TrainSettings) -> str:
    before, now = _comparable(made_with), _comparable(settings.model_dump_json())
    names = [name for name in now if before.get(name) != now[name]]
    return ", ".join(f"{name} {before.get(name)} there, {now[name]} here" for name in names[:3])
