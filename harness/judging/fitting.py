"""Arrays of a capture as the flat vectors of its network, matched by name and shape."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from harness.errors import UsageError

_TOLD = 6
# How numpy names arrays that were saved without names, as frameworks that send bare lists have them.
_BARE = "arr_{}"


def fitted_arrays(arrays: Mapping[str, np.ndarray], module: nn.Module, file: Path, whole: bool) -> dict[str, Tensor]:
    """The tensors of a network's state by name, in float32 where they are trained.

    Arrays without names (``arr_0``, ``arr_1``, ...) are taken in the order of ``state_dict()``, buffers included.

    Args:
        arrays: of one file.
        module: the network.
        file: named in errors.
        whole: whether buffers have to be there too.

    Raises:
        UsageError: names or shapes differ; the first few differences are listed.
    """
    state = dict(module.state_dict())
    trained = [name for name, _ in module.named_parameters()]
    if arrays and set(arrays) == {_BARE.format(number) for number in range(len(arrays))}:
        names = list(state) if len(arrays) == len(state) else trained
        if len(arrays) == len(names):
            arrays = {name: arrays[_BARE.format(number)] for number, name in enumerate(names)}
    expected = state if whole else {name: state[name] for name in trained}
    problems = [
        *(f"{name} {_shape(value)} is missing" for name, value in expected.items() if name not in arrays),
        *(f"{name[:80]} {_shape(array)} is not the network's" for name, array in arrays.items() if name not in state),
        *(
            f"{name} is {_shape(arrays[name])}, the network's {_shape(value)}"
            for name, value in state.items()
            if name in arrays and arrays[name].shape != tuple(value.shape)
        ),
    ]
    if problems:
        rest = f"; and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        raise UsageError(
            f"{str(file)!r} does not fit the network: {'; '.join(problems[:_TOLD])}{rest}. Check model, image_shape "
            "and classes in capture.json"
        )
    return {name: torch.from_numpy(np.array(array)).to(state[name].dtype) for name, array in arrays.items()}


def _shape(value: Tensor | np.ndarray) -> str:
    return f"({', '.join(map(str, value.shape))})"
