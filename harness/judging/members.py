"""Whether a final model tells who was in its training: members and non-members that somebody names.

Half of the reference models saw a non-member and half did not, as models come in pairs that share the non-members out
between them. A non-member is compared with those alone that did not see it, and a member with as many: one of each
pair, chosen at random. So the two are alike in all but their part in the training.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.local_optimizer import optimizer_of
from harness.base.progress import progress
from harness.base.randomness import Stream, derive_seed
from harness.datasets import Dataset, load_dataset
from harness.judging.capture import FACTS, Capture
from harness.judging.parts import fitted_arrays, fixed_values, trained_network
from harness.models import build_module, cross_entropy
from harness.models.batch_norm import in_evaluation_mode, trained_layers
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
    rmia_ratio,
    rmia_score,
    told,
)

#: Members, and non-members, below which nothing is said.
FEWEST = 20
REFERENCES = 8
_FEWEST_REFERENCES, _MOST_REFERENCES = 4, 256
# How reference models are trained: until they fit their half as well as the model fits its members.
_RATE, _BATCH, _MOST_EPOCHS = 0.001, 32, 200
_OPTIMIZER = "adam"
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


def _logits(module: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    module.to(device)
    with torch.no_grad(), in_evaluation_mode(module):
        return torch.cat([module(part.to(device)).double().cpu() for part in images.split(_CHUNK)])


def _measured(final: Final, module: nn.Module, side: Dataset, device: torch.device) -> tuple[Numbers, Flags]:
    """Log-odds (n,) of the true labels, and which of them are told right."""
    logits = _logits(module, side.images, device)
    if not logits.isfinite().all():
        raise UsageError(f"model {final.name!r} gives numbers that are not finite; its training diverged, check it")
    return log_odds(logits.numpy(), side.labels.numpy()), (logits.argmax(1) == side.labels).numpy()


def _mean_loss(odds: Numbers) -> float:
    return float(np.logaddexp(0.0, -odds).mean())


def _trained(
    final: Final, examples: Dataset, loss: float, key: tuple[int | str, ...], device: torch.device
) -> tuple[nn.Module, int]:
    """A network of the same kind that fits these examples as well, and after how many passes over them."""
    module = build_module(final.name, final.shape, final.classes, derive_seed("reference", *key)).to(device)
    for layer in trained_layers(module).values():
        layer.track_running_stats = True
    weights = [one for one in module.parameters() if one.requires_grad]
    images, labels = examples.images.to(device), examples.labels.to(device)
    size, count = min(_BATCH, len(labels)), len(labels)
    optimizer, random = optimizer_of(_OPTIMIZER), Stream("reference order", *key)
    memory: Any = {}
    for epoch in range(1, _MOST_EPOCHS + 1):
        order = random.permutation(count).to(device)
        for start in range(0, count - size + 1, size):
            batch = order[start : start + size]
            gradients = torch.autograd.grad(cross_entropy(module, images[batch], labels[batch]), weights)
            flat, here = (torch.cat([one.detach().flatten() for one in many])[None] for many in (gradients, weights))
            step, memory = optimizer.direction(flat, here, memory)
            with torch.no_grad():
                for weight, part in zip(weights, step[0].split([one.numel() for one in weights]), strict=True):
                    weight -= _RATE * part.view_as(weight)
        if _mean_loss(_measured(final, module, examples, device)[0]) <= loss:
            return module, epoch
    return module, _MOST_EPOCHS


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


@dataclass(frozen=True)
class Membership:
    """How well members of a training are told from its final model.

    Attributes:
        accuracy: on members and non-members. reference_accuracy: of reference models, on their own half and the other.
        epochs: of each reference model. weight: RMIA's a.
        scores: RMIA, LiRA, and the loss alone.
        without: AUC and its 99.9% interval of reference models alone, which know no member: 0.5 where the two sides
            are alike in all but the training.
        members, others: RMIA's score of each example, and the share of non-members that are as high (p-value).
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
    members: tuple[tuple[float, float], ...]
    others: tuple[tuple[float, float], ...]

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
            found[name] = [{"score": score, "p": p} for score, p in getattr(self, name)]
        return {"valid": self.problem is None, "problem": self.problem} | found


def judge_members(
    final: Final, sides: Sides, references: int = REFERENCES, seed: int = 0, device: str = "cpu",
    within: Callable[[], None] = lambda: None,
) -> Membership:  # fmt: skip
    """Train reference models on non-members, and compare the model's confidence with theirs.

    Args:
        references: how many, even, at least 4.
        within: called after each reference model.

    Raises:
        UsageError: the sides do not fit the model, or its numbers are not finite.
    """
    if references % 2 or not _FEWEST_REFERENCES <= references <= _MOST_REFERENCES:
        raise UsageError(
            f"{references} reference models; take an even number from {_FEWEST_REFERENCES} to {_MOST_REFERENCES}"
        )
    require_fit(final, sides)
    where, (members, others) = torch.device(device), (sides.members, sides.others)
    inside, right_in = _measured(final, final.module, members, where)
    outside, right_out = _measured(final, final.module, others, where)
    seen, fits, epochs = halves(references, len(others.labels), seed), list[tuple[float, float]](), list[int]()
    odds = np.empty((references, len(members.labels) + len(others.labels)))
    with progress("reference models", references, "models") as bar:
        for number, own in enumerate(seen):
            half = others.take(torch.from_numpy(own).nonzero()[:, 0])
            module, taken = _trained(final, half, _mean_loss(inside), (seed, number), where)
            of_members, _ = _measured(final, module, members, where)
            of_others, right = _measured(final, module, others, where)
            odds[number] = np.concatenate([of_members, of_others])
            fits.append((float(right[own].mean()), float(right[~own].mean())))
            epochs.append(taken)
            bar.advance(1)
            within()
    count = len(members.labels)
    out = np.concatenate([_one_of_each_pair(references, count, seed), ~seen], 1)
    weight = best_weight(odds[:, count:], seen)
    own = np.concatenate([inside, outside])
    ratio = rmia_ratio(own, odds, out, weight)
    share, lira = rmia_score(ratio, ratio[count:]), lira_score(own, odds, out)
    # Each pair's one that did not see it.
    alone = np.where(out, odds, 0.0).sum(0) / out.sum(0)
    apart = (alone[:count], alone[count:])
    exceeded = (1 + (len(others.labels) - np.searchsorted(np.sort(share[count:]), share, "left"))) / (
        1 + len(others.labels)
    )
    each = [(float(one), min(1.0, float(p))) for one, p in zip(share, exceeded, strict=True)]
    return Membership(
        final.name, final.source, (count, len(others.labels)), (float(right_in.mean()), float(right_out.mean())),
        (math.fsum(one for one, _ in fits) / references, math.fsum(two for _, two in fits) / references),
        tuple(epochs), weight,
        tuple(told(name, values[:count], values[count:]) for name, values in
              (("RMIA", share), ("LiRA", lira), ("loss alone", own))),
        (area(*apart), *area_interval(*apart, _APART)), tuple(each[:count]), tuple(each[count:]),
    )  # fmt: skip
