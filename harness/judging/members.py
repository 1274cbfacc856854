"""Members of a training, non-members beside them, and the models that are asked who was in it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from harness.base.errors import UsageError
from harness.datasets import Dataset, load_dataset
from harness.judging.capture import FACTS, Capture
from harness.judging.parts import fitted_arrays, fixed_values, trained_network
from harness.models import build_module
from harness.models.networks import ImageShape
from harness.models.weights_files import load_state

#: Members, and non-members, below which nothing is said.
FEWEST = 20
#: Models that are asked together.
MOST_ROUNDS = 12


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
        """Number of members."""
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
        if side.columns is not None:
            raise UsageError(
                f"{str(path)!r} is a table that is scaled by its own ranges; save its rows as .npz, as the network "
                "takes them"
            )
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
    known = [_places(path, side) for path, side in ((members, inside), (others, outside))]
    both = sorted(known[1][image] for image in known[0].keys() & known[1].keys())
    if both:
        raise UsageError(
            f"{len(both)} members are also non-members, such as example {both[0] + 1} of {str(others)!r} (labels "
            "aside); take them out of one of the files"
        )
    return Sides(inside, outside)


def _places(path: Path, side: Dataset) -> dict[bytes, int]:
    """Return the place of each example, by its digest without its label, which may be wrong.

    Raises:
        UsageError: one is there twice.
    """
    found = dict[bytes, int]()
    for place, image in enumerate(side.images.numpy()):
        first = found.setdefault(hashlib.sha256(image.tobytes()).digest(), place)
        if first != place:
            raise UsageError(
                f"{str(path)!r} has example {place + 1} twice (first as {first + 1}; labels aside); keep each example "
                "once"
            )
    return found


def final_of_files(name: str, weights: Path, sides: Sides) -> Final:
    """A network by its name, with weights from a file; it takes what the sides hold.

    Raises:
        UsageError: it cannot be built, or the file does not fit.
    """
    shape, classes = sides.others.image_shape, max(sides.members.num_classes, sides.others.num_classes)
    module = build_module(name, shape, classes, seed=0)
    load_state(module, name, weights)
    return Final(name, shape, classes, weights.name, module)


def finals_of_captures(captures: Sequence[Capture], weights: Path | None) -> list[Final]:
    """The network of captures with what came back in each round, the latest one last, or the weights of a file last.

    Of several captures of a round the last one named counts. Of more than ``MOST_ROUNDS`` rounds as many are taken,
    evenly spread, the first and the last among them. Rounds whose captures hold gradients have no model.

    Raises:
        UsageError: captures of texts, of different networks or of gradients alone, or weights that do not fit.
    """
    rounds = {one.record.round: one for one in captures}
    latest = rounds[max(rounds)]
    record, folder = latest.record, str(latest.folder)
    if record.data == "text":
        raise UsageError(f"capture {folder!r} is of texts, and membership is tested of images and tables; drop it")
    if weights is None and latest.kind == "gradient":
        raise UsageError(f"capture {folder!r} holds a gradient and no trained model; give it with --weights FILE")
    trained = [rounds[one] for one in sorted(rounds) if rounds[one].kind != "gradient"]
    for one in trained:
        theirs = one.record
        if (theirs.model, theirs.shape, theirs.classes) != (record.model, record.shape, record.classes):
            raise UsageError(
                f"captures {str(one.folder)!r} and {folder!r} are of different networks, {theirs.model!r} and "
                f"{record.model!r}; judge them separately"
            )
    _, name, _ = trained_network([latest, *trained])
    most = MOST_ROUNDS - (weights is not None)
    if len(trained) > most:
        trained = [trained[round(place * (len(trained) - 1) / (most - 1))] for place in range(most)]
    if weights is None:
        return [_final(one) for one in trained]
    module, *_ = trained_network([latest])
    load_state(module, name, weights)
    last = Final(name, record.shape, record.classes, weights.name, module)
    # One capture beside a file of weights says no more than what the network is.
    return [*(_final(one) for one in trained), last] if len(trained) > 1 else [last]


def _final(capture: Capture) -> Final:
    """The model that came back in a capture."""
    record, (module, name, _) = capture.record, trained_network([capture])
    state = fitted_arrays(capture.before, module, whole=True, fixed=fixed_values(record, module, True))
    sent = fitted_arrays(capture.moved, module, whole=False)
    if capture.kind == "update":
        # Statistics of layers that normalise are sent as they are.
        trained = {one for one, _ in module.named_parameters()}
        sent = {one: state[one] + value if one in trained else value for one, value in sent.items()}
    module.load_state_dict(state | sent)
    return Final(name, record.shape, record.classes, f"{capture.kind} of {capture.folder.name}", module)


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
