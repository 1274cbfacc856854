"""Public data of the same kind as the victims': what an attacker may know of the world without knowing a victim."""

from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UsageError
from harness.datasets.catalogue import DATASETS, OWN, source_of
from harness.datasets.copies import among
from harness.datasets.load import dataset_name, load_dataset
from harness.datasets.parts import take_part
from harness.datasets.record import Dataset

NONE, AUTO = "none", "auto"
FEWEST, FEWEST_OF_A_CLASS = 20, 2
_WIDEST = 3.0


@dataclass(frozen=True, eq=False)
class Sides:
    """What victims and decoys are drawn from, and what is public; no example is in both."""

    private: Dataset
    public: Dataset


def choose_public(choice: str) -> str:
    """The canonical name of what ``--prior`` says: none, auto, a registered dataset or a path that ends in .npz.

    Raises:
        UsageError: there is no such dataset.
    """
    return choice if choice in (NONE, AUTO) else dataset_name(choice)


def divide(dataset: Dataset, name: str, choice: str, root: Path) -> Sides:
    """A dataset and public data beside it.

    ``auto`` is the publishers' test part, less what it shares with their training part. Where they made none, a fixed
    stratified half of the examples is public and no longer private; examples that the other half holds too stay out of
    it. Any other choice leaves the whole dataset private.

    Args:
        dataset: all of what ``name`` loads.
        name: a registered name, or a path that ends in .npz.
        choice: ``auto``, another registered name, or a path that ends in .npz.
        root: the data root.

    Raises:
        UsageError: there are no such public data, or they are of another kind, too few, or hold private examples.
    """
    if choice != AUTO:
        public = load_dataset(choice, root)
        _require_same_kind(dataset, public, choice)
        # An own file does not say what its features mean.
        public = replace(public, columns=dataset.columns)
        if among(public, dataset).any():
            raise UsageError(
                f"public data {choice!r} hold examples of dataset {dataset.name!r}, victims' or decoys' own; "
                "use --prior auto, or data that share no example with it"
            )
        sides = Sides(dataset, public)
    else:
        sides = _divided(dataset, name, root)
    require_enough(sides.private, sides.public, choice)
    return sides


def _divided(dataset: Dataset, name: str, root: Path) -> Sides:
    source = OWN if name.endswith(".npz") else source_of(DATASETS.resolve(name))
    if source.test:
        private, public, part = dataset, source.test(root), "test part"
    else:
        private, public = (take_part(dataset, part, 0.5, purpose="public half") for part in ("train", "test"))
        part = "public half"
    public = public.take((~among(public, private)).nonzero()[:, 0])
    return Sides(private, replace(public, name=f"{dataset.name}, {part}"))


def _require_same_kind(dataset: Dataset, public: Dataset, choice: str) -> None:
    told = f"public data {choice!r} have"
    mend = f"use data of the same kind as {dataset.name!r}, or --prior auto"
    if public.image_shape != dataset.image_shape:
        raise UsageError(f"{told} examples of shape {public.image_shape}, not {dataset.image_shape}; {mend}")
    if public.columns not in (None, dataset.columns):
        raise UsageError(f"{told} other columns; {mend}")
    if public.num_classes != dataset.num_classes:
        raise UsageError(f"{told} {public.num_classes} classes, not {dataset.num_classes}; {mend}")
    ours, theirs = (float(data.images.std()) for data in (dataset, public))
    if not ours / _WIDEST <= theirs <= ours * _WIDEST:
        raise UsageError(
            f"{told} values of another range (standard deviation {theirs:.2g}, not {ours:.2g}); scale them alike"
        )


def require_enough(private: Dataset, public: Dataset, choice: str) -> None:
    """Raises UsageError: there are too few public examples, or too few of a class that is private too."""
    mend = f"use {'another' if choice != AUTO else 'a larger'} --prior, or --prior none"
    if len(public.labels) < FEWEST:
        raise UsageError(f"{len(public.labels)} public examples ({public.name}) are too few (needs {FEWEST}); {mend}")
    counts = public.labels.bincount(minlength=public.num_classes)
    for label in private.labels.unique().tolist():
        if counts[label] < FEWEST_OF_A_CLASS:
            raise UsageError(
                f"class {private.class_names[label]!r} has {int(counts[label])} public examples ({public.name}), too "
                f"few (needs {FEWEST_OF_A_CLASS}); {mend}"
            )
