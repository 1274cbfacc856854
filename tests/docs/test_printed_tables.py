"""Tables in the documentation are those of the kept outputs, and what the page says of them follows from them."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from harness.papers.full_accuracy import DATASETS, METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers-tables.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def printed() -> ModuleType:
    pytest.importorskip("sphinx", reason="sphinx is not installed; pip install '.[dev]'")
    found = importlib.util.spec_from_file_location("printed", ROOT / "docs" / "extensions" / "printed_tables.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_broken_cells_are_put_together_and_the_line_below_is_kept(printed: ModuleType) -> None:
    head, body = "┏━┳━┓\n┃ a ┃ paper ┃\n┃   ┃ b ┃\n┡━╇━┩\n", "│ 1 │ x | y │\n│   │ z │\n│ 2 │ w │\n└─┴─┘\n"
    text = f"Table Z\n{head}{body}1 of 2 cells agree\n"
    rows, after = printed.read_table("other\n" + text, "Table Z")
    assert rows == [["a", "paper b"], ["1", "x | y z"], ["2", "w"]]
    assert printed.as_markdown(rows, after, "paper b, a").splitlines() == [
        "| paper b | a |", "| --- | --- |", "| x \\| y z | 1 |", "| w | 2 |", "", "*1 of 2 cells agree.*",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no table 'Table Y'"):
        printed.read_table(text, "Table Y")
    with pytest.raises(ValueError, match="no end"):
        printed.read_table(text[: text.index("└")], "Table Z")


def agreeing(*tables: str) -> str:
    printed = [(RESULTS / "2026-11-26-tables" / f"{name}-quick.txt").read_text() for name in tables]
    found = [re.search(r"^(\d+) of (\d+) cells agree", one, re.MULTILINE) for one in printed]
    return " of ".join(str(sum(int(one[place]) for one in found if one)) for place in (1, 2))


def test_what_is_said_in_short_follows_from_the_tables() -> None:
    assert f"{agreeing('table6', 'table7', 'table11')} follow from the printed settings" in PAGE
    assert f"{agreeing('table8')} follow; the schedules" in PAGE
    gap = (RESULTS / "2026-11-30-tables" / "dp-scaffold-gap.txt").read_text()
    assert re.search(r"yes, by ([\d.]+) points", PAGE)[1] in gap


SCALES = {"cancer, five seeds": "full-accuracy-five-seeds"} | dict.fromkeys(DATASETS, "full-accuracy")


@pytest.mark.parametrize("row", SCALES)
def test_which_accuracies_hold_at_full_scale_follows_from_the_kept_runs(row: str) -> None:
    page = (ROOT / "docs" / "full-scale-accuracy.md").read_text(encoding="utf-8")
    kept = json.loads((RESULTS / "2026-11-22-tables" / f"{SCALES[row]}.json").read_text())
    of_data = [one for one in kept["rows"] if one["data"] == row.partition(",")[0]]
    said = {cells[0].strip(): cells[1:] for cells in re.findall(r"^\|" + r"([^|\n]*)\|" * 5 + "$", page, re.MULTILINE)}
    for verdict, methods in zip(("agrees", "without noise", "differs", "-"), said[row], strict=True):
        named = [one["method"] for one in of_data if one["verdict"] == verdict]
        assert methods.strip() == ("all" if named == list(METHODS) else ", ".join(named) or "none")
