"""Pages can be read by people who are no native speakers: no sentence of theirs has more than 45 words."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_WORDS = 45
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

CODE = re.compile(r"^( *)(```+|~~~+|:::+).*?^\1\2", re.MULTILINE | re.DOTALL)
# Lines that begin something of their own; what follows without a blank line goes on with it.
BEGINS = re.compile(r"^ *(?:[-*+] |\d+\. |: |#+ )")
LEFT_OUT = re.compile(r"^ *(?:\||>|<|\[[^\]]+\]: |\([\w-]+\)=)")
INLINE = ((r"`[^`]+`", "code"), (r"\$[^$]+\$", "formula"), (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"), (r"\bet al\.", "et al"))
ENDS = re.compile(r"(?<=[.!?])[)\"”*_]*\s+")


def paragraphs(page: str) -> Iterator[str]:
    """What is neither code nor table nor quotation, each paragraph, heading and item of a list by itself."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_is_too_long(page: Path) -> None:
    found = list(sentences(page.read_text(encoding="utf-8")))
    assert len(found) > 2
    assert [" ".join(words) for words in found if len(words) > MOST_WORDS] == []


def test_long_sentences_are_found_wherever_they_stand() -> None:
    long = " ".join(["word"] * 46)
    for page in (f"{long}.", f"Short. {long}", f"* one\n* {long}", f"A `x. y` {long}.", f"[{long}](a.md) is."):
        assert any(len(words) > MOST_WORDS for words in sentences(page)), page
    for page in (f"```\n{long}\n```", f"| {long} |", f"> {long}", f"{long[:100]}.\n\n{long[:100]}", f"# {long[:220]}"):
        assert not any(len(words) > MOST_WORDS for words in sentences(page)), page
