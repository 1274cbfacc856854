"""Catalogue of choices, made from what takes seconds to import; ``harness list``, help and completion read its files.

After a name, a setting or an option changed, ``python -m harness.cli.catalogue`` writes those files again.
"""

import dataclasses
import inspect
import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

from harness.attacks import ATTACKS, SUITES, suites
from harness.base.registry import Registry
from harness.cli.app import COMMANDS, app
from harness.cli.sketch import CATALOGUE, SKETCHES, row_of
from harness.datasets import DATASETS
from harness.defenses import DEFENSES
from harness.federation.taps import Tap
from harness.models import MODELS
from harness.models.changes import CHANGES, PATTERNS
from harness.models.networks import PREFIX
from harness.presets import PRESETS

Row = dict[str, Any]


def rows_of(section: str) -> list[Row]:
    """The rows of a section of ``harness list``, those of other packages among them."""
    return _SECTIONS[section]()


def _classes(registry: Registry[type]) -> list[Row]:
    rows = []
    for name in registry:
        kind = registry[name]
        settings = {field.name: _default(field) for field in dataclasses.fields(kind)}
        about = sys.modules[kind.__module__].__doc__ or kind.__doc__ or ""
        rows.append(
            {"name": name, "aliases": registry.aliases(name), "about": _first_line(about), "settings": settings}
        )
    return rows


def _suites() -> list[Row]:
    """Names of several attacks; one without a version means the latest."""
    return [
        {"name": name, "aliases": [alias for alias, latest in suites.LATEST.items() if latest == name],
         "about": f"a suite: {suites.described(name)}; all else at its defaults", "settings": {}}
        for name in SUITES
    ]  # fmt: skip


def _default(field: dataclasses.Field) -> Any:
    default = getattr(field.default, "default", field.default)
    if default is dataclasses.MISSING or default is PydanticUndefined:
        return "required"
    return default if default is None or isinstance(default, str | int | float) else str(default)


def _functions(registry: Registry[Any]) -> list[Row]:
    return [
        {"name": name, "aliases": registry.aliases(name), "about": _first_line(registry[name].__doc__ or "")}
        for name in registry
    ]


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _surfaces() -> list[Row]:
    return [
        {"name": str(tap), "about": tap.description + ("" if tap.surface is None else f" = surface {tap.surface}")}
        for tap in Tap
    ]


_OTHER_MODELS: list[Row] = [
    {"name": f"{PREFIX}NAME", "about": "a classification network of torchvision, such as resnet18, with new weights"},
    {"name": "module:factory", "about": "a network of your own"},
    *({"name": f"NAME+{name}", "about": _first_line(change.__doc__ or "")} for name, change in CHANGES.items()),
    *({"name": f"NAME+{form}", "about": about} for form, about in PATTERNS.items()),
]

_SECTIONS: dict[str, Any] = {
    "attacks": lambda: [*_classes(ATTACKS), *_suites()],
    "defenses": lambda: _classes(DEFENSES),
    "datasets": lambda: _functions(DATASETS),
    "models": lambda: [*_functions(MODELS), *_OTHER_MODELS],
    "surfaces": _surfaces,
    "presets": lambda: [{"name": name, "about": about} for name, (about, _) in PRESETS.items()],
}


def text() -> str:
    """The content of the file: JSON, a row on a line."""
    sections = []
    for section in _SECTIONS:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows_of(section))
        sections.append(f"{json.dumps(section)}: [\n{rows}\n]")
    return "{" + ",\n".join(sections) + "}\n"


def sketches() -> str:
    """The content of the file of commands: JSON, a command on a line."""
    group: Any = typer.main.get_command(app)
    root = group.make_context("harness", ["list"], resilient_parsing=True)
    rows = {name: _command_row(name, group.get_command(root, name), root, _completes(app, name)) for name in COMMANDS}
    lines = (f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items())
    return "{" + ",\n".join(lines) + "}\n"


def _command_row(name: str, command: Any, above: Any, completes: dict[str, Any]) -> Row:
    context = command.context_class(command, info_name=name, parent=above, resilient_parsing=True)
    if not hasattr(command, "commands"):
        return row_of(command, context, completes)
    inner = {one: _command_row(one, of, context, completes) for one, of in command.commands.items()}
    return {"about": command.help, "commands": inner}


def _completes(app: typer.Typer, name: str) -> dict[str, Any]:
    """Return what completes the parameters of a command, or of a group's commands, by name."""
    found: dict[str, Any] = {}
    for group in app.registered_groups:
        if group.name == name and group.typer_instance:
            for command in group.typer_instance.registered_commands:
                found |= _completes(group.typer_instance, command.name or "")
    for command in app.registered_commands:
        if command.name == name and command.callback:
            for one in inspect.signature(command.callback).parameters.values():
                for info in getattr(one.annotation, "__metadata__", ()):
                    if getattr(info, "autocompletion", None):
                        found[one.name] = info.autocompletion
    return found


if __name__ == "__main__":
    for place, content in ((CATALOGUE, text()), (SKETCHES, sketches())):
        Path(str(files("harness.cli") / place)).write_text(content, encoding="utf-8")
