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
from harness.evaluation.derived import Finding, by_victims, findings, of_run
from harness.results import CellResult, Control, Lineup, Outcomes, ResultDocument, RunFolder, VictimRecord
from harness.scoring import rate_of
from harness.scoring.summarise import summarise

LINEUP = Lineup(rate=1.0, mean_rank=0.0, p_value=2e-4, confirmed_p_value=1e-4)
PLACE = {"dataset": "d", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step"}
RATE = rate_of([True] * 64)
LEAKING = "64 reconstructions are accurate and nearest to their own truth (p = 0.0001)"
WORKS = Control(name="positive", held=True)


def a_leak() -> CellResult:
    """Of 64 victims all came back, each the nearest of its lineup."""
    return CellResult(
        **PLACE, model="m", seeds=[0], victims=64, key="0" * 20, confirmed=64, outcomes=Outcomes(success=64),
        asr={"strict": RATE}, verdict="leaks", verdict_reason=LEAKING, controls=[WORKS],
        lineup=LINEUP,
    )  # fmt: skip


def its_victims() -> list[VictimRecord]:
    facts = {"cell": "0" * 20, "seed": 0, "outcome": "success", "rmse": 0.01, "lineup_rank": 1, "lineup_size": 11}
    return [VictimRecord(**PLACE, **facts, victim=number, dataset_index=number) for number in range(64)]


def found(cell: CellResult, victims: list[VictimRecord], version: str = __version__) -> list[Finding]:
    return findings([cell], {cell.key or "": victims}, {}, version)


EDITS: dict[str, tuple[dict[str, object], str]] = {
    "the verdict": ({"verdict": "resilient"}, "it says resilient, its victims say leaks"),
    "its reason": ({"verdict_reason": "a fluke"}, f"verdict_reason is 'a fluke', its victims say {LEAKING!r}"),
    "what is confirmed": ({"confirmed": 0}, "confirmed is 0, by its victims it is 64"),
    "how they ended": ({"outcomes": Outcomes(failure=64)}, "outcomes.success is 0, by its victims it is 64"),
    "the mean rank": ({"lineup": LINEUP.model_copy(update={"mean_rank": 0.5})}, "lineup.mean_rank is 0.5, by its"),
    "the success rate": ({"asr": {"strict": RATE.model_copy(update={"rate": 0.1})}}, "asr.strict.rate is 0.1, by its"),
    "the p-value": ({"lineup": LINEUP.model_copy(update={"p_value": 0.5})}, "p_value is 0.5, which the ranks of its"),
    "that of accurate ones": (
        {"lineup": LINEUP.model_copy(update={"confirmed_p_value": 0.5})}, "confirmed_p_value is 0.5, which the ranks",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_cell_differs_from_its_victims(changes: dict[str, object], said: str) -> None:
    assert found(a_leak(), its_victims()) == []
    (one,) = found(a_leak().model_copy(update=changes), its_victims())
    assert one.kind == "differs" and said in one.line


@pytest.mark.parametrize(
    ("rank", "said", "faults"),
    [(4, 1.0, True), (4, 0.1, True), (4, 2e-4, False), (4, 2e-3, False), (6, 0.1, False), (6, 2e-4, True)],
)
def test_a_p_value_is_one_that_the_ranks_may_have(rank: int, said: float, faults: bool) -> None:
    """By ranks 4 of 11 alone it is 4e-7 were victims independent, and 3e-5 were the same made of all of a class."""
    facts = {"cell": "0" * 20, "seed": 0, "outcome": "failure", "rmse": 1.0, "lineup_size": 11}
    victims = [
        VictimRecord(**PLACE, **facts, victim=one, dataset_index=one, label=one % 10, lineup_rank=rank if one else 1)
        for one in range(64)
    ]
    changes = {"confirmed": 0, "outcomes": Outcomes(failure=64), "lineup": Lineup(p_value=said)}
    cell = by_victims(a_leak().model_copy(update=changes), victims)
    assert [f"p_value is {said}, which the ranks" in one.line for one in found(cell, victims)] == [True] * faults


@pytest.mark.parametrize(("near", "far", "faults"), [(3, 0, False), (3, 3, False), (0, 0, True), (1, 3, True)])
def test_where_all_but_a_few_tie_a_small_p_value_is_one_that_ranks_may_have(near: int, far: int, faults: bool) -> None:
    """Of 64 records and 20 more of a class, those that are unlike the usual one come back: by chance 1 of 84 is one."""
    facts = {"cell": "0" * 20, "seed": 0, "outcome": "failure", "rmse": 1.0, "lineup_size": 21, "label": 0}
    ranks = [1] * near + [21] * far + [11] * (64 - near - far)
    victims = [
        VictimRecord(**PLACE, **facts, victim=one, dataset_index=one, lineup_rank=rank)
        for one, rank in enumerate(ranks)
    ]
    changes = {"confirmed": 0, "outcomes": Outcomes(failure=64), "lineup": Lineup(p_value=2e-4)}
    cell = by_victims(a_leak().model_copy(update=changes), victims)
    assert ["p_value is 0.0002, which" in one.line for one in found(cell, victims)] == [True] * faults


@pytest.mark.parametrize(("said", "faults"), [("4.5%", 0), ("4.4%", 0), ("4.3%", 1), ("4.6%", 1), ("4.4", 1)])
def test_a_bound_that_was_rounded_to_the_nearest_was_not_edited(said: str, faults: int) -> None:
    """Nothing of 66 came back: at most 4.44%."""
    facts = {"cell": "0" * 20, "seed": 0, "outcome": "failure", "rmse": 1.0, "lineup_rank": 6, "lineup_size": 11}
    cell = CellResult(
        **PLACE, model="m", seeds=[0], victims=66, key="0" * 20, outcomes=Outcomes(failure=66), controls=[WORKS],
        asr={"strict": rate_of([False] * 66)}, lineup=Lineup(rate=0.0, mean_rank=0.5, p_value=0.5),
        verdict="resilient",
        verdict_reason=f"no leak was found; at most {said} of victims can be reconstructed (95% confidence)",
    )  # fmt: skip
    assert len(found(cell, [VictimRecord(**PLACE, **facts, victim=number) for number in range(66)])) == faults


def skipped(by: str = "cpl", **changes: object) -> CellResult:
    return CellResult(
        **PLACE | {"attack": "map", **changes}, model="m", seeds=[0], victims=64, key="1" * 20, suite=LATEST["auto"],
        outcomes=Outcomes(not_applicable=64), not_applicable_reason=f"skipped: settled by {by}",
        verdict_reason="not applicable",
    )  # fmt: skip


# Fields of one record of a cell that is as it was, and the cell's own.
RECORDS: dict[str, tuple[object, object]] = {
    "cell": ("1" * 20, "0" * 20), "role": ("control", "cell"), "dataset": ("e", "d"), "defense": ("none", "fed_cdp"),
    "attack": ("dlg", "cpl"), "tap": ("T1.out", "T2.step"), "seed": (1, 0), "victim": (64, 3), "image": (1, 0),
    "outcome": ("failure", "success"),
}  # fmt: skip


@pytest.mark.parametrize("field", RECORDS)
def test_a_record_is_its_own_cells(field: str) -> None:
    said, follows = RECORDS[field]
    victims = its_victims()
    victims[3] = victims[3].model_copy(update={field: said})
    (one,) = found(a_leak(), victims)
    assert one.kind == "differs" and f"{field} of a victim is {said}, by its cell it is {follows}" in one.line


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


# Fields of a run under Fed-CDP, of an attack that reconstructs (0) and one that tells (1), and what an edit says.
FIELDS: dict[str, tuple[object, str]] = {
    "cells.0.metrics.rmse.mean": (0.9, "metrics.rmse.mean is 0.9, by its victims"),
    "cells.0.metrics.rmse.median": (0.9, "metrics.rmse.median is 0.9, by its victims"),
    "cells.0.metrics.rmse_raw.median": (0.9, "metrics.rmse_raw.median is 0.9, by its victims"),
    "cells.0.metrics.mse.std": (0.9, "metrics.mse.std is 0.9, by its victims"),
    "cells.0.metrics.l2dist.median": (0.9, "metrics.l2dist.median is 0.9, by its victims"),
    "cells.0.metrics.psnr.ci95": ([1.0, 90.0], "metrics.psnr.ci95[0] is 1, by its victims"),
    "cells.0.metrics.gradient_evaluations.mean": (9e4, "metrics.gradient_evaluations.mean is 90000, by its victims"),
    "cells.0.metrics.steps_taken.median": (9e4, "metrics.steps_taken.median is 90000, by its victims"),
    "cells.0.metrics.tau.mean": (9e4, "metrics.tau.mean is 90000, by its victims"),
    "cells.0.asr.strict.rate": (0.77, "asr.strict.rate is 0.77, by its victims"),
    "cells.0.asr.strict.successes": (7, "asr.strict.successes is 7, by its victims"),
    "cells.0.asr.strict.ci95": ([0.0, 0.01], "asr.strict.ci95[1] is 0.01, by its victims"),
    "cells.0.asr.table3.successes": (7, "asr.table3.successes is 7, by its victims"),
    "cells.0.confirmed": (17, "confirmed is 17, by its victims"),
    "cells.0.outcomes.diverged": (17, "outcomes.diverged is 17, by its victims"),
    "cells.0.lineup.rate": (0.77, "lineup.rate is 0.77, by its victims"),
    "cells.0.lineup.p_value": (0.7777, "lineup.p_value is 0.7777, in its own file"),
    "cells.0.label.accuracy": (0.77, "label.accuracy is 0.77, by its victims"),
    "cells.0.label.p_value": (0.7777, "label.p_value is 0.7777, by its victims"),
    "cells.0.controls.0.detail": ("it works", "controls[0].detail is it works, by the cells of its controls"),
    "cells.0.controls.0.held": (False, "controls[0].held is False, by the cells of its controls"),
    "cells.0.controls.1.held": (False, "controls[1].held is False, by the cells of its controls"),
    "cells.0.bound.events.0.measured.successes": (7, "bound.events[0].measured.successes is 7, by its victims"),
    "cells.0.bound.mu": (0.01, "by its victims it is Gaussian noise, mu = 0.01"),
    "cells.0.privacy.0.epsilon": (0.1, "privacy[0].epsilon is 0.1, by its settings"),
    "cells.0.privacy.0.claimed_epsilon": (0.1, "privacy[0].claimed_epsilon is 0.1, by its settings"),
    "cells.0.privacy.0.delta": (1e-9, "privacy[0].delta is 1e-09, by its settings"),
    "cells.0.privacy.0.guarantee": ("client-LDP", "privacy[0].guarantee is client-LDP, by its settings"),
    "cells.0.privacy.0.covers": (True, "privacy[0].covers is True, by its settings"),
    "cells.0.defense_args.sigma": (60.0, "defense_args.sigma is 60, by its settings"),
    "cells.0.units": ("noise of 60", "units is noise of 60, by its settings"),
    "cells.0.tier": ("informed", "tier is informed, by its settings"),
    "cells.0.noise": ("laplace", "noise is laplace, in its own file"),
    "cells.0.verdict_reason": ("it withstood", "verdict_reason is 'it withstood', its victims say"),
    "cells.1.identified.rate": (0.77, "identified.rate is 0.77, by its victims"),
    "cells.1.identified.beyond_chance": (0.01, "identified.beyond_chance is 0.01, by its victims"),
    "cells.1.identified.chance": (0.9, "identified.chance is 0.9, by its victims"),
    "cells.1.identified.p_value": (0.7777, "identified.p_value is 0.7777, in its own file"),
    "summary.0.verdict_reason": ("it withstood", "verdict_reason is it withstood, by its attacks"),
    "summary.0.headline": ("withstood 9 attacks", "headline is withstood 9 attacks, by its attacks"),
}  # fmt: skip
DEFENDED = "--defense fed_cdp --dataset digits --model logistic --attack analytic,identify --surface 2 --victims 8"


def evaluated(folder: Path, *lines: str) -> Path:
    """A run of these commands, without data but those that are bundled."""
    from harness.cli import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_DATA", str(folder / "none"))
        patch.chdir(folder)
        for line in lines:
            assert run(line.split()) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def defended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluated(tmp_path_factory.mktemp("defended"), f"evaluate {DEFENDED} --no-pictures --out run")


def told_of(run: Path, document: Any) -> list[str]:
    """The lines about a run whose results.json is this document."""
    read = ResultDocument.model_validate(document)
    stored = {cell.key or "": RunFolder(run).find_cell(cell.key or "") for cell in read.cells}
    files = {key: one for key, one in stored.items() if one is not None}
    victims = {key: one.victims for key, one in files.items()}
    found = findings(read.cells, victims, files, __version__, read.summary)
    return [one.line for one in (*found, *of_run(read.cells, read.valid, __version__))]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_somebody_edited_is_named(defended: Path, field: str) -> None:
    value, said = FIELDS[field]
    document = json.loads((defended / "results.json").read_text())
    part, *path = document, *(int(name) if name.isdigit() else name for name in field.split("."))
    for name in path[:-1]:
        part = part[name]
    assert part[path[-1]] != value
    part[path[-1]] = value
    first = told_of(defended, document)[0]
    assert said in first and "fed_cdp" in first and "was changed" in first and len(first) < 400


def test_a_run_that_is_not_valid_does_not_say_so_in_vain(defended: Path) -> None:
    document = json.loads((defended / "results.json").read_text())
    swap = next(check for check in document["cells"][0]["controls"] if check["name"] == "swap")
    swap["held"] = False
    assert any("valid is True, but negative control swap failed" in line for line in told_of(defended, document))


FEW = "--victims 4 --no-pictures --prior none --out run"
SLOW = "--attack cpl --attack-arg max_iterations=2"
HONEST: dict[str, tuple[str, ...]] = {
    "batches": (f"evaluate --defense none --dataset digits --model mlp {SLOW} --batch-size 3 {FEW}",),
    "texts": (f"evaluate --defense none --dataset notes --attack token_rows --surface 1 {FEW}",),
    "tables": (f"evaluate --defense none --dataset cancer --attack analytic,identify --surface 2 {FEW}",),
    "rows of a table in batches": (
        f"evaluate --defense none --dataset cancer --attack rows --batch-size 2 --surface 2 {FEW}",
    ),
    "secure sums": (
        f"evaluate --defense secagg_ddp --dataset digits --model logistic {SLOW} --surface 0 --clients 4 "
        f"--clients-per-round 2 {FEW}",
    ),
    "several rounds": (
        f"evaluate --defense fed_sdp --dataset digits --model logistic --attack analytic --surface 1 --rounds-seen 3 "
        f"{FEW}",
    ),
    "rounds of a client": (
        f"evaluate --defense none --dataset digits --model mlp {SLOW} --surface 1 --rounds-seen 2 --same-data client "
        f"--client-examples 6 --batch-size 2 {FEW}",
    ),
    "passes over the same examples": (
        f"evaluate --defense fed_cdp --dataset digits --model mlp {SLOW} --surface 1 --epochs 2 --client-examples 5 "
        f"--batch-size 2 --update-model avg {FEW}",
    ),
    "victims who share networks": (
        f"evaluate --defense fed_cdp --dataset digits --model mlp {SLOW} --surface 2 --seed 0,1 --shared-weights {FEW}",
    ),
    "a training": (
        "train --defense fed_cdp --dataset digits --model logistic --rounds 2 --clients 4 --clients-per-round 2 "
        "--local-steps 2 --batch-size 4 --seed 0 --keep-rounds 0 --out trained",
        f"evaluate --training trained --defense fed_cdp --attack analytic --surface 2 {FEW}",
    ),
    "skipped and impossible rows": (
        "evaluate --defense none --dataset digits --model logistic --attack auto --surface 2 --victims 24 "
        "--no-pictures --out run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST)
def test_a_run_that_nobody_touched_is_told_nothing(tmp_path: Path, case: str) -> None:
    run = evaluated(tmp_path, *HONEST[case])
    document = json.loads((run / "results.json").read_text())
    assert document["cells"] and told_of(run, document) == []


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


def say_of_one(here: Path) -> None:
    path = here / "run" / "results.json"
    path.write_text(path.read_text().replace("analytic: images", "analytic of 1 attacks: images", 1))
    assert "of 1 attacks" in path.read_text()


def halve_an_error(here: Path) -> None:
    def halve(document: Any) -> Any:
        for cell in document.get("cells", [document.get("cell")]):
            if summary := cell["metrics"].get("psnr"):
                summary["median"] = (summary["median"] or 0.0) / 2 + 1
        return document

    for path in (here / "run" / "results.json", *(here / "run" / "cells").iterdir()):
        edited(path, halve)


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
    "one attack, as it was said": (say_of_one, __version__, "tiny-1", dict.fromkeys(("compare", "check"), (0, ""))),
    "an error": (
        halve_an_error, __version__, "tiny-1",
        dict.fromkeys(("merge", "compare", "check", "report", "site"), (2, "metrics.psnr.median is ")),
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
