"""What commands print to people fits 80 columns, with what was found first and the table after it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from federation_cases import Client
from harness.capture import captured
from harness.models.networks import build_module
from harness.testing import digits

Harness = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("coarse_losses")

RUN = (
    "evaluate --defense none,fed_cdp --defense-arg fed_cdp.sigma=2 --dataset digits --model mlp --attack cpl,map "
    "--attack-arg cpl.max_iterations=1 --attack-arg map.max_iterations=1 --victims 3 --surface 1,2 --no-pictures"
)
CLAIMS = "claims flower:LocalDpMod --arg clipping_norm=1 --arg sensitivity=2 --arg epsilon=8 --arg delta=1e-5"
FRONTIER = (
    "frontier --dataset cancer --defense fed_cdp --sigma 1 --victims 4 --attack analytic --clients 4 "
    "--clients-per-round 4 --rounds 1 --local-steps 1 --batch-size 4"
)


@pytest.fixture
def fits(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The lines of a command at 80 columns, none of which is longer."""
    monkeypatch.setenv("COLUMNS", "80")

    def lines(line: str) -> list[str]:
        finished = harness(*line.split())
        assert finished.code in (0, 1), finished.err
        made = finished.out.splitlines()
        assert [one for one in made if len(one) > 80] == []
        return [one.rstrip() for one in made]

    return lines


def test_a_run_has_its_verdict_and_then_a_table_for_each_defense(fits: Callable[[str], list[str]]) -> None:
    lines = fits(RUN)
    assert lines[1] == "An observation, not a promise: another attack may succeed."
    heads = [at for at, line in enumerate(lines) if line.startswith("attack  tier")]
    assert (
        len(heads) >= 2 and heads[0] > 3 and lines[heads[0] - 1] == "none" and lines[heads[1] - 1] == "fed_cdp sigma=2"
    )
    assert all(word in lines[heads[0]] for word in ("surface", "verdict", "success [95%]", "lineup p"))
    assert any(line.strip().startswith("guarantee: ") and "(surface 1" in line for line in lines)
    rows = [line for line in lines[heads[1] :] if line.startswith("cpl ")]
    document = json.loads(Path("runs/results.json").read_bytes())
    cells = [one for one in document["cells"] if (one["defense"], one["attack"]) == ("fed_cdp", "cpl")]
    assert all(
        any(str(one["surface"]) in row and one["verdict"] in row for row in rows)
        for one in cells
        if one["role"] == "cell"
    )


@pytest.mark.usefixtures("coarse_losses")
def test_other_tables_fit_too(fits: Callable[[str], list[str]], harness: Harness, tmp_path: Path) -> None:
    assert harness(*RUN.split()).code == 0 and harness(*RUN.split(), "--seed", "1", "--out", "other").code == 0
    assert any("fed_cdp" in line for line in fits("compare runs --defense none,fed_cdp"))
    assert any("fed_cdp" in line for line in fits("history runs other"))
    account = fits("account --sigma 6 --sampling-rate 0.01 --steps 1000")
    assert any("epsilon" in line for line in account) and any("pld" in line for line in account)
    claims = fits(CLAIMS)
    assert claims[0].startswith("flower:LocalDpMod (")
    assert any(line.startswith("    claimed 8 (d 1e-05); proven ") for line in claims)


def test_a_frontier_answers_first(fits: Callable[[str], list[str]]) -> None:
    lines = fits(FRONTIER)
    assert lines[0].startswith("cancer, tap ")
    promise, table = (
        "An observation, not a promise: another attack may succeed.",
        "How much noise is needed, and what it costs",
    )
    assert 0 < lines.index(promise) < lines.index(table)


def test_a_judgement_fits(fits: Callable[[str], list[str]], tmp_path: Path) -> None:
    network, (images, labels) = build_module("mlp", (1, 8, 8), 10, seed=0), digits(2, 1)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    for number in range(2):
        network.load_state_dict(start)
        facts: dict[str, Any] = {
            "model": "mlp", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.05, "batch_size": 1,
            "defense": {"name": "none"},
        }  # fmt: skip
        with captured(network, tmp_path / "sent" / str(number), **facts) as capture:
            Client().train(network, images[number], labels[number], 0.05, number)
            capture.batch(images[number], labels[number])
    lines = fits("judge sent/0 sent/1 --prior digits --attack cpl")
    assert lines[1] == "An observation, not a promise: another attack may succeed."
    assert any(line.startswith("Do the updates match what is declared?") for line in lines)
    assert fits("judge sent/0 sent/1 --checks-only") and fits("judge sent/0 sent/1 --prior digits --attack cpl --plan")
