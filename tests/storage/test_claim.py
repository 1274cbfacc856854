"""What a run says of an earlier one's results in its folder."""

from pathlib import Path

import pytest

from harness.storage.claim import claimed


@pytest.mark.parametrize(
    ("there", "replaced", "said"),
    [
        ("judged.json", "judged.json", True),
        ("judged.json", "training.json", False),
        ("judged.json", None, False),
        (None, "judged.json", False),
    ],
)
def test_results_that_are_replaced_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, there: str | None, replaced: str | None, said: bool
) -> None:
    if there:
        (tmp_path / there).write_text("{}")
    with claimed(tmp_path, replaced):
        pass
    assert (f"an earlier run in {str(tmp_path)!r} are replaced" in caplog.text) == said
