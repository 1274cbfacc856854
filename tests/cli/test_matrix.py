"""Every defense runs against every attack at every surface, on images and on a table."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.attacks import ATTACKS
from harness.defenses import DEFENSES
from harness.results import read_results

TRIED = [name for name in ATTACKS if name != "learned"]  # it needs victims who share weights


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["mnist-sample", "cancer"])
def test_every_defense_attack_and_surface(harness: Callable[..., Any], tmp_path: Path, dataset: str) -> None:
    run = harness(
        "evaluate", "--dataset", dataset, "--model", "mlp2", "--defense", ",".join(DEFENSES), "--attack",
        ",".join(TRIED), "--surface", "0,1,2", "--victims", "2", "--clients-per-round", "4", "--attack-arg",
        "max_iterations=2", "--no-pictures", "--out", str(tmp_path),
    )  # fmt: skip
    assert run.code == 0
    cells = [cell for cell in read_results(tmp_path).cells if not cell.control]
    assert {(cell.defense, cell.attack, cell.surface) for cell in cells} == set(
        itertools.product(DEFENSES, TRIED, (0, 1, 2))
    )
    # A sum of several clients' gradients is no single example's, which is what the closed form and a likelihood read.
    refused = {(cell.defense, cell.attack, cell.surface) for cell in cells if cell.not_applicable_reason}
    assert refused == {("secagg_ddp", "analytic", 0), ("secagg_ddp", "identify", 0)}
    assert all(cell.victims == 2 and (cell.privacy or cell.not_applicable_reason) for cell in cells)
