"""Files come in only as regular ones, go out only where nothing or a plain file stands, and a folder is one run's."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import OutputError
from harness.results import claimed, require_writable, write_atomic
from harness.results.atomic import move_plain, remove_plain
from harness.results.files import Absent, Unreadable, read_bytes, sha256


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.with_name("elsewhere").write_text("kept")
    path.symlink_to(path.with_name("elsewhere"))


def looping(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "does not exist; check the path"),
        (Path.mkdir, r"cannot be read \(it is a folder\); name a plain file"),
        (os.mkfifo, "it is a pipe"),
        (device, "it is a device"),
        (looping, "too many levels"),
        (lambda path: path.write_bytes(bytes(2**20 + 1)), "is larger than 1 MiB; name a smaller file"),
    ],
)
def test_what_is_no_regular_file_of_bounded_size_is_not_read(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises(Unreadable, match=reason) as caught:
        read_bytes(tmp_path / "file", 2**20)
    assert isinstance(caught.value, Absent) == ("exist" in reason) and "\n" not in str(caught.value)


def test_a_name_with_a_nul_byte_is_told_in_one_line() -> None:
    with pytest.raises(Unreadable, match=r"cannot be read \(embedded null byte\)"):
        read_bytes(Path("a\0b"))


def test_a_file_that_hides_its_size_is_bounded_too() -> None:
    assert os.stat("/proc/self/smaps").st_size == 0
    with pytest.raises(Unreadable, match="is larger than"):
        read_bytes(Path("/proc/self/smaps"), 10)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    link(tmp_path / "file")
    assert read_bytes(tmp_path / "file") == b"kept"
    assert sha256(tmp_path / "file") == sha256(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("make", "kind"),
    [(link, "a link"), (device, "a link"), (looping, "a link"), (os.mkfifo, "a pipe"), (Path.mkdir, "a folder")],
)
@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_atomic(path, b"new", "--junit"),
        lambda path: require_writable(path, "--junit"),
        lambda path: remove_plain(path, "--junit"),
        lambda path: move_plain(path.parent / "source", path, "--junit"),
    ],
)
def test_only_a_plain_file_is_replaced(
    tmp_path: Path, make: Callable[[Path], object], kind: str, write: Callable[[Path], None]
) -> None:
    make(tmp_path / "file")
    before = sorted((path.name, stat.S_IFMT(path.lstat().st_mode)) for path in tmp_path.iterdir())
    with pytest.raises(OutputError, match=rf"\(it is {kind}\); choose another place with --junit"):
        write(tmp_path / "file")
    assert sorted((path.name, stat.S_IFMT(path.lstat().st_mode)) for path in tmp_path.iterdir()) == before
    assert not (tmp_path / "elsewhere").exists() or (tmp_path / "elsewhere").read_text() == "kept"


def test_asking_whether_a_place_can_be_written_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        require_writable(tmp_path / name)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "old")]
    with pytest.raises(OutputError, match="cannot write"):
        require_writable(tmp_path / "old" / "below")


def test_a_folder_is_one_runs_until_it_ends(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "runs"),
        pytest.raises(OutputError, match=r"another run is writing into .*runs'; wait until it has ended"),
        claimed(tmp_path / "runs"),
    ):
        raise AssertionError("both had it")
    with claimed(tmp_path / "runs"), claimed(tmp_path / "others"):
        assert os.listdir(tmp_path / "runs") == [".lock"]


def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    lines = "from harness.results import claimed; import pathlib, sys, time; claim = claimed(pathlib.Path(sys.argv[1]))"
    lines += "; claim.__enter__(); print(1, flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", lines, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        with pytest.raises(OutputError, match="another run"), claimed(tmp_path):
            raise AssertionError("both had it")
        process.kill()
    with claimed(tmp_path):
        pass
