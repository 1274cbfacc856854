"""Which device is chosen, and threads that are taken for a while."""

import contextlib

import pytest
import torch

from harness.base.devices import choose_device, with_threads
from harness.base.errors import UsageError


@pytest.mark.parametrize("fault", [None, ValueError("of a test")])
def test_threads_are_given_back(fault: Exception | None) -> None:
    usual = torch.get_num_threads()
    with contextlib.suppress(ValueError), with_threads(usual + 1):
        assert torch.get_num_threads() == usual + 1
        if fault:
            raise fault
    assert torch.get_num_threads() == usual


@pytest.mark.parametrize(
    ("asked", "gpus", "found"),
    [
        ("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda"), ("cuda:1", 2, "cuda:1"),
        ("cuda", 0, "no CUDA device is available here"), ("cuda:0", 0, "no CUDA device is available here"),
        ("cuda:7", 2, "the GPUs here are cuda:0, cuda:1"), ("cuda:", 2, "unknown device 'cuda:'"),
        ("cuda:-1", 2, "unknown device"), ("cpu:1", 2, "unknown device"),
        ("tpu", 2, "choose auto, cpu, cuda or cuda:N"),
    ],
)  # fmt: skip
def test_a_device_is_one_that_there_is(asked: str, gpus: int, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if found in ("cpu", "cuda", "cuda:1"):
        assert choose_device(asked) == found
    else:
        with pytest.raises(UsageError, match=found):
            choose_device(asked)
