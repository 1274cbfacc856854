"""Arrows between rooms go one way: who computes knows nothing of who draws and who commands."""

import ast
import runpy
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

BELOW = ("harness.evaluation", "harness.scoring.summarise", "harness.results", "harness.gate")
ABOVE = ("harness.reports", "harness.cli", "harness.papers", "matplotlib", "rich")


def test_no_room_imports_anything_above_it() -> None:
    """In one process: what none of them imports, neither does any of them alone."""
    said = f"import {', '.join(BELOW)}, sys; print(*(name for name in {ABOVE} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def modules() -> dict[str, Path]:
    """Every module of the package by its full name, wherever its folder is mapped from."""
    found = {}
    for room in ("harness", *(f"harness.{name}" for name in ("attacks", "datasets", "defenses", "reports"))):
        (folder,) = find_spec(room).submodule_search_locations
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([room, *(part for part in parts if part != "__init__")])] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """What a module takes from the package when it is imported, or in a function."""
    taken = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness"):
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            taken |= (within & known.keys()) or {node.module}
    return taken


def room_of(module: str) -> str:
    """The folder that a module lies in; a loose file of the top folder is a room of its own."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "harness"


def test_neither_files_nor_rooms_run_in_circles() -> None:
    known = modules()
    assert len(known) > 250
    files = {name: imports(path, known) - {name} for name, path in known.items()}
    # A package's own file only gathers what the others define.
    gathers = {name for name, path in known.items() if path.name == "__init__.py"}
    between = {name: {one for one in taken if one not in gathers} for name, taken in files.items()}
    list(TopologicalSorter({name: taken for name, taken in between.items() if name not in gathers}).static_order())
    rooms: dict[str, set[str]] = {}
    for name, taken in files.items():
        own = room_of(name)
        rooms.setdefault(own, set()).update({room_of(one) for one in taken} - {own, "harness"})
    list(TopologicalSorter(rooms).static_order())


TINY = {
    "harness/__init__.py": "from harness.low.one import ONE\n",
    "harness/errors.py": "",
    "harness/low/__init__.py": "",
    "harness/low/one.py": "from harness.errors import Mistake\n\nONE = 1\n",
    "harness/low/two.py": "import torch\nfrom harness.low import one, three\n",
    "harness/low/three.py": "def later() -> None:\n    from harness.high.four import FOUR\n",
    "harness/high/four.py": "from harness.low import two\nfrom harness.errors import Mistake\n",
    "defenses/none.py": "from harness.low.two import TWO\n",
    "tests/test_none.py": "from harness.low.three import later\n",
}


def test_a_tiny_tree_is_counted(tmp_path: Path) -> None:
    """Files: three.py and four.py are imported once, and the defense by no product file; low and high form a circle."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.setuptools.package-dir]\n"harness" = "harness"\n"harness.defenses" = "defenses"\n'
    )
    for name, text in TINY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    house = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "house.py"))["count"](tmp_path)
    assert vars(house) == {
        "lines": 11, "files": 8, "rooms": 4, "arrows": 6, "circles": [["high", "low"]], "imported_once": 2,
    }  # fmt: skip
