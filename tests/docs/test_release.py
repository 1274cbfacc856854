"""What a release says of itself agrees with itself: one version, one name, metadata that an index takes."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
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


def test_addresses_are_written_where_it_is_published() -> None:
    assert {"Repository", "Changelog", "Documentation", "Issues"} == set(PROJECT["urls"])
    assert all(url.startswith("https://github.com/OWNER/harness") for url in PROJECT["urls"].values())
    text = (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    assert 's|OWNER/harness|$GITHUB_REPOSITORY|" pyproject.toml' in text


def test_the_source_distribution_is_to_have_pages_examples_and_changes() -> None:
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    listed = {word for line in lines for word in line.split()[1:]}
    assert {"CHANGELOG.md", "docs", "examples"} <= listed
    for folder in ("docs", "examples"):
        (line,) = [one for one in lines if one.startswith(f"recursive-include {folder} ")]
        endings = {pattern.removeprefix("*") for pattern in line.split()[2:]}
        kept = [one for one in (ROOT / folder).rglob("*.*") if one.is_file() and "__pycache__" not in one.parts]
        assert kept and {one.suffix for one in kept} <= endings


@pytest.mark.slow
def test_the_source_distribution_has_them(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".*", "*.egg-info", "runs", "tests"))
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"CHANGELOG.md", "docs/start.md", "docs/pictures/claims.json", "examples/first_look.ipynb"}
    assert wanted | {"harness/cli/commands.json", "examples/gate/resilience.yml"} <= names


def test_only_the_publishing_job_may_ask_for_an_identity_and_no_secret_is_used() -> None:
    text = (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert "secrets." not in text and "bash .ci/run" in text
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}
