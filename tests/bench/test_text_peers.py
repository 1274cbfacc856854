"""The comparison with DAGER pairs texts by what they share, and its table says how many came back."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "text_peers.py"


@pytest.fixture(scope="module")
def peers() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_texts_are_paired_in_any_order_and_missing_ones_count(peers: dict[str, Any]) -> None:
    batch = SimpleNamespace(size=2, tokens=torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]]))
    assert peers["judged"](batch, [[8, 9], [5, 6, 7]]) == {"exact": 2, "rouge1": 1, "rouge2": 1}
    assert peers["judged"](batch, [[8, 9]]) == {"exact": 1, "rouge1": 0.5, "rouge2": 0.5}
    longer = peers["judged"](batch, [[9, 8, 3, 4, 2], [5, 6, 7]])
    assert longer["exact"] == 1 and longer["rouge1"] == pytest.approx((1 + 4 / 7) / 2) and longer["rouge2"] == 0.5


def test_the_table_has_a_row_for_each_attack_and_size(peers: dict[str, Any]) -> None:
    line = {"attack": "span", "size": 4, "pairs": 90, "exact": 3, "rouge1": 0.5, "rouge2": 0.25, "seconds": 8.0}
    searched = {"attack": "dager", "search": 3.6, "tries": 1_000, "error": "stopped"}
    made = peers["table"]([line, line | {"pairs": 100, "exact": 4, "rouge1": 1.0, "seconds": 12.0}, line | searched])
    rows = made.splitlines()
    assert rows[2] == "| `dager` | 4 | 1 | 90 to 90 | 3 of 4 | 0.500 | 0.250 | 8 | 1 |"
    assert rows[3] == "| `span` | 4 | 2 | 90 to 100 | 7 of 8 | 0.750 | 0.250 | 10 | 0 |"
    assert rows[-1] == "With 10,000,000 tries, a batch of several would take DAGER about 10 hours."
