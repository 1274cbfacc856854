"""The reference of the commands, made from the commands themselves where a page asks for it by the line MARK."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from sphinx.application import Sphinx

from harness.cli.app import COMMANDS, app

MARK = "<!-- the commands -->"
_NAMES = re.compile(r"(?<![\w`-])(--[a-z][\w-]*)")


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.connect("source-read", _fill_in)
    return {"parallel_read_safe": True}


def _fill_in(_: Sphinx, __: str, source: list[str]) -> None:
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, "\n".join(reference()))


def reference() -> Iterator[str]:
    """Markdown of every command: its usage, what it does, its arguments and options."""
    root: Any = typer.main.get_command(app)
    with root.make_context("harness", ["list"]) as context:
        for name in COMMANDS:
            yield from _command(name, root.get_command(context, name), context)


def _command(name: str, command: Any, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=name, parent=parent)
    yield f"\n## harness {name}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield from (f"{_words(part)}\n" for part in (command.help or "").split("\n\n"))
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record:
            yield f"`{record[0]}`\n: {_words(record[1]) or 'what the command is about'}\n"
    for each in getattr(command, "commands", {}):
        yield from _command(f"{name} {each}", command.get_command(context, each), parent)


def _words(text: str) -> str:
    """Help as Markdown: nothing in it is markup, and names of options are code."""
    plain = re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
    return _NAMES.sub(r"`\1`", plain)
