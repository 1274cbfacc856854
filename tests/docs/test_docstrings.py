"""First lines of docstrings say what an object is or does: an imperative or a noun phrase, no half-sentence."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOMS = ("", "attacks", "capture", "datasets", "defenses", "models", "observation", "privacy", "results", "scoring",
         "testing", "training")  # fmt: skip
#: First words of a line that says something of an object without naming it.
HALF = re.compile(
    r"(What|Whether|The same|Of|Who|Where|How|When|Which|Why|To|As|All that|Such|Around|Beside|Behind|From|With|On|In|"
    r"It|This)\b"
)


def first_lines(public: Any) -> Iterator[tuple[str, str]]:
    """Name and first line of an object's docstring, and of those of its public methods and properties."""
    yield public.__qualname__, (public.__doc__ or "").strip().partition("\n")[0]
    for kind in public.__mro__ if inspect.isclass(public) else ():
        for name, one in vars(kind).items() if kind.__module__.startswith("harness") else ():
            function = one.fget if isinstance(one, property) else getattr(one, "__func__", getattr(one, "func", one))
            if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
                yield f"{kind.__qualname__}.{name}", function.__doc__.strip().partition("\n")[0]


def faults(objects: list[Any]) -> dict[str, str]:
    return {name: line for one in objects for name, line in first_lines(one) if not line or HALF.match(line)}


@pytest.mark.parametrize("room", ROOMS)
def test_first_lines_name_the_object(room: str) -> None:
    module = importlib.import_module(f"harness.{room}".rstrip("."))
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    exported = [getattr(module, name) for name in names]
    own = [one for one in exported if getattr(one, "__module__", "").startswith("harness")]
    objects = [one for one in own if inspect.isclass(one) or inspect.isfunction(one)]
    assert objects and faults(objects) == {}


def half_sentences(code: str) -> list[str]:
    """First lines of all docstrings of some code that are half-sentences."""
    nodes = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    return [line for node in nodes if HALF.match(line := (ast.get_docstring(node) or "").partition("\n")[0])]


@pytest.mark.parametrize("folder", ["attacks", "defenses", "datasets", "harness", "reports"])
def test_internal_docstrings_do_so_too(folder: str) -> None:
    files = (Path(__file__).parents[2] / folder).rglob("*.py")
    assert [(file.name, line) for file in files for line in half_sentences(file.read_text(encoding="utf-8"))] == []


def test_a_planted_line_is_found() -> None:
    assert half_sentences('def f():\n    """What it is."""\nclass A:\n    """A plant."""') == ["What it is."]

    class Planted:
        """A plant."""

        def says(self) -> bool:
            """Whether it speaks."""
            return False

    Planted.says.__module__ = Planted.__module__ = "harness.planted"
    assert list(faults([Planted]).values()) == ["Whether it speaks."]
