"""The bar shows on a terminal's standard error and nowhere else."""

import io
import sys

import pytest

from harness.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work() -> None:
    with progress("attacking fed_cdp", total=4) as bar:
        bar.advance(1, note="12 successes")
        bar.advance(3)


def test_nothing_is_written_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_the_bar_and_its_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    with progress("attacking fed_cdp", total=4) as bar:
        bar.advance(1, note="12 successes")
        bar.bar.refresh()
    assert "attacking fed_cdp" in terminal.getvalue() and "12 successes" in terminal.getvalue()
    assert "1/4" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_an_error_inside_passes_through() -> None:
    with pytest.raises(KeyError), progress("attacking", total=1):
        raise KeyError
