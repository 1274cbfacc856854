"""Turns names and key=value settings from a person into validated attacks and defenses."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import ValidationError

from harness.errors import UsageError
from harness.registry import Registry

T = TypeVar("T")


def build(registry: Registry[type[T]], name: str, arguments: Mapping[str, Any]) -> T:
    """An instance of a registered class.

    Raises:
        UsageError: unknown name, unknown setting (the nearest one is suggested), or a value out of range.
    """
    kind = registry[name]
    known = [field.name for field in fields(kind)]
    for key in arguments:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'no settings'}"
            raise UsageError(f"{registry.kind} {name!r} has no setting {key!r}; {hint}")
    try:
        return kind(**arguments)
    except ValidationError as error:
        raise UsageError(f"{registry.kind} {name!r}: {one_line(error)}") from error


def one_line(error: ValidationError) -> str:
    """The first complaint of a pydantic error as one line naming the setting."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("constrained", "function")))
    given = "" if isinstance(first["input"], (dict, list)) or not where else f", got {first['input']!r}"
    return f"{where}: {message}{given}" if where and not where.startswith("ArgsKwargs") else message


def parse_assignments(
    assignments: list[str], names: list[str], registry: Registry[type[T]]
) -> dict[str, dict[str, str]]:
    """Settings per name from ``key=value`` (every named thing that has the key) and ``name.key=value`` (one of them).

    Raises:
        UsageError: not of that form, a name that is not part of the run, or a key that nothing named has.
    """
    settings: dict[str, dict[str, str]] = {name: {} for name in names}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"{assignment!r} is not key=value; write for example sigma=6")
        owner, dot, setting = key.rpartition(".")
        if dot:
            owner = registry.resolve(owner)
            if owner not in settings:
                raise UsageError(f"{registry.kind} {owner!r} is not part of this run; name it with --{registry.kind}")
            settings[owner][setting] = value
            continue
        owners = [name for name in names if setting in {field.name for field in fields(registry[name])}]
        if not owners:
            every = {field.name for name in names for field in fields(registry[name])}
            near = difflib.get_close_matches(setting, every, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see harness list"
            raise UsageError(f"no named {registry.kind} has a setting {setting!r}; {hint}")
        for name in owners:
            settings[name][setting] = value
    return settings
