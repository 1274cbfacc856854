"""The optimizer of clients' local steps, as ``torch.optim`` computes it: for many clients at once, differentiable.

And how an update that it made is read: plain SGD, momentum and weight decay send a weighted sum of their steps'
gradients, and part of the weights they began with. Adam, AdamW, RMSprop and clipped gradients send no such sum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, cast, get_args

import torch
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from torch import Tensor

from harness.base.building import one_line
from harness.base.errors import UsageError, safe
from harness.base.ranges import Count, NonNegative, Positive
from harness.base.weight_groups import Groups, groups_of_text, of_each, text_of_groups

Remembered = dict[str, Tensor]
"""What an optimizer keeps from step to step, each (N, P); empty at the beginning of a round."""

_BelowOne = Annotated[float, Field(ge=0, lt=1)]
_Name = Literal["sgd", "adam", "adamw", "rmsprop"]
# What a training loop does around its optimizer, and what it gives it; no argument of torch's.
_AROUND = {"clip_grad_norm", "schedule", "accumulate", "accumulate_sum", "fedprox", "loss_scale", "groups"}
_COMMON = {"weight_decay"} | _AROUND
_ARGUMENTS: dict[_Name, set[str]] = {
    "sgd": _COMMON | {"momentum", "dampening", "nesterov"}, "adam": _COMMON | {"betas", "eps"},
    "adamw": _COMMON | {"betas", "eps"}, "rmsprop": _COMMON | {"alpha", "eps", "momentum"},
}  # fmt: skip
# Arguments of torch's that change what a step is, with what they are in a class that is known here.
_USUAL = {"maximize": False, "amsgrad": False, "centered": False}
# Arguments of torch's that change how a step is computed, and not what it is.
_HOW = {"foreach", "fused", "capturable", "differentiable"}
# torch decays by default in AdamW only.
_DECAY = {"adamw": 0.01}
# A root's derivative is infinite at 0; below float32's precision of any eps in use.
_TINY = 1e-30
# What single precision leaves of a gradient, relative to its root mean square: the client computed in it.
_PRECISION = 1e-4
# Local steps that are not plain and are played through one by one: seconds, and gigabytes with a schedule.
_MOST_STEPS = 250_000
# Weights that decay by rate * decay diverge from 2 on, with momentum near 1 from 4 on.
_PULL = 4.0
# Shares of steps differ by less where they differ by rounding.
_SAME = 1e-12
# Of a learning rate, by single precision.
_SINGLE = 1e-7
# What clip_grad_norm_ adds to the norm.
_CLIPPED = 1e-6


class LocalOptimizer(BaseModel, frozen=True, extra="forbid"):
    """A class of ``torch.optim`` in lower case, with torch's arguments and defaults.

    And what the training loop does around it. Every round begins with an empty memory.

    Attributes:
        name: sgd, adam, adamw or rmsprop.
        momentum, dampening, nesterov: of SGD; ``momentum`` of RMSprop too.
        weight_decay: times the weights, added to the gradient; in AdamW beside it (decoupled).
        betas, eps: of Adam and AdamW. alpha: of RMSprop, which has an eps too.
        clip_grad_norm: C of ``clip_grad_norm_``, which scales the gradient of each step down to it.
        schedule: the learning rate of each local step of a round, as used; None where it is the same in all. Some may
            be 0, as a warm-up begins.
        accumulate: batches k whose gradients make one step: their mean, as where each loss is divided by k.
        accumulate_sum: whether it is their sum instead, k times as much.
        fedprox: mu of FedProx, whose loss has mu / 2 times the squared distance to the weights before the round.
        loss_scale: what the loss is of the mean cross-entropy of its batch: its size, where ``reduction="sum"``.
        groups: of weights with a learning rate and a weight decay of their own, over all weights; () where they have
            none.
    """

    name: _Name = "sgd"
    momentum: _BelowOne = 0.0
    dampening: _BelowOne = 0.0
    nesterov: bool = False
    weight_decay: NonNegative = 0.0
    betas: tuple[_BelowOne, _BelowOne] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    alpha: _BelowOne = 0.99
    clip_grad_norm: Positive | None = None
    schedule: Annotated[tuple[NonNegative, ...], Field(min_length=1)] | None = None
    accumulate: Count = 1
    accumulate_sum: bool = False
    fedprox: NonNegative = 0.0
    loss_scale: Positive = 1.0
    groups: Groups = ()

    @model_validator(mode="before")
    @classmethod
    def _in_lower_case(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        name = str(given.get("name", "sgd")).lower()
        told = {key: one for key, one in given.items() if not is_usual(name, key, one)}
        usual = 0.0 if told.get("groups") else _DECAY.get(name, 0.0)
        return {"weight_decay": usual} | told | {"name": name}

    @field_validator("groups", mode="before")
    @classmethod
    def _in_runs(cls, given: Any) -> Any:
        return groups_of_text(given) if isinstance(given, str) else given

    @field_validator("betas", "schedule", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        return given.split("/") if isinstance(given, str) else given

    @model_validator(mode="after")
    def _as_torch_has_it(self) -> "LocalOptimizer":
        fields = type(self).model_fields
        changed = [name for name in fields if name != "name" and getattr(self, name) != fields[name].default]
        foreign = [name for name in changed if name not in _ARGUMENTS[self.name]]
        if foreign:
            raise ValueError(f"{self.name} has no {foreign[0]}; it has {', '.join(sorted(_ARGUMENTS[self.name]))}")
        if self.groups and self.weight_decay:
            raise ValueError("groups have a weight_decay each; leave out the one beside them")
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs momentum above 0 and no dampening")
        if self.accumulate_sum and self.accumulate == 1:
            raise ValueError("accumulate_sum is of several batches; give their number as accumulate")
        if self.schedule is not None and not any(self.schedule):
            raise ValueError(
                "all rates of the schedule are 0, with which nothing is trained; give those that were used"
            )
        return self

    def require_rate(self, rate: float, steps: int) -> None:
        """Raises ValueError: what pulls the weights back is so strong that it throws them further away each time."""
        most = max([rate, *(self.schedule or ())])
        decays = [self.weight_decay, *(factor * decay for _, factor, decay in self.groups)]
        fastest = max([1.0, *(factor for _, factor, _ in self.groups)])
        pulls = {"weight_decay": max(decays), "fedprox": self.fedprox * fastest}
        for name, pull in pulls.items() if self.name in ("sgd", "adamw") else ():
            if pull * most >= _PULL and (name, steps) != ("fedprox", 1):
                raise ValueError(
                    f"{name} {pull:g} at learning_rate {most:g} makes weights grow without end; correct one"
                )

    def require_steps(self, steps: int) -> None:
        """Raises ValueError: the schedule is of another number of local steps."""
        if self.schedule is not None and len(self.schedule) != steps:
            raise ValueError(
                f"the schedule has {len(self.schedule)} rates and there are {steps} local_steps; give the rate of each"
            )

    @property
    def leading(self) -> float | None:
        """The first learning rate of a schedule that is above 0, which is that of the optimizer; None without one."""
        return next((one for one in self.schedule or () if one), None)

    @property
    def text(self) -> str:
        """Text of the optimizer as an option has it: ``adam:weight_decay=0.01``; arguments at torch's defaults are left
        out."""
        usual = LocalOptimizer(name=self.name)
        told = {name: getattr(self, name) for name in sorted(_ARGUMENTS[self.name])}
        usual_decay = 0.0 if self.groups else usual.weight_decay
        differ = told | ({"weight_decay": usual.weight_decay} if self.weight_decay == usual_decay else {})
        changed = [(name, value) for name, value in differ.items() if value != getattr(usual, name)]
        return ":".join([self.name, ",".join(f"{name}={_written(value)}" for name, value in changed)]).rstrip(":")

    @property
    def is_plain(self) -> bool:
        """Return whether a step is the gradient times the learning rate, and nothing else."""
        return self == PLAIN

    @property
    def is_linear(self) -> bool:
        """Return whether an update is a weighted sum of gradients and the weights before."""
        return self.name == "sgd" and self.clip_grad_norm is None

    @property
    def first_step(self) -> "Adaptive | None":
        """Return what the first step of an adaptive class makes of a gradient; None where decay or a clip is mixed into
        it."""
        decays = self.weight_decay or any(decay for _, _, decay in self.groups)
        if self.name == "sgd" or self.clip_grad_norm or not self.eps or (decays and self.name != "adamw"):
            return None
        # A gradient times k over an eps is the gradient over an eps / k.
        return Adaptive((1 - self.alpha) ** 0.5 if self.name == "rmsprop" else 1.0, self.eps / self.gain)

    @property
    def gain(self) -> float:
        """Return what a step multiplies the mean of its examples' gradients by: k where k batches are added up."""
        return self.loss_scale * (self.accumulate if self.accumulate_sum else 1)

    @property
    def is_stateful(self) -> bool:
        """Return whether it remembers something from one step to the next, as torch does."""
        return self.name != "sgd" or self.momentum > 0

    def velocity(self, update: Tensor, rate: float, before: Tensor | None) -> Tensor:
        """Return what SGD remembers after one step that made this update; ``before``: what it remembered, None for
        nothing."""
        made = update / -rate
        if not self.nesterov:
            return made
        return (made if before is None else made + self.momentum * before) / (1 + self.momentum)

    def anew(self, update: Tensor, rate: float, before: Tensor) -> Tensor:
        """The update that the same step of SGD had made, had it remembered nothing."""
        if self.nesterov:
            return update + rate * self.momentum**2 * before
        return (update + rate * self.momentum * before) / (1 - self.dampening)

    def of_groups(self) -> "list[tuple[int, float, LocalOptimizer]]":
        """Return for each of its groups how many weights it has, the multiple of the learning rate, and the optimizer
        by itself."""
        return [
            (count, factor, self.model_copy(update={"groups": (), "weight_decay": decay}))
            for count, factor, decay in self.groups
        ]

    def way(self, steps: int, rate: float) -> list[float]:
        """Return which share of the whole way is done before each of L steps, if all gradients were alike."""
        if self.groups:
            return self.model_copy(update={"groups": ()}).way(steps, rate)
        gradient, memory = torch.ones(1, 1, dtype=torch.float64), Remembered()
        here, behind = torch.zeros(1, 1, dtype=torch.float64), list[float]()
        for _ in range(steps):
            behind.append(float(here))
            made, memory = self.direction(gradient, here, memory)
            here = here - rate * made
        return [one / float(here) for one in behind]

    def direction(self, gradient: Tensor, weights: Tensor, memory: Remembered) -> tuple[Tensor, Remembered]:
        """Return what the weights move by in a step, divided by minus the learning rate, and what is remembered after
        it.

        The learning rate is a schedule's first above 0; the other rates are factors of what is returned.

        Args:
            gradient, weights: (N, P), of the step, and where it begins. Neither is changed.
            memory: after the step before.
        """
        if self.is_plain:
            return gradient, memory
        if self.loss_scale != 1:
            gradient = gradient * self.loss_scale
        if self.schedule is None and not self.fedprox:
            return self._direction(gradient, weights, memory)
        taken, start = int(memory.get("taken", 0)), memory.get("start", weights)
        if self.fedprox:
            gradient = gradient + self.fedprox * (weights - start)
        made, memory = self._direction(gradient, weights, memory)
        if self.schedule is not None:
            made = made * (self.schedule[taken] / (self.leading or 1.0))
        return made, memory | {"taken": torch.tensor(taken + 1), "start": start}

    def _direction(self, gradient: Tensor, weights: Tensor, memory: Remembered) -> tuple[Tensor, Remembered]:
        if self.accumulate_sum:
            gradient = gradient * self.accumulate
        if self.clip_grad_norm is not None:
            norm = gradient.norm(dim=-1, keepdim=True)
            gradient = gradient * (self.clip_grad_norm / (norm + _CLIPPED)).clamp(max=1.0)
        decay = self.weight_decay * weights if self.weight_decay else None
        if any(one for _, _, one in self.groups):
            decay = of_each(self.groups, [one for _, _, one in self.groups], weights) * weights
        if decay is not None and self.name != "adamw":
            gradient = gradient + decay
        made, memory = (self._of_sgd if self.name == "sgd" else self._adaptive)(gradient, memory)
        made = made + decay if decay is not None and self.name == "adamw" else made
        return (made * of_each(self.groups, [one for _, one, _ in self.groups], made) if self.groups else made), memory

    def _of_sgd(self, gradient: Tensor, memory: Remembered) -> tuple[Tensor, Remembered]:
        if not self.momentum:
            return gradient, memory
        before = memory.get("velocity")
        # torch does not dampen the first step.
        velocity = gradient if before is None else self.momentum * before + (1 - self.dampening) * gradient
        made = gradient + self.momentum * velocity if self.nesterov else velocity
        return made, {"velocity": velocity}

    def _adaptive(self, gradient: Tensor, memory: Remembered) -> tuple[Tensor, Remembered]:
        zeros, step = torch.zeros_like(gradient), 1 + int(memory.get("step", 0))
        kept = self.alpha if self.name == "rmsprop" else self.betas[1]
        squares = kept * memory.get("squares", zeros) + (1 - kept) * gradient.square()
        after = {"squares": squares, "step": torch.tensor(step)}
        if self.name == "rmsprop":
            made = gradient / (squares.clamp_min(_TINY).sqrt() + self.eps)
            if not self.momentum:
                return made, after
            velocity = self.momentum * memory.get("velocity", zeros) + made
            return velocity, after | {"velocity": velocity}
        first = self.betas[0]
        mean = first * memory.get("mean", zeros) + (1 - first) * gradient
        root = (squares / (1 - kept**step)).clamp_min(_TINY).sqrt()
        return mean / (1 - first**step) / (root + self.eps), after | {"mean": mean}


