"""Arrays of a capture as the flat vectors of its network, matched by name and shape."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.models.weights_files import stored_names
from harness.results.arrays import StoredArrays
from harness.results.formats import Shape, quoted

_TOLD = 6
# How numpy names arrays that were saved without names, as frameworks that send bare lists have them.
_BARE = "arr_{}"


def fitted_arrays(
    arrays: StoredArrays, module: nn.Module, whole: bool, fixed: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The tensors of a network's state by name, in float32 where they are trained.

    Arrays without names (``arr_0``, ``arr_1``, ...) are taken in the order of ``state_dict()``, buffers included.

    Args:
        arrays: of one file; no value is read unless all names and shapes fit.
        module: the network.
        whole: whether buffers have to be there too.
        fixed: values of tensors that the file may omit, by name.

    Raises:
        UsageError: names or shapes differ; the first few differences are listed.
    """
    state = dict(module.state_dict())
    trained = [name for name, _ in module.named_parameters()]
    stored = stored_names(_unnumbered(arrays, list(state), trained), module)
    told = arrays.shapes
    shapes = {name: told[own] for name, own in stored.items()}
    expected = {name: state[name] for name in (state if whole else trained)}
    omitted = {name: value for name, value in (fixed or {}).items() if name in expected and name not in shapes}
    missing = [name for name in expected if name not in shapes and name not in omitted]
    problems = [
        *(f"{name} {_shape(state[name].shape)} is missing" for name in missing),
        *(f"{quoted(name)} {_shape(one)} is not the network's" for name, one in shapes.items() if name not in state),
        *(
            f"{name} is {_shape(shapes[name])}, the network's {_shape(value.shape)}"
            for name, value in state.items()
            if name in shapes and shapes[name] != tuple(value.shape)
        ),
    ]
    if problems:
        parts = all(problem.endswith("is missing") for problem in problems)
        mend = (
            "What a client does not train may be missing in what it sent; before.npz needs all of the network but what "
            "the factory loads itself"
            if parts and shapes
            else "Check model, image_shape and classes in capture.json"
        )
        rest = f"; and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        raise UsageError(f"{str(arrays.path)!r} does not fit the network: {'; '.join(problems[:_TOLD])}{rest}. {mend}")
    return {name: _fitted(arrays, own, state[name]) for name, own in stored.items()} | omitted


def _fitted(arrays: StoredArrays, own: str, like: Tensor) -> Tensor:
    found = arrays[own]
    if like.is_floating_point() and found.dtype.kind != "f":
        raise UsageError(
            f"{str(arrays.path)!r}: {quoted(own)} holds {found.dtype}, codes of a quantiser and no values; capture "
            "what the server makes of them: codes times their scale, as floats"
        )
    # Files may hold another machine's order of bytes, which torch does not know.
    fitted = torch.from_numpy(np.array(found, dtype=found.dtype.newbyteorder("="))).to(like.dtype)
    if not fitted.isfinite().all():
        raise UsageError(
            f"{str(arrays.path)!r}: {quoted(own)} holds numbers up to {np.abs(found).max():.3g}, more than the network "
            "can; the client's training diverged, capture another round"
        )
    return fitted


def _unnumbered(arrays: StoredArrays, state: list[str], trained: list[str]) -> dict[str, str]:
    """How the file calls each of its tensors, by its name; of those without names, by the network's."""
    if arrays and set(arrays) == {_BARE.format(number) for number in range(len(arrays))}:
        names = state if len(arrays) == len(state) else trained
        if len(arrays) == len(names):
            return {name: _BARE.format(number) for number, name in enumerate(names)}
    return {name: name for name in arrays}


def _shape(shape: Shape | torch.Size) -> str:
    return f"({', '.join(map(str, shape))})"
