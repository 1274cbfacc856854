"""``harness new``: a package to start an attack or a defense of one's own from."""

import importlib.util
import json
import keyword
import os
import re
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, app
from harness.cli.options import JsonOption
from harness.cli.sketch import among
from harness.results import write_atomic

#: What pytest and setuptools take for their own.
_RESERVED = re.compile(r"setup|conftest|test_.*|.*_test", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?")


class Kind(StrEnum):
    """Kind of package that can be started."""

    ATTACK = "attack"
    DEFENSE = "defense"


@app.command("new")
def new_command(
    kind: Annotated[Kind, typer.Argument(help="attack or defense", autocompletion=among(list(Kind)))],
    name: Annotated[str, typer.Argument(help="Name on the command line, and of the Python module.")],
    out: Annotated[Path, typer.Option(help="Folder in which the package's folder is made.")] = Path("."),
    as_json: JsonOption = False,
) -> int:
    """Write a package for your own attack or defense: its file, its test, its entry point."""
    _check(kind, name)
    folder = out / name
    if os.path.lexists(folder):
        raise UsageError(f"{str(folder)!r} exists and is left as it is; choose another name, or a place with --out")
    written = {place: folder / place for place in ("pyproject.toml", f"{name}.py", f"test_{name}.py")}
    for path, template in zip(written.values(), ("pyproject.toml", f"{kind}.py", f"{kind}_test.py"), strict=True):
        write_atomic(path, _filled(template, kind, name))
    if as_json:
        print(json.dumps({"kind": kind, "name": name, "files": [str(path) for path in written.values()]}))
    else:
        print(*written.values(), sep="\n")
        print(f"\npip install pytest -e {folder}    # then harness list {kind}s shows it\npytest {folder}")
    return DONE


def _check(kind: Kind, name: str) -> None:
    """Refuses a name that cannot be a module's and a package's, or that would hide another."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is no name for a Python module; take letters, digits and _, such as my_{kind}")
    if _RESERVED.fullmatch(name):
        raise UsageError(f"{name!r} is a name that pytest or setuptools take for their own; take one such as my_{kind}")
    # In lower case, as some file systems tell names no further.
    if taken := {one.lower(): one for one in _taken(kind)}.get(name.lower()):
        raise UsageError(f"{kind} {taken!r} exists already; choose another name")
    if importlib.util.find_spec(name) or importlib.util.find_spec(name.lower()):
        raise UsageError(f"Python module {name.lower()!r} exists already; choose another name, such as my_{name}")


def _taken(kind: Kind) -> set[str]:
    from harness.cli.catalogue import rows_of  # takes seconds, as every attack and defense is imported

    return {name for row in rows_of(f"{kind}s") for name in (row["name"], *row["aliases"])}


def _filled(template: str, kind: Kind, name: str) -> bytes:
    text = (files("harness.cli") / "templates" / f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, kind=str(kind), title=_class_name(kind, name)).encode()


def _class_name(kind: Kind, name: str) -> str:
    """Ends with its kind, so that it is none of the names that its file imports."""
    title, ending = "".join(part[:1].upper() + part[1:] for part in name.split("_")), kind.title()
    return title if title.endswith(ending) and title != ending else title + ending
