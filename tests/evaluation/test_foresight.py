"""How long an attack will take is told after its first iterations, and only where it is worth telling."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.evaluation import foresight
from harness.evaluation.foresight import Foresight


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (0.001, None),
        (1.2, "harness: 64 victims x cpl takes about 40 minutes here at most; --device cuda"),
        (36.0, "harness: 64 victims x cpl takes about 20 hours here at most; --device cuda"),
    ],
)
def test_five_iterations_tell(
    each: float, said: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """64 victims with two starts, 32 starts at a time: four turns of 500 iterations at most. The first one is slow."""
    now, seen = [0.0], list[int]()
    monkeypatch.setattr(foresight, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def observer(victims: Any, restarts: Any, iteration: int, images: Any) -> None:
        seen.append(iteration)

    watched = Foresight(observer, "64 victims x cpl", 128, 500)
    with caplog.at_level(logging.WARNING):
        for iteration in range(1, 20):
            now[0] += 1000 if iteration == 1 else each
            watched(torch.arange(32), torch.zeros(32), iteration, torch.zeros(32))
    assert seen == list(range(1, 20))
    assert [record.getMessage()[: len(said or "")] for record in caplog.records] == ([said] if said else [])
