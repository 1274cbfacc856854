"""Threads that are taken for a while are given back, whatever happens meanwhile."""

import contextlib

import pytest
import torch

from harness.base.devices import with_threads


@pytest.mark.parametrize("fault", [None, ValueError("of a test")])
def test_threads_are_given_back(fault: Exception | None) -> None:
    usual = torch.get_num_threads()
    with contextlib.suppress(ValueError), with_threads(usual + 1):
        assert torch.get_num_threads() == usual + 1
        if fault:
            raise fault
    assert torch.get_num_threads() == usual
