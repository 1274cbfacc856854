"""``--output``: the printed table as a file, in four forms, beside what ``--out`` keeps."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import typer
from pylatexenc import latexwalker

from harness.cli.app import COMMANDS, app

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]
ACCOUNT = ("account", "--sigma", "6", "--sampling-rate", "0.01", "--steps", "100", "--accountant", "rdp,pld")


def commands() -> dict[str, Any]:
    group = typer.main.get_group(app)
    context = typer.Context(group)
    return {name: group.get_command(context, name) for name in COMMANDS}


def test_all_forms_hold_the_printed_words(harness: Harness) -> None:
    for ending in ("json", "csv", "html", "tex"):
        code, out, err = harness(*ACCOUNT, "--output", f"table.{ending}")
        assert (code, err) == (0, "")
    document = json.loads(Path("table.json").read_text())
    [table] = [part for part in document["parts"] if "rows" in part]
    lines = [part["text"] for part in document["parts"] if "text" in part]
    assert document["command"] == "harness account" and any("no theorem covers" in line for line in lines)
    for row in table["rows"]:
        for entry in row:
            assert all(word in out for word in entry.split())
    read = list(csv.reader(io.StringIO(Path("table.csv").read_text(encoding="utf-8-sig"))))
    assert read[0] == table["columns"] and len(read) == 1 + len(table["rows"])
    assert [row[0] for row in read[1:]] == [row[0] for row in table["rows"]]
    assert {"sampler", "adjacency"} <= {*read[0]} and "sampler │" not in out  # a screen has no room for them
    numbers = pandas.read_csv("table.csv")
    assert str(numbers["epsilon"].dtype) == str(numbers["delta"].dtype) == "float64"
    page = Path("table.html").read_text()
    assert page.count("<tr>") == 1 + len(table["rows"]) and "Content-Security-Policy" in page
    longest = [max(len(row[place]) for row in table["rows"]) for place in range(len(table["columns"]))]
    assert ('class="wide"' in page, 'class="long"' in page) == (
        any(40 < one <= 160 for one in longest),
        max(longest) > 160,
    )
    assert "another attack may succeed" not in page  # an accountant attacks nothing
    latexwalker.LatexWalker(Path("table.tex").read_text(), tolerant_parsing=False).get_latex_nodes()


def test_a_run_keeps_its_folder_and_writes_its_table(harness: Harness) -> None:
    line = "evaluate --defense none,noise --dataset digits --model mlp --victims 2 --attack-arg max_iterations=1"
    code, _, err = harness(*line.split(), "--surface", "2", "--no-pictures", "--output", "table.csv")
    assert code == 0 and "other columns" in err and len(err.splitlines()) == 1  # those of the controls
    rows = list(csv.DictReader(io.StringIO(Path("table.csv").read_text(encoding="utf-8-sig"))))
    assert [row["defense"].split(";")[0] for row in rows] == ["none", "noise"]
    numbers = pandas.read_csv("table.csv")
    share, low, high = (numbers[f"success{ending}"] for ending in ("", " from", " to"))
    assert share.between(0, 1).all() and (low <= share).all() and (share <= high).all()
    assert Path("runs/results.json").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--output", "table.csv", "--json"), "leave one of them out"),
        (("--output", "table.doc"), "--output must end in .json, .csv, .html or .tex, not 'table.doc'"),
        (("--output", "missing/\0/table.csv"), "--output"),
        (("--output", ""), "--output is empty"),
    ],
)
def test_mistakes_are_told_before_the_work(harness: Harness, more: tuple[str, ...], said: str) -> None:
    code, out, err = harness(*ACCOUNT, *more)
    assert (code, out) == (2, "") and said in err and len(err.splitlines()) == 1
    assert not Path("table.csv").exists()


def test_no_command_has_both_options_for_one_thing() -> None:
    both = set[str]()
    for name, command in commands().items():
        options = {option: one.help or "" for one in command.params for option in one.opts}
        if "--output" in options:
            assert options["--output"].startswith("Write the printed table"), name
            if "--out" in options:
                both.add(name)
                assert options["--out"].startswith(("Folder", "Draw", "Write the JSON document")), name
    assert both == {"audit", "evaluate", "frontier", "history", "judge", "reproduce", "train"}


def test_pictures_are_written_in_other_forms_too(harness: Harness) -> None:
    line = "evaluate --defense none --dataset digits --model mlp --victims 2 --attack-arg max_iterations=1 --surface 2"
    assert harness(*line.split(), "--pictures-as", "svg,pdf").code == 0
    assert sorted(path.suffix for path in Path("runs/pictures").iterdir()) == [".pdf", ".png", ".svg"]
    code, out, err = harness(*line.split(), "--pictures-as", "gif", "--out", "none")
    assert (code, out, len(err.splitlines())) == (2, "", 1) and "takes svg and pdf, not 'gif'" in err
    assert not Path("none").exists()
