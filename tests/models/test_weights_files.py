"""Weights from a file: a plain state dictionary is read exactly, anything else is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.models import RowModel

SHAPE, CLASSES = (1, 12, 12), 4


def network(classes: int = CLASSES) -> RowModel:
    return RowModel("lenet", SHAPE, classes)


def saved(content: object) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def cut_off(path: Path) -> None:
    torch.save(network().plain_module.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-2000])


class Touches:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_round_trip(tmp_path: Path) -> None:
    model = network()
    weights = model.initial_weights([(7, 7)])[0]
    torch.save(model.plain(weights).state_dict(), tmp_path / "weights.pt")
    fresh = network()
    loaded = fresh.load_weights(tmp_path / "weights.pt")
    assert torch.equal(loaded, weights) and not loaded.requires_grad
    images = torch.rand(2, 1, *SHAPE)
    assert torch.equal(fresh.logits(loaded.expand(2, -1), images), model.logits(weights.expand(2, -1), images))


PREFIXES = ("_orig_mod.", "module.", "_module.", "module._orig_mod.", "model.", "net.module.")


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
@pytest.mark.parametrize("ending", [".pt", ".npz", ".safetensors"])
def test_names_of_wrappers_and_other_formats_are_read(tmp_path: Path, prefix: str, ending: str) -> None:
    model = network()
    weights = model.initial_weights([(7, 7)])[0]
    state = {prefix + name: value.detach() for name, value in model.plain(weights).state_dict().items()}
    path = tmp_path / f"weights{ending}"
    if ending == ".pt":
        torch.save(state, path)
    elif ending == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})
    else:
        path.write_bytes(safetensors(state))
    assert torch.equal(network().load_weights(path), weights)


def safetensors(state: dict[str, torch.Tensor]) -> bytes:
    header, values = {}, b""
    for name, value in state.items():
        packed = value.numpy().tobytes()
        places = [len(values), len(values) + len(packed)]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": places}
        values += packed
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(lambda path: None, "no weights file .*check --weights", id="missing"),
        pytest.param(Path.mkdir, "it is a folder.; name a plain file", id="a-folder"),
        pytest.param(lambda path: path.write_bytes(b""), "cut off; save a state_dict", id="empty"),
        pytest.param(lambda path: path.write_bytes(b"no weights" * 50), "save a state_dict", id="text"),
        pytest.param(cut_off, "save a state_dict", id="cut-off"),
        pytest.param(saved([1, 2]), "holds list.*save a state_dict", id="a-list"),
        pytest.param(saved({"state_dict": {}}), "its 'state_dict' is one.*save a state_dict", id="a-checkpoint"),
        pytest.param(
            saved({"model_state_dict": {}, "epoch": 3}),
            r"is one: torch.save.torch.load.OLD..'model_st",
            id="a-trainer's-checkpoint",
        ),
        pytest.param(saved({"0.weight": torch.full((2,), torch.nan)}), "'0.weight': holds NaN", id="not-a-number"),
        pytest.param(saved({"0.weight": torch.zeros(2) * 1j}), "no.* plain tensor of real numbers", id="complex"),
        pytest.param(saved({}), "Missing key.*0.weight.*save a state_dict", id="no-entries"),
        pytest.param(
            saved(network(5).plain_module.state_dict()),
            "size mismatch.*save a state_dict.*its last class occurs",
            id="other-network",
        ),
        pytest.param(saved(network().plain_module), "other things than tensors", id="a-whole-module"),
    ],
)
def test_refused_files(write: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    write(path)
    with pytest.raises(UsageError, match=message) as caught:
        network().load_weights(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", [".npy", ".parquet", ".h5"])
def test_weights_of_another_kind_are_not_called_damaged(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"weights{ending}"
    path.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=rf"of a kind that is not read \({ending}\); save .* as .safetensors or .npz"):
        network().load_weights(path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save({"0.weight": Touches(tmp_path / "executed")}, tmp_path / "weights.pt")
    with pytest.raises(UsageError, match="other things than tensors"):
        network().load_weights(tmp_path / "weights.pt")
    assert not (tmp_path / "executed").exists()
    torch.load(tmp_path / "weights.pt", weights_only=False)  # the trap does work
    assert (tmp_path / "executed").exists()
