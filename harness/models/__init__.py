"""Networks, and their evaluation for many rows at once."""

from harness.models import (  # noqa: F401  (so that they register)
    extractor_networks,
    table_transformer,
    text_transformer,
    transformer,
)
from harness.models.changes import group_norm, no_dropout, normalised
from harness.models.extractor_networks import Frozen
from harness.models.networks import MODELS, build_module, find_factory
from harness.models.next_word import NextWord
from harness.models.row_model import RowModel, cross_entropy
from harness.models.tokenizers import words_of

__all__ = [
    "MODELS",
    "Frozen",
    "NextWord",
    "RowModel",
    "build_module",
    "cross_entropy",
    "find_factory",
    "group_norm",
    "no_dropout",
    "normalised",
    "words_of",
]
