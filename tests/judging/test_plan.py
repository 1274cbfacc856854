"""``harness judge --plan``: what is read, tried and not tried, and for how long, with nothing attacked."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.attacks import engine
from harness.base.errors import UsageError
from harness.cli import run
from harness.experiment import cell_settings
from harness.judging import judgement
from harness.judging.beside import ALONE, WHO
from harness.judging.capture import read_capture
from harness.judging.federation import federations
from harness.judging.plan import Effort, fitted, folders_of, lines_of, seconds_in, written
from harness.results import read_results
from harness.scoring.strongest import IN_PART, NO_TIME
from harness.scoring.summarise import summarise

Federation = Callable[..., list[Path]]
Planned = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Planned:
    def never(*_: object) -> None:
        raise AssertionError("a plan attacks nothing")

    monkeypatch.setattr(engine._ChunkRun, "run", never)

    def command(*options: object) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = run(["judge", *map(str, options), "--plan", "--json", "--out", str(tmp_path / "out")])
        said = capsys.readouterr()
        assert not (tmp_path / "out").exists()
        return code, json.loads(said.out) if said.out else None, said.err

    return command


@pytest.mark.parametrize("truth", [True, False])
def test_a_plan_says_what_is_read_and_tried(truth: bool, federation: Federation, planned: Planned) -> None:
    folders = federation(3, truth=truth, batch=2)
    code, document, error = planned(folders[0].parent, "--prior", "digits", "--attack", "cpl,analytic,identify")
    read = document["captures"]
    assert code == 0, error
    assert [Path(one["folder"]) for one in read] == folders
    assert {one["truth"] for one in read} == {2 if truth else None} and {one["sent"] for one in read} == {"after"}
    assert read[0]["facts"] | {"model": "mlp", "batch_size": 2, "optimizer": "sgd"} == read[0]["facts"]
    cpl, analytic, identify, *beside = document["attacks"]
    # With the truth, clients of one step are attacked too; what is impossible there is no line.
    assert not identify["group"] and {one["group"] for one in beside} == ({ALONE} if truth else set())
    assert (cpl["captures"], cpl["of"], cpl["reason"]) == (3, 3, None) and 0 < cpl["seconds"][0] < cpl["seconds"][1]
    assert analytic["captures"] == 0 and "one example per observation" in analytic["reason"]
    assert document["seconds"][1] >= cpl["seconds"][1]


def said_otherwise(old: str, new: str) -> Callable[[list[Path]], object]:
    """Of the second capture."""

    def spoil(folders: list[Path]) -> None:
        facts = folders[1] / "capture.json"
        assert old in facts.read_text()
        facts.write_text(facts.read_text().replace(old, new))

    return spoil


WRONG: dict[str, tuple[Callable[[list[Path]], object], tuple[str, ...], str]] = {
    "a capture without what was sent": (lambda folders: (folders[1] / "after.npz").unlink(), (), "must hold one of"),
    "no truth and no prior": (lambda folders: [(one / "truth.npz").unlink() for one in folders], (), "add --prior"),
    "others among them": (said_otherwise("0.05", "0.1"), (), "captures differ in learning_rate"),
    "another optimizer": (said_otherwise('"sgd"', '"adam"'), (), "captures differ in optimizer: 'sgd' in"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "options", "said"), WRONG.values(), ids=WRONG)
def test_a_plan_names_what_cannot_be_judged(
    spoil: Callable[[list[Path]], object], options: tuple[str, ...], said: str, federation: Federation,
    planned: Planned,
) -> None:  # fmt: skip
    folders = federation(2)
    spoil(folders)
    code, document, line = planned(*folders, *options)
    problems = [document["problem"], *(one["problem"] for one in document["captures"])]
    assert code == 2 and any(said in one for one in problems if one) and line.count("\n") == 1
    assert len(document["captures"]) == 2


def test_a_plan_in_which_nothing_runs_fails_as_the_run_does(federation: Federation, planned: Planned) -> None:
    code, document, line = planned(*federation(2), "--prior", "digits", "--attack", "span")
    (attack,) = document["attacks"]
    assert code == 2 and document["problem"] == attack["reason"] and attack["reason"] in line


def test_a_plan_is_read_by_people_too(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["judge", *map(str, federation(2)), "--plan"]) == 0
    said = capsys.readouterr().out
    assert "facts of all captures: model mlp" in said and "2 of 2" in said and "1 of 1 attack run, " in said


def test_what_takes_longer_is_forecast_to(
    federation: Federation, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, evaluate = federation(2), engine._ChunkRun._evaluate

    def slowly(run: Any, position: Any) -> Any:
        time.sleep(0.05)
        return evaluate(run, position)

    quick = planned(*folders, "--attack", "cpl")[1]["seconds"]
    monkeypatch.setattr(engine._ChunkRun, "_evaluate", slowly)
    slow = planned(*folders, "--attack", "cpl")[1]["seconds"]
    # 20 gradients in each of 300 iterations at most, or of 30, on two victims at once.
    assert slow[0] > max(30.0, quick[0]) and slow[1] > 300.0 and slow[1] == pytest.approx(10 * slow[0], rel=0.01)


def effort(name: str, each: float, captures: int = 60, refused: str | None = None) -> Effort:
    """An attack of which a gradient of a start takes so long, on captures of the 8x8 digits whose truth is known."""
    cell = cell_settings(dataset="digits", model="mlp", attack=name, victims=captures, prior="none")
    group: Any = SimpleNamespace(captured=SimpleNamespace(images=0), cell=cell, sizes="", name="")
    return Effort(group, cell, each, refused)


# Attacks with the seconds of one gradient, a budget, and what runs: captures, and iterations where they are fewer.
# A start of cpl takes 300 x 20 gradients at most, one of inverting_gradients 2500.
BUDGETS: dict[str, tuple[list[tuple[str, float]], float, list[tuple[int, int | None]]]] = {
    "all of it": ([("cpl", 1e-4)], 600, [(60, None)]),
    "fewer captures": ([("cpl", 1e-3)], 100, [(13, None)]),
    "fewer iterations": ([("cpl", 1e-2)], 100, [(8, 50)]),
    "the least that says anything": ([("cpl", 1.0)], 400, [(3, 5)]),
    "those that search come last": ([("cpl", 1e-3), ("learned", 1.0)], 100, [(8, 250), (40, None)]),
    "what is left goes on": ([("learned", 0.1), ("cpl", 1e-3)], 100, [(60, None), (12, None)]),
    "one for all": ([("cpl", 1.0), ("inverting_gradients", 2.0)], 150, [(1, 5), (0, None)]),
}  # fmt: skip


@pytest.fixture
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.judging.plan.noise_of", lambda *_: None)


@pytest.mark.usefixtures("undeclared")
@pytest.mark.parametrize(("attacks", "budget", "runs"), BUDGETS.values(), ids=BUDGETS)
def test_what_fits_into_a_budget(
    attacks: list[tuple[str, float]], budget: float, runs: list[tuple[int, int | None]]
) -> None:
    shares = fitted([effort(*one) for one in attacks], budget)
    assert [(share.captures, share.iterations) for share in shares] == runs
    assert sum(share.seconds[1] for share in shares) <= 0.8 * budget
    lines = lines_of(shares)
    whole = [(share.captures, share.iterations) == (60, None) for share in shares]
    assert [line.reason is None for line in lines] == whole
    assert all("all of it takes" in line.said for line, all_ in zip(lines, whole, strict=True) if not all_)


@pytest.mark.usefixtures("undeclared")
def test_a_budget_too_small_names_the_smallest_that_helps() -> None:
    efforts = [effort("cpl", 1.0), effort("analytic", 1.0, refused="it is impossible")]
    with pytest.raises(UsageError, match="the smallest that helps is 125s"):
        fitted(efforts, 100)
    assert fitted(efforts, 125)[0].captures == 1
    with pytest.raises(UsageError, match="it is impossible"):
        fitted(efforts[1:], 1e9)


def named(name: str, one: Effort) -> Effort:
    return replace(one, group=SimpleNamespace(**vars(one.group) | {"name": name}))  # type: ignore


@pytest.mark.usefixtures("undeclared")
@pytest.mark.parametrize(
    ("budget", "captures"), [(900.0, 8), (400.0, 0)], ids=["enough for a control", "of fewer clients it is none"]
)
def test_a_control_has_as_many_clients_as_tell(budget: float, captures: int) -> None:
    """8 captures of cpl at 5 iterations take 800 gradients; the control has a third of the budget."""
    efforts = [effort("cpl", 0.1), named(ALONE, effort("cpl", 0.2))]
    assert fitted(efforts, budget)[1].captures == captures


@pytest.mark.usefixtures("undeclared")
@pytest.mark.parametrize("spent", [0.0, 20.0])
def test_what_fits_alone_does_beside_its_companions(spent: float) -> None:
    """The hint is kept: in that budget all of the attack runs, after a test and a control of its own."""
    beside = [named(WHO, effort("identify", 0.5)), named(ALONE, effort("cpl", 2e-3, 8))]
    efforts = [replace(effort("cpl", 1e-3), scoring=1.0), *beside]
    share = fitted(efforts, 200.0, spent)[0]
    assert share.captures < 60 and share.alone > share.effort.seconds(60)[1] / 0.8 + spent
    assert (fitted(efforts, share.alone, spent)[0].captures, share.iterations) == (60, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("0", None), ("ten", None), ("-1m", None)],
)
def test_a_budget_is_a_time(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(UsageError, match="is no time; write for example"):
            seconds_in(text)
    else:
        assert seconds_in(text) == seconds == seconds_in(written(seconds))


@pytest.mark.parametrize(
    ("truth", "budget", "words"),
    [
        (True, "20m", "20 minutes"),
        pytest.param(False, "3h", "3 hours", marks=pytest.mark.slow),
    ],
)
def test_what_was_left_out_is_told(
    truth: bool, budget: str, words: str, federation: Federation, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """A gradient of cpl is said to take a second; analytic is all that fits whole."""
    took = engine.seconds_of_row
    monkeypatch.setattr(
        "harness.judging.plan.seconds_of_row",
        lambda attack, *more: 1.0 if type(attack).__name__ == "CPL" else min(0.001, took(attack, *more)),
    )
    folders, out = federation(3, truth=truth), str(tmp_path / "out")
    options = ["--prior", "digits", "--out", out, "--json"]
    code = run(["judge", *map(str, folders), *options, "--attack", "cpl,analytic", "--budget", budget])
    document = json.loads(capsys.readouterr().out)
    cpl, analytic = document["budget"]["attacks"]
    assert code == 0 and document["budget"]["seconds"] == seconds_in(budget)
    assert (analytic["captures"], analytic["reason"]) == (3, None) and "all of it takes" in cpl["reason"]
    assert (cpl["captures"] == 3) and 5 <= cpl["iterations"] < 300
    if truth:
        cells = [one for one in document["results"]["cells"] if one["role"] == "cell"]
        cell, whole = (one for one in cells if one["attack"] == "cpl")
        assert cell["attack_args"]["max_iterations"] == cpl["iterations"] and cell["victims"] == 3
        # What did not run whole says so in a cell of its own, and changes nothing of what did.
        ran = f"3 of 3 captures with {cpl['iterations']} iterations ran; {cpl['reason']}"
        assert whole["not_applicable_reason"] == f"{IN_PART}: {ran}" and cell["not_applicable_reason"] is None
        (other,) = (one for one in cells if one["attack"] == "analytic")
        assert run(["judge", *map(str, folders), *options[:2], "--attack", "analytic", "--out", f"{out}-alone"]) == 0
        (alone,) = (one for one in read_results(Path(f"{out}-alone")).cells if one.role == "cell")
        assert (other["key"], other["verdict"], other["lineup"]["p_value"]) == (
            alone.key, alone.verdict, alone.lineup.p_value
        )  # fmt: skip
    else:
        assert [len(one["estimates"]) for one in document["estimates"]] == [3, 3]
    assert run(["report", out, "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    said = f"Within a budget of {words}, 1 of 2 attacks ran whole, 1 with fewer iterations or captures"
    assert f"{said}: cpl: 3 of 3 captures with" in page
    assert "<summary>Make these numbers again</summary>" in page and f"--budget {seconds_in(budget):g}s" in page
    assert run(["judge", *map(str, folders), *options, "--attack", "cpl", "--budget", "1s"]) == 2
    assert "the smallest that helps is" in capsys.readouterr().err


def test_an_attack_without_time_leaves_other_verdicts_alone(tmp_path: Path) -> None:
    asked = (
        "evaluate --dataset digits --model mlp --defense fed_cdp --defense-arg sigma=60 --surface 2 --attack analytic"
    )
    more = "--victims 60 --attack-arg max_iterations=20 --no-pictures"
    assert run([*asked.split(), *more.split(), "--out", str(tmp_path)]) == 0
    cells = read_results(tmp_path).cells
    why = {"not_applicable_reason": f"{NO_TIME}: all of it takes 3 hours", "verdict": "inconclusive"}
    late = cells[0].model_copy(update={"attack": "map", "key": None, **why})
    leak = cells[0].model_copy(update={"verdict": "leaks", "lineup": cells[0].lineup.model_copy(update={"p_value": 0})})
    assert cells[0].verdict == "resilient" and summarise(cells)[0].verdict == "resilient"
    (row,) = summarise([*cells, late])
    assert row.verdict == "inconclusive" and "the budget left map too little time" in row.verdict_reason
    assert summarise([leak, late])[0].verdict == "leaks"


def test_nothing_is_resilient_under_a_defense_that_nobody_knows(federation: Federation) -> None:
    """As Flower's and NVFlare's pieces keep what stands beside them: no attack was told of it."""
    found = {}
    for name in ("mods.Mine", "fed_cdp"):
        (clients,) = federations([read_capture(one) for one in federation(1, declared={"name": name}, name=name)])
        found[name] = judgement._not_known(SimpleNamespace(captured=clients))  # type: ignore
    assert found["fed_cdp"] is None and "'mods.Mine' is declared, not known" in found["mods.Mine"]


def test_fewer_captures_are_judged_without_the_truth(federation: Federation, tmp_path: Path) -> None:
    (clients,) = federations([read_capture(one) for one in federation(3, truth=False)])
    few = clients.first(2)
    assert few.clients == 2 and few.before.shape[0] == 2 and few.digest != clients.digest
    assert clients.first(3) is clients


def test_a_record_stands_for_its_folder(tmp_path: Path) -> None:
    for name in ("a/1", "a/2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "capture.json").write_text("{}")
    both = [tmp_path / "a/1", tmp_path / "a/2"]
    assert folders_of([tmp_path / "a"]) == folders_of([one / "capture.json" for one in both]) == both
