"""Evidence that checks of a declared defense go by, and the answers that they give."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import poisson
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from harness.base.errors import UsageError, in_one_line
from harness.base.vectors import Layout
from harness.evaluation.played_round import server_state
from harness.experiment import CellSettings
from harness.federation.defense import Defense
from harness.judging.capture import CaptureRecord
from harness.judging.declared import noise_of
from harness.judging.federation import CapturedClients
from harness.models.networks import build_module
from harness.observation import Clipping, Noise

#: Each check's chance of a false alarm, at most.
LEVEL = 1e-5

Outcome = Literal["holds", "violated", "more than declared", "cannot tell"]
ALARMS: tuple[Outcome, ...] = ("violated", "more than declared")
UNKNOWN_LEVEL = "the noise's level is not declared as one number"


@dataclass(frozen=True)
class Check:
    """One check: what it asks, whether it holds, the p-value where it is a test, and a sentence.

    ``more than declared`` is more protection, and more of its price. ``undecided``: whether nothing may be called
    resilient by it, since it cannot tell and what was sent may be of another client than the truth says.
    """

    name: str
    outcome: Outcome
    detail: str
    p_value: float | None = None
    undecided: bool = False


@dataclass(frozen=True, eq=False)
class Evidence:
    """Messages that V clients sent, and the declaration of what they did.

    ``times``: what the declared noise's deviation is multiplied by, where batches may be of another size than declared.
    """

    captured: CapturedClients
    settings: CellSettings
    times: float = 1.0

    @cached_property
    def sent(self) -> Tensor:
        """(V, P), in units of a gradient, without the arrays that are declared to leave bare."""
        target = self.captured.target
        parts = zip(self.captured.layout.names, target.split(self.captured.layout.sizes, dim=1), strict=True)
        return torch.cat([part for name, part in parts if name not in self.bare], 1) if self.bare else target

    @cached_property
    def defense(self) -> Defense:
        """The declared one."""
        return self.settings.build_defense()

    @cached_property
    def module(self) -> nn.Module:
        """The clients' network, in whatever state."""
        record = self.captured.record
        return build_module(record.model, record.shape, record.classes, seed=0)

    @cached_property
    def layout(self) -> Layout:
        """Layout of ``sent``."""
        whole = self.captured.layout
        if not self.bare:
            return whole
        kept = [(name, shape) for name, shape in zip(whole.names, whole.shapes, strict=True) if name not in self.bare]
        return Layout(tuple(name for name, _ in kept), tuple(shape for _, shape in kept))

    @cached_property
    def _declared(self) -> Noise | None:
        return noise_of(self.captured, self.settings)

    @cached_property
    def bare(self) -> set[str]:
        """Arrays that are declared to leave without noise beside others with it, as those without a dimension do."""
        noise, layout = self._declared, self.captured.layout
        if noise is None or not isinstance(noise.deviation, Tensor):
            return set()
        parts = zip(layout.names, noise.deviation.split(layout.sizes), strict=True)
        return {name for name, part in parts if not part.any()}

    @cached_property
    def noise(self) -> Noise | None:
        """Return what is declared to be on ``sent``."""
        noise = self._declared
        if noise is None or not self.bare or not isinstance(noise.deviation, Tensor):
            return noise
        levels = noise.deviation[noise.deviation > 0].unique()
        return replace(noise, deviation=float(levels)) if len(levels) == 1 else noise

    @property
    def level(self) -> float | None:
        """The noise's deviation, where it is one number of a Gaussian (or of a sum that is all but one)."""
        level = level_of(self.noise)
        return None if level is None else level * self.times

    @cached_property
    def clipping(self) -> Clipping | None:
        """Return what is declared to bound ``sent`` before its noise."""
        settings = self.settings
        return self.defense.clipping_at(settings.tap, settings.update_reading.rate, server_state(settings))

    @cached_property
    def bound(self) -> float | None:
        """Bound on the norm of ``sent``, or on every tensor's norm; None where no bound is declared or published."""
        if self.clipping is None or self.clipping.bound is None:
            return None
        # An update is divided by its steps, and a clip of the whole of it with it.
        return self.clipping.bound / (self.settings.local_steps if self.clipping.unit == "update" else 1)

    @property
    def unit(self) -> float:
        """Return what a number in units of a gradient is multiplied by to be in those of the declaration."""
        of_update = self.clipping is not None and self.clipping.unit == "update"
        return self.settings.update_reading.rate * self.settings.local_steps if of_update else 1.0

    @cached_property
    def most_sent(self) -> int | None:
        """Number of coordinates that may differ from zero; None where all may."""
        chosen = self.defense.chosen_at(self.settings.tap, self.layout)
        return None if chosen is None else chosen.most

    @property
    def stray(self) -> float:
        """Norm of what an update may hold beyond the rank that its examples give: weight decay, other optimizers."""
        return (self.bound or 0.0) if self.clipping is not None and self.clipping.unit == "update" else 0.0

    @cached_property
    def most_examples(self) -> int:
        """Examples that may be behind what a client sent: more than declared, where a drawn number is not given."""
        count = self.captured.trained_on
        if self.captured.sampling == "fixed" or (self.noise is None and self.captured.sampling == "unknown"):
            return count
        return int(poisson.isf(LEVEL / self.captured.clients, count))

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Highest rank that a gradient can have, for each tensor that multiplies a few rows of every example."""
        found = ranks_of(self.module, self.captured.record, self.most_examples)
        return {} if self.captured.foreign or not self.captured.sums else found

    def tensors(self) -> list[Tensor]:
        """Return what was sent (V, size) of each tensor, in float64."""
        return list(self.sent.double().split(self.layout.sizes, dim=1))

    def norms(self, each: bool) -> tuple[np.ndarray, np.ndarray]:
        """Norms (V, M) of every client's tensors, or (V, 1) of all of it, and the coordinates behind each (M,)."""
        sizes = self.layout.groups("layer" if each else "whole")
        rows = self.sent.double().split(sizes, dim=1)
        return np.stack([part.norm(dim=1).numpy() for part in rows], 1), np.array(sizes)

    def rounding(self, size: int) -> np.ndarray:
        """Return how far rounding to floats can have moved ``size`` coordinates of each client (V,), as a norm."""
        return self.captured.grain.double().numpy() * size**0.5


