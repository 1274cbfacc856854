"""Tokenizers that belong to networks: a tokenizer.json is read by the library ``tokenizers``, and runs no code."""

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.base.errors import UsageError, in_one_line
from harness.base.words import BITS, MARKS, PAD, Words
from harness.models.networks import Factory, find_factory
from harness.results.files import MOST_OF_A_TOKENIZER, read_bytes

EXTRA = "pip install 'gradient-leakage-harness[text]'"
_MARKS_OF_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<PAD>")
_FIX = "give the tokenizer.json that belongs to the network"


@dataclass(frozen=True)
class Tokenizer(Words):
    """A vocabulary whose tokens may be parts of words; what it puts around a text counts as tokens.

    Attributes:
        content: of the tokenizer.json.
    """

    content: str = field(default="", repr=False)

    @cached_property
    def _made(self) -> Any:
        return _parsed(self.content)

    @property
    def unknown(self) -> int | None:
        mark = getattr(self._made.model, "unk_token", None)
        return None if mark is None else self._made.token_to_id(mark)

    def tokens(self, texts: Sequence[str], places: int) -> Tensor:
        """Token numbers (N, places); of what is longer the inner part is cut, not what ends a text."""
        self._made.enable_truncation(places)
        rows = torch.full((len(texts), places), PAD)
        for row, one in zip(rows, self._made.encode_batch(list(texts)), strict=True):
            row[: len(one.ids)] = torch.tensor(one.ids, dtype=torch.long)
        return rows

    def lengths(self, texts: Sequence[str]) -> list[int]:
        self._made.no_truncation()
        around = self._made.num_special_tokens_to_add(False)
        counts = [len(one.ids) for one in self._made.encode_batch(list(texts))]
        return [0 if count == around else count for count in counts]


def words_of(model: str | None) -> Words | None:
    """The tokenizer that a network brings along; None for one that takes the vocabulary of its data.

    A factory brings it as its attribute ``tokenizer``: the path of a tokenizer.json, or a function that gives it.

    Raises:
        UsageError: there is no such network, or its tokenizer cannot be read.
    """
    path = tokenizer_file(model)
    if path is None:
        return None
    return read_tokenizer(path)


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json; nothing in it is executed.

    Raises:
        UsageError: it cannot be read, is too large, or is no tokenizer whose number 0 fills places.
    """
    facts = path.stat() if path.is_file() else None
    return _read(path, facts and (facts.st_mtime_ns, facts.st_size))


def tokenizer_file(model: str | None) -> Path | None:
    """The tokenizer.json that a network brings along, which is not looked at; None where it brings none.

    Raises:
        UsageError: there is no such network, or what it brings is no path.
    """
    brought: Any = getattr(find_factory(model), "tokenizer", None) if model else None
    try:
        given: Any = brought() if callable(brought) else brought
        return None if given is None else Path(given)
    except TypeError as error:
        raise UsageError(f"model {model!r} has a tokenizer that is no path ({in_one_line(error)}); {_FIX}") from error


def brings(tokenizer: Callable[[], Path]) -> Callable[[Factory], Factory]:
    """Decorator of a factory whose networks read texts by a tokenizer of their own."""

    def decorate(factory: Factory) -> Factory:
        setattr(factory, "tokenizer", tokenizer)  # noqa: B010  # a function has no declared attributes
        return factory

    return decorate


@lru_cache(maxsize=4)
def _read(path: Path, _: object) -> Tokenizer:
    content = read_bytes(path, MOST_OF_A_TOKENIZER)
    try:
        text = content.decode()
        made = _parsed(text)
    except UsageError:
        raise
    except Exception as error:  # the library raises plain ones
        raise UsageError(f"{str(path)!r} is no tokenizer ({in_one_line(error)}); {_FIX}") from error
    count = made.get_vocab_size()
    named = [made.id_to_token(number) for number in range(count)]
    special = {number for number, one in made.get_added_tokens_decoder().items() if one.special}
    if count > 2**BITS or None in named:
        raise UsageError(
            f"{str(path)!r} has {count} tokens, whose numbers are not 0 to {count - 1} or are above {2**BITS - 1}; "
            "use a network with a smaller vocabulary"
        )
    other = _other_padding(made, text)
    if other is not None:
        raise UsageError(
            f"{str(path)!r} fills places with token {other}, which here is {PAD}; swap the numbers {PAD} and {other} "
            "in it, and swap them back in the network before it looks them up"
        )
    if PAD not in special:
        raise UsageError(f"{str(path)!r} has no mark as token {PAD}, which fills places behind a text; {_FIX}")
    return Tokenizer((MARKS[PAD], *named[1:]), text)


def _other_padding(made: Any, text: str) -> int | None:
    """The token that fills places where that is another than :data:`PAD`, as its own setting or its name says."""
    given = json.loads(text).get("padding")
    if isinstance(given, dict) and isinstance(given.get("pad_id"), int):
        return given["pad_id"] if given["pad_id"] != PAD else None
    named = (made.token_to_id(mark) for mark in _MARKS_OF_PADDING)
    return next((number for number in named if number), None)


def _parsed(content: str) -> Any:
    try:
        library: Any = importlib.import_module("tokenizers")  # compiled, without types
    except ImportError as error:
        raise UsageError(f"this model's tokenizer needs the library tokenizers; {EXTRA}") from error
    made = library.Tokenizer.from_str(content)
    made.no_padding()
    return made
