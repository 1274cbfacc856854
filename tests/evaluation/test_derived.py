"""Verdicts that somebody edited are told from those that their victims bear out, by every command that reads rows."""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.attacks.suites import LATEST
from harness.base.version import __version__
from harness.evaluation import derived
from harness.evaluation.derived import Finding, findings
from harness.results import CellResult, Control, Lineup, Outcomes, Rate, VictimRecord
from harness.scoring.summarise import summarise

PLACE = {"dataset": "d", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step"}
RATE = Rate(rate=1.0, successes=64, n=64, ci95=(0.94, 1.0))
WORKS = Control(name="positive", held=True)


def a_leak() -> CellResult:
    """Of 64 victims all came back, each the nearest of its lineup."""
    return CellResult(
        **PLACE, model="m", seeds=[0], victims=64, key="0" * 20, confirmed=64, outcomes=Outcomes(success=64),
        asr={"strict": RATE}, verdict="leaks", controls=[WORKS],
        lineup=Lineup(rate=1.0, mean_rank=0.0, p_value=2e-4, confirmed_p_value=1e-4),
    )  # fmt: skip


def its_victims() -> list[VictimRecord]:
    facts = {"cell": "0" * 20, "seed": 0, "outcome": "success", "rmse": 0.01, "lineup_rank": 1, "lineup_size": 11}
    return [VictimRecord(**PLACE, **facts, victim=number) for number in range(64)]


def found(cell: CellResult, victims: list[VictimRecord], version: str = __version__) -> list[Finding]:
    return findings([cell], {cell.key or "": victims}, {}, version)


EDITS: dict[str, tuple[dict[str, object], str]] = {
    "the verdict": ({"verdict": "resilient"}, "it says resilient, its victims say leaks"),
    "what is confirmed": ({"confirmed": 0}, "0 images are accurate and first, its victims say 64"),
    "how they ended": ({"outcomes": Outcomes(failure=64)}, "0 victims ended as success, its victims say 64"),
    "the mean rank": ({"lineup": Lineup(mean_rank=0.5, p_value=2e-4, confirmed_p_value=1e-4)}, "a mean rank of 0.5"),
    "the success rate": ({"asr": {"strict": RATE.model_copy(update={"rate": 0.1})}}, "a success rate of 0.1, its"),
    "the interval": ({"asr": {"strict": RATE.model_copy(update={"ci95": (0.99, 1.0)})}}, "is narrower than 64 succ"),
    "the p-value": ({"lineup": Lineup(mean_rank=0.0, p_value=0.5, confirmed_p_value=1e-4)}, "p = 0.5"),
}


@pytest.mark.parametrize(("changes", "said"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_cell_differs_from_its_victims(changes: dict[str, object], said: str) -> None:
    assert found(a_leak(), its_victims()) == []
    (one,) = found(a_leak().model_copy(update=changes), its_victims())
    assert one.kind == "differs" and said in one.line


def skipped(by: str = "cpl", **changes: object) -> CellResult:
    return CellResult(
        **PLACE | {"attack": "map", **changes}, model="m", seeds=[0], victims=64, key="1" * 20, suite=LATEST["auto"],
        outcomes=Outcomes(not_applicable=64), not_applicable_reason=f"skipped: settled by {by}",
    )  # fmt: skip


CHANGED, ALONE = "it is skipped, but cpl does not settle its place", "which settled"
UNSETTLED: dict[str, tuple[CellResult, dict[str, object], str]] = {
    "its place leaks": (skipped(), {}, ""),
    "nothing leaks there": (skipped(), {"verdict": "inconclusive"}, CHANGED),
    "its controls failed": (skipped(), {"controls": [WORKS, Control(name="swap", held=False)]}, CHANGED),
    "it claims something itself": (skipped(verdict="resilient"), {}, CHANGED),
    "another place leaks": (skipped(tap="T1.out"), {}, ALONE),
    "another attack leaks": (skipped("dlg"), {}, ALONE),
    "it is of no suite": (skipped(), {"suite": None}, ALONE),
}


@pytest.mark.parametrize("case", UNSETTLED)
def test_a_skipped_row_needs_the_leak_that_settled_its_place(case: str) -> None:
    row, changes, said = UNSETTLED[case]
    leak = a_leak().model_copy(update={"suite": LATEST["auto"]} | changes)
    lines = [one.line for one in findings([leak, row], {leak.key or "": its_victims()}, {}, __version__)]
    assert sum(said in line for line in lines) == 1 if said else not lines


OTHERS: dict[str, tuple[Callable[[], list[VictimRecord]], str, str, str]] = {
    "another version": (its_victims, "0.1.0", "outdated", "made under 0.1.0's rules: resilient; under today's: leaks"),
    "no victims": (list, __version__, "unchecked", "verdict not checked"),
}


@pytest.mark.parametrize(("victims", "version", "kind", "said"), OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_forgery_is_told_apart(
    victims: Callable[[], list[VictimRecord]], version: str, kind: str, said: str
) -> None:
    (one,) = found(a_leak().model_copy(update={"verdict": "resilient"}), victims(), version)
    assert one.kind == kind and said in one.line


def test_the_images_of_a_victim_are_the_examples_of_an_older_cell() -> None:
    """A secure sum of 4 clients at batch 1 hides 4 examples, of which no attack here is fit for several."""
    quiet = {"verdict": "resilient", "confirmed": 0, "outcomes": Outcomes(failure=64), "lineup": Lineup(p_value=0.5)}
    cell = a_leak().model_copy(update=quiet | {"tap": "T0.in", "noise": "gaussian"})
    victims = [
        one.model_copy(update={"image": image, "outcome": "failure", "rmse": 0.9, "lineup_rank": 6})
        for one in its_victims()
        for image in range(4)
    ]
    rows = summarise([cell])
    assert rows[0].verdict == "resilient"
    (one,) = findings([cell], {cell.key or "": victims}, {}, "0.1.7", rows)
    assert one.kind == "outdated" and "made under 0.1.7's rules: resilient; under today's: inconclusive" in one.line
    assert findings([cell.model_copy(update={"examples": 1})], {cell.key or "": victims}, {}, "0.1.7", rows) == []


ATTACKED = (
    "evaluate --defense none --dataset digits --model logistic --attack tiny --surface 2 --victims 24 --no-pictures "
    "--all-members"
)


@contextmanager
def the_suite(latest: str = "tiny-1") -> Iterator[pytest.MonkeyPatch]:
    """A small suite, known for as long as it is needed; ``latest``: what its name without a version means."""
    from harness.attacks import SUITES
    from harness.attacks.suites import LATEST

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SUITES, "tiny-1", {"analytic": {}, "identify": {}})
        patch.setitem(LATEST, "tiny", latest)
        yield patch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a run that leaks and of its only shard, its baseline and its card."""
    from harness.cli import run

    folder = tmp_path_factory.mktemp("made")
    with the_suite() as patch:
        patch.setenv("HARNESS_DATA", str(folder / "none"))
        patch.chdir(folder)
        for line in (
            f"{ATTACKED} --shard 1/1 --out run", "merge run --out run", "check run --baseline baseline.json --update",
            "site run --out public",
        ):  # fmt: skip
            assert run(line.split()) == 0
    (card,) = (folder / "public" / "cards").iterdir()
    card.rename(folder / "card.json")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of it, in the folder where commands run."""
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


def edited(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text())), indent=1) + "\n")


