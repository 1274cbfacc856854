"""Turns names and key=value settings from a person into validated attacks and defenses."""

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, cast, dataclass_transform, get_args

from pydantic import BeforeValidator, ConfigDict, JsonValue, ValidationError, validate_call
from pydantic.dataclasses import dataclass as validated

from harness.base.errors import UsageError, as_setting
from harness.base.ranges import is_boolean
from harness.base.registry import Registry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic_core import ErrorDetails


Kind = TypeVar("Kind")
T = TypeVar("T", bound="DataclassInstance")
_LONG_NUMBER = re.compile(r"0\.0{5,}\d+")


def _plain(given: Any) -> Any:
    """Return a value with lists for tuples, and plain numbers for those of numpy and torch."""
    if isinstance(given, Mapping):
        return {key: _plain(one) for key, one in given.items()}
    if isinstance(given, (list, tuple)):
        return [_plain(one) for one in given]
    return given.tolist() if hasattr(given, "tolist") else given


#: Settings by their names, as documents keep them.
Arguments = Annotated[dict[str, JsonValue], BeforeValidator(_plain)]


@dataclass_transform(frozen_default=True)
def validated_record(kind: type[Kind]) -> type[Kind]:
    """The class as a frozen record whose settings are validated."""
    return cast(type[Kind], validated(frozen=True, config=ConfigDict(extra="forbid"))(kind))


def build(registry: Registry[type[T]], name: str, arguments: Mapping[str, Any]) -> T:
    """An instance of a registered class, or a stack of them; a stack's settings are named ``part.setting``.

    Raises:
        UsageError: unknown name, unknown setting (the nearest one is suggested), or a value out of range.
    """
    if registry.combine and len(parts := registry.parts(name)) > 1:
        return registry.combine(_build_parts(registry, name, parts, arguments))
    kind = registry[name]
    known = {field.name: field.type for field in fields(kind)}
    for key, value in arguments.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'no settings'}"
            raise UsageError(f"{registry.kind} {name!r} has no setting {key!r}; {hint}")
        if is_boolean(value) and _is_number(known[key]):
            raise UsageError(f"{registry.kind} {name!r}: {key}: a Boolean is no number, got {_shown(value)}")
    try:
        return kind(**arguments)
    except ValidationError as error:
        raise UsageError(f"{registry.kind} {name!r}: {one_line(error)}") from error


def _build_parts(
    registry: Registry[type[T]], name: str, parts: list[str], arguments: Mapping[str, Any]
) -> dict[str, T]:
    own: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key, value in arguments.items():
        part, _, setting = key.partition(".")
        if part not in own:
            raise UsageError(f"{registry.kind} {name!r} has no setting {key!r}; write for example {parts[0]}.setting")
        own[part][setting] = value
    return {part: build(registry, part, settings) for part, settings in own.items()}


def one_line(error: ValidationError) -> str:
    """The first complaint of a pydantic error as one line naming the setting."""
    first = error.errors()[0]
    message = _said(first)
    where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("constrained", "function")))
    given = "" if isinstance(first["input"], (dict, list)) or not where else f", got {first['input']!r}"
    return f"{where}: {message}{given}" if where and not where.startswith("ArgsKwargs") else message


def _said(problem: "ErrorDetails") -> str:
    if problem["type"] in ("list_type", "tuple_type"):
        return "give a list"
    return _LONG_NUMBER.sub(lambda one: f"{float(one[0]):g}", problem["msg"].removeprefix("Value error, "))


