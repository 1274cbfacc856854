"""Who is attacked: images drawn from a dataset, keyed by the seed, never one twice."""

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.datasets.record import Dataset


@dataclass(frozen=True, eq=False)
class Victims:
    """V victims with n private examples each.

    Attributes:
        images: (V, n, C, H, W) float32 in [0, 1].
        labels: (V, n) int64.
        indices: (V, n) int64 positions in the dataset; no position occurs twice.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


def select_victims(dataset: Dataset, victims: int, examples: int, seed: int, distinct_labels: bool) -> Victims:
    """Draw victims at random, a pure function of the dataset, the seed and the number of examples.

    The first V victims are the same whatever number is asked for, so a longer run extends a shorter one. Labels come
    in proportion to their images, except where distinct labels would run out before the most victims possible: a class
    with far more than 1/n of all images is then drawn more often, or always.

    Args:
        dataset: where the images come from.
        victims: V, at least 1.
        examples: n, images per victim, at least 1.
        seed: the run's seed.
        distinct_labels: whether the n images of a victim must have n different labels.

    Raises:
        UsageError: more images, or more distinct labels, are asked for than the dataset has.
    """
    if victims < 1 or examples < 1:
        raise UsageError(f"{victims} victims with {examples} examples each asked; both must be at least 1")
    if victims * examples > len(dataset.labels):
        raise UsageError(
            f"{victims} victims with {examples} examples each need {victims * examples} images, but "
            f"{dataset.name} has {len(dataset.labels)}; ask for fewer or choose a larger dataset"
        )
    random = generator(seed, "victims", dataset.name)
    order = torch.randperm(len(dataset.labels), generator=random)
    if distinct_labels and examples > 1:
        indices = _with_distinct_labels(dataset, order, victims, examples, random)
    else:
        indices = order[: victims * examples].reshape(victims, examples)
    return Victims(dataset.images[indices], dataset.labels[indices], indices)


def _with_distinct_labels(
    dataset: Dataset, order: Tensor, victims: int, examples: int, random: torch.Generator
) -> Tensor:
    """Positions (V, n) whose labels differ within each row; each class gives its images in the given order."""
    left = torch.bincount(dataset.labels, minlength=dataset.num_classes)
    most = _most_victims(left, examples)
    if victims > most:
        raise UsageError(
            f"{dataset.name} can give at most {most} victims {examples} distinct labels each, but {victims} are asked; "
            "ask for fewer victims or fewer examples"
        )
    queues = [iter(order[dataset.labels[order] == label].tolist()) for label in range(dataset.num_classes)]
    rows = []
    for victim in range(victims):
        labels = _draw_labels(left, examples, most - victim, random)
        left[labels] -= 1
        rows.append([next(queues[label]) for label in labels])
    return torch.tensor(rows)


def _most_victims(left: Tensor, examples: int) -> int:
    """The largest V for which V victims can have distinct labels.

    V victims can use at most V images of a class, so V * n images must be found among min(count, V) per class; this
    necessary condition is also sufficient, and holds up to some V and for none beyond.
    """
    candidates = range(1, int(left.sum()) // examples + 1)
    return bisect_left(candidates, True, key=lambda count: int(left.clamp(max=count).sum()) < count * examples)


def _draw_labels(left: Tensor, examples: int, remaining: int, random: torch.Generator) -> list[int]:
    """Labels of one victim: at random in proportion to the images left, such that no later victim is stuck.

    ``remaining`` counts the victims still to be served at most, this one included. A class with as many images left
    loses one usable image with each victim that does not draw it, and only so many losses can be spared. Counting
    from the most victims possible, not from the number asked, is what makes the draw the same for every number asked.
    """
    spare = int(left.clamp(max=remaining).sum()) - remaining * examples
    plenty = left >= remaining
    forced = max(0, int(plenty.sum()) - spare)
    weighted = torch.multinomial(left.double(), int((left > 0).sum()), generator=random).tolist()
    first = [label for label in weighted if plenty[label]][:forced]
    return (first + [label for label in weighted if label not in first])[:examples]