def resilient(value: Any) -> Any:
    """Every verdict that leaks, whether of a cell, an attack or a row, as resilient."""
    if isinstance(value, dict):
        said = {"verdict": "resilient"} if value.get("verdict") == "leaks" else {}
        return {name: resilient(one) for name, one in value.items()} | said
    return [resilient(one) for one in value] if isinstance(value, list) else value


def edit_verdicts(here: Path) -> None:
    for path in (here / "run" / "results.json", here / "card.json", *(here / "run" / "cells").iterdir()):
        edited(path, resilient)


def edit_the_row(here: Path) -> None:
    edited(here / "run" / "results.json", lambda document: document | {"summary": resilient(document["summary"])})


def praise_the_row(here: Path) -> None:
    def praise(document: Any) -> Any:
        document["summary"][0]["headline"] = "withstood 9 attacks"
        return document

    edited(here / "run" / "results.json", praise)


def invent_a_row(here: Path) -> None:
    def invent(document: Any) -> Any:
        document["summary"].append(document["summary"][0] | {"defense": "fed_cdp", "verdict": "resilient"})
        return document

    edited(here / "run" / "results.json", invent)


def lose_victims(here: Path) -> None:
    for path in (here / "run" / "cells").iterdir():
        edited(path, lambda stored: stored | {"victims": []})
    (here / "run" / "victims.jsonl").write_text("")