def is_usual(name: str, key: str, value: Any) -> bool:
    """Return whether an argument of torch's leaves the steps of a class as they are here, and need not be said.

    Raises:
        ValueError: it makes other steps of them, that are not known.
    """
    if key in _USUAL or key == "decoupled_weight_decay":
        # Of a text it is a word.
        if str(value).lower() not in (str(_USUAL.get(key, name.lower() == "adamw")).lower(), "none"):
            raise ValueError(f"{key}={value} cannot be judged; leave it out in the captured round")
        return True
    return key in _HOW


def _written(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return text_of_groups(value)
    return "/".join(f"{one}" for one in value) if isinstance(value, tuple) else f"{value}".lower()


PLAIN = LocalOptimizer()


def arguments_of(name: str) -> set[str]:
    """The arguments that count of a class of torch's.

    Raises:
        UsageError: its steps are not known here.
    """
    if name.lower() not in get_args(_Name):
        raise UsageError(
            f"optimizer {name!r} is none whose steps are known here ({', '.join(get_args(_Name))}); train the captured "
            "round with one of these"
        )
    return _ARGUMENTS[cast(_Name, name.lower())] - _AROUND


@lru_cache(maxsize=64)
def optimizer_of(text: str) -> LocalOptimizer:
    """The optimizer of a text such as ``sgd:momentum=0.9,nesterov=true``; its ``lr`` is left to :func:`with_rate`.

    Raises:
        UsageError: there is no such class or argument, or its value is out of range.
    """
    return with_rate(text)[0]


def with_rate(given: object) -> tuple[LocalOptimizer, float | None]:
    """An optimizer, and its learning rate where that stands among its arguments: ``lr``, or a schedule's first above 0.

    Args:
        given: a text, or a table of torch's arguments with the class's ``name``.

    Raises:
        UsageError: there is no such class or argument, or its value is out of range.
    """
    facts = dict(given) if isinstance(given, Mapping) else facts_of_text(str(given))
    which = f"optimizer {safe(str(facts.get('name', 'sgd') if isinstance(given, Mapping) else given), 60)!r}"
    try:
        rate = None if facts.get("lr") is None else float(facts["lr"])
        made = LocalOptimizer(**{key: one for key, one in facts.items() if key != "lr"})
        first = made.leading if made.schedule else rate
        if rate is not None and not 0 < rate < float("inf") and not (made.schedule and rate == made.schedule[0]):
            raise UsageError(f"{which}: lr must be above 0; give it so, or beside a schedule not at all")
        if rate not in (None, first, (made.schedule or (first,))[0]):
            raise UsageError(f"{which}: its schedule begins with {first:g}, its lr is {rate:g}; give one")
        return made, first
    except (ValidationError, TypeError, ValueError) as error:
        what = one_line(error) if isinstance(error, ValidationError) else str(error)
        fix = "" if ";" in what else "; write for example adam:lr=0.001,weight_decay=0.01"
        raise UsageError(f"{which}: {what}{fix}") from error


def settle_rate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which the optimizer is its text, and ``learning_rate`` its ``lr`` where that stands there.

    Raises:
        UsageError: it cannot be, or the two are given and differ.
    """
    optimizer, rate = with_rate(given["optimizer"])
    if rate is None:
        return {**given, "optimizer": optimizer.text}
    own = given.get("learning_rate", rate)
    # torch may keep it in single precision.
    if own != rate and not (isinstance(own, int | float) and math.isclose(own, rate, rel_tol=_SINGLE)):
        which = "schedule begins with" if optimizer.schedule else "lr is"
        raise UsageError(f"the optimizer's {which} {rate:g}, learning_rate {own}; give one")
    return {**given, "optimizer": optimizer.text, "learning_rate": own}


def facts_of_text(text: str) -> dict[str, Any]:
    """The arguments in ``NAME:key=value,...``, and the ``name``. Raises UsageError."""
    name, _, rest = text.partition(":")
    facts: dict[str, Any] = {"name": name}
    for assignment in filter(None, rest.split(",")):
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"optimizer {text!r}: {assignment!r} is not key=value; write sgd:momentum=0.9")
        if key.strip() in facts:
            raise UsageError(f"optimizer {text!r}: {key.strip()} is given twice; give it once")
        facts[key.strip()] = value.strip()
    return facts


@dataclass(frozen=True)
class UpdateReading:
    """Rule by which the update of L local steps becomes what an attacker matches, in units of a gradient.

    Attributes:
        steps: L.
        rate: what an update is divided by, for each step: the learning rate, or the mean weight of its gradients.
        shares: (L,) weights of the steps' gradients, 1 on average; None where an update is no weighted sum of them.
        kept: the part of the weights before the round that lies in the update (weight decay); it is taken away.
        adaptive: of a single step of Adam and its like, whose gradient is read off each coordinate.
        sent_as: what the weights after it were sent in, where that is coarser than float32: ``float16``, ``bfloat16``.
        groups: of weights with a rate of their own: how many, what theirs is of ``rate``, and what is kept of them.
    """

    steps: int
    rate: float
    shares: tuple[float, ...] | None
    kept: float = 0.0
    adaptive: "Adaptive | None" = None
    sent_as: str | None = None
    groups: tuple[tuple[int, float, float], ...] = ()

    @property
    def noise_shares(self) -> tuple[float, ...] | None:
        """The weights with which noise on the steps is in what is read; None where nobody knows."""
        return None if self.adaptive is not None else self.shares

    @property
    def alike(self) -> bool:
        """Return whether it is the mean of the steps' gradients."""
        return self.shares is not None and set(self.shares) == {1.0}

    @property
    def decays(self) -> bool:
        """Return whether a part of the weights before lies in the update."""
        return bool(self.kept) or any(kept for _, _, kept in self.groups)

    def gradient(self, update: Tensor, weights: Tensor) -> Tensor:
        """Return what an update (R, P) says of the gradient, given the weights (R, P) before it."""
        made = self._steps(update, weights)
        return made if self.adaptive is None else self.adaptive.gradient(made, self._rounded(weights))

    def largest(self, update: Tensor, weights: Tensor, grain: float) -> float:
        """The largest coordinate of adaptive steps, of the largest that they take, but for this rounding of updates."""
        assert self.adaptive is not None
        size = self._steps(update, weights).abs() - grain / self._rate(update)
        return float(self.adaptive.root * size.max())

    def _steps(self, update: Tensor, weights: Tensor) -> Tensor:
        """An update (R, P) without weight decay, in units of minus the learning rate of its steps."""
        kept = self._of_decay(update)
        moved = update if kept is None else update - kept * weights.to(update)
        return moved / (-self._rate(update) * self.steps)

    def certainty(self, gradient: Tensor, weights: Tensor, least: float = _PRECISION) -> Tensor | None:
        """Weights (R, P) of the coordinates of a gradient that was read so, by how exactly each is known.

        They leave its norm as it is. None where all are known alike. ``least``: the error that each is allowed, in root
        mean squares of the gradient.
        """
        if self.adaptive is None and self.sent_as is None:
            return None
        read = gradient.double()
        precision = least * read.square().mean(1, keepdim=True).sqrt().clamp_min(_TINY)
        exact = 1 / torch.hypot(self.error(read, weights), precision)
        weighted = (exact * read).norm(dim=1, keepdim=True).clamp_min(_TINY)
        return (exact * read.norm(dim=1, keepdim=True) / weighted).to(gradient.dtype)

    def error(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Deviation (R, P) of a gradient that was read, by the rounding of weights: of adaptive steps, and of weights
        in half precision; else 0."""
        if self.adaptive is not None:
            return self.adaptive.error(gradient, self._rounded(weights))
        if self.sent_as is None:
            return torch.zeros_like(gradient)
        return self._rounded(weights.abs().maximum((weights + self.update(gradient, weights)).abs()))

    def _rounded(self, weights: Tensor) -> Tensor:
        """Deviation of what rounding of weights leaves in the mean of the steps, in units of a step over the rate."""
        dtype = weights.dtype if self.sent_as is None else getattr(torch, self.sent_as)
        # No weight of an adaptive step is nearer to zero than the step.
        size = weights.abs() if self.adaptive is None else weights.abs().clamp_min(self._rate(weights))
        return spacing(size, dtype).double() / (self._rate(weights.double()) * self.steps * 12**0.5)

    def _rate(self, like: Tensor) -> Any:
        """Return what an update like this one is divided by, for each step: one number, or (P,) of groups."""
        if not self.groups:
            return self.rate
        return of_each(self.groups, [self.rate * factor for _, factor, _ in self.groups], like)

    def _of_decay(self, like: Tensor) -> Any:
        """The part of the weights before: one number, or (P,) of groups; None where there is none."""
        if any(kept for _, _, kept in self.groups):
            return of_each(self.groups, [kept for _, _, kept in self.groups], like)
        return self.kept or None

    def update(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """The update (R, P) that is read so."""
        moved, kept = gradient * (-self._rate(gradient) * self.steps), self._of_decay(gradient)
        return moved if kept is None else moved + kept * weights


@dataclass(frozen=True)
class Adaptive:
    """The first step of Adam, AdamW or RMSprop: u = g / (root |g| + eps) in each coordinate.

    Every sign is known, and the size of a gradient that is not far above eps: the rest is lost to rounding. ``blur``
    is an attack's own, that compares signs alone: how coarsely it does so at the moment (``attacks/stages.py``).
    """

    root: float
    eps: float
    blur: float | None = None

    def gradient(self, step: Tensor, rounded: Tensor) -> Tensor:
        """The gradient of steps u (R, P), whose rounding has this deviation; at most what rounding leaves to be read.

        Source: the inverse of the step; g = sign(u) eps |u| / (1 - root |u|).
        """
        size = step.abs()
        left = (1 - self.root * size).clamp_min(0).maximum(self.root * rounded.to(step)).clamp_min(_TINY)
        return step.sign() * self.eps * size / left

    def step(self, gradient: Tensor) -> Tensor:
        """The step u of a gradient (R, P)."""
        return gradient / (self.root * gradient.abs() + self.eps)

    def error(self, gradient: Tensor, rounded: Tensor) -> Tensor:
        """Deviation of such a gradient: that of the step, times dg/du = (root |g| + eps)^2 / eps."""
        return rounded.clamp_min(_TINY) * (self.root * gradient.abs() + self.eps).square() / self.eps


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance from positive values to the next larger float of a dtype."""
    known = torch.finfo(dtype)
    exponent = torch.frexp(values.clamp_min(known.tiny)).exponent
    return torch.ldexp(torch.full_like(values, known.eps), exponent - 1)


def reading_of(
    optimizer: LocalOptimizer, steps: int, rate: float, changed: bool, sent_as: str | None = None
) -> UpdateReading:
    """Return how updates of these clients are read.

    Args:
        optimizer: of their L local ``steps``, at this learning ``rate``.
        changed: whether something that is not linear comes after the last step, such as a clip: then nobody can say
            how much of the weights before is left in what was sent.
        sent_as: what the weights are sent in, where that is coarser than float32.
    """
    found = _reading_of(optimizer, steps, rate, changed)
    return found if sent_as is None or changed else replace(found, sent_as=sent_as)


def _reading_of(optimizer: LocalOptimizer, steps: int, rate: float, changed: bool) -> UpdateReading:
    if optimizer.is_plain:
        return UpdateReading(steps, rate, (1.0,) * steps)
    if optimizer.groups:
        return _reading_of_groups(optimizer, steps, rate, changed)
    if not optimizer.is_linear:
        adaptive = None if steps > 1 or changed else optimizer.first_step
        if adaptive is None:
            return UpdateReading(steps, rate, None)
        kept = -rate * optimizer.weight_decay if optimizer.name == "adamw" else 0.0
        return UpdateReading(1, rate, (1.0,), kept, adaptive)
    kept, *weights = _weights(optimizer.text, steps, rate)
    if kept and changed:
        return UpdateReading(steps, rate, None)
    mean = -sum(weights) / steps
    return UpdateReading(steps, mean, tuple(-one / mean for one in weights), kept)


def _reading_of_groups(optimizer: LocalOptimizer, steps: int, rate: float, changed: bool) -> UpdateReading:
    """Return how updates are read whose groups are each read by themselves. There is no sum of gradients where a step
    weighs more in one group than in another."""
    alone = [
        (count, factor, _reading_of(one, steps, rate * factor, changed)) for count, factor, one in optimizer.of_groups()
    ]
    _, factor, first = alone[0]
    shares = first.shares
    if changed or shares is None or not all(_alike(shares, one.shares) for _, _, one in alone):
        return UpdateReading(steps, rate, None)
    usual = first.rate / factor
    return replace(
        first, rate=usual, kept=0.0, groups=tuple((count, one.rate / usual, one.kept) for count, _, one in alone)
    )


def _alike(shares: tuple[float, ...], others: tuple[float, ...] | None) -> bool:
    """Return whether these are the same but for rounding."""
    return others is not None and all(abs(one - other) < _SAME for one, other in zip(shares, others, strict=True))


@lru_cache(maxsize=256)
def _weights(text: str, steps: int, rate: float) -> tuple[float, ...]:
    """Return what a linear optimizer's update has of the weights before, and of the gradient of each step."""
    if steps > _MOST_STEPS:
        raise UsageError(f"local_steps {steps:,} are more than are read of {text[:40]} ({_MOST_STEPS:,}); correct it")
    optimizer = optimizer_of(text)
    return (_of_each if optimizer.schedule is not None else _of_alike)(optimizer, steps, rate)


def _of_alike(optimizer: LocalOptimizer, steps: int, rate: float) -> tuple[float, ...]:
    """Return the numbers of :func:`_weights` for steps at one rate. All gradients but the first, which is not dampened,
    have the same course from their step on."""
    # Run on the unit vectors of the weights, the first gradient and the second.
    inputs, memory, made = torch.eye(3, dtype=torch.float64), Remembered(), list[float]()
    here, still = inputs[:1], torch.zeros(1, 3, dtype=torch.float64)
    for step in range(steps):
        moved, memory = optimizer.direction(inputs[step + 1 : step + 2] if step < 2 else still, here, memory)
        here = here - rate * moved
        made.append(float(here[0, 2]))
    kept, first = (here - inputs[:1])[0, :2].tolist()
    return kept, first, *reversed(made[1:])


def _of_each(optimizer: LocalOptimizer, steps: int, rate: float) -> tuple[float, ...]:
    """Return the numbers of :func:`_weights` for steps at rates of their own. They are the derivatives of the update,
    which is linear, by all that goes into it."""
    with torch.inference_mode(False), torch.enable_grad():
        start, *gradients = (torch.zeros(1, 1, dtype=torch.float64, requires_grad=True) for _ in range(steps + 1))
        here, memory = start, Remembered()
        for gradient in gradients:
            moved, memory = optimizer.direction(gradient, here, memory)
            here = here - rate * moved
        found = torch.autograd.grad((here - start).sum(), [start, *gradients])
    return tuple(torch.cat(found).flatten().tolist())
