"""Captures of texts: written, read, judged; and what is said of those that are none."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.words import PAD, TextShape, tokens_of
from harness.capture import captured
from harness.cli import run
from harness.datasets import load_dataset
from harness.datasets.notes import vocabulary
from harness.judging.capture import read_capture
from harness.judging.declared import cells_of
from harness.judging.explained import explained
from harness.judging.federation import gathered
from harness.judging.stage import CapturedStage, public_split
from harness.observation import Observation
from harness.reports.table import print_results
from harness.results import ResultDocument

KNOWN, PLACES, TOPICS, RATE = len(vocabulary().vocabulary), 44, 6, 0.1


class Reads(nn.Module):
    """A network of token numbers of somebody's own; dropout is on where it is asked for."""

    def __init__(self, known: int, places: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(known, 96), nn.Embedding(places, 96)
        self.layer = nn.TransformerEncoderLayer(96, 2, 96, dropout, batch_first=True, norm_first=True)
        self.head = nn.Linear(96, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != PAD
        hidden = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        hidden = self.layer(hidden, src_key_padding_mask=~there) * there[..., None]
        return self.head(hidden.sum(1) / there.sum(1, keepdim=True))


def make(known: int, places: int, classes: int) -> nn.Module:
    return Reads(known, places, classes)


def drops(known: int, places: int, classes: int) -> nn.Module:
    return Reads(known, places, classes, dropout=0.1)


class Means(nn.Module):
    """A network without a mask: empty places count as words do."""

    def __init__(self, known: int, classes: int) -> None:
        super().__init__()
        self.words, self.order, self.head = (
            nn.Embedding(known, 24),
            nn.GRU(24, 24, batch_first=True),
            nn.Linear(24, classes),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.order(self.words(tokens))[0].mean(1))


def unmasked(known: int, places: int, classes: int) -> nn.Module:
    return Means(known, classes)


class InPlaces(Means):
    """Another, with a vector for each place that the network takes."""

    def __init__(self, known: int, places: int, classes: int) -> None:
        super().__init__(known, classes)
        self.places = nn.Embedding(places, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.order(self.words(tokens) + self.places.weight[: tokens.shape[1]])[0].mean(1))


MODEL = f"{__name__}:make"
IN_PLACES = f"{__name__}:InPlaces"
NOTES = load_dataset("notes", Path())


def train(folder: Path, clients: int = 3, batch: int = 1, one_class: bool = False, **facts: Any) -> list[Path]:
    """Captures of clients that take one step on notes, each batch as wide as its longest."""
    order = NOTES.labels.argsort(stable=True) if one_class else torch.arange(len(NOTES.labels))
    known: dict[str, Any] = {"model": MODEL, "vocabulary": KNOWN, "places": PLACES} | facts
    folders = [folder / str(client) for client in range(clients)]
    for client, (path, chosen) in enumerate(zip(folders, order.split(batch), strict=False)):
        torch.manual_seed(client)
        network = make(KNOWN, PLACES, TOPICS)
        tokens, labels = tokens_of(NOTES.images[chosen]), NOTES.labels[chosen]
        tokens = tokens[:, : int((tokens != PAD).sum(1).max())]
        optimizer = torch.optim.SGD(network.parameters(), RATE)
        with captured(network, path, optimizer, strict=True, **known) as capture:
            nn.functional.cross_entropy(network(tokens), labels).backward()
            optimizer.step()
            capture.batch(tokens, labels)
    return folders


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, Any, str]]:
    def command(folders: list[Path], *options: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = run(["judge", *map(str, folders), *options, "--out", str(tmp_path / "out"), "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return command


def test_a_capture_holds_texts_as_they_were_trained_on(tmp_path: Path) -> None:
    (folder,) = train(tmp_path, clients=1, batch=2)
    capture, said = read_capture(folder), json.loads((folder / "capture.json").read_text())
    assert {name: said[name] for name in ("format", "data", "vocabulary", "places", "classes", "batch_size")} == {
        "format": 2, "data": "text", "vocabulary": KNOWN, "places": PLACES, "classes": TOPICS, "batch_size": 2,
    }  # fmt: skip
    assert "image_shape" not in said and isinstance(capture.record.shape, TextShape)
    clients = gathered([capture])
    tokens = tokens_of(NOTES.images[:2])
    assert clients.images is not None and clients.labels is not None
    assert torch.equal(tokens_of(clients.images[0])[:, : tokens.shape[1]], tokens)
    assert not tokens_of(clients.images[0])[:, tokens.shape[1] :].any()
    assert torch.equal(clients.labels[0], NOTES.labels[:2])


@pytest.mark.slow
def test_texts_of_own_networks_leak(tmp_path: Path, judge: Any, drawn: None) -> None:
    code, document, _ = judge(train(tmp_path, clients=8), "--prior", "notes", "--attack", "token_rows,span")
    assert code == 0
    assert {check["outcome"] for check in document["checks"]} == {"holds"}
    cells = [cell for cell in document["results"]["cells"] if cell["role"] == "cell"]
    assert [(cell["attack"], cell["verdict"], cell["outcomes"]["success"]) for cell in cells] == [
        ("token_rows", "leaks", 8), ("span", "leaks", 8),
    ]  # fmt: skip
    out = tmp_path / "out"
    assert len(list((out / "pictures").glob("*.png"))) == 2
    # What comes back is called a text, never an image, in the terminal and on the page.
    screen = Console(file=io.StringIO(), width=200)
    print_results(ResultDocument.model_validate_json((out / "results.json").read_text()), screen)
    assert run(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    seen = (tmp_path / "page.html").read_text()
    page = re.sub("<(style|script).*?</\\1>|<[^>]*>|scikit-image", " ", seen, flags=re.S)
    assert "texts come back" in screen.file.getvalue() and "reconstructs private texts" in page
    for told in (screen.file.getvalue(), page):
        assert "image" not in told.lower()


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "said"), [("as declared", "plausibly reconstructed"), ("other", "could not tell")])
def test_without_the_truth_texts_are_held_against_what_was_sent(
    tmp_path: Path, judge: Any, sent: str, said: str
) -> None:
    folders = train(tmp_path / "captures", clients=3)
    for number, folder in enumerate(folders):
        (folder / "truth.npz").unlink()
        if sent == "other":  # what no text explains, of the same size
            with np.load(folder / "before.npz") as before, np.load(folder / "after.npz") as after:
                random = np.random.default_rng(number)
                moved = {name: before[name] + random.permutation((after[name] - before[name]).ravel()).reshape(
                    before[name].shape) for name in before.files}  # fmt: skip
            np.savez(folder / "after.npz", **moved)
    code, document, _ = judge(folders, "--prior", "notes", "--attack", "token_rows")
    (estimate,) = document["estimates"]
    assert estimate["estimates"] == [said] * 3 and code in (0, 3)
    assert max(estimate["left"]) < 0.01 if sent == "as declared" else min(estimate["left"]) > 0.9


@pytest.mark.parametrize(("padded", "said"), [
    ("to the longest", "padded to the longest of their batch"), ("in front", "padded in front"),
])  # fmt: skip
def test_texts_that_were_padded_otherwise_accuse_nobody(tmp_path: Path, judge: Any, padded: str, said: str) -> None:
    torch.manual_seed(0)
    network, tokens = unmasked(KNOWN, PLACES, TOPICS), tokens_of(NOTES.images[:2])
    tokens = nn.functional.pad(tokens, (0, PLACES - tokens.shape[1]), value=PAD)
    there = (tokens != PAD).sum(1)
    taken = {
        "to the longest": tokens[:, : int(there.max())],
        "in front": torch.stack([row.roll(PLACES - int(count)) for row, count in zip(tokens, there, strict=True)]),
    }[padded]  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    known: dict[str, Any] = {"model": f"{__name__}:unmasked", "vocabulary": KNOWN, "places": PLACES}
    with captured(network, tmp_path / "one", optimizer, strict=True, **known) as capture:
        nn.functional.cross_entropy(network(taken), NOTES.labels[:2]).backward()
        optimizer.step()
        capture.batch(tokens, NOTES.labels[:2])
    code, _, told = judge([tmp_path / "one"], "--attack", "token_rows", "--prior", "notes")
    assert code == 2 and said in told, told


@pytest.mark.parametrize(("steps", "all_places", "outcome"), [
    (1, 3, "holds"), (1, 1, "(1 of 3 clients, such as client 2); texts"),
    (1, 0, "(1 of 3 clients, such as client 1); texts"), (2, 3, "holds"), (2, 0, "cannot tell"), (2, 3, "violated"),
])  # fmt: skip
def test_each_client_may_pad_to_a_length_of_its_own(tmp_path: Path, steps: int, all_places: int, outcome: str) -> None:
    """The first of them to all places; of several nobody knows how long each was. Other words are no padding."""
    known: dict[str, Any] = {"model": IN_PLACES, "vocabulary": KNOWN, "places": PLACES, "strict": True}
    for client in range(3):
        torch.manual_seed(0)
        network = InPlaces(KNOWN, PLACES, TOPICS)
        optimizer = torch.optim.SGD(network.parameters(), RATE)
        with captured(network, tmp_path / str(client), optimizer, **known) as capture:
            for step in range(steps):
                own = torch.arange(2) + 2 * (steps * client + step)
                tokens, labels = tokens_of(NOTES.images[own]), NOTES.labels[own]
                width = PLACES if client < all_places else int((tokens != PAD).sum(1).max())
                tokens = nn.functional.pad(tokens, (0, PLACES - tokens.shape[1]), value=PAD)[:, :width]
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(tokens), labels).backward()
                optimizer.step()
                told = tokens_of(NOTES.images[own + 20]) if outcome == "violated" else tokens
                capture.batch(told, labels)
    clients = gathered([read_capture(tmp_path / str(client)) for client in range(3)])
    (cell,) = cells_of(clients, "texts", ["cpl"], "none", "cpu")
    if "client" not in outcome:
        assert explained(clients, cell, tmp_path).outcome == outcome
        return
    with pytest.raises(UsageError, match=re.escape(outcome)):
        explained(clients, cell, tmp_path)


def test_members_of_a_suite_that_make_images_are_none_of_texts(tmp_path: Path) -> None:
    clients = gathered([read_capture(folder) for folder in train(tmp_path, clients=2)])
    assert [cell.attack for cell in cells_of(clients, "texts", ["auto"], "notes", "cpu")] == [
        "token_rows", "span", "decode", "identify",
    ]  # fmt: skip
    assert [cell.attack for cell in cells_of(clients, "texts", ["cpl"], "none", "cpu")] == ["cpl"]
    with pytest.raises(UsageError, match="data that no client holds, or use --attack span"):
        cells_of(clients, "texts", ["decode"], "none", "cpu")


def test_nothing_of_a_text_reaches_an_attack(tmp_path: Path) -> None:
    """What it is handed is the same whatever the texts behind an equal gradient were: no length, no label, no count."""
    folders = train(tmp_path, clients=2, batch=2)
    clients = gathered([read_capture(folder) for folder in folders])
    split = public_split([clients], "notes", tmp_path)
    (cell,) = cells_of(clients, "texts", ["span"], "notes", "cpu")
    seen = CapturedStage(tmp_path, 8, clients, cell, split.look_alikes, split.public).set(cell).observation
    for folder in folders:
        short = {"tokens": np.full((2, 1), 5), "lengths": np.ones(2, int), "labels": np.zeros(2, int)}
        np.savez(folder / "truth.npz", **short)
    other = gathered([read_capture(folder) for folder in folders])
    same = CapturedStage(tmp_path, 8, other, cell, split.look_alikes, split.public).set(cell).observation
    assert seen.fingerprint() == same.fingerprint() and seen.labels is None
    assert {one.name for one in fields(Observation)} == TOLD
    assert tuple(seen.model.image_shape) == TextShape(KNOWN, PLACES)


# Whatever is added here is known to attackers: no length, mask, label or number of tokens of a private text may be.
TOLD = {
    "model", "weights", "target", "examples", "keys", "learning_rate", "local_steps", "update_model", "optimizer",
    "reading", "certainty", "places", "clipping", "labels", "sparse", "correction", "batches", "columns", "noise",
    "carrying", "cut", "prior", "simulation", "coding", "disguises", "trained", "client",
}  # fmt: skip


def tokenizer(folder: Path, words: tuple[str, ...] = vocabulary().vocabulary) -> Path:
    """The words of the notes as the library ``tokenizers`` writes them."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0", "added_tokens": [{"id": 0, "content": words[0], **special}],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {word: place for place, word in enumerate(words)},
                  "unk_token": words[1]},
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def test_own_texts_are_read_by_the_tokenizer_of_the_captures(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folders = train(tmp_path / "captures", tokenizer=str(tokenizer(tmp_path)))
    assert read_capture(folders[0]).tokenizer == folders[0] / "tokenizer.json"
    assert (folders[0] / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    clients = gathered([read_capture(folder) for folder in folders])
    assert clients.words is not None and clients.words.vocabulary == vocabulary().vocabulary
    texts = [vocabulary().text(row) for row in tokens_of(NOTES.images[500:700]).tolist()]
    own = tmp_path / "own.csv"
    rows = (f'"{text}",{label}' for text, label in zip(texts, NOTES.labels[500:700].tolist(), strict=True))
    own.write_text("\n".join(["text,label", *rows]))
    split = public_split([clients], str(own), tmp_path)
    known = {row.numpy().tobytes() for row in tokens_of(NOTES.images[500:700])}
    for part in (split.look_alikes, split.public):
        assert {row[:40].numpy().tobytes() for row in tokens_of(part.images)} <= known
        assert tuple(part.image_shape) == (1, 16, PLACES)


def too_large(folder: Path) -> None:
    with (folder / "tokenizer.json").open("r+b") as stream:
        stream.truncate(2**26 + 1)


WORDS = vocabulary().vocabulary
NOT_ITS_OWN: dict[str, tuple[Callable[[Path], object], str]] = {
    "of more tokens": (lambda folder: tokenizer(folder, (*WORDS, "more")), "has 482 tokens, and the network's"),
    "of fewer than are used": (lambda folder: tokenizer(folder, WORDS[:9]), ", which the tokenizer lacks; give the"),
    "none at all": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is no tokenizer"),
    "code": (lambda folder: (folder / "tokenizer.json").write_text("import os"), "is no tokenizer"),
    "too large": (too_large, "is larger than 64 MiB"),
}


@pytest.mark.parametrize(("change", "said"), NOT_ITS_OWN.values(), ids=NOT_ITS_OWN.keys())
def test_a_tokenizer_that_is_not_the_networks(
    tmp_path: Path, judge: Any, change: Callable[[Path], object], said: str
) -> None:
    pytest.importorskip("tokenizers")
    (folder,) = train(tmp_path / "captures", clients=1, tokenizer=str(tokenizer(tmp_path)))
    change(folder)
    code, document, line = judge([folder])
    assert (code, document) == (2, None) and line.count("\n") == 1 and said in line


@pytest.mark.slow
def test_a_batch_of_one_class_is_judged(tmp_path: Path, judge: Any) -> None:
    folders = train(tmp_path / "captures", clients=1, batch=2, one_class=True)
    assert len({int(one) for folder in folders for one in np.load(folder / "truth.npz")["labels"]}) == 1
    code, document, _ = judge(folders, "--attack", "span")
    assert code == 0 and document["results"]["cells"][0]["not_applicable_reason"] is None


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "capture.json"
    path.write_text(json.dumps({name: one for name, one in (json.loads(path.read_text()) | changes).items()
                                if one is not None}))  # fmt: skip


def spoil(**arrays: Any) -> Callable[[Path], None]:
    """Other arrays in the truth; None for one less."""

    def change(folder: Path) -> None:
        with np.load(folder / "truth.npz") as archive:
            kept = dict(archive) | arrays
        np.savez(folder / "truth.npz", **{name: values for name, values in kept.items() if values is not None})

    return change


def texts(*rows: tuple[int, ...], lengths: tuple[int, ...] | None = None) -> Callable[[Path], None]:
    ends = lengths or tuple(map(len, rows))
    return spoil(tokens=np.array(rows), lengths=np.array(ends), labels=np.zeros(len(rows), int))


IMAGES = {"images": np.zeros((1, 1, 8, 8)), "tokens": None, "lengths": None}
MISTAKES: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "format 1": (lambda folder: edit(folder, format=1), (), 'is of format 2; add "format": 2'),
    "format 2 of images": (lambda folder: edit(folder, data=None), (), 'vocabulary is of texts; add "data": "text"'),
    "no vocabulary": (lambda folder: edit(folder, vocabulary=None), (), "which the network is made of, are missing"),
    "a shape of images": (lambda folder: edit(folder, image_shape=[1, 8, 8]), (), "the data are texts; take it out"),
    "a tokenizer elsewhere": (lambda folder: edit(folder, tokenizer="../t.json"), (), "is no name of a file"),
    "no tokenizer": (lambda folder: edit(folder, tokenizer="tokenizer.json"), (), "tokenizer.json' does not exist"),
    "the truth of images": (spoil(**IMAGES), (), "is a truth of images, and the capture is of texts; correct data"),
    "no lengths": (spoil(lengths=None), (), "has no array 'lengths'; a truth is tokens, lengths and labels"),
    "beyond the vocabulary": (texts((5, KNOWN)), (), f"has token {KNOWN}, and the network knows 0 to {KNOWN - 1}"),
    "a negative token": (texts((5, -1)), (), "has token -1, and the network knows"),
    "tokens of no numbers": (spoil(tokens=np.ones((1, 40))), (), "has tokens of type float64; save tokens as integers"),
    "longer than places": (texts((5,) * 45), (), "has a text of 45 tokens, and the network 44 places; correct places"),
    "longer than its tokens": (texts((5,), lengths=(2,)), (), "has a text of 2 tokens in 1 columns"),
    "an empty text": (texts((0,), lengths=(0,)), (), "has an empty text, number 1 (length 0); leave it out"),
    "filled within": (texts((5, 0, 5)), (), "has token 0 within a text, which fills places behind it; correct lengths"),
    "filled otherwise": (texts((5, 1), lengths=(1,)), (), "has token 1 behind the end of a text; write 0 there"),
    "more texts": (texts((5,), (6,)), (), "2 true texts, but batch_size 1 and local_steps 1 make 1"),
    "labels of nobody": (spoil(labels=np.array([6])), (), "has labels from 6 to 6; number the 6 classes from 0"),
    "labels of two": (spoil(labels=np.array([1, 2])), (), "give tokens (1, T), lengths (1,) and labels (1,)"),
    "dropout": (lambda folder: edit(folder, model=f"{__name__}:drops"), (), "has active dropout, whose gradients"),
    "a network of images": (
        lambda folder: edit(folder, model="lenet"), (), "takes images, and the captures are of texts; correct model",
    ),
    "another vocabulary": (lambda folder: edit(folder, vocabulary=99), (), "words.weight is (481, 96), the network's"),
    "images as prior": (lambda folder: None, ("--prior", "digits"), "holds no texts, and the captures do"),
    "an attack on images": (lambda folder: None, ("--attack", "cpl"), "changes an image little by little"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "options", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_that_names_the_fix(
    tmp_path: Path, judge: Any, change: Callable[[Path], object], options: tuple[str, ...], said: str
) -> None:
    (folder,) = train(tmp_path / "captures", clients=1)
    change(folder)
    code, document, line = judge([folder], *options)
    assert (code, document) == (2, None)
    assert line.startswith("harness: ") and line.count("\n") == 1 and said in line
