"""The collector of cycles rests while a page is made, and is as it was afterwards."""

import gc

import pytest

from harness.base.errors import UsageError
from harness.reports.html import read_runs
from harness.reports.html.runs import without_collecting


@pytest.mark.parametrize("was_on", [True, False])
def test_it_rests_and_is_as_it_was(was_on: bool) -> None:
    try:
        (gc.enable if was_on else gc.disable)()
        with without_collecting():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
        with pytest.raises(UsageError):
            read_runs([])
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
