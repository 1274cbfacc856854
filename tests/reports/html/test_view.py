"""``harness view``: one page of all runs; every run has its row, its history and its report."""

import json
import threading
import urllib.request
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness import load
from harness.cli import run, view

MakeCell = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path, a_cell: MakeCell, a_run: Callable[..., Path]) -> Path:
    """A folder of two nights: at one place the verdict moves."""
    a_run(tmp_path / "runs" / "monday", [a_cell("fed_cdp", verdict="resilient"), a_cell("none")], pictures=False)
    a_run(tmp_path / "runs" / "tuesday", [a_cell("fed_cdp"), a_cell("none")], pictures=False)
    return tmp_path / "runs"


def test_every_run_has_its_rows_its_history_and_its_report(
    runs: Path, tmp_path: Path, outline_of: Callable[[str], Any]
) -> None:
    assert run(["view", str(runs), "--out", str(tmp_path / "view")]) == 0
    page = outline_of((tmp_path / "view" / "index.html").read_text())
    assert "2 runs, 4 verdicts" in page.text and "▁█ 0% to 95%" in page.text and "██ 95% to 95%" in page.text
    links = {one["href"] for one in page.all("a") if "reports/" in (one.get("href") or "")}
    assert links == {"reports/1.html", "reports/2.html"}
    for link in links:
        assert "fed_cdp" in (tmp_path / "view" / str(link)).read_text()


def test_a_run_that_must_not_be_used_says_nothing_of_its_defenses(runs: Path, tmp_path: Path) -> None:
    file = runs / "monday" / "results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"valid": False, "valid_reason": "swap leaked"}))
    assert run(["view", str(runs / "monday"), "--out", str(tmp_path / "view")]) == 0
    page = (tmp_path / "view" / "index.html").read_text()
    assert page.count("no verdict, as the run is invalid") == 2 and "withstood" not in page and "fell to" not in page
    assert "withstood" not in repr(load(runs / "monday"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"valid": True, "complete": False}))
    assert run(["view", str(runs / "monday"), "--out", str(tmp_path / "view")]) == 0
    assert (tmp_path / "view" / "index.html").read_text().count("no verdict, as the run is unfinished") == 2


def test_what_a_damaged_run_lacks_is_told(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = runs / "monday" / "results.json"
    file.write_text(file.read_text()[:200])
    assert run(["view", str(runs), "--out", str(tmp_path / "view")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "harness: monday: results.json is not complete JSON" in lines and lines[-1].endswith("index.html: 1 run")
    assert "harness: left out, since they have no verdict: monday" in lines


def test_mistakes_are_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("<p>mine</p>")
    for arguments, said in (
        ([str(tmp_path / "none")], "nothing to report"),
        ([str(runs), "--out", str(tmp_path / "mine")], "a file of yours"),
        ([str(runs), "--port", "70000", "--out", str(tmp_path / "view")], "65535"),
    ):
        capsys.readouterr()
        assert run(["view", *arguments]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert said in line
    results = json.loads((runs / "monday" / "results.json").read_text())
    assert results["cells"]  # what was given is as it was


def test_it_is_served_on_this_machine_only(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def forever(server: ThreadingHTTPServer) -> None:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        address, port = server.server_address[:2]
        with urllib.request.urlopen(f"http://{address}:{port}/index.html") as answer:
            seen.extend([address, b"Runs" in answer.read()])
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(view.ThreadingHTTPServer, "serve_forever", forever)
    assert run(["view", str(runs), "--out", str(tmp_path / "view"), "--serve"]) == 0
    assert seen == ["127.0.0.1", True]
