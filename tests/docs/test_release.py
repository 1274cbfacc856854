"""What a release says of itself agrees with itself: one version, one name, metadata that an index takes."""

import re
import tomllib
from pathlib import Path

import yaml

from harness import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
RELEASES = re.findall(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_version_is_written_in_one_place_and_described() -> None:
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert RELEASES[0] == ("Unreleased", "")
    number, day = RELEASES[1]
    assert number == __version__ == CITATION["version"] and day == CITATION["date-released"]
    numbers = [tuple(map(int, number.split("."))) for number, _ in RELEASES[1:]]
    assert numbers == sorted(numbers, reverse=True) and all(day for _, day in RELEASES[1:])


def test_license_and_authors_are_the_same_everywhere() -> None:
    (author,) = PROJECT["authors"]
    assert CITATION["authors"] == [author]
    assert CITATION["license"] == PROJECT["license"] == "Apache-2.0"


def test_only_the_publishing_job_may_ask_for_an_identity_and_no_secret_is_used() -> None:
    text = (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert "secrets." not in text and "bash .ci/run" in text
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}
