"""The guide to judging one's own federation: its client runs as printed, and its command judges what it sent."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from harness.cli import run
from harness.judging.capture import CaptureRecord

GUIDE = (Path(__file__).parents[2] / "docs" / "judging-your-federation.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    return found


def test_the_client_is_captured_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_client.py").write_text(block("python"))
    try:
        runpy.run_path("my_client.py", run_name="__main__")
        command, *arguments = shlex.split(block("console"))
        assert command == "harness" and run([*arguments, "--out", "out"]) == 0
        assert "`harness report runs`" in GUIDE and run(["report", "out"]) == 0
        assert "Without a defense, private data come back." in (tmp_path / "report.html").read_text()
    finally:
        sys.modules.pop("my_client", None)
    (row,) = json.loads((tmp_path / "out" / "judged.json").read_text())["results"]["summary"]
    assert row["verdict"] == "leaks" and {one["attack"] for one in row["attacks"]} == {"cpl", "map"}


@pytest.mark.slow
def test_a_client_of_texts_is_captured_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    guide = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    (client,) = re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    (line,) = re.findall(r"^harness judge (.*)$", guide, re.MULTILINE)
    (tmp_path / "my_texts.py").write_text(client)
    try:
        runpy.run_path("my_texts.py", run_name="__main__")
        folders = [str(one) for one in sorted(Path("texts").iterdir())]
        assert run(["judge", *folders, *shlex.split(line)[1:], "--out", "out"]) == 0
    finally:
        sys.modules.pop("my_texts", None)
    cells = json.loads((tmp_path / "out" / "judged.json").read_text())["results"]["cells"]
    made = {cell["attack"]: (cell["verdict"], cell["outcomes"]["success"]) for cell in cells if cell["role"] == "cell"}
    assert made == {"token_rows": ("leaks", 8), "span": ("leaks", 8)}


def test_it_names_every_fact_of_a_capture() -> None:
    assert all(f"`{name}`" in GUIDE for name in CaptureRecord.model_fields if name != "format")
