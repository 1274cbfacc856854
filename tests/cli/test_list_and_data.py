"""``harness list`` and ``harness data status``, as text and as JSON, and what is on standard output in a process."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.results import ResultDocument

Harness = Callable[..., Any]

# One name that each section must have.
SECTIONS = {
    "attacks": "inverting_gradients",
    "defenses": "fed_acdp",
    "datasets": "mnist-sample",
    "models": "lenet",
    "surfaces": "T0.in",
    "presets": "glance",
}


@pytest.mark.parametrize(("section", "name"), SECTIONS.items())
def test_a_section_as_text_and_as_json(harness: Harness, section: str, name: str) -> None:
    text, document = harness("list", section), harness("list", section, "--json")
    assert (text.code, text.err, document.code, document.err) == (0, "", 0, "")
    rows = json.loads(document.out)[section]
    assert name in [row["name"] for row in rows]
    assert f"  {name}" in text.out
    assert all(row["about"] for row in rows)


def test_everything_is_listed_with_settings_and_aliases(harness: Harness) -> None:
    listed = json.loads(harness("list", "--json").out)
    assert list(listed) == list(SECTIONS)
    attacks = {row["name"]: row for row in listed["attacks"]}
    assert attacks["cpl"]["settings"]["init"] == "pattern-1/4"
    assert attacks["inverting_gradients"]["aliases"] == ["gradinv"]


def test_data_status_as_text_and_as_json(harness: Harness) -> None:
    text, document = harness("data", "status"), harness("data", "status", "--json")
    assert (text.code, text.err, document.code, document.err) == (0, "", 0, "")
    at_hand = {row["name"]: row["available"] for row in json.loads(document.out)}
    assert at_hand["mnist-sample"] and at_hand["digits"] and not at_hand["mnist"]
    lines = {line.split()[1]: line for line in text.out.splitlines()}
    assert lines["mnist-sample"].startswith("yes")
    assert lines["mnist"].startswith("no") and "harness data fetch mnist" in lines["mnist"]


def test_no_arguments_show_the_help(harness: Harness) -> None:
    finished = harness()
    assert (finished.code, finished.err) == (0, "")
    assert "evaluate" in finished.out and "list" in finished.out


@pytest.mark.slow
def test_standard_output_of_a_process_is_one_document(program: str, tmp_path: Path) -> None:
    line = "evaluate --defense none --dataset digits --victims 2 --surface 2 --attack-arg max_iterations=2 --json"
    environment = os.environ | {"HARNESS_DATA": str(tmp_path / "no-data")}
    finished = subprocess.run(
        [program, *line.split()], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert len(ResultDocument.model_validate_json(finished.stdout).cells) == 1
    assert "Traceback" not in finished.stderr and "Warning" not in finished.stderr
