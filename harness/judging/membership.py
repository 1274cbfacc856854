"""Whether a final model tells who was in its training: members and non-members that somebody names.

Half of the reference models saw a non-member and half did not, as models come in pairs that share the non-members out
between them. A non-member is compared with those alone that did not see it, and a member with as many: one of each
pair, chosen at random. So the two are alike in all but their part in the training.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.devices import compute_on
from harness.base.errors import UsageError
from harness.base.local_optimizer import optimizer_of
from harness.base.progress import progress
from harness.base.randomness import Stream
from harness.datasets import Dataset
from harness.judging.members import Final, Sides, require_fit
from harness.models import RowModel
from harness.models.batch_norm import Buffers, RunningStatistics, in_evaluation_mode
from harness.scoring.membership import (
    Flags,
    Numbers,
    Told,
    area,
    area_interval,
    best_weight,
    lira_score,
    log_odds,
    p_values,
    rmia_ratio,
    rmia_score,
    told,
)

#: Reference models, where nobody says how many.
REFERENCES = 8
_FEWEST_REFERENCES, _MOST_REFERENCES = 4, 256
# How reference models are trained: until they fit their half as well as the model fits its members.
_OPTIMIZER, _RATE, _BATCH = "adam", 0.001, 32
# Or until so many passes, and so many steps, are over.
_PASSES, _STEPS = 100, 3000
# Whether they do is looked at after every pass, and later after so many times as many.
_SELDOM = 1.1
# Examples evaluated together.
_CHUNK = 500
# A difference of the two groups without the model is shown at this level.
_APART = 0.999


# Models' confidence, and the training of reference models.


def _logits(module: nn.Module, images: Tensor) -> Tensor:
    """Logits (n, K) in float64, with running statistics where layers normalise."""
    where = next(module.parameters()).device
    with torch.no_grad(), in_evaluation_mode(module):
        return torch.cat([module(part.to(where)).double().cpu() for part in images.split(_CHUNK)])


def _measured(final: Final, module: nn.Module, side: Dataset) -> tuple[Numbers, Flags]:
    """Log-odds (n,) of the true labels, and which of them are told right."""
    logits = _logits(module, side.images)
    if not logits.isfinite().all():
        raise UsageError(f"model {final.name!r} gives numbers that are not finite; its training diverged, check it")
    return log_odds(logits.numpy(), side.labels.numpy()), (logits.argmax(1) == side.labels).numpy()


def _mean_loss(odds: Numbers) -> float:
    return float(np.logaddexp(0.0, -odds).mean())


@dataclass(frozen=True)
class Fitted:
    """A trained reference model: weights (P,), what its layers normalise by, passes, and whether it fits as well."""

    weights: Tensor
    running: Buffers
    passes: int
    fits: bool


def _trained(
    model: RowModel, images: Tensor, labels: Tensor, loss: float, keys: Sequence[tuple[int | str, ...]]
) -> list[Fitted]:
    """R models that fit their examples (R, n, ...) as well as this mean loss, or as well as they do after all passes.

    They step together, as networks over rows do; each keeps what it is when it fits.
    """
    weights = model.initial_weights([("reference", *key) for key in keys]).to(images.device)
    running = RunningStatistics(model.normalised, len(keys))
    orders = [Stream("reference order", *key) for key in keys]
    rows, count = torch.arange(len(keys))[:, None], images.shape[1]
    batches = math.ceil(count / _BATCH)
    most = max(_PASSES, math.ceil(_STEPS / batches))
    optimizer, memory, found, look = optimizer_of(_OPTIMIZER), dict[str, Tensor](), dict[int, Fitted](), 1
    for passes in range(1, most + 1):
        order = torch.stack([one.permutation(count) for one in orders])
        for part in order.tensor_split(batches, dim=1):
            batch = images[rows, part], labels[rows, part]
            if model.normalised:
                joint = model.joint_gradients(weights, *batch)
                running.follow(joint.statistics)
                gradient = joint.mean()
            else:
                gradient = model.gradient(weights, *batch)
            step, memory = optimizer.direction(gradient, weights, memory)
            weights = weights - _RATE * step
        if passes < look and passes < most:
            continue
        look = max(passes + 1, math.ceil(_SELDOM * passes))
        for row in set(range(len(keys))) - set(found):
            now = Fitted(weights[row].clone(), {name: one[row].clone() for name, one in running.buffers.items()},
                         passes, True)  # fmt: skip
            odds = log_odds(_logits(_as_module(model, now), images[row]).numpy(), labels[row].cpu().numpy())
            fits = _mean_loss(odds) <= loss
            if fits or passes == most:
                found[row] = replace(now, fits=fits)
        if len(found) == len(keys):
            break
    return [found[row] for row in range(len(keys))]


def _as_module(model: RowModel, fitted: Fitted) -> nn.Module:
    if fitted.running:
        model.take_buffers(dict(model.plain_module.named_buffers()) | fitted.running)
    return model.plain(fitted.weights)


def halves(references: int, count: int, seed: int) -> Flags:
    """Which of ``count`` examples each reference model is trained on (R, n); 2i and 2i + 1 share them out."""
    seen = np.zeros((references, count), dtype=bool)
    for pair in range(references // 2):
        seen[2 * pair, Stream(seed, "reference halves", pair).permutation(count)[: count // 2].numpy()] = True
        seen[2 * pair + 1] = ~seen[2 * pair]
    return seen


def _one_of_each_pair(references: int, count: int, seed: int) -> Flags:
    first = (Stream(seed, "reference models of members").uniform((references // 2, count)) < 0.5).numpy()
    return np.stack([first, ~first], 1).reshape(references, count)


# The judgement.


class Score(NamedTuple):
    """RMIA's score of an example, the share of non-members that its ratio exceeds, and its p-value."""

    score: float
    p: float


