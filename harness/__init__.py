"""harness: does a federated-learning defense really stop gradient leakage?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.base.tuning import tune
from harness.base.version import SCHEMA_VERSION, __version__

if TYPE_CHECKING:
    from harness.cli.judge import judge
    from harness.functions import evaluate, load, train
    from harness.privacy.account import account

tune()

__all__ = ["SCHEMA_VERSION", "__version__", "account", "evaluate", "judge", "load", "train"]

_PLACES = {
    "account": "harness.privacy.account", "evaluate": "harness.functions", "load": "harness.functions",
    "judge": "harness.cli.judge", "train": "harness.functions",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """The functions, whose import takes seconds, when they are asked for."""
    if name == "claims":  # a package that can be called
        return import_module("harness.claims")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
