"""Loading of a dataset by its name on the command line, and selection of victims from a dataset.

Victims are images drawn from a dataset, keyed by the seed, never one twice.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISDIR
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.base.limits import log
from harness.base.randomness import generator
from harness.base.words import PAD, Words, images_of, most_frequent, tokens_of
from harness.datasets.catalogue import COLUMNS_ENDINGS, DATASETS, IMAGE_ENDING, is_own_data, source_of
from harness.datasets.files import DataFile
from harness.datasets.hugging_face import hub_name, is_of_hub, load_of_hub
from harness.datasets.own_table import (
    AS_IMAGES,
    GOOD_FILE,
    LABEL,
    TEXT,
    as_texts,
    is_table,
    load_own_table,
    odd_character,
    read_columns,
)
from harness.datasets.record import Dataset, build_dataset, class_numbers, require_dataset

# A user's own data: an .npz file with the arrays `images` and `labels`.


def load_own(path: Path) -> Dataset:
    """Read an .npz file; ``build_dataset`` says which shapes, types and ranges it may hold.

    The dataset is named by the file's name alone, so that results do not depend on where it lies.

    Raises:
        UsageError: missing or damaged file, or arrays that are no labelled images.
    """
    file = DataFile(path)
    if not os.path.isfile(path):
        raise file.wrong("is not a file", "give the path of an .npz file with arrays images and labels")
    images, labels = file.read_arrays("images", "labels")
    return build_dataset(file, path.name, images, labels, None, f"own data, {path.name}")


# A training and a held-out test part of a dataset that its publishers did not divide themselves.

Part = Literal["train", "test"]


def take_part(dataset: Dataset, part: Part, held_out: float, purpose: str = "held out") -> Dataset:
    """The examples of one part, in the dataset's order; a pure function of the dataset, the share and the purpose.

    Args:
        dataset: the whole dataset of N examples.
        part: ``train`` or ``test``; together they are the whole, and they share nothing.
        held_out: share of the examples in the test part, in (0, 1); ceil(share * N) examples are held out.
        purpose: what the division is for; divisions for other purposes are independent of it.
    """
    test = torch.zeros(len(dataset.labels), dtype=torch.bool)
    test[_held_out(dataset, held_out, purpose)] = True
    return dataset.take((test if part == "test" else ~test).nonzero()[:, 0])


def _held_out(dataset: Dataset, share: float, purpose: str) -> Tensor:
    """Positions drawn at random, from every class of every natural client in proportion to its size.

    Each example stands at a random place of its class, scaled to [0, 1]; the first ones of all classes are held out.
    """
    strata = dataset.labels if dataset.clients is None else dataset.clients * dataset.num_classes + dataset.labels
    order = torch.randperm(len(dataset.labels), generator=generator(purpose, dataset.name))
    places = torch.empty(len(order), dtype=torch.float64)
    for stratum in strata.unique().tolist():
        members = order[strata[order] == stratum]
        places[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    first = places[order].argsort(stable=True)[: math.ceil(share * len(order))]
    return order[first]


def data_root(option: str | Path | None) -> Path:
    """The data root: ``option`` (--data-root), else $HARNESS_DATA, else ~/.cache/harness. It need not exist yet.

    Raises:
        UsageError: the path is a file, or nothing can be looked for there.
    """
    chosen = option or os.environ.get("HARNESS_DATA") or "~/.cache/harness"
    root = Path(os.path.expanduser(chosen))
    try:
        problem = None if S_ISDIR(root.stat().st_mode) else "is not a folder"
    except FileNotFoundError:
        problem = None
    except (OSError, ValueError) as error:  # such as a name that no file can have
        problem = f"cannot be looked into ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise UsageError(f"data root {str(root)!r} {problem}; name a folder with --data-root or HARNESS_DATA")
    return root


# How the arrays of a file of another kind become an .npz, by its ending.
_CONVERT = {
    ".npy": "images = numpy.load(OLD), labels from a file of their own",
    ".pt": "images, labels = torch.load(OLD, weights_only=True)",
    ".pth": "images, labels = torch.load(OLD, weights_only=True)",
    ".safetensors": "arrays = safetensors.numpy.load_file(OLD)",
    ".h5": "file = h5py.File(OLD), of which images and labels are two arrays",
}


def dataset_name(name: str) -> str:
    """The registered name behind ``name``; of the path of an own file the path, of the hub's data name and commit.

    Raises:
        UsageError: unknown, or a path of another kind of file, with how to convert it.
    """
    if is_of_hub(name):
        return hub_name(name)
    if is_own_data(name):
        return name
    ending = Path(name).suffix.lower()
    if ending in _CONVERT or os.sep in name:
        if Path(name).is_dir():
            raise UsageError(
                f"{name!r} is a folder; give the path of an .npz, .csv or .parquet file. Pictures in a folder for each "
                "class are read by --dataset retina, from a folder of that name in --data-root"
            )
        how = f" with {_CONVERT[ending]}" if ending in _CONVERT else ""
        raise UsageError(
            f"{name!r} is no .npz, .csv or .parquet file, which data of your own must be; convert it{how}: "
            "numpy.savez('NEW.npz', images=images, labels=labels)"
        )
    return DATASETS.resolve(name)


def load_dataset(
    name: str, root: Path, part: Part | None = None, words: Words | None = None, places: int | None = None
) -> Dataset:  # fmt: skip
    """Load a registered dataset, or own data where ``name`` is the path of a file.

    Args:
        name: a registered name, or a path.
        root: the data root.
        part: ``train`` or ``test``, two parts that share no example, for training and its accuracy: the publishers'
            own (MNIST, Fashion-MNIST, CIFAR-10), else a fixed stratified split that holds out the share stated in the
            dataset's source (a quarter of LFW and the tables as in the papers, a fifth of everything else). None, which
            attacks use, is all that the loader reads: the publishers' training part, or all examples where there is
            none.
        words: how texts become tokens; None for the vocabulary that belongs to them.
        places: most tokens of a text; None for as many as the longest has, and of none more than a limit.

    Raises:
        UsageError: unknown name, missing, damaged or unfit data; one line that names the fix.
    """
    source = source_of(name := dataset_name(name))
    if part == "test" and source.test:
        dataset = read_by(source.test(root), words, places)
    else:
        dataset = _whole(name, root, words, places)
        if part is None:
            return dataset
        if not source.test:
            dataset = take_part(dataset, part, source.held_out)
    return replace(dataset, origin=f"{dataset.origin}, {part} part")


def _whole(name: str, root: Path, words: Words | None, places: int | None) -> Dataset:
    if is_of_hub(name):
        return load_of_hub(name, root)
    path = Path(os.path.expanduser(name))
    if name.endswith(COLUMNS_ENDINGS):
        return load_own_table(path) if is_table(path) else load_own_texts(path, words, places)
    if name.endswith(IMAGE_ENDING):
        return load_own(path)
    loader = DATASETS[name]
    made = loader(root)
    ours = getattr(loader, "__module__", "").startswith("harness.")
    return read_by(made if ours else require_dataset(made, name), words, places)


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
            f"{plural(victims, 'victim')} with {plural(examples, 'example')} each need {victims * examples} in all, "
            f"but {dataset.name} has {len(dataset.labels)}; ask for fewer or choose a larger dataset"
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
            f"ask for {f'at most {most} victims, or ' if most else ''}fewer examples per victim"
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


# --------------------------------------------------------------------------------------
# A user's own texts: a file with the columns ``text`` and ``label``, CSV or Parquet.


#: Most places of own texts; what is longer is cut, and told.
MOST_PLACES = 64


def load_own_texts(path: Path, words: Words | None, places: int | None) -> Dataset:
    """Read a file of texts; the dataset is named by the file's name alone.

    Args:
        words: how texts become tokens; None for the most frequent words of the file itself.
        places: most tokens of a text; None for as many as the longest has, up to :data:`MOST_PLACES`.

    Raises:
        UsageError: missing or damaged file, or something else than labelled texts.
    """
    file = DataFile(path)
    texts, labels = _columns(file)
    _require_texts(file, texts)
    numbers, names = class_numbers(file, labels)
    if len(names) < 2:
        raise file.wrong("has texts of one class only", "give two classes: a network that tells one learns nothing")
    dataset = Dataset(
        path.name, torch.zeros(0), torch.from_numpy(numbers), names, f"own texts, {path.name}", texts=tuple(texts),
        fitted_to=None if words else "the most frequent words of its own texts",
    )  # fmt: skip
    return read_by(dataset, words or most_frequent(texts), places)


def read_by(dataset: Dataset, words: Words | None, places: int | None = None) -> Dataset:
    """The dataset with its texts as tokens of ``words``; the dataset itself where these are its own, or None.

    Raises:
        UsageError: it does not hold what was written, or a text has no token.
    """
    if words is None or words == dataset.words or not (dataset.words or dataset.texts):
        return dataset
    if dataset.texts is None:
        raise UsageError(
            f"dataset {dataset.name!r} keeps tokens of its own and no texts, which this model's tokenizer has to read; "
            "use --model text_transformer, or give the texts as a .csv"
        )
    lengths = np.array(words.lengths(dataset.texts))
    if not lengths.all():
        raise UsageError(
            f"{dataset.name} has a text without a word, number {int((lengths == 0).argmax()) + 1}; leave it out"
        )
    room = places or int(min(lengths.max(), MOST_PLACES))
    read = replace(dataset, words=words, images=images_of(words.tokens(dataset.texts, room)))
    _tell_what_is_lost(read, int((lengths > room).sum()))
    return read


def _tell_what_is_lost(dataset: Dataset, cut: int) -> None:
    tokens, words = tokens_of(dataset.images), dataset.words
    assert words is not None
    unknown = float((tokens == words.unknown).sum()) / float((tokens != PAD).sum()) if words.unknown else 0.0
    lost = [f"{unknown:.1%} of its tokens are not among the {len(words.vocabulary):,} of the vocabulary"] * (
        unknown > 0
    )
    lost += [f"{cut:,} of {len(tokens):,} texts are cut to {tokens.shape[1]} tokens"] * (cut > 0)
    if lost:
        log.warning("harness: %s: %s", dataset.name, "; ".join(lost))


def _columns(file: DataFile) -> tuple[list[str], list[str]]:
    """The texts and what stands as their labels."""
    columns = dict(read_columns(file, (TEXT, LABEL)))
    missing = [name for name in (TEXT, LABEL) if name not in columns]
    if missing:
        raise file.wrong(f"has no column {missing[0]!r}", f"{GOOD_FILE}, or {AS_IMAGES}")
    for name, values in columns.items():
        wrong = next((place for place, value in enumerate(values) if not isinstance(value, str | int)), None)
        if wrong is not None:
            raise file.wrong(
                f"has {values[wrong]!r} as {name} in row {wrong + 1}",
                "give texts, and labels as names or whole numbers",
            )
    if not columns[TEXT]:
        raise file.wrong("has no rows", GOOD_FILE)
    return [str(value) for value in columns[TEXT]], as_texts(file, LABEL, columns[LABEL])


def _require_texts(file: DataFile, texts: Sequence[str]) -> None:
    """Texts of every script are taken, emoji too; control characters but tabs and ends of lines are not."""
    if all(map(_is_number, texts)):
        raise file.wrong("has numbers as texts", "if it is a table, call that column something else than text")
    for place, text in enumerate(texts, 1):
        if odd := odd_character(text):
            raise file.wrong(f"has the control character {odd} in the text of row {place}", "take it out")
        if not text.strip():
            raise file.wrong(f"has an empty text in row {place}", "leave that row out")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
