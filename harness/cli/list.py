"""``harness list``: what can be chosen."""

import json
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Annotated, Any

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, app, print_json
from harness.cli.options import JsonOption
from harness.cli.sketch import CATALOGUE, among

Row = dict[str, Any]

SECTIONS = ("attacks", "defenses", "datasets", "models", "surfaces", "presets")


@app.command("list")
def list_command(
    section: Annotated[str | None, typer.Argument(help=", ".join(SECTIONS), autocompletion=among(SECTIONS))] = None,
    as_json: JsonOption = False,
) -> int:
    """List attacks, defenses, datasets, models, surfaces and presets, with their settings."""
    if section is not None and section not in SECTIONS:
        raise UsageError(f"nothing to list under {section!r}; choose {', '.join(SECTIONS)}")
    chosen = {name: _rows(name) for name in SECTIONS if section in (None, name)}
    if as_json:
        print_json(chosen)
        return DONE
    for name, rows in chosen.items():
        print(name)
        _print_rows(rows)
    return DONE


def _rows(section: str) -> list[Row]:
    """Return the rows from the file of our own names, since their import takes seconds. Only where other packages add
    names, the rows come from the import of all."""
    if entry_points(group=f"harness.{section}"):
        from harness.cli.catalogue import rows_of

        return rows_of(section)
    return json.loads((files("harness.cli") / CATALOGUE).read_text(encoding="utf-8"))[section]


def _print_rows(rows: Iterable[Row]) -> None:
    for row in rows:
        aliases = f" (also {', '.join(row['aliases'])})" if row.get("aliases") else ""
        print(f"  {row['name']}{aliases}: {row['about']}")
        if row.get("settings"):
            print("      " + " ".join(f"{key}={value}" for key, value in row["settings"].items()))
