"""A result document from anywhere: read whole, or refused in one line that says what to do."""

import json
from pathlib import Path

import pytest

from harness.base.errors import UsageError
from harness.results import read_results

GOOD = {"schema_version": 1, "environment": {}, "cells": []}


def refusal(path: Path) -> str:
    """The one line with which reading ``path`` fails."""
    with pytest.raises(UsageError) as caught:
        read_results(path)
    message = str(caught.value)
    assert "\n" not in message and "; " in message
    return message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(GOOD)[:-5], "not complete JSON"),
        ("", "not complete JSON"),
        ("[]", "not a result of harness"),
        ('{"schema_version": 7, "version": "2.1.0"}', "not a result of harness"),
        (json.dumps(GOOD | {"schema_version": 2}), "result schema 2, this harness reads 1"),
        (json.dumps(GOOD | {"schema_version": "x\ny"}), "result schema unknown"),
        (json.dumps(GOOD | {"cells": [{"role": "cell"}]}), "cells.0.dataset"),
        (json.dumps(GOOD | {"evil\nname": 1}), r"evil\\nname"),
    ],
    ids=range(8),
)
def test_a_bad_document_is_refused_in_one_line(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    assert expected.replace(r"\\", "\\") in refusal(path)
    assert refusal(tmp_path) == refusal(path)


def test_a_good_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(GOOD))
    found = read_results(path)
    assert found.cells == []
    # A document from before unfinished ones said so.
    assert (found.complete, found.planned) == (True, None)


def test_cells_without_a_document_are_those_of_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    for name in "ab":
        (tmp_path / "cells" / f"{name}.json").write_text("{}")
    assert "the run is unfinished, 2 cells and controls are done; add --resume" in refusal(tmp_path)


def test_missing_results_name_the_command_that_writes_them(tmp_path: Path) -> None:
    assert "harness evaluate" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "absent" / "results.json")


def test_an_unreadable_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").mkdir()
    assert "cannot be read" in refusal(tmp_path)
