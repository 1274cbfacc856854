"""Whether a final model tells who was in its training: members and non-members that somebody names.

Half of the reference models saw a non-member and half did not, as models come in pairs that share the non-members out
between them. A non-member is compared with those alone that did not see it, and a member with as many: one of each
pair, chosen at random. So the two are alike in all but their part in the training.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.devices import compute_on
from harness.base.errors import UsageError
from harness.base.local_optimizer import optimizer_of
from harness.base.progress import progress
from harness.base.randomness import Stream
from harness.datasets import Dataset, load_dataset
from harness.judging.capture import FACTS, Capture
from harness.judging.parts import fitted_arrays, fixed_values, trained_network
from harness.models import RowModel, build_module
from harness.models.batch_norm import Buffers, RunningStatistics, in_evaluation_mode
from harness.models.networks import ImageShape
from harness.models.weights_files import load_state
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

#: Members, and non-members, below which nothing is said.
FEWEST = 20
REFERENCES = 8
_FEWEST_REFERENCES, _MOST_REFERENCES = 4, 256
# How reference models are trained: until they fit their half as well as the model fits its members.
_OPTIMIZER, _RATE, _BATCH, _MOST_EPOCHS = "adam", 0.001, 32, 100
# Whether they do is looked at after every pass, and later after so many times as many.
_SELDOM = 1.1
# Examples evaluated together.
_CHUNK = 500
# A difference of the two groups without the model is shown at this level.
_APART = 0.999


@dataclass(frozen=True)
class Final:
    """A trained network: how it is built again, and what it is.

    Attributes:
        name: for :func:`build_module`. source: where its weights come from, in words.
        module: with the trained weights.
    """

    name: str
    shape: ImageShape
    classes: int
    source: str
    module: nn.Module


@dataclass(frozen=True)
class Sides:
    """Members and non-members of one kind, none of them twice."""

    members: Dataset
    others: Dataset

    @property
    def count(self) -> int:
        """How many members there are."""
        return len(self.members.labels)

    @property
    def together(self) -> Dataset:
        """All of them, members first."""
        pairs = (self.members.images, self.others.images), (self.members.labels, self.others.labels)
        images, labels = (torch.cat(both) for both in pairs)
        return replace(self.others, images=images, labels=labels)


def read_sides(members: Path, others: Path) -> Sides:
    """Both files, checked against each other.

    Raises:
        UsageError: a file is damaged, examples are there twice or on both sides, or the sides are not comparable.
    """
    inside, outside = (load_dataset(str(path), Path()) for path in (members, others))
    for path, side in ((members, inside), (others, outside)):
        if side.words is not None:
            raise UsageError(f"{str(path)!r} holds texts, and membership is tested of images and tables; give .npz")
        if len(side.labels) < FEWEST:
            raise UsageError(
                f"{str(path)!r} has {len(side.labels)} examples, which can show nothing; give at least {FEWEST}, "
                "better 2000"
            )
    if inside.image_shape != outside.image_shape:
        raise UsageError(
            f"members are of shape {inside.image_shape}, non-members of {outside.image_shape}; save both as the "
            "network takes them"
        )
    strange = sorted(set(inside.labels.tolist()) - set(outside.labels.tolist()))
    if strange:
        raise UsageError(
            f"members have label {strange[0]}, which no non-member has; give non-members of all classes of the members"
        )
    known = [_digests(side) for side in (inside, outside)]
    for path, digests in zip((members, others), known, strict=True):
        if len(set(digests)) < len(digests):
            place = next(place for place, one in enumerate(digests) if one in digests[:place])
            raise UsageError(
                f"{str(path)!r} has example {place + 1} twice (first as {digests.index(digests[place]) + 1}); keep "
                "each example once"
            )
    both = set(known[0]) & set(known[1])
    if both:
        place = next(place for place, one in enumerate(known[1]) if one in both)
        raise UsageError(
            f"{len(both)} members are also non-members, such as example {place + 1} of {str(others)!r}; take them "
            "out of one of the files"
        )
    return Sides(inside, outside)


def _digests(side: Dataset) -> list[bytes]:
    images, labels = side.images.numpy(), side.labels.numpy()
    return [hashlib.sha256(one.tobytes() + label.tobytes()).digest() for one, label in zip(images, labels, strict=True)]


def final_of_files(name: str, weights: Path, sides: Sides) -> Final:
    """A network by its name, with weights from a file; it takes what the sides hold.

    Raises:
        UsageError: it cannot be built, or the file does not fit.
    """
    shape, classes = sides.others.image_shape, max(sides.members.num_classes, sides.others.num_classes)
    module = build_module(name, shape, classes, seed=0)
    load_state(module, name, weights)
    return Final(name, shape, classes, weights.name, module)


def final_of_captures(captures: Sequence[Capture], weights: Path | None) -> Final:
    """The network of captures, with weights from a file, or what came back in the latest round (of several captures of
    that round, the last one named).

    Raises:
        UsageError: captures of texts or of gradients, or weights that do not fit.
    """
    latest = max(enumerate(captures), key=lambda one: (one[1].record.round, one[0]))[1]
    record, folder = latest.record, str(latest.folder)
    if record.data == "text":
        raise UsageError(f"capture {folder!r} is of texts, and membership is tested of images and tables; drop it")
    module, name = trained_network([latest])
    if weights is not None:
        load_state(module, name, weights)
        return Final(name, record.shape, record.classes, weights.name, module)
    if latest.kind == "gradient":
        raise UsageError(f"capture {folder!r} holds a gradient and no trained model; give it with --weights FILE")
    state = fitted_arrays(latest.before, module, whole=True, fixed=fixed_values(record, module, True))
    sent = fitted_arrays(latest.moved, module, whole=False)
    if latest.kind == "update":
        # Statistics of layers that normalise are sent as they are.
        trained = {one for one, _ in module.named_parameters()}
        sent = {one: state[one] + value if one in trained else value for one, value in sent.items()}
    module.load_state_dict(state | sent)
    return Final(name, record.shape, record.classes, f"{latest.kind} of {latest.folder.name}", module)


def require_fit(final: Final, sides: Sides) -> None:
    """Raises UsageError: the sides are not what the network takes."""
    if sides.others.image_shape != final.shape:
        raise UsageError(
            f"examples are of shape {sides.others.image_shape}, and the network takes {tuple(final.shape)}; save them "
            f"as the clients do, or correct image_shape in {FACTS}"
        )
    most = max(sides.members.num_classes, sides.others.num_classes)
    if most > final.classes:
        raise UsageError(
            f"examples have label {most - 1}, and the network {final.classes} classes; number them as the clients do, "
            f"or correct classes in {FACTS}"
        )


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
    """A trained reference model: weights (P,), what its layers normalise by, and how many passes it took."""

    weights: Tensor
    running: Buffers
    epochs: int


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
    optimizer, memory, found, look = optimizer_of(_OPTIMIZER), dict[str, Tensor](), dict[int, Fitted](), 1
    for epoch in range(1, _MOST_EPOCHS + 1):
        order = torch.stack([one.permutation(count) for one in orders])
        for part in order.tensor_split(math.ceil(count / _BATCH), dim=1):
            batch = images[rows, part], labels[rows, part]
            if model.normalised:
                joint = model.joint_gradients(weights, *batch)
                running.follow(joint.statistics)
                gradient = joint.mean()
            else:
                gradient = model.gradient(weights, *batch)
            step, memory = optimizer.direction(gradient, weights, memory)
            weights = weights - _RATE * step
        if epoch < look and epoch < _MOST_EPOCHS:
            continue
        look = max(epoch + 1, math.ceil(_SELDOM * epoch))
        for row in range(len(keys)):
            if row not in found:
                now = Fitted(
                    weights[row].clone(), {name: value[row].clone() for name, value in running.buffers.items()}, epoch
                )
                odds = log_odds(_logits(_as_module(model, now), images[row]).numpy(), labels[row].cpu().numpy())
                if epoch == _MOST_EPOCHS or _mean_loss(odds) <= loss:
                    found[row] = now
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
        epochs: of each reference model. weight: RMIA's a.
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
    epochs: tuple[int, ...]
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

    def record(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(replace(self, members=(), others=()))
        for name in ("members", "others"):
            found[name] = [one._asdict() for one in getattr(self, name)]
        return {"valid": self.problem is None, "problem": self.problem} | found


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
    if references % 2 or not _FEWEST_REFERENCES <= references <= _MOST_REFERENCES:
        raise UsageError(
            f"{references} reference models; take an even number from {_FEWEST_REFERENCES} to {_MOST_REFERENCES}"
        )
    require_fit(final, sides)
    where, everyone = compute_on(device), sides.together
    final.module.to(where)
    own, right = _measured(final, final.module, everyone)
    seen = halves(references, len(sides.others.labels), seed)
    fitted, odds, hits = list[Fitted](), list[Numbers](), list[Flags]()
    model = RowModel(final.name, final.shape, final.classes).to(where, torch.float32)
    rows = 1 if model.evaluates_alone else references
    with progress("reference models", references, "models") as bar:
        for first in range(0, references, rows):
            loss, keys = _mean_loss(own[: sides.count]), [(seed, number) for number in range(first, first + rows)]
            fitted += _trained(model, *_examples(sides.others, seen[first : first + rows], where), loss, keys)
            bar.advance(rows)
    for one in fitted:
        found = _measured(final, _as_module(model, one), everyone)
        odds.append(found[0])
        hits.append(found[1][sides.count :])
    fits = [(float(hit[half].mean()), float(hit[~half].mean())) for hit, half in zip(hits, seen, strict=True)]
    compared = _compared(own, np.stack(odds), seen, seed)
    accuracy = float(right[: sides.count].mean()), float(right[sides.count :].mean())
    return Membership(
        final.name, final.source, (sides.count, len(sides.others.labels)), accuracy,
        (sum(one for one, _ in fits) / references, sum(two for _, two in fits) / references),
        tuple(one.epochs for one in fitted), *compared,
    )  # fmt: skip


def _examples(side: Dataset, seen: Flags, where: torch.device) -> tuple[Tensor, Tensor]:
    """What reference models are trained on, (R, n, C, H, W) and (R, n): as many for each, though one may be left."""
    half = int(seen.sum(1).min())
    places = torch.from_numpy(np.stack([own.nonzero()[0][:half] for own in seen]))
    return side.images[places].to(where), side.labels[places].to(where)


def _compared(
    own: Numbers, references: Numbers, seen: Flags, seed: int
) -> tuple[float, tuple[Told, ...], tuple[float, float, float], tuple[Score, ...], tuple[Score, ...]]:
    """RMIA's weight, what each score tells, what the reference models alone tell, and RMIA's score of each example.

    Args:
        own: (n + N,), log-odds of members and non-members under the model. references: (R, n + N), under the others.
        seen: (R, N), which non-members each one saw.
    """
    count = len(own) - seen.shape[1]
    out = np.concatenate([_one_of_each_pair(len(seen), count, seed), ~seen], 1)
    weight = best_weight(references[:, count:], seen)
    ratio = rmia_ratio(own, references, out, weight)
    scores = {"RMIA": ratio, "LiRA": lira_score(own, references, out), "loss alone": own}
    alone = np.where(out, references, 0.0).sum(0) / out.sum(0)
    without = area(alone[:count], alone[count:]), *area_interval(alone[:count], alone[count:], _APART)
    exceeds, p = rmia_score(ratio, ratio[count:]), p_values(ratio, ratio[count:])
    each = tuple(Score(*both) for both in zip(exceeds.tolist(), p.tolist(), strict=True))
    found = tuple(told(name, values[:count], values[count:]) for name, values in scores.items())
    return weight, found, without, each[:count], each[count:]