def parse_assignments(
    assignments: list[str], names: list[str], registry: Registry[type[T]]
) -> dict[str, dict[str, str]]:
    """Settings per name from ``key=value`` (every named thing that has the key) and ``name.key=value`` (one of them).

    In a stack each part counts as named; its settings are called ``part.key``. What is said of one of them goes before
    what is said of all, in whatever order.

    Raises:
        UsageError: not of that form, a name that is not part of the run, a key that nothing named has, or two values.
    """
    settings: dict[str, dict[str, str]] = {name: {} for name in names}
    places = [(name, part) for name in names for part in registry.parts(name)]
    known = {part: {field.name for field in fields(registry[part])} for _, part in places}
    given: dict[tuple[str, str], tuple[bool, str]] = {}
    for assignment in sorted(assignments, key=lambda one: "." in one.partition("=")[0]):
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"{assignment!r} is not key=value; write for example sigma=6")
        owner, dot, setting = key.rpartition(".")
        if dot:
            owner = registry.resolve(owner)
            chosen = [
                place for place in places if owner == place[1] or (owner == place[0] and setting in known[place[1]])
            ]
            if not chosen:
                raise UsageError(f"{registry.kind} {owner!r} is not part of this run; name it with --{registry.kind}")
        else:
            chosen = [place for place in places if setting in known[place[1]]]
            if not chosen:
                hint = _instead_of(setting, sorted(set().union(*known.values())))
                raise UsageError(f"no named {registry.kind} has a setting {setting!r}; {hint}")
        for name, part in chosen:
            own = setting if name == part else f"{part}.{setting}"
            alike, before = given.get((name, own), (False, value))
            if alike == bool(dot) and before != value:
                raise UsageError(f"{key} was given as {before!r} and as {value!r}; give it once")
            given[name, own], settings[name][own] = (bool(dot), value), value
    return settings


def _instead_of(setting: str, known: list[str]) -> str:
    if near := difflib.get_close_matches(setting, known, n=1):
        return f"did you mean {near[0]!r}?"
    return f"choose {', '.join(known)}" if known else "there is nothing to set"


# Arguments of the functions for Python: a wrong type, or a name that there is not, is one line as on the command
# line.
#
# There the parser looks at them first; here nobody would.

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

_LONGEST_INPUT = 60
# What options of the command line are called in Python.
_IN_PYTHON = {
    "surface": "tap", "seed": "seeds", "keep_rounds": "keep", "training": "weights", "defense_arg": "defense_args",
    "attack_arg": "attack_args",
}  # fmt: skip
_OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w-])")


def typed(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function, which is given what its annotations say or raises UsageError."""

    @validate_call
    @wraps(function)
    def arguments(**given: Any) -> dict[str, Any]:
        return given

    known = inspect.signature(function)
    numbers = [name for name, one in known.parameters.items() if _is_number(one.annotation)]

    @wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        first = known.bind_partial(*args).arguments  # by name, as pydantic hands them on
        for name in numbers:
            value = {**first, **kwargs}.get(name)
            if is_boolean(value):
                raise UsageError(f"{name}: a Boolean is no number, got {_shown(value)}")
        try:
            given = arguments(**first, **kwargs)
        except ValidationError as error:
            raise UsageError(_wrong_argument(error, kwargs, known.parameters)) from error
        with named_as_in_python():
            return function(**given)  # type: ignore[call-arg]

    return checked


def _is_number(kind: Any) -> bool:
    """Return whether an annotation takes numbers, or lists of them."""
    return kind in (int, float) or any(map(_is_number, get_args(kind)))


@contextmanager
def named_as_in_python() -> Iterator[None]:
    """Let a mistake name arguments of functions where it names options of the command line."""
    try:
        yield
    except UsageError as error:
        error.args = (_OPTION.sub(lambda one: _in_python(one[0]), str(error)),)
        raise


def _in_python(option: str) -> str:
    name = as_setting(option)
    return option if _IN_PYTHON.get(name) == "weights" else _IN_PYTHON.get(name, name)


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raises UsageError for a name that is not known, with the one that was meant."""
    for name in (name for name in names if name not in known):
        instead = _IN_PYTHON.get(name)
        meant = [instead] if instead in known else difflib.get_close_matches(name, known, n=1)
        hint = f"use {meant[0]!r}" if meant else "it may be an option of the command alone; leave it out"
        raise UsageError(f"there is no setting {name!r} in Python; {hint}")


def _wrong_argument(error: ValidationError, named: Collection[str], known: Collection[str]) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "unexpected_keyword_argument":
        require_known([str(first["loc"][0])], known)
    if first["type"].startswith("missing"):
        name = str(first["loc"][0])
        near = difflib.get_close_matches(name, named, n=1)
        return f"there is no setting {near[0]!r}; did you mean {name!r}?" if near else f"{name} is missing; give it"
    return f"{first['loc'][0]}: {_said(first)}, got {_shown(first['input'])}"


def _shown(value: object) -> str:
    return " ".join(repr(value).split())[:_LONGEST_INPUT]
