"""Weights from a user's file."""

import pickle
from pathlib import Path

import torch
from torch import nn

from harness.errors import UsageError, in_one_line


def load_state(module: nn.Module, name: str, path: Path) -> None:
    """Loads a state dictionary saved with ``torch.save`` into a network of this name; nothing is unpickled but tensors.

    Raises:
        UsageError: the file is missing, is not a plain state dictionary, or does not fit the network.
    """
    try:
        module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise UsageError(f"no weights file {str(path)!r}; check --weights") from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise UsageError(
            f"weights file {str(path)!r} holds other things than tensors, or is cut off; save a state_dict"
        ) from error
    except Exception as error:  # torch.load and load_state_dict raise a dozen types for a bad file
        raise UsageError(
            f"cannot load weights {str(path)!r} into {name!r}: {in_one_line(error)}; save a state_dict"
        ) from error
