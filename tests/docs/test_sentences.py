"""Prose reads in one go, also for readers who are no native speakers: pages, help texts, error messages and reports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[2]
MOST_WORDS = 45
MEAN_WORDS = 22
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
#: Code whose error messages and reports people read.
CODE_FOLDERS = ("attacks", "defenses", "datasets", "harness", "reports")
#: Words that a reader has to look up, or that mean something else here than elsewhere.
AVOIDED = re.compile(
    r"\b(luck(y|ily)?|drown(s|ed|ing)?|surpris(e|es|ing)|mend(s|ed|ing)?|foresight|outlook|endurance|crews?|kin|"
    r"dear(er|est|ly)?|beneath|thrice|wherein|fronted)\b",
    re.IGNORECASE,
)

CODE = re.compile(r"^( *)(```+|~~~+|:::+).*?^\1\2", re.MULTILINE | re.DOTALL)
# Lines that begin something of their own; what follows without a blank line goes on with it.
BEGINS = re.compile(r"^ *(?:[-*+] |\d+\. |: |#+ )")
LEFT_OUT = re.compile(r"^ *(?:\||>|<|\[[^\]]+\]: |\([\w-]+\)=)")
INLINE = ((r"`[^`]+`", "code"), (r"\$[^$]+\$", "formula"), (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"), (r"\bet al\.", "et al"))
ENDS = re.compile(r"(?<=[.!?])[)\"”*_]*\s+")


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs, headings and list items of a page; code, tables and quotations are left out."""
    lines: list[str] = []
    for line in [*CODE.sub("", page).splitlines(), ""]:
        apart = not line.strip() or LEFT_OUT.match(line)
        if lines and (apart or BEGINS.match(line) or lines[0].startswith("#")):
            yield " ".join(lines)
            lines = []
        if not apart:
            lines.append(BEGINS.sub("", line).strip() if not line.startswith("#") else line)


def sentences(page: str) -> Iterator[list[str]]:
    """The words of each sentence; code, a formula and the text of a link count as they are read."""
    for paragraph in paragraphs(page):
        for pattern, read in INLINE:
            paragraph = re.sub(pattern, read, paragraph)
        for sentence in ENDS.split(paragraph):
            yield [word for word in sentence.split() if re.search(r"\w", word)]


def faults(prose: str) -> list[str]:
    """One line for each rule that a page or a text breaks."""
    found = [words for words in sentences(prose) if words]
    mean = sum(map(len, found)) / max(1, len(found))
    return [
        *(f"{len(words)} words: {' '.join(words)}" for words in found if len(words) > MOST_WORDS),
        *(f"avoid {hit[0]!r}: {' '.join(words)}" for words in found if (hit := AVOIDED.search(" ".join(words)))),
        *([f"{mean:.1f} words in the mean"] if mean > MEAN_WORDS else []),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_reads_in_one_go(page: Path) -> None:
    prose = page.read_text(encoding="utf-8")
    assert len(list(sentences(prose))) > 2
    assert faults(prose) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_a_page_begins_with_two_sentences_that_say_what_it_is_for(page: Path) -> None:
    heading, opening, *_ = paragraphs(page.read_text(encoding="utf-8"))
    assert heading.startswith("# ")
    assert len(ENDS.split(opening)) >= 2, opening


def test_what_is_new_in_the_changelog_reads_in_one_go() -> None:
    new = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## Unreleased")[2].partition("\n## ")[0]
    assert faults(new) == []


def _helps() -> Iterator[tuple[str, str]]:
    """Every command with its help, and every option with its own."""
    root: Any = typer.main.get_command(app)
    with root.make_context("harness", ["list"]) as context:
        for name in COMMANDS:
            yield from _help_of(name, root.get_command(context, name))


def _help_of(name: str, command: Any) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    yield from ((f"{name} {one.opts[0]}", one.help) for one in command.params if getattr(one, "help", None))
    for each, below in getattr(command, "commands", {}).items():
        yield from _help_of(f"{name} {each}", below)


def test_help_texts_read_in_one_go() -> None:
    helps = dict(_helps())
    assert len(helps) > 100 and all(helps.values())
    assert {name: found for name, text in helps.items() if (found := faults(text))} == {}


def messages(file: Path) -> Iterator[str]:
    """The text of error messages (``UsageError``), with code in the place of what is filled in."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "UsageError":
            yield from (_spelled(one) for one in node.args)


def _spelled(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_spelled, node.values))
    return "code"


def shown(file: Path) -> Iterator[str]:
    """Text of a report that people read: every string with a blank that is no docstring."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_error_messages_read_in_one_go() -> None:
    files = [file for folder in CODE_FOLDERS for file in (ROOT / folder).rglob("*.py")]
    told = {(file.name, text) for file in files for text in messages(file)}
    assert len(told) > 300
    assert {one: found for one in told if (found := [fault for fault in faults(one[1]) if "mean" not in fault])} == {}


def test_reports_avoid_words_that_a_reader_has_to_look_up() -> None:
    texts = [(file.name, text) for file in (ROOT / "reports").rglob("*.py") for text in shown(file)]
    assert len(texts) > 300
    assert [(name, text) for name, text in texts if AVOIDED.search(text)] == []


#: What stored files and the names of random streams say, and words of the notes that are made up.
KEPT = re.compile(r"\bby_luck\b|kin of captures|_KIN\b|[\"{]kin[\"}]|by luck")


def parts(code: str) -> str:
    """Code with its names taken apart: ``_in_aWord`` as "in a Word"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", KEPT.sub("", code))


def test_code_avoids_these_words_too() -> None:
    files = [file for folder in CODE_FOLDERS for file in (ROOT / folder).rglob("*.py")]
    lines = [(file.name, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(name, line) for name, line in lines if AVOIDED.search(parts(line))] == []


def test_a_planted_sentence_is_found(tmp_path: Path) -> None:
    """Every rule, wherever the sentence stands: the checks above can fail."""
    long = " ".join(["word"] * 46)
    for page in (f"{long}.", f"Short. {long}", f"* one\n* {long}", f"A `x. y` {long}.", f"[{long}](a.md) is."):
        assert any("46" in fault or "47" in fault or "48" in fault for fault in faults(page)), page
    for page in (f"```\n{long}\n```", f"| {long} |", f"> {long}", f"# {long[:100]}", f"A. {long[:100]}.\n\nB. C."):
        assert faults(page) == [], page
    assert faults(f"{' '.join(['word'] * 23)}.") == ["23.0 words in the mean"]
    assert faults("This is how to mend it.") == ["avoid 'mend': This is how to mend it."]
    assert faults("A recommendation of likelihoods, lucky or not.") != [] == faults("A recommendation, akin to it.")
    planted = tmp_path / "planted.py"
    planted.write_text(f'"""luck"""\nraise UsageError(f"{{name}} is mended {long}")\n')
    assert len([fault for text in messages(planted) for fault in faults(text)]) == 3
    assert not any(AVOIDED.search(text) for text in shown(planted) if text == "luck")
    assert all(AVOIDED.search(parts(name)) for name in ("largest_crew", "_MEND", "WorkCrew", "# by kin"))
    assert not AVOIDED.search(parts('rate = control.by_luck or recommended("skin")'))
