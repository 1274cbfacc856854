"""A terminal's standard error shows a bar, any other a plain line now and then, standard output nothing."""

import io
import sys
from types import SimpleNamespace

import pytest

from harness.base import progress as module
from harness.base.progress import counted, in_words, progress, within
from harness.evaluation.watching import RunForecast
from harness.experiment import cell_settings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (120, "2 minutes"), (8000, "2 hours"), (4e5, "5 days")],
)
def test_times_are_spoken(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("gone", "lines"),
    [
        ([1, 28], []),
        ([31], ["cell 2 of 3, attacking: 1 of 10 victims, iteration 1 of 9, at most 5 minutes left"]),
        (
            [31, 40, 92],
            [
                "cell 2 of 3, attacking: 1 of 10 victims, iteration 1 of 9, at most 5 minutes left",
                "cell 2 of 3, attacking: 3 of 10 victims, iteration 3 of 9, at most 4 minutes left",
            ],
        ),
    ],
)
def test_lines_at_a_calm_pace(
    gone: list[float], lines: list[str], clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first after half a minute, then one a minute; standard output stays empty."""
    with within("cell 2 of 3"), progress("attacking", 10, "victims", at_most=True) as bar:
        for number, seconds in enumerate(gone, 1):
            clock[0] = 1000 + seconds
            bar.advance(1, f"iteration {number} of 9")
    assert capsys.readouterr() == ("", "".join(f"harness: {line}\n" for line in lines))


def test_many_short_works_are_one_long_one(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with within():
        for number in range(12):
            with progress(f"work {number}", 1) as bar:
                clock[0] += 10
                bar.advance(1)
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [" work 2", " work 8"]


def test_work_under_way_counts(clock: list[float]) -> None:
    with progress("attacking", 10) as bar:
        assert bar.left() is None
        clock[0] += 100
        bar.under_way(2.5)
        assert bar.left() == pytest.approx(300)
        bar.advance(5)
        assert bar.left() == pytest.approx(100)


def test_work_that_goes_on_counts_what_was_done(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty-four of a hundred rounds were done by an earlier run, whose seconds nobody knows here."""
    with progress("training", 100, "rounds") as bar:
        for done in (25, 26):
            clock[0] += 20
            bar.reach(done)
        assert bar.left() == pytest.approx(74 * 20)
    assert capsys.readouterr().err == "harness: training: 26 of 100 rounds, about 25 minutes left\n"


def test_a_terminal_sees_the_bar_and_no_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    with within("cell 2 of 3"), progress("attacking fed_cdp", total=4) as bar:
        clock[0] += 300
        bar.advance(1, note="12 successes")
        bar.bar.refresh()
    shown = terminal.getvalue()
    assert "cell 2 of 3, attacking fed_cdp" in shown and "12 successes, about 15 minutes left" in shown
    assert "1/4" in shown and "harness:" not in shown
    assert capsys.readouterr().out == ""


def test_an_error_inside_passes_through(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), within("cell 1"), progress("attacking", total=1):
        raise KeyError
    with progress("another", total=2) as bar:
        clock[0] += 40
        bar.advance(1)
    assert capsys.readouterr().err == "harness: another: 1 of 2, about 40 seconds left\n"


@pytest.mark.parametrize(
    ("at_hand", "titles"),
    [
        ([], ["cell 1 of 3", "cell 2 of 3", "cell 3 of 3"]),
        ([0], ["cell 2 of 3", "cell 3 of 3"]),
        ([1], ["cell 2 of 3", "cell 3 of 3"]),
        ([0, 1], ["cell 3 of 3"]),
    ],
)
def test_cells_are_counted_and_their_controls_are_not(at_hand: list[int], titles: list[str]) -> None:
    """Cells that an earlier run left are done at once, wherever they stand."""
    cells, forecast, found = [cell_settings(victims=count) for count in (3, 4, 5)], RunForecast(), []
    done = [cells[place] for place in at_hand]
    with forecast.over([*cells, cells[0]], done.__contains__):
        for one in cells:
            if one in done:
                continue
            with forecast.at(one, None), progress("x", 1) as bar:
                found.append(bar.title)
                with forecast.at(one, "positive"), progress("x", 1) as bar:
                    assert bar.title == f"{found[-1].removesuffix(', x')}, its control positive, x"
                with forecast.at(one.model_copy(update={"labels": "known"}), None), progress("x", 1) as bar:
                    assert bar.title == f"{found[-1].removesuffix(', x')}, labels known, x"
    assert found == [f"{title}, x" for title in titles]


def test_things_are_counted() -> None:
    with progress("x", 1) as bar:
        before = bar.title
    found = []
    for letter in counted("ab", "row"):
        with progress(letter, 1) as bar:
            found.append(bar.title)
    assert (before, found) == ("x", ["row 1 of 2, a", "row 2 of 2, b"])


class Kernel(SimpleNamespace):
    """What IPython says in a notebook; in a terminal it has a shell too, but no kernel."""


@pytest.mark.parametrize(("shell", "shown"), [(Kernel(kernel=1), True), (Kernel(), False), (None, False)])
def test_a_notebook_has_a_bar_and_no_lines(
    shell: object, shown: bool, monkeypatch: pytest.MonkeyPatch, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with progress("attacking", 10, "victims") as bar:
        clock[0] += 40
        bar.advance(1, "iteration 1 of 9")
        bar.bar.refresh()
    out, err = capsys.readouterr()
    assert out == "" and ("attacking:  10%" in err) == shown and ("harness: attacking" in err) == (not shown)
