"""Audits on a network small enough that thousands of canaries take a moment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.audit import AuditResult, audit, audit_settings
from harness.audit.run import guess
from harness.base.randomness import generator

_NETWORK = """
from torch import nn

def make(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, classes))
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a network of 1,510 numbers in 4 tensors for the digits, of which the first has 1,280."""
    Path(tmp_path, "tiny_audited_network.py").write_text(_NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "tiny_audited_network:make"


@pytest.fixture
def audited(tiny: str, tmp_path: Path) -> Callable[..., AuditResult]:
    """Runs one audit of a defense, with its arguments, on the bundled digits."""

    def run(defense: str, arguments: dict[str, Any] | None = None, **settings: Any) -> AuditResult:
        chosen = audit_settings(
            defense=defense, defense_args=arguments or {}, **{"dataset": "digits", "model": tiny, **settings}
        )
        return audit(chosen, tmp_path / "no data")

    return run


@pytest.fixture
def expected_correct() -> Callable[..., float]:
    """Right guesses, on average, about canaries whose scores are known Gaussians."""

    def mean(gap: float, rate: float = 1.0, canaries: int = 1000, guesses: int = 200, runs: int = 100) -> float:
        """Of so many guesses about canaries, sampled at ``rate``, of scores ``gap`` standard deviations apart."""
        total = 0
        for run in range(runs):
            random = generator("theory", run)
            included = torch.rand(canaries, generator=random) < 0.5
            taken = torch.rand(canaries, generator=random) < rate
            total += guess(gap * (included & taken) + torch.randn(canaries, generator=random), included, guesses)
        return total / runs

    return mean
