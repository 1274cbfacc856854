"""Tensors of a network that a client trains and sends, what the others are, and what its optimizer brought along."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.layers import digest_of_layers
from harness.base.local_optimizer import LocalOptimizer, optimizer_of
from harness.base.vectors import Layout
from harness.defenses import DEFENSES
from harness.judging.capture import FACTS, MOMENTUM, Capture, CaptureRecord
from harness.judging.framework_defenses import translated
from harness.models.batch_norm import STATISTICS, BatchNorm
from harness.models.changes import named_only
from harness.models.networks import build_module
from harness.models.weights_files import stored_names
from harness.results.arrays import Shape, StoredArrays, quoted, unwrapped


def trained_network(captures: Sequence[Capture]) -> tuple[nn.Module, str, tuple[str, ...]]:
    """The clients' network with all fixed that they do not train and send, the name that builds it again, and weights
    that were not sent and that nobody declares frozen.

    Raises:
        UsageError: they sent different parts, or the network cannot be built.
    """
    record = captures[0].record
    module = build_module(record.model, record.shape, record.classes, seed=0)
    if record.data == "text" and not hasattr(module, "vocabulary"):
        raise UsageError(
            f"model {record.model!r} takes images, and the captures are of texts; correct model or data in {FACTS}"
        )
    if record.layers not in (None, digest_of_layers(module)):
        raise UsageError(
            f"model {record.model!r} is the class of the client's network and builds another: a layer, its settings or "
            f"its functions differ; name a factory that builds the client's, and take layers out of {FACTS}"
        )
    own = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    parts = [_sent(capture, module, own) for capture in captures]
    for capture, part in zip(captures, parts, strict=True):
        if part != parts[0]:
            name = sorted(part ^ parts[0])[0]
            raise UsageError(
                f"captures {str(captures[0].folder)!r} and {str(capture.folder)!r} hold different parts of the "
                f"network, such as {name!r}; judge them separately"
            )
    if not parts[0] or parts[0] == own:
        return module, record.model, ()
    model = f"{record.model}+{named_only(parts[0], module)}"
    unsent = sorted(own - parts[0] - frozen_names(captures[0], module))
    return build_module(model, record.shape, record.classes, seed=0), model, tuple(unsent)


def _sent(capture: Capture, module: nn.Module, own: set[str]) -> set[str]:
    """Names of the parameters that a client sent and did not declare frozen."""
    sent = set(stored_names({name: name for name in capture.moved}, module))
    if not sent & own:  # without names, or of another network, as is told where they are fitted
        return own - frozen_names(capture, module) if _is_bare(capture) else own
    return (sent & own) - frozen_names(capture, module)


def frozen_names(capture: Capture, module: nn.Module) -> set[str]:
    """Return what is declared frozen, by the network's own names.

    Raises:
        UsageError: there is no such tensor.
    """
    state, found = module.state_dict(), set(stored_names({name: name for name in capture.record.frozen}, module))
    unknown = sorted(name for name in found if name not in state and name not in capture.moved)
    if unknown:
        raise UsageError(f"capture {str(capture.folder)!r}: frozen {unknown[0]!r} is no parameter of the network")
    return found


def fixed_values(record: CaptureRecord, module: nn.Module, attacked: bool) -> dict[str, Tensor]:
    """Values of tensors that a file may omit: whatever is not trained and, where it is attacked, what the factory gives
    every time, such as weights that it loads."""
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    rest = {
        name: value for name, value in module.state_dict().items()
        if name not in trained and name.rpartition(".")[2] not in STATISTICS
    }  # fmt: skip
    if not attacked or not rest:
        return rest
    again = build_module(record.model, record.shape, record.classes, seed=1).state_dict()
    return {name: value for name, value in rest.items() if torch.equal(value, again[name])}


def foreign_layout(captures: Sequence[Capture], module: nn.Module) -> Layout | None:
    """The tensors that were sent where the factory's network lacks some, such as adapters'; None where it has all.

    Of the others, those that are declared frozen or came back as they were are no part of it.
    """
    first = captures[0]
    state, named = module.state_dict(), stored_names({name: name for name in first.moved}, module)
    if not first.moved or all(name in state for name in named) or _is_bare(first):
        return None
    frozen = set(first.record.frozen)
    kept = [name for name in first.moved if name not in frozen and name.rpartition(".")[2] not in STATISTICS]
    kept = [name for name in kept if any(_moved(capture, name) is not None for capture in captures)]
    return Layout(tuple(kept), tuple(first.moved.shapes[name] for name in kept)) if kept else None


def _is_bare(capture: Capture) -> bool:
    return set(capture.moved) == {f"arr_{number}" for number in range(len(capture.moved))}


def foreign_values(capture: Capture, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return what a client started from and what it sent (P,) of these tensors, in float64.

    Raises:
        UsageError: one of them is missing, or has another shape.
    """
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if capture.moved.shapes.get(name) != shape:
            where = f"{str(capture.moved.path)!r}: {quoted(name)}"
            raise UsageError(f"{where} is not there as in the first capture; judge them separately")
    sent = {name: torch.from_numpy(capture.moved[name].astype("f8")) for name in layout.names}
    start = {name: torch.zeros_like(value) for name, value in sent.items()}
    if capture.kind == "after":
        start = {name: _before(capture, name) for name in layout.names}
    return layout.flatten(start), layout.flatten(sent)


