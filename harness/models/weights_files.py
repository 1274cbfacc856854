"""Weights from a user's file."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from harness.errors import UsageError, in_one_line
from harness.storage.files import Absent, read_bytes
from harness.storage.stored import Damaged, FiniteTensor, checked, parse_tensors

_MEND = "save a state_dict: torch.save(network.state_dict(), file)"


def load_state(module: nn.Module, name: str, path: Path) -> None:
    """Loads a state dictionary saved with ``torch.save`` into a network of this name; nothing is unpickled but tensors.

    Raises:
        UsageError: the file is missing, is not a plain state dictionary of finite real numbers, or does not fit.
    """
    try:
        content = read_bytes(path)
    except Absent as error:
        raise UsageError(f"no weights file {str(path)!r}; check --weights") from error
    try:
        state = parse_tensors(content)
        _refuse_other_things(state)
        checked(dict[str, FiniteTensor], state)
        module.load_state_dict(state)
    except Damaged as problem:
        raise UsageError(f"weights file {str(path)!r} {problem}; {_MEND}") from problem
    except Exception as error:  # load_state_dict raises several types for what does not fit
        raise UsageError(f"cannot load weights {str(path)!r} into {name!r}: {in_one_line(error)}; {_MEND}") from error


def _refuse_other_things(content: Any) -> None:
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        inside = " (its 'state_dict' is one)" if isinstance(content, dict) and "state_dict" in content else ""
        raise Damaged(f"holds {type(content).__name__}, no names with tensors{inside}")
