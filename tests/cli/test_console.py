"""What a table looks like where a terminal is too narrow for it."""

import io
import re
import sys

import pytest
from rich.table import Table

from harness.cli.console import Screen, display


def wide() -> Table:
    table = Table(title="What noise costs")
    for name in ("accountant", "epsilon", "a_long_name_of_a_column", "another_long_name_of_one", "notes"):
        table.add_column(name)
    table.add_row("rdp", "1.5", "some_long_word_without_an_end", "-", "two\nlines")
    table.add_row("pld", "1.4", "x", "n/a", "")
    return table


def shown(monkeypatch: pytest.MonkeyPatch, columns: int | None, terminal: bool) -> list[str]:
    monkeypatch.setattr(sys, "stdout", made := io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Screen, "is_terminal", terminal)
    display(lambda console: console.print(wide()), 140)
    return re.sub(r"\x1b\[[\d;]*m", "", made.getvalue()).splitlines()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_narrow_terminal_has_a_paragraph_for_each_row(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    lines = shown(monkeypatch, 80, terminal)
    assert max(map(len, lines)) <= 80
    assert [line.rstrip() for line in lines] == [
        "What noise costs", "accountant rdp", "    epsilon: 1.5",
        "    a_long_name_of_a_column: some_long_word_without_an_end", "    notes: two lines",
        "accountant pld", "    epsilon: 1.4", "    a_long_name_of_a_column: x",
    ]  # fmt: skip


def test_a_wide_one_and_a_file_have_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, terminal in ((140, True), (None, False)):
        lines = shown(monkeypatch, columns, terminal)
        assert any("accountant" in line and "notes" in line for line in lines) and max(map(len, lines)) <= 140
