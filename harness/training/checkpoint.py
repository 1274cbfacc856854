"""The files of a training run: a checkpoint to go on from, and the models of the rounds that were asked for."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.control_variates import RoundVariates, variates_file, write_variates
from harness.errors import UsageError
from harness.own_sources import OWN_NAMES
from harness.results.atomic import write_atomic
from harness.server_state import state_file, write_state
from harness.training.records import RoundRecord, TrainDocument
from harness.training.settings import TrainSettings

DOCUMENT = "training.json"


class TrainFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(
        self, settings: TrainSettings, sources: dict[str, str], weights: Tensor, memory: dict[str, Any],
        done: list[RoundRecord], kept: list[int],
    ) -> None:  # fmt: skip
        """Writes the checkpoint after a round, whole or not at all.

        ``sources``: of the user's own files, as the run began with them; ``kept``: rounds whose model was kept.
        """
        content = {
            "settings": settings.model_dump_json(), "weights": weights.cpu(), "memory": memory,
            "rounds": json.dumps([record.model_dump() for record in done]), "kept": kept,
            "sources": sources,
        }  # fmt: skip
        write_atomic(self.path / "checkpoint.pt", _bytes(content))

    def load(
        self, settings: TrainSettings, sources: dict[str, str]
    ) -> tuple[Tensor, dict[str, Any], list[RoundRecord], list[int]] | None:
        """Weights, memory, finished rounds and kept rounds of the checkpoint; None where there is none.

        Another number of planned rounds is no other setting where the rounds that are done do not depend on it.

        Raises:
            UsageError: the checkpoint is damaged, or of other settings.
        """
        path = self.path / "checkpoint.pt"
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            made_with, weights, memory = saved["settings"], saved["weights"], saved["memory"]
            rounds = [RoundRecord(**record) for record in json.loads(saved["rounds"])]
            kept = [int(number) for number in saved.get("kept", range(len(rounds) + 1))]
            made_from = saved.get("sources", {})
        except FileNotFoundError:
            return None
        except Exception as error:  # torch.load raises a dozen types for a damaged file
            raise UsageError(f"checkpoint {str(path)!r} is damaged; delete it, or choose another --out") from error
        if differences := _differences(made_with, settings, len(rounds)):
            raise UsageError(
                f"checkpoint {str(path)!r} is of other settings ({', '.join(differences[:3])}); "
                "choose another --out, or leave out --resume"
            )
        for name, digest in sources.items():
            if made_from.get(name, digest) != digest:
                raise UsageError(
                    f"checkpoint {str(path)!r} was made with another content of the {OWN_NAMES[name]}'s file; "
                    "choose another --out, or leave out --resume"
                )
        return weights, memory, rounds, kept

    def keep(self, round_index: int, named: dict[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """Writes the model after ``round_index`` rounds as a state dictionary, and what the server remembers."""
        content = _bytes({key: value.detach().cpu().clone() for key, value in named.items()})
        if server:
            write_state(self.path / state_file(round_index), server)
        else:
            (self.path / state_file(round_index)).unlink(missing_ok=True)
        write_atomic(self.path / model_file(round_index), content)

    def keep_variates(self, round_index: int, variates: RoundVariates, model: str) -> None:
        """Writes the control variates after ``round_index`` rounds, which the next one begins with."""
        write_variates(self.path / variates_file(round_index), variates, model)

    def kept(self, rounds: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
        """Names of the models, and of the server's states, that lie here for some rounds."""
        found = [
            {number: name(number) for number in sorted(set(rounds)) if (self.path / name(number)).is_file()}
            for name in (model_file, state_file)
        ]
        return found[0], found[1]

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


def _differences(made_with: str, settings: TrainSettings, done: int) -> list[str]:
    """What forbids to go on after ``done`` rounds, in words; another device does not, nor another end that may be."""
    before, now = json.loads(made_with), json.loads(settings.model_dump_json())
    names = [name for name in now if before.get(name) != now[name] and name not in ("device", "rounds")]
    found = [f"{name} {before.get(name)} there, {now[name]} here" for name in names]
    if before.get("rounds") != now["rounds"] and (why := _end_is_fixed(settings, done)):
        found.append(f"rounds {before.get('rounds')} there, {now['rounds']} here, and {why}")
    return found


def _end_is_fixed(settings: TrainSettings, done: int) -> str | None:
    """Why the rounds that are done are not the first ones of these settings; None where they are."""
    if settings.rounds < done:
        return f"{done} are done"
    needs = settings.build_defense().needs_planned_rounds()
    return needs and f"{needs} goes by the planned rounds"
