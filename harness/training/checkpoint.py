"""The files of a training run: a checkpoint to go on from, and the models of the rounds that were asked for."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from harness.base.building import build
from harness.base.devices import threads_of
from harness.base.errors import UsageError
from harness.defenses import DEFENSES, Defense
from harness.federation.memory import RoundVariates, state_file, variates_file, write_state, write_variates
from harness.own_sources import OWN_NAMES, own_sources
from harness.results.atomic import remove_plain, write_atomic
from harness.results.files import (
    MOST_OF_A_DOCUMENT,
    Absent,
    Damaged,
    FiniteTensor,
    Stored,
    checked,
    parse_json,
    parse_tensors,
    read_bytes,
    read_stored,
    read_text,
)
from harness.results.training import RoundRecord, TrainDocument
from harness.training.settings import TrainedRun, TrainSettings, train_settings

log = logging.getLogger(__name__)

DOCUMENT = "training.json"
_CHECKPOINT = "checkpoint.pt"
_KEY = "noise.key"
_KEY_BYTES = 32
_FIX = "train again"


class _Memory(Stored):
    server: dict[str, FiniteTensor]
    clients: dict[str, FiniteTensor]


class _State(Stored):
    defense: _Memory
    algorithm: _Memory
    velocity: FiniteTensor
    squares: FiniteTensor | None = None
    running: dict[str, FiniteTensor] = Field(default_factory=dict)


class _Checkpoint(Stored):
    settings: str
    weights: FiniteTensor
    memory: _State
    rounds: str
    kept: list[int] | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    threads: int | None = None
    key_digest: str | None = None


class TrainFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        """Return the checkpoint that a stopped run goes on from."""
        return self.path / _CHECKPOINT

    def save(
        self, settings: TrainSettings, sources: dict[str, str], weights: Tensor, memory: dict[str, Any],
        done: list[RoundRecord], kept: list[int], key: int | str,
    ) -> None:  # fmt: skip
        """Writes the checkpoint after a round, whole or not at all.

        ``sources``: of the user's own files, as the run began with them; ``kept``: rounds whose model was kept;
        ``key``: of the noise, of which only a digest is written, and none of a public seed.
        """
        content = {
            "settings": settings.model_dump_json(), "weights": weights.cpu(), "memory": memory,
            "rounds": json.dumps([record.model_dump() for record in done]), "kept": kept,
            "sources": sources, "threads": threads_of(settings.device),
            "key_digest": _key_digest(key) if isinstance(key, str) else None,
        }  # fmt: skip
        write_atomic(self.checkpoint, _bytes(content))

    def load(
        self, settings: TrainSettings, sources: dict[str, str], secret: bool = False
    ) -> tuple[Tensor, dict[str, Any], list[RoundRecord], list[int], int | str] | None:
        """Weights, memory, finished rounds, kept rounds and key of the checkpoint; None where there is none.

        ``secret``: whether its noise is to have a key of its own, and not the seed.

        Another number of planned rounds is no other setting where the rounds that are done do not depend on it.

        Raises:
            UsageError: the checkpoint is damaged, or of other settings.
        """
        path = self.checkpoint
        try:
            content = read_bytes(path)
        except Absent:
            return None
        try:
            saved = checked(_Checkpoint, parse_tensors(content))
            rounds = checked(list[RoundRecord], parse_json(saved.rounds.encode()))
            kept = _kept(saved, rounds)
            differences = _differences(parse_json(saved.settings.encode()), settings, len(rounds))
        except Damaged as problem:
            raise self.damaged(problem) from problem
        if differences:
            raise UsageError(
                f"checkpoint {str(path)!r} is of other settings ({', '.join(differences[:3])}); "
                "choose another --out, or leave out --resume"
            )
        for name, digest in sources.items():
            if saved.sources.get(name, digest) != digest:
                other = f"content of the {OWN_NAMES[name]}" if name in OWN_NAMES else f"version of the {name}"
                raise UsageError(
                    f"checkpoint {str(path)!r} was made with another {other}; "
                    "choose another --out, or leave out --resume"
                )
        threads = threads_of(settings.device)
        if saved.threads and threads and saved.threads != threads:
            log.warning(
                "harness: the checkpoint is of %d threads per process, this goes on with %d, and last bits may differ; "
                "--threads %d keeps them", saved.threads, threads, saved.threads,
            )  # fmt: skip
        return saved.weights, saved.memory.model_dump(), rounds, kept, self._key(saved, settings, secret)

    def saved_rounds(self) -> list[RoundRecord]:
        """The rounds in the checkpoint; none where there is none. Raises UsageError where it is damaged."""
        try:
            saved = checked(_Checkpoint, parse_tensors(read_bytes(self.checkpoint)))
            return checked(list[RoundRecord], parse_json(saved.rounds.encode()))
        except Absent:
            return []
        except Damaged as problem:
            raise self.damaged(problem) from problem

    def new_key(self) -> str:
        """A key for the noise and sampling of a run, from the operating system; only its owner can read its file."""
        key = os.urandom(_KEY_BYTES).hex()
        write_atomic(self.path / _KEY, key.encode(), mode=0o600)
        return key

    def _key(self, saved: _Checkpoint, settings: TrainSettings, secret: bool) -> int | str:
        """The key that the checkpoint's run has drawn from. Raises UsageError, which never shows it."""
        where = f"checkpoint {str(self.checkpoint)!r}"
        if saved.key_digest is None:
            if secret:
                raise UsageError(
                    f"{where} took its noise from a seed; add --seed {settings.seed}, or leave out --resume"
                )
            return settings.seed
        if not secret:
            raise UsageError(f"{where} took its noise from a secret key; leave out --seed, or --resume")
        try:
            key = read_text(self.path / _KEY)
        except Absent as error:
            raise UsageError(
                f"{where} needs the key of its noise, {_KEY}, which is not there; put it back, or leave out --resume"
            ) from error
        if _key_digest(key) != saved.key_digest:
            raise UsageError(f"{where} was made with another {_KEY}; put it back, or leave out --resume")
        return key

    def damaged(self, problem: Damaged) -> UsageError:
        """The one line for a checkpoint that nothing can go on from."""
        return UsageError(f"checkpoint {str(self.checkpoint)!r} {problem}; delete it, or choose another --out")

    def keep(self, round_index: int, named: dict[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """Writes the model after ``round_index`` rounds as a state dictionary, and what the server remembers."""
        content = _bytes({key: value.detach().cpu().clone() for key, value in named.items()})
        if server:
            write_state(self.path / state_file(round_index), server)
        else:
            remove_plain(self.path / state_file(round_index))
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
        UsageError: the folder has none, it cannot be read, or something in it is not what a run writes.
    """
    path = folder / DOCUMENT
    try:
        document = read_stored(path, TrainDocument, parse_json, _FIX, MOST_OF_A_DOCUMENT)
    except Absent as error:
        raise UsageError(f"no training run in {str(folder)!r}; make one with: harness train --out {folder}") from error
    try:
        settings = checked(TrainSettings, document.settings)
        settings.build_defense()
    except (Damaged, UsageError) as problem:
        words = str(problem).removeprefix("is damaged: ")
        raise UsageError(f"{str(path)!r} has settings of no run ({words}); {_FIX}") from problem
    return document.model_copy(update={"settings": settings.model_dump(mode="json")})


def _bytes(content: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _key_digest(key: str) -> str:
    """Return what tells keys apart; 256 random bits cannot be found from it."""
    return hashlib.sha256(f"noise key {key}".encode()).hexdigest()


def _kept(saved: _Checkpoint, rounds: list[RoundRecord]) -> list[int]:
    """Numbers of the rounds whose model was kept; older versions did not note them. Raises Damaged."""
    if not rounds or [record.round for record in rounds] != list(range(1, len(rounds) + 1)):
        raise Damaged("is damaged: 'rounds' are not the first ones, one after another")
    kept = list(range(len(rounds) + 1)) if saved.kept is None else saved.kept
    if any(not 0 <= number <= len(rounds) for number in kept):
        raise Damaged("is damaged: 'kept' names rounds that were not played")
    return kept


def _differences(before: Any, settings: TrainSettings, done: int) -> list[str]:
    """Return what forbids to go on after ``done`` rounds, in words; another device does not, nor another end that may
    be."""
    if not isinstance(before, dict):
        raise Damaged("is damaged: 'settings' are none")
    now = json.loads(settings.model_dump_json())
    known = [name for name in TrainSettings.model_fields if name not in ("device", "rounds")]
    names = [name for name in known if before.get(name) != now.get(name)]
    if "defense_args" in names and _same_defense(before, settings):
        names.remove("defense_args")
    found = [f"{name} {before.get(name)} there, {now.get(name)} here" for name in names]
    if before.get("rounds") != now["rounds"] and (why := _end_is_fixed(settings, done)):
        found.append(f"rounds {before.get('rounds')} there, {now['rounds']} here, and {why}")
    return found


def _same_defense(before: dict[str, Any], settings: TrainSettings) -> bool:
    """Return whether they say the same in other words: numbers of a command line are kept as text."""
    try:
        return checked(TrainSettings, before).build_defense() == settings.build_defense()
    except (Damaged, UsageError):
        return False


def _end_is_fixed(settings: TrainSettings, done: int) -> str | None:
    """Return why the rounds that are done are not the first ones of these settings; None where they are."""
    if settings.rounds < done:
        return f"{done} are done"
    needs = settings.build_defense().needs_planned_rounds()
    return needs and f"{needs} goes by the planned rounds"


# The models a training run kept, as settings of the cells that attack them.


def training_options(folder: Path) -> dict[str, Any]:
    """Options of ``harness evaluate`` that continue a training run: its data, model, defense and federation.

    Raises:
        UsageError: there is no training run in the folder.
    """
    settings = read_training(folder).settings
    return {
        "dataset": [settings["dataset"]], "model": [settings["model"]] if settings["model"] else [],
        "defense": [settings["defense"]],
        "defense_arg": [f"{name}={value}" for name, value in settings["defense_args"].items()],
        "learning_rate": settings["learning_rate"], "clients": settings["clients"],
        "clients_per_round": settings["clients_per_round"], "rounds": settings["rounds"],
        "steps_per_round": settings["local_steps"],
    }  # fmt: skip


def trained_run(folder: Path) -> TrainedRun:
    """Return the facts that statements about a training run depend on.

    Raises:
        UsageError: the run is of a version that did not count how many clients hold an example, or finished no round.
    """
    document = read_training(folder)
    if document.holders is None or document.copies is None:
        raise UsageError(
            f"the run in {str(folder)!r} is of an older version, which did not count the clients that hold one "
            "example; train it again"
        )
    if not document.rounds:
        raise UsageError(f"the run in {str(folder)!r} finished no round; train it with more rounds or a larger budget")
    if document.sources:
        _refuse_changed(document, folder)
    return TrainedRun(
        folder=str(folder), settings=train_settings(**document.settings), rounds=len(document.rounds),
        holders=document.holders, copies=document.copies,
    )  # fmt: skip


def kept_model(folder: Path, round_index: int) -> Path:
    """The file of the model after a number of rounds.

    Raises:
        UsageError: the run did not keep it; the message says which rounds it kept.
    """
    return folder / _name_of_model(folder, read_training(folder), round_index)


def kept_server_state(folder: Path, round_index: int, name: str, arguments: dict[str, Any]) -> Path | None:
    """The file of what the server remembered after a number of rounds; None where that changes nothing.

    It says nothing about another defense, or the same one under other settings, than the run was trained under.

    Raises:
        UsageError: it would change something, and the run is of a version that did not keep it.
    """
    document = read_training(folder)
    _name_of_model(folder, document, round_index)
    defense = build(DEFENSES, name, arguments)
    if not round_index or not defense.adapts() or defense != _trained_under(document):
        return None
    if document.server_state is None:
        raise UsageError(
            f"the run in {str(folder)!r} is of an older version, which did not keep the bound that {name} had reached "
            f"by round {round_index}; train it again with --keep-rounds {round_index}"
        )
    found = document.server_state.get(round_index)
    return None if found is None else folder / found


def kept_variates(folder: Path, round_index: int) -> Path | None:
    """The file of the control variates after a number of rounds of SCAFFOLD; None for other algorithms.

    Raises:
        UsageError: the run is of a version that did not keep them.
    """
    if not read_training(folder).settings.get("algorithm", "fedavg").startswith("scaffold"):
        return None
    path = folder / variates_file(round_index)
    if not path.is_file():
        raise UsageError(
            f"the run in {str(folder)!r} kept no control variates of round {round_index}; "
            f"train it again with --keep-rounds {round_index}"
        )
    return path


def _refuse_changed(document: TrainDocument, folder: Path) -> None:
    settings = document.settings
    now = own_sources(settings["model"] or "", settings["dataset"], settings["defense"])
    for name, digest in now.items():
        if document.sources.get(name) != digest:
            raise UsageError(
                f"the {OWN_NAMES[name]} has changed since the run in {str(folder)!r} was trained; "
                "train it again, or put the file back"
            )


def _trained_under(document: TrainDocument) -> Defense:
    return build(DEFENSES, document.settings["defense"], document.settings["defense_args"])


def _name_of_model(folder: Path, document: TrainDocument, round_index: int) -> str:
    kept = document.weights
    if round_index not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise UsageError(
            f"the run in {str(folder)!r} kept no model of round {round_index} (kept: {known}); "
            f"train with --keep-rounds {round_index}"
        )
    return kept[round_index]
