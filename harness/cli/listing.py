"""``harness list``: what can be chosen."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from harness.attacks import ATTACKS
from harness.cli.app import DONE, app
from harness.datasets import DATASETS
from harness.defenses import DEFENSES
from harness.errors import UsageError
from harness.models import MODELS
from harness.presets import PRESETS
from harness.registry import Registry
from harness.surfaces import SURFACES, TAPS, surface_of

Row = dict[str, Any]


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


def _default(field: dataclasses.Field) -> Any:
    default = field.default
    return getattr(default, "default", default)


def _functions(registry: Registry[Any]) -> list[Row]:
    return [
        {"name": name, "aliases": registry.aliases(name), "about": _first_line(registry[name].__doc__ or "")}
        for name in registry
    ]


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _surfaces() -> list[Row]:
    return [
        {"name": tap, "about": about + (f" = surface {surface_of(tap)}" if tap in SURFACES.values() else "")}
        for tap, about in TAPS.items()
    ]


SECTIONS: dict[str, Any] = {
    "attacks": lambda: _classes(ATTACKS),
    "defenses": lambda: _classes(DEFENSES),
    "datasets": lambda: _functions(DATASETS),
    "models": lambda: [*_functions(MODELS), {"name": "module:factory", "about": "a network of your own"}],
    "surfaces": _surfaces,
    "presets": lambda: [{"name": name, "about": about} for name, (about, _) in PRESETS.items()],
}


@app.command("list")
def list_command(
    section: Annotated[str | None, typer.Argument(help=", ".join(SECTIONS))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """List attacks, defenses, datasets, models, surfaces and presets, with their settings."""
    if section is not None and section not in SECTIONS:
        raise UsageError(f"nothing to list under {section!r}; choose {', '.join(SECTIONS)}")
    chosen = {name: make() for name, make in SECTIONS.items() if section in (None, name)}
    if as_json:
        print(json.dumps(chosen, indent=1, default=str))
        return DONE
    for name, rows in chosen.items():
        print(f"{name}")
        _print_rows(rows)
    return DONE


def _print_rows(rows: Iterable[Row]) -> None:
    for row in rows:
        aliases = f" (also {', '.join(row['aliases'])})" if row.get("aliases") else ""
        print(f"  {row['name']}{aliases}: {row['about']}")
        if row.get("settings"):
            print("      " + " ".join(f"{key}={value}" for key, value in row["settings"].items()))
