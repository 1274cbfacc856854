"""Counts how the product is built: lines, files, rooms, arrows between rooms, circles, and files imported exactly once.

``python benchmarks/house.py CHECKOUT...`` prints one column per checkout. A *room* is a folder that holds product
``.py`` files; an *arrow* is a pair of rooms of which the first imports from the second. A *circle* is a set of rooms
that reach each other along arrows; for circles a folder includes those inside it, and a file that lies loose in the
top folder is a room of its own. Imports inside functions count; those of tests do not.
"""

import ast
import sys
import tomllib
from collections import Counter
from dataclasses import astuple, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class House:
    """The counts of one checkout. ``circles`` names the rooms of each circle."""

    lines: int
    files: int
    rooms: int
    arrows: int
    circles: list[list[str]]
    imported_once: int


def modules(checkout: Path) -> dict[str, Path]:
    """Return every product file by the full name of its module; ``pyproject.toml`` says where packages lie."""
    mapped = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {}
    for package, folder in mapped["package-dir"].items():
        for path in (checkout / folder).rglob("*.py"):
            parts = path.relative_to(checkout / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Return the product modules that a file imports, without itself."""
    taken: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            taken |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # ``from harness.gate import rule`` imports a module, ``from harness.gate import check`` its package.
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            taken |= within & known.keys() or {node.module}
    return taken & known.keys() - {name}


def arrows_between(room: dict[str, str], taken: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return for every room those that its modules import from; ``room`` names the room of each module."""
    arrows: dict[str, set[str]] = {one: set() for one in room.values()}
    for name, others in taken.items():
        arrows[room[name]] |= {room[one] for one in others} - {room[name]}
    return arrows


def circles(taken: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of two or more rooms that reach each other."""
    # The package's own file only gathers what the others define.
    inside = {name: others - {"harness"} for name, others in taken.items() if name != "harness"}
    arrows = arrows_between({name: name.split(".")[1] for name in inside}, inside)

    def reached(room: str) -> set[str]:
        seen: set[str] = set()
        ahead = [room]
        while ahead:
            ahead += (new := arrows[ahead.pop()] - seen)
            seen |= new
        return seen

    beyond = {room: reached(room) for room in arrows}
    groups = {frozenset(one for one in beyond[room] if room in beyond[one]) for room in arrows}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def count(checkout: Path) -> House:
    """Count a checkout.

    Raises:
        OSError: the folder has no ``pyproject.toml``.
    """
    known = modules(checkout)
    room = {name: str(path.parent.relative_to(checkout)) for name, path in known.items()}
    taken = {name: imports(name, path, known) for name, path in known.items()}
    arrows = arrows_between(room, taken)
    importers = Counter(one for others in taken.values() for one in others)
    once = [name for name, number in importers.items() if number == 1 and known[name].name != "__init__.py"]
    return House(
        lines=sum(len(path.read_text(encoding="utf-8").splitlines()) for path in known.values()),
        files=len(known), rooms=len(arrows), arrows=sum(map(len, arrows.values())), circles=circles(taken),
        imported_once=len(once),
    )  # fmt: skip


def main(checkouts: list[str]) -> None:
    """Print a table with one column per checkout, then the circles."""
    houses = [count(Path(one)) for one in checkouts]
    print("| | " + " | ".join(checkouts) + " |\n|---|" + "---|" * len(houses))
    for field, values in zip(fields(House), zip(*map(astuple, houses), strict=True), strict=True):
        told = (len(value) if isinstance(value, list) else value for value in values)
        print(f"| {field.name.replace('_', ' ')} | " + " | ".join(map(str, told)) + " |")
    for one, house in zip(checkouts, houses, strict=True):
        for circle in house.circles:
            print(f"circle in {one}: {', '.join(circle)}")


if __name__ == "__main__":
    main(sys.argv[1:])
