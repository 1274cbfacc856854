"""A group of commands that imports a command's module when it is called, and lists them without importing any."""

import importlib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def lazy_group(app: typer.Typer, commands: Mapping[str, str]) -> type[TyperGroup]:
    """The class of a group whose commands join ``app`` as their modules, which are named like them, are imported.

    Args:
        commands: what help says of each.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.imported = dict(self.commands)
            self.commands = {name: TyperCommand(name, help=about) for name, about in commands.items()}
            self.listing = False

        def get_command(self, context: typer.Context, name: str) -> TyperCommand | None:
            if self.listing:
                return self.commands.get(name)
            if name in commands and name not in self.imported:
                importlib.import_module(f"{__package__}.{name}")
                fresh = typer.main.get_group(app)
                assert isinstance(fresh, LazyGroup)
                self.imported = fresh.imported
            return self.imported.get(name)

        def shell_complete(self, context: typer.Context, incomplete: str) -> Any:
            """Names and what they are for: a shell waits for this."""
            self.listing = True
            return super().shell_complete(context, incomplete)

        def format_commands(self, context: typer.Context, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(commands.items()))

    return LazyGroup