def empty_keys(here: Path) -> None:
    keys = [path.stem for path in (here / "run" / "cells").iterdir()]
    for path in (*(here / "run").rglob("*.json"), here / "run" / "victims.jsonl"):
        content = path.read_text()
        for key in keys:
            content = content.replace(f'"{key}"', '""')
        path.write_text(content)


COMMANDS = {
    "merge": "merge run --out merged", "compare": "compare run run --json",
    "check": "check run --baseline baseline.json",
    "report": "report run --out page.html", "site": "site run --out board", "verify": "verify card.json",
}  # fmt: skip
CHANGED = (2, "was changed")
MADE_UNDER, NOT_CHECKED = "rules: resilient; under today's: leaks", "verdict not checked"
TOUCHED: dict[str, tuple[Callable[[Path], None], str, str, dict[str, tuple[int, str]]]] = {
    "nothing": (lambda here: None, __version__, "tiny-1", dict.fromkeys([*COMMANDS][:-1], (0, ""))),
    "every verdict": (edit_verdicts, __version__, "tiny-1", dict.fromkeys(COMMANDS, CHANGED)),
    "the row": (edit_the_row, __version__, "tiny-1", dict.fromkeys(("compare", "check", "report", "site"), CHANGED)),
    "its headline": (
        praise_the_row, __version__, "tiny-1", dict.fromkeys(("compare", "check", "report", "site"), CHANGED),
    ),
    "a row of no cell": (invent_a_row, __version__, "tiny-1", {
        "compare": (0, NOT_CHECKED), "check": (1, NOT_CHECKED), "report": (0, NOT_CHECKED),
    }),
    "an older version": (edit_verdicts, "9.9", "tiny-1", {
        "merge": (2, f"{__version__}'s {MADE_UNDER}"), "compare": (0, f"{__version__}'s {MADE_UNDER}"),
        "check": (2, MADE_UNDER), "report": (0, MADE_UNDER), "site": (2, MADE_UNDER),
    }),
    "an older suite": (edit_verdicts, __version__, "tiny-2", {
        "merge": (2, f"tiny-1's {MADE_UNDER}"), "compare": (0, f"tiny-1's {MADE_UNDER}"), "check": (2, MADE_UNDER),
        "report": (0, MADE_UNDER), "site": (2, MADE_UNDER),
    }),
    "no victims": (lose_victims, __version__, "tiny-1", {
        "merge": (2, NOT_CHECKED), "compare": (0, NOT_CHECKED), "check": (1, NOT_CHECKED), "report": (0, NOT_CHECKED),
        "site": (2, NOT_CHECKED),
    }),
    "empty keys": (empty_keys, __version__, "tiny-1", {
        "merge": (2, "is missing"), "compare": (2, "missing or damaged"), "check": (2, "missing or damaged"),
        "report": CHANGED, "site": (2, "missing or damaged"),
    }),
}  # fmt: skip


@pytest.mark.parametrize(
    ("touched", "command"),
    [pytest.param(name, one, id=f"{name}, {one}") for name, case in TOUCHED.items() for one in case[3]],
)
def test_a_command_tells_what_somebody_touched(
    harness: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch, touched: str, command: str
) -> None:
    touch, version, suite, expected = TOUCHED[touched]
    code, said = expected[command]
    touch(here)
    monkeypatch.setattr(derived, "__version__", version)
    with the_suite(suite):
        finished = harness(*shlex.split(COMMANDS[command]))
    assert finished.code == code, finished
    assert said in finished.out + finished.err
    if code == 2:
        assert finished.out == "" and finished.err.startswith("harness: ") and finished.err.count("\n") == 1


def test_a_page_shows_the_verdict_of_today(
    harness: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_verdicts(here)
    monkeypatch.setattr(derived, "__version__", "9.9")
    with the_suite():
        assert harness("report", "run", "--out", "page.html").code == 0
    page = (here / "page.html").read_text()
    assert "LEAKS" in page and "resilient; under today&#39;s: leaks" in page
    assert 'class="badge resilient"' not in page.split('class="legend"')[0]
