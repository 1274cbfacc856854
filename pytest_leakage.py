"""A fixture of pytest that attacks a defense: ``leakage(model=, data=, defense=, ...)``.

Pytest reads this file in every session of an environment that has the harness. So it stands outside of the package,
whose import tunes the libraries underneath torch: nothing is imported or set before a test asks for an attack.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.reports.html.outcome import Outcome

_UPDATE = "--leakage-update"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that makes baselines."""
    parser.getgroup("leakage", "leakage of gradients").addoption(
        _UPDATE, action="store_true", help="Make the baselines of leakage(...).assert_not_worse() from this run."
    )


class Leakage:
    """What came back from the clients that a test attacked.

    Attributes:
        run: the results, as :func:`harness.evaluate` returns them.
    """

    def __init__(self, run: "Outcome", folder: Path, baseline: Path, update: bool) -> None:
        self.run, self._folder, self._baseline, self._update = run, folder, baseline, update

    def __repr__(self) -> str:
        return repr(self.run)

    def assert_withstands(self) -> None:
        """Fail unless every defense withstood every attack at every place.

        What could not be decided fails too, and so does an invalid run: silence is no evidence.

        Raises:
            AssertionError: with the table of verdicts.
        """
        __tracebackhide__ = True
        run = self.run
        if not run.valid:
            raise AssertionError(f"the run is invalid: {run.document.valid_reason}\n{run}")
        kinds = [place.kind for place in run.places]
        if not kinds or set(kinds) != {"resilient"}:
            counts = ", ".join(f"{kinds.count(kind)} {_TOLD[kind]}" for kind in _TOLD if kind in kinds)
            raise AssertionError(f"not withstood everywhere: {counts or 'no place was attacked'}\n{run}")

    def assert_not_worse(self, baseline: str | os.PathLike[str] | None = None) -> None:
        """Fail unless it is at least as resilient as the baseline, by the rule of ``harness check``.

        What cannot be compared fails too: other settings, another network, or fewer than 24 victims. With
        ``pytest --leakage-update`` the baseline is written instead.

        Args:
            baseline: the file; by default ``leakage/FILE-TEST.json`` beside the test's file.

        Raises:
            AssertionError: a line for each finding that fails.
        """
        __tracebackhide__ = True
        from harness.base.errors import UsageError
        from harness.cli.check import make_baseline
        from harness.gate import check, read_baseline, read_runs
        from harness.reports.gate import words

        path = self._baseline if baseline is None else Path(baseline)
        try:
            found = read_runs([self._folder], only_today=True)
            if self._update:
                path.parent.mkdir(parents=True, exist_ok=True)
                make_baseline(path, *found)
                return
            report = check(read_baseline(path), *found)
        except UsageError as error:
            fixed = str(error).replace("--update", f"pytest {_UPDATE}").replace("--victims", "victims")
            raise AssertionError(fixed) from None
        if report.failed:
            lines = [words(one) for one in report.findings if one.fails]
            raise AssertionError("\n".join([f"against {path}: {report.headline}", *lines]))


#: Kinds of verdicts that fail, as a message says them.
_TOLD = {
    "invalid": "invalid", "leaks": "leaking", "inconclusive": "undecided", "impossible": "not run",
    "skipped": "skipped", "resilient": "withstood",
}  # fmt: skip


@pytest.fixture
def leakage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Leakage]:
    """Attacks clients under a defense: ``leakage(model=net, data=(images, labels), defense=mine).assert_withstands()``.

    It takes what :func:`harness.evaluate` takes; ``attack`` is the suite ``auto`` unless given, and the files of the
    run lie in ``tmp_path`` unless ``out`` is.
    """
    calls = list[Path]()

    def attacked(*, attack: Any = "auto", out: str | Path | None = None, **settings: Any) -> Leakage:
        from harness import evaluate

        number = len(calls) + 1
        folder = Path(out) if out is not None else tmp_path / f"leakage-{number}"
        calls.append(folder)
        run = evaluate(attack=attack, out=folder, **settings)
        name = re.sub(r"[^\w.-]+", "_", f"{request.path.stem}-{request.node.name}").strip("_")
        file = f"{name}{'' if number == 1 else f'-{number}'}.json"
        return Leakage(run, folder, request.path.parent / "leakage" / file, bool(request.config.getoption(_UPDATE)))

    return attacked
