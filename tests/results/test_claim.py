"""What a run says of an earlier one's results in its folder, and of files that are no run's."""

from pathlib import Path

import pytest

from harness.base.errors import OutputError
from harness.results.atomic import claimed


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
        (tmp_path / there).write_text('{"valid": true, "prior": "none"}')
    with claimed(tmp_path, replaced):
        pass
    assert (f"replaces the earlier results in {str(tmp_path)!r}" in caplog.text) == said


@pytest.mark.parametrize("name", ["results.json", "victims.jsonl", "training.json", "frontier.json", "judged.json"])
@pytest.mark.parametrize("content", ['{"my": "precious"}', '{"schema_version": 1, "kind": "mine"}', "notes", "[1]"])
def test_a_file_of_somebody_elses_is_not_written_over(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(OutputError, match=r"it is a file of yours\); .* with --out"), claimed(tmp_path):
        pass


def test_what_a_run_left_or_is_empty_is_in_nobodys_way(tmp_path: Path) -> None:
    for name, content in (
        ("results.json", '{"schema_version": 7, "environment": {}}'), ("victims.jsonl", ""),
        ("training.json", '{"schema_version":1,"kind":"training"'), ("mine.json", "{}"),
    ):  # fmt: skip
        (tmp_path / name).write_text(content)
    with claimed(tmp_path):
        pass


def test_a_link_under_a_name_of_ours_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "results.json").symlink_to("/dev/zero")
    with pytest.raises(OutputError, match="it is a link"), claimed(tmp_path):
        pass