def level_of(noise: Noise | None) -> float | None:
    """The deviation of noise where it is one known number of a Gaussian law."""
    if noise is None or noise.law not in ("gaussian", "skellam") or not isinstance(noise.deviation, int | float):
        return None
    return float(noise.deviation)


def ranks_of(module: nn.Module, record: CaptureRecord, examples: int) -> dict[str, int]:
    """Most ranks of the gradients of fully connected layers' weights, by their names.

    Such a gradient is the sum, over the rows that the layer is given, of an outer product for each row.
    """
    rows, calls = dict[str, int](), Counter[str]()

    def count(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows[name] = rows.get(name, 0) + given[0].shape[:-1].numel() * examples
        calls[name] += 1

    layers = [(f"{name}.weight" if name else "weight", layer) for name, layer in module.named_modules()]
    hooks = [
        layer.register_forward_pre_hook(partial(count, name))
        for name, layer in layers if type(layer) is nn.Linear
    ]  # fmt: skip
    try:
        with torch.no_grad(), _Uses(module) as uses:
            module.eval()(torch.zeros(1, *record.shape))
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(
            f"model {record.model!r} fails on one example alone ({in_one_line(error)}); name a factory whose network "
            "takes a batch of examples, and has all its weights in one precision"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    # A weight that is used elsewhere too, by another layer or as a matrix, gets those gradients on top.
    names = [id(weight) for _, weight in module.named_parameters(remove_duplicate=False)]
    alone = {name for name, weight in module.named_parameters() if names.count(id(weight)) == 1}
    return {name: most for name, most in rows.items() if name in alone and uses.counts[name] <= calls[name]}


class _Uses(TorchFunctionMode):
    """Counts the functions of torch that are given each weight of a network."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names, self.counts = {id(weight): name for name, weight in module.named_parameters()}, Counter[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.update(self._names[id(one)] for one in tree_leaves((args, kwargs)) if id(one) in self._names)
        return func(*args, **(kwargs or {}))


def bonferroni(p_values: np.ndarray) -> float:
    """The smallest p-value of many, as one."""
    flat = np.asarray(p_values).reshape(-1)
    return float(min(1.0, flat.min() * len(flat)))


_GRAVITY: tuple[Outcome, ...] = ("holds", "cannot tell", "more than declared", "violated")


def pooled(groups: Sequence[tuple[str, Sequence[Check]]]) -> list[Check]:
    """The checks of several groups of clients as one of each: the gravest, with the level shared among the groups.

    Args:
        groups: the words for each, and its checks.
    """
    if len(groups) == 1:
        return list(groups[0][1])
    named: dict[str, list[Check]] = {}
    for words, checks in groups:
        for check in checks:
            named.setdefault(check.name, []).append(among(check, words, len(groups)))
    return [max(found, key=lambda check: _GRAVITY.index(check.outcome)) for found in named.values()]


def among(check: Check, words: str, groups: int) -> Check:
    """Return one group's check as one of several: each has a share of the chance of a false alarm."""
    detail = f"{words}: {check.detail}"
    if check.p_value is None:
        return replace(check, detail=detail)
    p_value = min(1.0, check.p_value * groups)
    if check.outcome in ALARMS and p_value >= LEVEL:
        detail += f"; among {groups} groups of clients that may be chance"
        return Check(check.name, "cannot tell", detail, p_value)
    return replace(check, detail=detail, p_value=p_value)
