"""Answers of a model, and of reference models that never saw a member, about members and non-members.

Half of the reference models saw a non-member and half did not, as models come in pairs that share the non-members out
between them. A non-member is compared with those alone that did not see it, and a member with as many: one of each
pair, chosen at random. So the two are alike in all but their part in the training.

Models of several rounds have the same reference models: as each of these is trained, it is kept where it fits its half
as well as the model of a round fits its members.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from harness.scoring.membership import Flags, Numbers, log_odds

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
    model: RowModel, images: Tensor, labels: Tensor, losses: Sequence[float], keys: Sequence[tuple[int | str, ...]]
) -> list[list[Fitted]]:
    """R models as they are when they fit their examples (R, n, ...) as well as each of these mean losses, or after all
    passes; a list for each model.

    They step together, as networks over rows do.
    """
    weights = model.initial_weights([("reference", *key) for key in keys]).to(images.device)
    running = RunningStatistics(model.normalised, len(keys))
    orders = [Stream("reference order", *key) for key in keys]
    rows, count = torch.arange(len(keys))[:, None], images.shape[1]
    batches = math.ceil(count / _BATCH)
    most = max(_PASSES, math.ceil(_STEPS / batches))
    optimizer, memory, found, look = optimizer_of(_OPTIMIZER), dict[str, Tensor](), dict[tuple[int, int], Fitted](), 1
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
        left = {row: [one for one in range(len(losses)) if (row, one) not in found] for row in range(len(keys))}
        for row in (row for row, wanted in left.items() if wanted):
            now = Fitted(weights[row].clone(), {name: one[row].clone() for name, one in running.buffers.items()},
                         passes, True)  # fmt: skip
            odds = log_odds(_logits(_as_module(model, now), images[row]).numpy(), labels[row].cpu().numpy())
            for one in left[row]:
                fits = _mean_loss(odds) <= losses[one]
                if fits or passes == most:
                    found[row, one] = replace(now, fits=fits)
        if len(found) == len(keys) * len(losses):
            break
    return [[found[row, one] for one in range(len(losses))] for row in range(len(keys))]


def _as_module(model: RowModel, fitted: Fitted) -> nn.Module:
    if fitted.running:
        model.take_buffers(dict(model.plain_module.named_buffers()) | fitted.running)
    return model.plain(fitted.weights)


def halves(references: int, count: int, seed: int) -> Flags:
    """Return which of ``count`` examples each reference model is trained on (R, n).

    Models 2i and 2i + 1 share them out.
    """
    seen = np.zeros((references, count), dtype=bool)
    for pair in range(references // 2):
        seen[2 * pair, Stream(seed, "reference halves", pair).permutation(count)[: count // 2].numpy()] = True
        seen[2 * pair + 1] = ~seen[2 * pair]
    return seen


def _one_of_each_pair(references: int, count: int, seed: int) -> Flags:
    first = (Stream(seed, "reference models of members").uniform((references // 2, count)) < 0.5).numpy()
    return np.stack([first, ~first], 1).reshape(references, count)


@dataclass(frozen=True, eq=False)
class Signals:
    """Answers of a model and of R reference models about n members and N non-members, in that order.

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


def signals_of(finals: Sequence[Final], sides: Sides, references: int, seed: int, device: str) -> list[Signals]:
    """Train the reference models, and ask them and each of some models of one network.

    Args:
        finals: such as those of several rounds.
        references, seed: see :func:`harness.judging.membership.judge_members`.

    Raises:
        UsageError: the sides do not fit the models, or their numbers are not finite.
    """
    if references % 2 or not _FEWEST_REFERENCES <= references <= _MOST_REFERENCES:
        raise UsageError(
            f"{references} reference models; take an even number from {_FEWEST_REFERENCES} to {_MOST_REFERENCES}"
        )
    require_fit(finals[-1], sides)
    where, everyone = compute_on(device), sides.together
    asked = [_measured(one, one.module.to(where), everyone) for one in finals]
    losses = [_mean_loss(own[: sides.count]) for own, _ in asked]
    seen, fitted, final = halves(references, len(sides.others.labels), seed), list[list[Fitted]](), finals[-1]
    model = RowModel(final.name, final.shape, final.classes).to(where, torch.float32)
    rows = 1 if model.evaluates_alone else references
    with progress("reference models", references, "models") as bar:
        for first in range(0, references, rows):
            keys = [(seed, number) for number in range(first, first + rows)]
            fitted += _trained(model, *_examples(sides.others, seen[first : first + rows], where), losses, keys)
            bar.advance(rows)
    out = np.concatenate([_one_of_each_pair(references, sides.count, seed), ~seen], 1)
    made = []
    for (own, right), theirs in zip(asked, zip(*fitted, strict=True), strict=True):
        odds, hits = zip(*(_measured(final, _as_module(model, one), everyone) for one in theirs), strict=True)
        passes, unfitted = tuple(one.passes for one in theirs), sum(not one.fits for one in theirs)
        made.append(Signals(own, right, np.stack(odds), np.stack(hits), seen, out, passes, unfitted))
    return made


def _examples(side: Dataset, seen: Flags, where: torch.device) -> tuple[Tensor, Tensor]:
    """Return what reference models are trained on, (R, n, C, H, W) and (R, n): as many for each, though one may be
    left."""
    half = int(seen.sum(1).min())
    places = torch.from_numpy(np.stack([own.nonzero()[0][:half] for own in seen]))
    return side.images[places].to(where), side.labels[places].to(where)
