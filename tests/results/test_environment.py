"""The environment names what computed a run, and nobody."""

import getpass
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest
import torch

import harness
from harness.results.environment import environment, git_commit, processor


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_versions_device_and_threads_are_named() -> None:
    facts = environment("cpu")
    assert facts["versions"]["harness"] == harness.__version__
    assert facts["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert (facts["device"], facts["threads"]) == ("cpu", torch.get_num_threads())
    assert {
        "python",
        "torchvision",
        "numpy",
        "scipy",
        "scikit-image",
        "scikit-learn",
        "dp-accounting",
        "lpips",
    } <= facts["versions"].keys()


def test_neither_host_nor_person_nor_place_is_named() -> None:
    written = json.dumps(environment("cpu"))
    private = [platform.node(), str(Path.home()), str(Path(harness.__file__).parent), os.getcwd()]
    for word in private:
        assert len(word) < 3 or word not in written
    assert f'"{getpass.getuser()}"' not in written


def test_a_library_that_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.results.environment._LIBRARIES", ("no-such-library-anywhere",))
    assert environment("cpu")["versions"]["no-such-library-anywhere"] is None


def test_the_commit_is_that_of_the_checkout_that_tracks_the_package(tmp_path: Path) -> None:
    source = tmp_path / "package.py"
    source.write_text("a = 1\n")
    assert git_commit(source) is None
    git(tmp_path, "init", "-q")
    assert git_commit(source) is None, "an untracked file is not what the commit holds"
    git(tmp_path, "add", "package.py")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(source) == commit
    source.write_text("a = 2\n")
    assert git_commit(source) == f"{commit}-dirty"


def test_without_git_the_commit_is_null(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(Path(harness.__file__)) is None


X86 = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\n\nvendor_id\t: no\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
TOLD = {"x86": (X86, "GenuineIntel 6 143"), "arm": (ARM, "0x41 0xd4f"), "other words": ("cpu : POWER9\n", "given")}


@pytest.fixture
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "given")
    processor.cache_clear()


@pytest.mark.parametrize(("text", "name"), TOLD.values(), ids=TOLD)
def test_processors_that_may_round_differently_have_different_names(
    asked_anew: None, text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr("harness.results.environment._CPUINFO", file)
    assert processor() == f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def test_a_processor_that_no_file_names(asked_anew: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.results.environment._CPUINFO", tmp_path / "absent")
    assert processor().startswith("given, ")