@dataclass(frozen=True)
class Membership:
    """How well members of a training are told from its final model.

    Attributes:
        accuracy: on members and non-members. reference_accuracy: of reference models, on their own half and the other.
        passes: of each reference model over its half. unfitted: how many fit it less well than the model its members.
        weight: RMIA's a.
        scores: RMIA, LiRA, and the loss alone.
        without: AUC and its 99.9% interval of reference models alone, which know no member: 0.5 where the two sides
            are alike in all but the training.
        members, others: RMIA's score of each example, in the order of the files.
    """

    model: str
    source: str
    counts: tuple[int, int]
    accuracy: tuple[float, float]
    reference_accuracy: tuple[float, float]
    passes: tuple[int, ...]
    unfitted: int
    weight: float
    scores: tuple[Told, ...]
    without: tuple[float, float, float]
    members: tuple[Score, ...]
    others: tuple[Score, ...]

    @property
    def problem(self) -> str | None:
        """Why the result does not count; None where it does."""
        found, low, high = self.without
        if low <= 0.5 <= high:
            return None
        return (
            f"members and non-members differ without the model (AUC {found:.3f}, 99.9% {low:.3f} to {high:.3f}, by "
            "models that saw no member); draw both from the same data"
        )

    def lines(self) -> list[str]:
        """In words."""
        (members, others), (own, other), (found, low, high) = self.accuracy, self.reference_accuracy, self.without
        less = f"; {self.unfitted} of them did not fit as well as the model" if self.unfitted else ""
        return [
            f"membership: {self.counts[0]} members, {self.counts[1]} non-members, weights of {self.source}",
            f"accuracy: {members:.1%} on members, {others:.1%} on non-members, a gap of {100 * (members - others):.1f} "
            "points",
            *(_in_words(one) for one in self.scores),
            *(f"at {_percent(one.alarms)} false alarms: {one.reason}" for one in self.scores[0].rates if one.reason),
            f"{len(self.passes)} reference models, each trained on half of the non-members: accuracy {own:.1%} on "
            f"their half, {other:.1%} on the other{less}",
            f"without the model, by the reference models alone: AUC {found:.3f} (99.9% {low:.3f} to {high:.3f})",
            *([f"do not use these results: {self.problem}"] if self.problem else []),
        ]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(replace(self, members=(), others=()))
        for name in ("members", "others"):
            found[name] = [one._asdict() for one in getattr(self, name)]
        return {"valid": self.problem is None, "problem": self.problem} | found


def _in_words(one: Told) -> str:
    said = [f"{one.name}: AUC {one.area:.3f} (95% {one.low:.3f} to {one.high:.3f})"]
    for rate in one.rates:
        if rate.found is not None and rate.members:
            share = f"{rate.found / rate.members:.1%}, 95% {rate.low:.1%} to {rate.high:.1%}"
            said.append(f"at {_percent(rate.alarms)} false alarms {rate.found} of {rate.members} members ({share})")
    return "; ".join(said)


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


