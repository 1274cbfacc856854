"""Public data share no example with what victims and decoys are drawn from, and are refused where they do not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.datasets import Dataset, choose_public, divide, load_dataset
from harness.datasets.public import Sides

ROOT = Path("no data root")


def rows(dataset: Dataset) -> set[bytes]:
    return {row.numpy().tobytes() for row in dataset.images.flatten(1)}


def of(name: str, choice: str = "auto", root: Path = ROOT) -> Sides:
    return divide(load_dataset(name, root), name, choice, root)


@pytest.mark.parametrize("name", ["digits", "mnist-sample", "cifar10-sample", "cancer"])
def test_auto_makes_a_stratified_half_public(name: str) -> None:
    whole, sides = load_dataset(name, ROOT), of(name)
    assert len(sides.private.labels) + len(sides.public.labels) == len(whole.labels)
    assert not rows(sides.private) & rows(sides.public)
    counts = [side.labels.bincount(minlength=whole.num_classes) for side in (sides.private, sides.public)]
    assert (counts[0] - counts[1]).abs().max() <= 2
    assert (sides.private.name, sides.public.name) == (name, f"{name}, public half")
    again = of(name)
    assert torch.equal(sides.private.images, again.private.images)


def test_auto_takes_the_publishers_test_part() -> None:
    name = "logistic-0-0"
    sides = of(name)
    assert len(sides.private.labels) == 400_000 and len(sides.public.labels) == 100_000
    assert sides.public.name == f"{name}, test part"
    assert torch.equal(sides.public.labels, load_dataset(name, ROOT, "test").labels)


def test_copies_of_private_examples_stay_out_of_the_public_half(own: "Own") -> None:
    images = torch.rand(60, 1, 4, 4).repeat(2, 1, 1, 1)
    sides = of(own(images, torch.arange(120) % 3))
    assert len(sides.private.labels) == 60 and 0 < len(sides.public.labels) < 60
    assert not rows(sides.private) & rows(sides.public)


def test_the_half_is_independent_of_the_part_for_testing() -> None:
    held_out, public = rows(load_dataset("digits", ROOT, "test")), rows(of("digits").public)
    assert 0.4 < len(held_out & public) / len(held_out) < 0.6


class Own:
    """Writes files of own data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> str:
        self.count += 1
        path = self.folder / f"own{self.count}.npz"
        np.savez(path, images=images.numpy(), labels=labels.numpy())
        return str(path)


@pytest.fixture
def own(tmp_path: Path) -> Own:
    torch.manual_seed(0)
    return Own(tmp_path)


def test_other_public_data_leave_the_whole_dataset_private(own: Own) -> None:
    choice = own(torch.rand(200, 1, 8, 8), torch.arange(200) % 10)
    sides = of("digits", choice)
    assert len(sides.private.labels) == 1797 and len(sides.public.labels) == 200
    assert sides.public.name == Path(choice).name


def test_one_example_of_the_dataset_is_one_too_many_in_whatever_precision(own: Own) -> None:
    digits = load_dataset("digits", ROOT)
    images, labels = torch.rand(200, 1, 8, 8), torch.arange(200) % 10
    for copy in (digits.images[1234], (digits.images[1234].double() + 1e-7).clamp(max=1)):
        images[77] = copy
        with pytest.raises(UsageError, match=r"hold examples of dataset 'digits'.*use --prior auto"):
            of("digits", own(images, labels))
    with pytest.raises(UsageError, match="hold examples of dataset 'digits'"):
        of("digits", "digits")


def test_rows_of_a_table_are_compared_as_they_are(own: Own) -> None:
    """At 8 bits, rows that differ in a continuous column would be taken for one another."""
    table = load_dataset("cancer", ROOT)
    near = (table.images.double() + 1e-5).clamp(max=1).float()
    assert len(of("cancer", own(near, table.labels)).public.labels) == 569
    near[5] = table.images[5]
    with pytest.raises(UsageError, match="hold examples"):
        of("cancer", own(near, table.labels))


@pytest.mark.parametrize(
    ("shape", "classes", "scale", "said"),
    [
        ((200, 1, 8, 9), 10, 1.0, r"examples of shape \(1, 8, 9\), not \(1, 8, 8\); use .*--prior auto"),
        ((200, 3, 8, 8), 10, 1.0, r"examples of shape \(3, 8, 8\)"),
        ((200, 1, 8, 8), 9, 1.0, "have 9 classes, not 10; use data of the same kind"),
        ((200, 1, 8, 8), 11, 1.0, "have 11 classes, not 10"),
        ((200, 1, 8, 8), 10, 1 / 50, "values of another range .*scale them alike"),
        ((19, 1, 8, 8), 10, 1.0, "19 public examples .* too few .*needs 20.*--prior"),
        ((29, 1, 8, 8), 10, 1.0, None),
    ],
)
def test_unfit_public_data_are_refused_with_the_fix(
    own: Own, shape: tuple[int, ...], classes: int, scale: float, said: str | None
) -> None:
    choice = own(torch.rand(shape) * scale, torch.arange(shape[0]) % classes)
    if said is None:
        of("digits", choice)
        return
    with pytest.raises(UsageError, match=said) as caught:
        of("digits", choice)
    assert "\n" not in str(caught.value)


def test_a_class_of_victims_needs_public_examples(own: Own) -> None:
    labels = torch.arange(200) % 10
    labels[(labels == 4).nonzero()[1:, 0]] = 5
    with pytest.raises(UsageError, match=r"class '4' has 1 public examples .*needs 2.*use another --prior"):
        of("digits", own(torch.rand(200, 1, 8, 8), labels))
    with pytest.raises(UsageError, match=r"class '2' has 1 public examples .*use a larger --prior, or --prior none"):
        of(own(torch.rand(42, 1, 8, 8), torch.tensor([0, 1] * 20 + [2, 2])))


def test_names_are_known_at_once() -> None:
    assert [choose_public(name) for name in ("none", "auto", "mine.npz", "digits")] == [
        "none",
        "auto",
        "mine.npz",
        "digits",
    ]
    with pytest.raises(UsageError, match="unknown dataset 'nonsense'"):
        choose_public("nonsense")
