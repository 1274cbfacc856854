"""A command's options as the fields of its settings have them: names, types, defaults and help, written once."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Command = Callable[..., int]


def options_of(
    settings: type[BaseModel], names: Sequence[str], several: Sequence[str] = (), unset: bool = False
) -> Callable[[Command], Command]:
    """Gives a command an option for each named field, which come to it as keyword arguments.

    Args:
        settings: whose fields they are; a field's description is its option's help.
        names: of the fields, in the order of the help.
        several: those of them that take a list, every entry of which is a setting of its own; they arrive as text.
        unset: whether an option that is not given arrives as None, with the default in its help only.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in named]
        made = [_option(name, settings.model_fields[name], name in several, unset) for name in names]

        @wraps(command)
        def run(**given: Any) -> int:
            return command(**given)

        run.__signature__ = own.replace(parameters=[*made, *kept])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*made, *kept)} | {"return": int}
        return run

    return decorate


def _option(name: str, field: FieldInfo, several: bool, unset: bool) -> inspect.Parameter:
    kind, default = (list[str] if several else _plain(field.annotation)), field.default
    about = field.description or ""
    if unset or several:
        about += f" ({_shown(default)})" if default not in (None, False) else ""
        kind, default = kind | None, None
    flag = (f"--{name.replace('_', '-')}",) if kind in (bool, bool | None) else ()
    annotation = Annotated[kind, typer.Option(*flag, help=about)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _plain(annotation: Any) -> Any:
    """The type that a command line can give: ranges and choices are the settings' to check."""
    if get_origin(annotation) in (Union, UnionType):
        inner = [one for one in get_args(annotation) if one is not NoneType]
        return _plain(inner[0]) | None
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    return str if get_origin(annotation) is Literal else annotation