@dataclass(frozen=True, eq=False)
class Signals:
    """What a model and R reference models make of n members and N non-members, in that order.

    Attributes:
        own: (n + N,), log-odds of the true labels under the model. right: which of them it tells.
        references: (R, n + N), under the reference models. hits: (R, n + N), which of them these tell.
        seen: (R, N), which non-members each was trained on.
        out: (R, n + N), which models an example is compared with; none of them saw it.
        passes: of each reference model. unfitted: how many fit their half less well than the model its members.
    """

    own: Numbers
    right: Flags
    references: Numbers
    hits: Flags
    seen: Flags
    out: Flags
    passes: tuple[int, ...]
    unfitted: int

    @property
    def count(self) -> int:
        """n."""
        return len(self.own) - self.seen.shape[1]


def judge_members(
    final: Final, sides: Sides, references: int = REFERENCES, seed: int = 0, device: str = "cpu"
) -> Membership:
    """Train reference models on non-members, and compare the model's confidence with theirs.

    Args:
        references: how many, even, at least 4.
        seed: of the halves, the weights and the order of examples.

    Raises:
        UsageError: the sides do not fit the model, or its numbers are not finite.
    """
    return _judged(final, signals_of(final, sides, references, seed, device))


def signals_of(final: Final, sides: Sides, references: int, seed: int, device: str) -> Signals:
    """Train the reference models, and ask them and the model; see :func:`judge_members`."""
    if references % 2 or not _FEWEST_REFERENCES <= references <= _MOST_REFERENCES:
        raise UsageError(
            f"{references} reference models; take an even number from {_FEWEST_REFERENCES} to {_MOST_REFERENCES}"
        )
    require_fit(final, sides)
    where, everyone = compute_on(device), sides.together
    final.module.to(where)
    own, right = _measured(final, final.module, everyone)
    seen, loss, fitted = halves(references, len(sides.others.labels), seed), _mean_loss(own[: sides.count]), []
    model = RowModel(final.name, final.shape, final.classes).to(where, torch.float32)
    rows = 1 if model.evaluates_alone else references
    with progress("reference models", references, "models") as bar:
        for first in range(0, references, rows):
            keys = [(seed, number) for number in range(first, first + rows)]
            fitted += _trained(model, *_examples(sides.others, seen[first : first + rows], where), loss, keys)
            bar.advance(rows)
    odds, hits = zip(*(_measured(final, _as_module(model, one), everyone) for one in fitted), strict=True)
    out = np.concatenate([_one_of_each_pair(references, sides.count, seed), ~seen], 1)
    passes, unfitted = tuple(one.passes for one in fitted), sum(not one.fits for one in fitted)
    return Signals(own, right, np.stack(odds), np.stack(hits), seen, out, passes, unfitted)


def _examples(side: Dataset, seen: Flags, where: torch.device) -> tuple[Tensor, Tensor]:
    """What reference models are trained on, (R, n, C, H, W) and (R, n): as many for each, though one may be left."""
    half = int(seen.sum(1).min())
    places = torch.from_numpy(np.stack([own.nonzero()[0][:half] for own in seen]))
    return side.images[places].to(where), side.labels[places].to(where)


def _judged(final: Final, signals: Signals) -> Membership:
    count, own, references, out = signals.count, signals.own, signals.references, signals.out
    seen, hits = signals.seen, signals.hits[:, count:]
    weight = best_weight(references[:, count:], seen)
    ratio = rmia_ratio(own, references, out, weight)
    scores = {"RMIA": ratio, "LiRA": lira_score(own, references, out), "loss alone": own}
    alone = np.where(out, references, 0.0).sum(0) / out.sum(0)
    exceeds, p = rmia_score(ratio, ratio[count:]), p_values(ratio, ratio[count:])
    each = tuple(Score(*both) for both in zip(exceeds.tolist(), p.tolist(), strict=True))
    return Membership(
        model=final.name, source=final.source, counts=(count, len(own) - count),
        accuracy=(float(signals.right[:count].mean()), float(signals.right[count:].mean())),
        reference_accuracy=(float(hits[seen].mean()), float(hits[~seen].mean())), passes=signals.passes,
        unfitted=signals.unfitted, weight=weight,
        scores=tuple(told(name, values[:count], values[count:]) for name, values in scores.items()),
        without=(area(alone[:count], alone[count:]), *area_interval(alone[:count], alone[count:], _APART)),
        members=each[:count], others=each[count:],
    )  # fmt: skip
