"""A run's own files as input: whatever was changed in them is told in one line that names the file and the field."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.training import TrainDocument, TrainFolder, Training, TrainOptions, read_training, train, train_settings
from harness.training.bayesian import Notes
from harness.training.norms import NormsFolder

SETTINGS: dict[str, Any] = {
    "dataset": "cancer", "model": "logistic", "clients": 6, "clients_per_round": 6, "local_steps": 2, "batch_size": 3,
    "split": "iid", "defense": "pruning+quantile",
    "defense_args": {"pruning.error_feedback": "yes", "quantile.sigma": "0"},
}  # fmt: skip


def run(folder: Path, rounds: int, options: TrainOptions = TrainOptions()) -> TrainDocument:  # noqa: B008
    return train(train_settings(**SETTINGS, rounds=rounds), folder, TrainFolder(folder), options)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(folder, 2, TrainOptions(keep=(0, 2)))
    return folder


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(*place: str, value: Any) -> Callable[[Any], None]:
    """Puts a value at a place of nested dictionaries; ``...`` takes away what is there."""

    def change(content: Any) -> None:
        for name in place[:-1]:
            content = content[name]
        if value is ...:
            del content[place[-1]]
        else:
            content[place[-1]] = value

    return change


DOCUMENTS = {
    "no settings": (put("settings", value=...), "'settings': is missing"),
    "settings of another kind": (put("settings", value=3), "'settings'"),
    "a setting of another kind": (put("settings", "clients", value="many"), "'clients'"),
    "a setting out of range": (put("settings", "learning_rate", value=-1.0), "'learning_rate'"),
    "an unknown setting": (put("settings", "zebra", value=1), "'zebra'"),
    "an unknown defense": (put("settings", "defense", value="zebra"), "zebra"),
    "a hyper-parameter out of range": (put("settings", "defense_args", value={"quantile.clip": "-1"}), "clip"),
    "hyper-parameters of another kind": (put("settings", "defense_args", value=[1]), "'defense_args'"),
    "rounds of another kind": (put("rounds", value="all"), "'rounds'"),
    "a round lost": (lambda document: document["rounds"].pop(0), "'rounds' are not the first ones"),
    "no examples": (put("overlap", value=0.0), "'overlap'"),
    "nobody holds one": (put("holders", value=0), "'holders'"),
    "an impossible accuracy": (put("accuracy", value=7.0), "'accuracy'"),
    "a model elsewhere": (put("weights", "2", value="../../secret.pt"), "'weights' names '../../secret.pt'"),
    "a model of another round": (put("weights", "2", value="models/round_00000.pt"), "no file of round 2"),
    "a NUL byte": (put("weights", "2", value="models/round_00002\0.pt"), "no file of round 2"),
}


@pytest.mark.parametrize(("change", "words"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents(original: Path, tmp_path: Path, change: Callable[[Any], None], words: str) -> None:
    document = json.loads((original / "training.json").read_text())
    change(document)
    (tmp_path / "training.json").write_text(json.dumps(document))
    shown = refused(lambda: read_training(tmp_path))
    assert words in shown and "training.json" in shown and "train again" in shown


def test_settings_of_an_earlier_version_are_completed(original: Path, tmp_path: Path) -> None:
    document = json.loads((original / "training.json").read_text())
    del document["settings"]["server_momentum"]
    (tmp_path / "training.json").write_text(json.dumps(document))
    assert read_training(tmp_path).settings == read_training(original).settings


P = 62
CHECKPOINTS = {
    "a list": (lambda content: [content], "valid dictionary"),
    "no weights": (put("weights", value=...), "'weights': is missing"),
    "something unknown": (put("zebra", value=1), "'zebra'"),
    "words for weights": (put("weights", value="w"), "'weights'"),
    "weights of another shape": (put("weights", value=torch.zeros(3)), r"'weights' has shape (3,)"),
    "weights of another type": (put("weights", value=torch.zeros(P, dtype=torch.int64)), "'weights' has shape"),
    "weights that are no numbers": (put("weights", value=torch.full((P,), torch.nan)), "'weights': holds NaN"),
    "sparse weights": (put("weights", value=torch.zeros(P).to_sparse()), "'weights': not a plain tensor"),
    "complex weights": (put("weights", value=torch.zeros(P, dtype=torch.complex64)), "'weights': not a plain tensor"),
    "endless weights": (put("weights", value=torch.zeros(1).expand(2**40)), "claims more values than the file holds"),
    "no memory": (put("memory", value={}), "'memory.defense': is missing"),
    "no velocity": (put("memory", "velocity", value=...), "'memory.velocity'"),
    "velocity of another shape": (put("memory", "velocity", value=torch.zeros(())), "'velocity' has shape ()"),
    "a bound of zero": (put("memory", "defense", "server", "quantile.bound", value=torch.zeros(())), "must lie"),
    "no bound": (put("memory", "defense", "server", value={}), "lacks 'quantile.bound'"),
    "another's bound": (put("memory", "defense", "server", "bound", value=torch.ones(())), "holds 'bound'"),
    "a residual of another shape": (
        put("memory", "defense", "clients", "pruning.residual", value=torch.zeros(6, 5)), "'pruning.residual'",
    ),
    "clients that are not there": (
        put("memory", "defense", "clients", "zebra", value=torch.zeros(5, P)), "no row for each of 6 clients",
    ),
    "variates without scaffold": (
        put("memory", "algorithm", "server", "scaffold variate", value=torch.zeros(P)), "holds 'scaffold variate'",
    ),
    "rounds that are no JSON": (put("rounds", value="[{"), "not complete JSON"),
    "rounds of another kind": (put("rounds", value='[{"round": "x"}]'), "'0.round'"),
    "no rounds": (put("rounds", value="[]"), "'rounds' are not the first ones"),
    "kept rounds of another kind": (put("kept", value=["x"]), "'kept.0'"),
    "kept rounds to come": (put("kept", value=[9]), "'kept' names rounds"),
    "settings that are no JSON": (put("settings", value="{"), "not complete JSON"),
    "settings of another kind": (put("settings", value="[1]"), "'settings' are none"),
    "sources of another kind": (put("sources", value=[1]), "'sources'"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints(original: Path, tmp_path: Path, change: Callable[[Any], Any], words: str) -> None:
    content = torch.load(original / "checkpoint.pt", weights_only=True)
    torch.save(change(content) or content, tmp_path / "checkpoint.pt")
    shown = refused(lambda: run(tmp_path, 3, TrainOptions(resume=True)))
    assert words in shown and "checkpoint.pt" in shown and "delete it, or choose another --out" in shown


def test_a_bit_that_flipped_in_a_model_is_noticed(original: Path, tmp_path: Path) -> None:
    content = bytearray((original / "models" / "round_00002.pt").read_bytes())
    model = Training(train_settings(**SETTINGS), tmp_path).model
    weights = model.load_weights(original / "models" / "round_00002.pt")
    content[content.index(weights[:8].numpy().tobytes())] ^= 1
    (tmp_path / "model.pt").write_bytes(content)
    assert "checksums" in refused(lambda: model.load_weights(tmp_path / "model.pt"))


NOTES: dict[str, tuple[str, Any]] = {
    "no noise": ("noise", np.zeros(2)),
    "another place": ("names", np.array(["moon", "x"])),
    "words": ("messages", np.array(["x"])),
    "one number": ("messages", np.zeros(())),
    "rounded": ("messages", np.zeros(6, dtype=np.float16)),
    "of other clients": ("updates", np.zeros(3)),
    "below zero": ("messages", -np.ones(6)),
}


@pytest.mark.parametrize(("name", "values"), NOTES.values(), ids=NOTES)
def test_notes(tmp_path: Path, name: str, values: Any) -> None:
    covered = {"dataset": "digits", "model": "mlp2", "defense": "global_dp", "defense_args": {}}
    settings = train_settings(**SETTINGS | covered, rounds=1)
    train(settings, tmp_path, TrainFolder(tmp_path), TrainOptions(notes=Notes))
    path = tmp_path / "norms" / "round_00001.npz"
    with np.load(path) as saved:
        arrays = {entry: saved[entry] for entry in saved.files}
    np.savez(path, **arrays | {name: values})
    shown = refused(lambda: NormsFolder(tmp_path, settings).read(1))
    assert f"is damaged: {name!r}" in shown and "round_00001.npz" in shown


def test_an_unreadable_checkpoint_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").mkdir()
    shown = refused(lambda: run(tmp_path, 3, TrainOptions(resume=True)))
    assert "cannot be read (it is a folder)" in shown and "delete" not in shown


def test_where_it_cannot_write_a_run_ends_before_its_first_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    played: list[object] = []
    options = replace(TrainOptions(), on_round=played.append)
    settings = train_settings(**SETTINGS, rounds=1)
    shown = refused(lambda: train(settings, tmp_path, TrainFolder(tmp_path / "file"), options))
    assert "choose another place with --out" in shown and not played
