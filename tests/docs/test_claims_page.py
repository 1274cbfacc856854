"""The page on what filters prove: its tables are what the command says today."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_its_tables_are_printed_by_the_command() -> None:
    found = importlib.util.spec_from_file_location("claims_page", DOCS / "pictures" / "claims.py")
    assert found and found.loader
    page = importlib.util.module_from_spec(found)
    found.loader.exec_module(page)
    text = (DOCS / "what-your-filter-proves.md").read_text(encoding="utf-8").splitlines()
    printed = [*page.table(), *page.without_noise(), *page.leaked()]
    assert [line for line in text if line.startswith("|")] == printed
