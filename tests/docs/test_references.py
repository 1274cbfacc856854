"""What comments and documents point at is in the repository."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What is not in the repository that comments once pointed at; written so that this file does not name it.
ABSENT = re.compile(r"\b" + "sp" + r"ec(ification)?\b", re.IGNORECASE)
# Fetched or bundled data, and pictures, hold no prose.
BINARY = (".npz", ".png", ".gz")


def tracked() -> dict[str, str]:
    """Name and content of every text file of the repository; nothing where this is no checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = [name for name in listed.splitlines() if not name.endswith(BINARY) and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


FILES = tracked()
needs_git = pytest.mark.skipif(not FILES, reason="this is no git checkout")


@needs_git
def test_no_file_mentions_a_document_that_is_not_here() -> None:
    assert [name for name, text in FILES.items() if ABSENT.search(text)] == []


@needs_git
def test_every_document_that_is_named_exists() -> None:
    named = {(name, path) for name, text in FILES.items() for path in re.findall(r"\bdocs/[\w./-]+?\.md", text)}
    assert len(named) > 50
    assert [(name, path) for name, path in sorted(named) if not (ROOT / path).is_file()] == []


@needs_git
def test_every_link_of_a_document_resolves() -> None:
    links = [
        (name, link)
        for name, text in FILES.items()
        if name.endswith(".md")
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        if "://" not in link
    ]
    assert len(links) > 10
    assert [(name, link) for name, link in links if not (ROOT / name).parent.joinpath(link).exists()] == []
