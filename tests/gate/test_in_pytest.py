"""The fixture ``leakage`` in a project's own tests."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import harness
import harness.cli.check
import harness.functions

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("coarse_losses", "warm")

PLUGIN = "pytest_leakage"
#: Another project's pytest finds it by its entry point; a checkout that was not installed since has none.
NAMED = [] if any(one.value == PLUGIN for one in entry_points(group="pytest11")) else ["-p", PLUGIN]

TEST = """
import pytest

SMALL = dict(dataset="digits", model="mlp", attack="cpl", attack_args=dict(max_iterations={iterations}))


def test_it(leakage):
    {body}
"""


@pytest.fixture(scope="module")
def warm(coarse_losses: None) -> None:
    """What an attack imports is imported: pytester forgets what an inner session imported, and torch bears no twin."""
    harness.evaluate(
        defense="fed_cdp", dataset="digits", model="mlp", attack_args={"max_iterations": 1}, victims=1, labels="known"
    )


def tried(pytester: pytest.Pytester, body: str, *options: str, iterations: int = 5) -> pytest.RunResult:
    pytester.makepyfile(TEST.format(body=body, iterations=iterations))
    return pytester.runpytest_inprocess(*NAMED, "-p", "no:cacheprovider", "-p", "no:xdist", *options)


def said(result: pytest.RunResult, *lines: str) -> None:
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{line}*" for line in lines])
    assert "Traceback" not in result.stdout.str() and "pytest_leakage.py:" not in result.stdout.str()


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"leakage": PLUGIN}


SESSION = """
import os, sys, {plugin}

def test_nothing_is_set():
    assert "harness" not in sys.modules and "torch" not in sys.modules
    assert not {{"MKL_CBWR", "GOMP_SPINCOUNT"}} & set(os.environ)

def test_it_is_where_the_fixture_attacks(leakage):
    leakage(defense="none", dataset="digits", model="mlp", attack="cpl", attack_args=dict(max_iterations=1), victims=1)
    assert os.environ["MKL_CBWR"] == "AUTO,STRICT" and "GOMP_SPINCOUNT" in os.environ
"""


@pytest.mark.parametrize(
    ("tests", "passed"), [("nothing_is_set", "1 passed"), pytest.param("test", "2 passed", marks=pytest.mark.slow)]
)
def test_only_the_fixture_sets_or_imports_anything(tmp_path: Path, tests: str, passed: str) -> None:
    (tmp_path / "test_theirs.py").write_text(SESSION.format(plugin=PLUGIN))
    outside = {name: value for name, value in os.environ.items() if name not in ("MKL_CBWR", "GOMP_SPINCOUNT")}
    paths = os.pathsep.join([str(Path(__file__).parents[2]), outside.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "pytest", "-q", *NAMED, "-p", "no:cacheprovider", "-p", "no:xdist", "-k", tests, "."]
    done = subprocess.run(
        line, cwd=tmp_path, env=outside | ({"PYTHONPATH": paths} if NAMED else {}), capture_output=True, text=True
    )
    assert done.returncode == 0 and passed in done.stdout, done.stdout + done.stderr


def test_what_leaks_does_not_withstand(pytester: pytest.Pytester) -> None:
    result = tried(pytester, 'leakage(defense="none", victims=8, **SMALL).assert_withstands()')
    said(result, "not withstood everywhere: 1 leaking", "LEAKS * none *")


def test_what_is_undecided_fails_too(pytester: pytest.Pytester) -> None:
    result = tried(pytester, 'leakage(defense="fed_cdp", victims=4, **SMALL).assert_withstands()', iterations=1)
    said(result, "not withstood everywhere: 1 undecided")


@pytest.mark.slow
def test_what_withstands_passes(pytester: pytest.Pytester) -> None:
    body = 'leakage(defense="fed_cdp", victims=80, labels="known", **SMALL).assert_withstands()'
    tried(pytester, body, iterations=20).assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_baseline_is_made_and_held(pytester: pytest.Pytester) -> None:
    body = 'leakage(defense={!r}, victims=24, **SMALL).assert_not_worse("base.json")'
    kept = body.format("none")
    said(tried(pytester, kept), "there is no baseline 'base.json'; add pytest --leakage-update *")
    tried(pytester, kept, "--leakage-update").assert_outcomes(passed=1)
    path = pytester.path / "base.json"
    assert json.loads(path.read_text())["kind"] == "harness gate baseline"
    tried(pytester, kept).assert_outcomes(passed=1)
    said(tried(pytester, kept, iterations=6), "FAILED: 1 incomparable", "other settings: attack.max_iterations 5 -> 6")


@pytest.mark.slow
def test_a_defense_that_protects_less_is_worse(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(own="""
        from dataclasses import dataclass
        from harness.defenses import ClipUpdate, Defense, GaussianNoise
        import os

        @dataclass(frozen=True)
        class Mine(Defense):
            def operations(self, cohort):
                return [ClipUpdate(4.0, "whole"), GaussianNoise(float(os.environ["NOISE"]))]
    """)  # fmt: skip
    body = 'import own; leakage(defense=own.Mine(), tap="T1.out", victims=24, **SMALL).assert_not_worse()'
    with pytest.MonkeyPatch.context() as patch:
        pytester.syspathinsert()
        patch.setenv("NOISE", "30")
        tried(pytester, body, "--leakage-update").assert_outcomes(passed=1)
        (made,) = (pytester.path / "leakage").iterdir()
        assert made.name == "test_a_defense_that_protects_less_is_worse-test_it.json"
        tried(pytester, body).assert_outcomes(passed=1)
        patch.setenv("NOISE", "0")
        said(tried(pytester, body), "FAILED: 1 regression", "mine / cpl / T1.out / digits*success 0% -> 100%")


def test_too_few_victims_make_no_baseline(pytester: pytest.Pytester) -> None:
    body = 'leakage(defense="none", victims=4, **SMALL).assert_not_worse()'
    said(tried(pytester, body, "--leakage-update", iterations=1), "has 4 victims*evaluate again with victims 24")
    assert not list(pytester.path.glob("leakage/*"))