def _before(capture: Capture, name: str) -> Tensor:
    known = unwrapped(capture.before, capture.moved)
    if name not in known or capture.before.shapes[known[name]] != capture.moved.shapes[name]:
        raise UsageError(
            f"{str(capture.before.path)!r} does not hold {quoted(name)} as it was sent; save what the client started "
            "from under the same names, or send update.npz"
        )
    return torch.from_numpy(capture.before[known[name]].astype("f8"))


def _moved(capture: Capture, name: str) -> Tensor | None:
    """Return how far a tensor of numbers came from where it started; None where it did not move, or was not sent."""
    if name not in capture.moved or capture.moved[name].dtype.kind != "f":
        return None
    found = torch.from_numpy(capture.moved[name].astype("f8"))
    if capture.kind == "after":
        found = found - _before(capture, name)
    return found if bool(found.any()) else None


# Arrays of a capture as the flat vectors of its network, matched by name and shape.

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
    # A count of batches changes nothing but the statistics of a layer that averages over all of them.
    averaging = any(isinstance(one, BatchNorm) and one.momentum is None for one in module.modules())
    known = {name: state[name] for name in expected if _counts(name) and not averaging} | dict(fixed or {})
    omitted = {name: value for name, value in known.items() if name in expected and name not in shapes}
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
        rest = f"; and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        fix = _fix_of(shapes, state, missing)
        raise UsageError(f"{str(arrays.path)!r} does not fit the network: {'; '.join(problems[:_TOLD])}{rest}. {fix}")
    found = {name: _fitted(arrays, own, state[name]) for name, own in stored.items()} | omitted
    _require_one_value(arrays, module, found)
    return found


def _require_one_value(arrays: StoredArrays, module: nn.Module, found: Mapping[str, Tensor]) -> None:
    """A weight that layers share has the same numbers under each of its names. Raises UsageError."""
    names: dict[int, str] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(weight), name)
        if name in found and first in found and not torch.equal(found[name], found[first]):
            raise UsageError(
                f"{str(arrays.path)!r}: {first!r} and {name!r} are one weight of the network and hold other numbers, "
                "as where each has noise of its own: attackers read both; capture them before that, or keep the last "
                f"alone, as load_state_dict does: {name!r}"
            )


def _fix_of(shapes: Mapping[str, Shape], state: Mapping[str, Tensor], missing: Sequence[str]) -> str:
    """Return what is to be done about arrays of these shapes, which a network with this state does not have."""
    strange = {name: shape for name, shape in shapes.items() if name not in state}
    wrong = [name for name, shape in shapes.items() if name in state and shape != tuple(state[name].shape)]
    absent = [name for name in state if name not in shapes]
    given = [*strange.values(), *(shapes[name] for name in wrong)]
    needed = [tuple(state[name].shape) for name in (*absent, *wrong)]
    if missing and shapes and not strange and not wrong:
        return (
            "What a client does not train may be missing in what it sent; before.npz needs all of the network but what "
            "the factory loads itself"
        )
    if len(given) == 1 < len(needed) and given[0] == (sum(map(math.prod, needed)),):
        return "It is one vector of all tensors: cut it into them, as torch.nn.utils.vector_to_parameters does"
    if strange and all(name.startswith(_BARE.format("")) for name in strange):
        return "A list without names holds all parameters of the network, or all of its state_dict(), in that order"
    if Counter(given) <= Counter(needed):
        in_order = "save them without names in the order of its state_dict(): np.savez(file, *arrays)"
        return f"Give each array its name in the network's state_dict(), or {in_order}"
    if Counter(tuple(sorted(one)) for one in given) <= Counter(tuple(sorted(one)) for one in needed):
        named = "" if wrong else ", and its name there"
        return f"Turn each array to the axes of the network's state_dict(), such as (out, in, height, width){named}"
    return f"Check model, classes and image_shape (of texts: vocabulary and places) in {FACTS}"


