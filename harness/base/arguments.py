"""Arguments of the functions for Python: a wrong type, or a name that there is not, is one line as on the command line.

There the parser looks at them first; here nobody would.
"""

import difflib
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError, validate_call

from harness.base.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST = 60
# What options of the command line are called in Python.
_IN_PYTHON = {
    "surface": "tap", "seed": "seeds", "keep_rounds": "keep", "training": "weights", "defense_arg": "defense_args",
    "attack_arg": "attack_args",
}  # fmt: skip


def typed(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which is given what its annotations say or raises UsageError."""

    @validate_call
    @wraps(function)
    def arguments(**given: Any) -> dict[str, Any]:
        return given

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            given = arguments(*args, **kwargs)
        except ValidationError as error:
            raise UsageError(_wrong(error)) from error
        return function(**given)  # type: ignore[call-arg]

    return checked


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raises UsageError for a name that is not known, with the one that was meant."""
    for name in (name for name in names if name not in known):
        instead = _IN_PYTHON.get(name)
        meant = [instead] if instead in known else difflib.get_close_matches(name, known, n=1)
        hint = f"use {meant[0]!r}" if meant else "it may be an option of the command alone; leave it out"
        raise UsageError(f"there is no setting {name!r} in Python; {hint}")


def _wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    given = " ".join(repr(first["input"]).split())[:_LONGEST]
    return f"{first['loc'][0]}: {first['msg']}, got {given}"
