"""Weights from a user's file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError, in_one_line
from harness.results.arrays import ENDINGS, StoredArrays, unwrapped
from harness.results.files import Absent, Damaged, FiniteTensor, checked, parse_tensors, read_bytes

_FIX = "save a state_dict of this network: torch.save(network.state_dict(), file), or as .safetensors or .npz"
_FEWER_CLASSES = "; if it has more classes than your data have labels, give data in which its last class occurs"


# Tables, single arrays and formats of other libraries.
_OTHER_KINDS = {".npy", ".parquet", ".csv", ".json", ".h5", ".hdf5", ".keras", ".onnx", ".msgpack", ".gguf", ".mat"}


def load_state(module: nn.Module, name: str, path: Path) -> None:
    """Loads a state dictionary into a network of this name: saved with ``torch.save``, or as .safetensors or .npz.

    Nothing is unpickled but tensors.

    Raises:
        UsageError: the file is missing, is not a plain state dictionary of finite real numbers, or does not fit.
    """
    try:
        content = read_bytes(path)
    except Absent as error:
        raise UsageError(f"no weights file {str(path)!r}; check --weights") from error
    try:
        if path.suffix in _OTHER_KINDS:
            raise Damaged(f"is of a kind that is not read ({path.suffix})")
        state = _plain_arrays(path) if path.suffix in ENDINGS else parse_tensors(content)
        _refuse_other_things(state)
        checked(dict[str, FiniteTensor], state)
        named = stored_names({key: key for key in state}, module)
        module.load_state_dict({own: state[key] for own, key in named.items()})
    except UsageError:
        raise
    except Damaged as problem:
        raise UsageError(f"weights file {str(path)!r} {problem}; {_FIX}") from problem
    except Exception as error:  # load_state_dict raises several types for what does not fit
        fix = _FIX + (_FEWER_CLASSES if "size mismatch" in str(error) else "")
        raise UsageError(f"cannot load weights {str(path)!r} into {name!r}: {in_one_line(error)}; {fix}") from error


def _refuse_other_things(content: Any) -> None:
    if not _is_state(content):
        inside = [key for key, value in content.items() if _is_state(value)] if isinstance(content, dict) else []
        hint = f" (its {inside[0]!r} is one: torch.save(torch.load(OLD)[{inside[0]!r}], NEW))" if inside else ""
        raise Damaged(f"holds {type(content).__name__}, no names with tensors{hint}")


def _is_state(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values())


def _plain_arrays(path: Path) -> dict[str, Tensor]:
    arrays = StoredArrays(path)
    return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays}


def stored_names(given: Mapping[str, str], module: nn.Module) -> dict[str, str]:
    """Return how a file calls each tensor of a network: its names there by the names that ``given`` has for them.

    What a wrapper puts before names is taken off. Weights of two layers that are one have two names, of which some
    formats keep one.
    """
    filled = {own: given[name] for own, name in unwrapped(given, module.state_dict()).items()}
    names: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    for twins in names.values():
        own = next((filled[name] for name in twins if name in filled), None)
        if own is not None:
            filled |= {name: own for name in twins if name not in filled}
    return filled