def half_of(captures: Sequence[Capture], module: nn.Module) -> str | None:
    """The half precision in which all weights are that clients sent, whatever their files hold; None of others."""
    if captures[0].kind != "after":
        return None
    kinds = {"float16", "bfloat16"}
    for capture in captures:
        for name, values in fitted_arrays(capture.moved, module, whole=False).items():
            if kinds and values.is_floating_point() and name.rpartition(".")[2] not in STATISTICS:
                kinds = {kind for kind in kinds if torch.equal(values.to(getattr(torch, kind)).to(values), values)}
        if not kinds:
            return None
    return min(kinds)


def _fitted(arrays: StoredArrays, own: str, like: Tensor) -> Tensor:
    found = arrays[own]
    if like.is_floating_point() and found.dtype.kind != "f":
        bits = ", or bits of bfloat16: those as float32" if found.dtype == np.uint16 else ""
        raise UsageError(
            f"{str(arrays.path)!r}: {quoted(own)} holds {found.dtype}, codes of a quantiser and no values; capture "
            f"what the server makes of them: codes times their scale, as floats{bits}"
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
    """Return the file's name for each of its tensors, by the tensor's own; tensors without any have the network's."""
    if arrays and set(arrays) == {_BARE.format(number) for number in range(len(arrays))}:
        for names in (state, [name for name in state if not _counts(name)], trained):
            if len(arrays) == len(names):
                return {name: _BARE.format(number) for number, name in enumerate(names)}
    return {name: name for name in arrays}


def _counts(name: str) -> bool:
    """Return whether this is the number of batches that a BatchNorm saw."""
    return name.rpartition(".")[2] == "num_batches_tracked"


def _shape(shape: Shape | torch.Size) -> str:
    return f"({', '.join(map(str, shape))})"


# --------------------------------------------------------------------------------------
# What an optimizer that was not made anew brought along from a client's round before.
#
# After a round of one local step SGD's velocity is that round's update, divided by minus the learning rate. Whoever saw
# the update can take its part out of the next one. After several steps their sum is known, and the velocity is not.


Earlier = Mapping[Path, Capture]
"""By the folder of a capture that of the round before."""
UpdateOf = Callable[[Capture], Tensor]
"""Reads how far a client came: (P,) float64."""

_FIX = "make a new optimizer for the captured round"


def earlier_of(captures: Sequence[Capture]) -> Earlier:
    """The rounds before, of captures whose optimizer remembered them.

    Raises:
        UsageError: one is not there, or does not tell what was remembered.
    """
    known = {(one.record.client, one.record.round): one for one in captures}
    found: dict[Path, Capture] = {}
    for capture in captures:
        record = capture.record
        # Before its first round a client has nothing to remember.
        if (
            record.state == "new"
            or not record.rounds_before
            or capture.kind == "gradient"
            or not _optimizer(capture).is_stateful
        ):
            continue
        where = f"capture {str(capture.folder)!r}: its optimizer's state was carried over from round {record.round - 1}"
        before = known.get((record.client, record.round - 1))
        if before is None or before.kind == "gradient" or before.record.optimizer == MOMENTUM:
            told = f"no update of client {record.client!r} is here{record.first_is_missing(record.round - 1)}"
            raise UsageError(f"{where}, of which {told}; add it, or {_FIX}")
        defense = translated(before.record.defense)
        if before.record.local_steps > 1:
            raise UsageError(f"{where}, whose {before.record.local_steps} local steps do not tell it; {_FIX}")
        if defense is not None and build(DEFENSES, defense.name, defense.settings).changes_messages():
            raise UsageError(f"{where}, and {defense.name!r} hides it; {_FIX}")
        found[capture.folder] = before
    return found


def without_earlier(capture: Capture, update: Tensor, earlier: Earlier, update_of: UpdateOf) -> Tensor:
    """The update (P,) float64 that a client had sent, had its optimizer been new."""
    before = _velocity(capture, earlier, update_of)
    return update if before is None else _optimizer(capture).anew(update, capture.record.learning_rate, before)


def _velocity(capture: Capture, earlier: Earlier, update_of: UpdateOf) -> Tensor | None:
    """Return what a client's optimizer remembered at the beginning; None for nothing."""
    before = earlier.get(capture.folder)
    if before is None:
        return None
    return _optimizer(before).velocity(
        update_of(before), before.record.learning_rate, _velocity(before, earlier, update_of)
    )


def _optimizer(capture: Capture) -> LocalOptimizer:
    return optimizer_of(capture.record.optimizer)
