"""What all tests share. Imported before any test module: ``harness`` tunes the libraries underneath torch first.

Nothing heavy is imported here, since the process that hands tests to the workers reads this too, and they wait for it.
"""

import os

# A worker per core, and thousands of tiny operations: threads would only wait for each other, in numpy's too.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# pytest-xdist tells its workers the width of the terminal, which would break the lines that tests read.
os.environ.pop("COLUMNS", None)

import harness  # noqa: F401

# isort: split
import gc
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


def pytest_collection_finish() -> None:
    """What was imported to collect thousands of tests stays: nothing is gained by looking through it over and over."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain of what is left at the end


@pytest.fixture(autouse=True)
def one_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that choose how many processes they take choose one: others take longer to start than a test attacks.

    Tests of that choice stand in ``tests/parallel``.
    """
    if "parallel" not in request.path.parts:
        monkeypatch.setattr("harness.parallel.worker_pool.cpu_count", lambda: 1)


@pytest.fixture(scope="module")
def coarse_losses() -> Iterator[None]:
    """Loss distributions in fewer buckets, which bound as well: the usual ones cost more than a small training run.

    For tests that do not ask how tight an epsilon is; few differ before the fourth digit.
    """
    from harness.privacy import pld, valid_epsilon

    fine = pld._distribution
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pld, "_distribution", lambda spent, grid, interval: fine(spent, grid, max(interval, 1e-3)))
        valid_epsilon.cache_clear()
        yield
    valid_epsilon.cache_clear()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for tests marked ``browser``."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install '.[dev]'")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not program:
        pytest.skip("no chromium on this machine; apt-get install chromium, or name one in $CHROMIUM")
    with driver.sync_playwright() as playwright:
        # As root, in a container, Chromium has no sandbox of its own, and little shared memory.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture
def real() -> Callable[..., Any]:
    """Loads a dataset from HARNESS_DATA, as ``load_dataset`` does; the test is skipped where it is not there."""
    from harness.base.errors import UsageError
    from harness.datasets import load_dataset

    def load(name: str, *part: str) -> Any:
        try:
            return load_dataset(name, Path(os.environ.get("HARNESS_DATA") or "none"), *part)
        except UsageError as error:
            if "is not under" not in str(error):
                raise
            pytest.skip(f"{name} is not under HARNESS_DATA")

    return load


@pytest.fixture(scope="session")
def program() -> str:
    """The installed command, for tests that need a process of its own."""
    found = shutil.which("harness", path=Path(sys.executable).parent)
    assert found is not None
    return found


class Finished(NamedTuple):
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


@pytest.fixture(name="harness")
def harness_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """Runs the command in this process, in an empty folder without datasets beyond the bundled ones."""
    from harness.cli import run

    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "no-data"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Finished:
        capsys.readouterr()
        code = run(list(arguments))
        return Finished(code, *capsys.readouterr())

    return command
