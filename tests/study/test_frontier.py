"""The frontier: what is trained is what is proven and attacked; the answer; resuming; several processes; mistakes."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from harness.privacy.views import REPEATABLE
from harness.reports import noise_ladders
from harness.reports.noise_ladders import print_frontier, save_frontier
from harness.results import read_results
from harness.results.frontier import FrontierDocument, FrontierPoint
from harness.study.climb import answer, noise_setting
from harness.training import read_training

Harness = Callable[..., Any]
LINE = (
    "frontier --dataset cancer --defense fed_cdp --sigma 1,0.001 --victims 12 --attack analytic --clients 4 "
    "--clients-per-round 4 --rounds 2 --local-steps 2 --batch-size 4 --json"
)
TINY = LINE.split()
pytestmark = pytest.mark.usefixtures("coarse_losses")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, coarse_losses: None) -> Path:
    """A run of three points on a table and three on digits, in little time."""
    from harness.cli import run

    folder = tmp_path_factory.mktemp("frontier")
    line = [word if word != "cancer" else "cancer,digits" for word in TINY]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_DATA", str(folder / "none"))
        assert run([*line, "--out", str(folder / "run")]) == 0
    return folder / "run"


def document_in(folder: Path) -> FrontierDocument:
    return FrontierDocument.model_validate_json((folder / "frontier.json").read_bytes())


def test_accuracy_and_epsilon_are_those_of_the_run_that_was_trained(made: Path) -> None:
    points = document_in(made).points
    levels = [("none", None), ("fed_cdp", 0.001), ("fed_cdp", 1)]
    asked = [(data, *level) for data in ("cancer", "digits") for level in levels]
    assert [(one.dataset, one.defense, one.level) for one in points] == asked
    for one in points:
        trained = read_training(made / (one.training or ""))
        assert one.accuracy == trained.accuracy and one.test_examples == trained.test_examples
        assert trained.settings["defense_args"].get("sigma") == one.level
        server = next(row for row in trained.privacy if row.view == "server")
        assert one.epsilon == server.epsilon and one.unit == (None if one.epsilon is None else "example")


def test_no_epsilon_covers_data_that_are_scaled_by_private_values(made: Path) -> None:
    by_data = {one.dataset: one for one in document_in(made).points if one.level == 1}
    assert by_data["cancer"].epsilon is None and "private" in by_data["cancer"].epsilon_reason
    assert by_data["digits"].epsilon and by_data["digits"].guarantee == "sample-DP local view"
    assert REPEATABLE in by_data["digits"].epsilon_reason


def test_what_is_attacked_is_in_the_folder_of_results(made: Path) -> None:
    cells = {(one.dataset, one.defense, one.defense_args.get("sigma")): one for one in read_results(made).summary}
    for one in document_in(made).points:
        row = cells[one.dataset, one.defense, one.level]
        assert (row.verdict, row.tap, row.victims) == (one.verdict, "T0.in", 12)
    assert (made / "frontier.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options", [["--resume"], pytest.param(["--jobs", "2", "--threads", "1"], marks=pytest.mark.slow)]
)
def test_the_same_again(made: Path, harness: Harness, tmp_path: Path, options: list[str]) -> None:
    """Resumed without anything left to make; by two processes from nothing."""
    before = document_in(made)
    if "--resume" in options:
        shutil.copytree(made, "again")
        line = [word if word != "cancer" else "cancer,digits" for word in TINY]
    else:
        line, before = TINY, before.model_copy(update={"points": before.points[:3], "answers": before.answers[:1]})
    finished = harness(*line, *options, "--out", "again")
    assert finished.code == 0, finished.err
    after = FrontierDocument.model_validate_json(finished.out)
    assert (after.points, after.answers) == (before.points, before.answers)


@pytest.mark.parametrize(
    ("rounds", "said"),
    [(True, "was changed: the accuracy of round 2 is 0.999, by its checkpoint it is 0."),
     (False, "'accuracy' is 0.999, that of the last round which was measured is 0.")],
)  # fmt: skip
def test_an_edited_accuracy_is_not_taken(made: Path, harness: Harness, rounds: bool, said: str) -> None:
    shutil.copytree(made, "edited")
    for path in Path("edited/trained").glob("*/training.json"):
        document = json.loads(path.read_text()) | {"accuracy": 0.999}
        if rounds:
            document["rounds"][-1]["accuracy"] = 0.999
        path.write_text(json.dumps(document))
    line = [word if word != "cancer" else "cancer,digits" for word in TINY]
    finished = harness(*line, "--resume", "--out", "edited")
    assert finished.code == 2 and said in finished.err and finished.err.count("\n") == 1


def test_shards_make_each_level_once_and_resuming_makes_the_whole(made: Path, harness: Harness) -> None:
    points, trained = [], 0
    for part in ("1/2", "2/2"):
        finished = harness(*TINY, "--shard", part, "--out", "parts")
        assert finished.code == 0, finished.err
        points += json.loads(finished.out)
        now = len(list(Path("parts/trained").iterdir()))
        assert 1 <= now - trained <= 2 and not Path("parts/frontier.json").exists()
        trained = now
    whole = harness(*TINY, "--resume", "--out", "parts")
    made_whole = FrontierDocument.model_validate_json(whole.out).points
    assert made_whole == document_in(made).points[:3] and len(list(Path("parts/trained").iterdir())) == 3
    assert sorted(one["level"] or 0 for one in points) == [0, 0.001, 1]


@pytest.mark.slow
def test_trained_weights_are_attacked_and_the_bound_counts_their_training(harness: Harness) -> None:
    line = LINE.replace("cancer", "digits").replace("1,0.001", "3").split()
    finished = harness(*line, "--attacked", "trained", "--out", "f")
    points = {one["level"]: one for one in json.loads(finished.out)["points"]}
    assert finished.code == 0 and points[3]["attacked"] == "trained"
    initial = harness(*line, "--out", "g")
    other = {one["level"]: one for one in json.loads(initial.out)["points"]}
    assert points[3]["ceiling"] > other[3]["ceiling"]


@pytest.mark.parametrize(("defense", "setting"), [
    ("flower:LocalDpMod", "sensitivity"), ("flip:local_dp", "dp_sensitivity"),
    ("flower:ServerSideFixedClipping", "noise_multiplier"), ("opacus:PrivacyEngine", "noise_multiplier"),
    ("pfl:CentrallyAppliedPrivacyMechanism", "relative_noise_stddev"),
])  # fmt: skip
def test_the_level_of_a_frameworks_filter_is_its_own_setting(defense: str, setting: str) -> None:
    assert noise_setting(defense) == setting


MISTAKES = {
    "no noise": (["--defense", "pruning"], "pruning has no noise level; choose a defense with one, such as fed_cdp"),
    "what is varied": (["--defense", "fed_cdp", "--defense-arg", "sigma=5"], "sigma of fed_cdp is what --sigma varies"),
    "no number": (["--sigma", "many"], "--sigma takes numbers"),
    "noise of a quantizer": (["--defense", "quantization"], "levels of quantization are bits; name bits with --bits"),
    "half a bit": (["--defense", "quantization", "--bits", "2.5"], "drop one of them"),
    "negative": (["--sigma=-1"], "sigma"),
    "unknown data": (["--dataset", "cancr"], "cancer"),
    "unknown weights": (["--attacked", "both"], "attacked"),
    "no victims": (["--victims", "0"], "victims"),
    "setting": (["--defense-arg", "fed_cdp.clap=1"], "clip"),
    "convolution": (["--model", "lenet"], "table rows"),
    "no such shard": (["--shard", "3/2"], "shards of 2 are 1/2 to 2/2"),
    "two ways": (["--shard", "1/2", "--jobs", "2"], "take --jobs alone"),
    "no process": (["--jobs", "0"], "--jobs must be 1"),
}


@pytest.mark.parametrize(("options", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_line(harness: Harness, options: list[str], said: str) -> None:
    finished = harness(*TINY, *options, "--out", "f")
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert said in finished.err and not list(Path("f").glob("trained/*"))


@pytest.mark.parametrize("option", ["--dataset", "--defense", "--sigma", "--attack"])
def test_nothing_is_not_what_was_asked_for(harness: Harness, option: str) -> None:
    place = TINY.index(option) + 1
    finished = harness(*TINY[:place], ",", *TINY[place + 1 :], "--out", "f")
    assert (finished.code, finished.err) == (
        2, f"harness: {option} names nothing; leave it out, or name some, separated by commas\n"
    )  # fmt: skip


def point(level: float | None, accuracy: float | None, verdict: str, epsilon: float | None = None) -> FrontierPoint:
    noise: dict[str, Any] = {} if level is None else {"setting": "sigma", "level": level, "defense": "fed_cdp"}
    return FrontierPoint(
        **({"defense": "none"} | noise), dataset="digits", model="logistic", tap="T0.in", accuracy=accuracy,
        verdict=verdict, epsilon=epsilon, epsilon_reason="why",
        **({} if epsilon is None else {"delta": 1e-5, "unit": "example"}),
    )  # fmt: skip


BASE = point(None, 0.9, "leaks")
ANSWERS = {
    "the smallest epsilon": (
        [BASE, point(1, 0.89, "resilient", 40.0), point(2, 0.86, "resilient", 20.0), point(3, 0.8, "resilient", 3.0)],
        2, "fed_cdp sigma=2 costs 4.0 points",
    ),
    "the most accurate, where nothing is proven": (
        [BASE, point(1, 0.89, "resilient"), point(2, 0.86, "resilient")], 1, "no epsilon is proven (why)",
    ),
    "proven before unproven": ([BASE, point(1, 0.9, "resilient"), point(2, 0.86, "resilient", 9.0)], 2, "epsilon 9"),
    "too dear": ([BASE, point(1, 0.9, "leaks"), point(2, 0.84, "resilient", 9.0)], None, "every level within 5"),
    "all too dear": ([BASE, point(2, 0.7, "resilient", 9.0)], None, "no level is within 5 points"),
    "nobody could tell": ([BASE, point(1, 0.9, "inconclusive", 9.0)], None, "nobody could tell of fed_cdp sigma=1"),
    "diverged": ([BASE, point(1, None, "resilient", 9.0)], None, "no level is within"),
    "nothing to compare with": ([point(None, None, "leaks"), point(1, 0.9, "resilient")], None, "diverged"),
}  # fmt: skip


@pytest.mark.parametrize(("points", "best", "said"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer(points: list[FrontierPoint], best: int | None, said: str) -> None:
    ((words, number),) = answer(list(enumerate(points)))
    assert number == best and said in words and words.startswith("digits, tap T0.in, initial weights: ")


def test_an_examples_epsilon_is_not_weighed_against_a_clients() -> None:
    client = [point(sigma, 0.9, "resilient", epsilon).model_copy(update={"unit": "client"})
              for sigma, epsilon in ((3, 8.5), (4, 8.2))]  # fmt: skip
    points = [BASE, point(1, 0.88, "resilient", 8.1), *client, point(2, 0.9, "resilient")]
    said = answer(list(enumerate(points)))
    assert [number for _, number in said] == [1, 3]
    assert "unit: example" in said[0][0] and "unit: client" in said[1][0]


def test_a_level_names_its_setting() -> None:
    with pytest.raises(ValidationError, match="names its setting"):
        FrontierPoint(dataset="d", model="m", defense="x", level=1.0, tap="T0.in", verdict="leaks")


def test_what_is_printed_says_what_a_reader_must_know(tmp_path: Path) -> None:
    """Points that diverged, that nobody could tell, and names that are markup, among them."""
    odd = point(5, None, "inconclusive").model_copy(update={"dataset": "[red]$x$[/red]", "verdict_reason": "[b]few"})
    points = [BASE, point(1, 0.89, "resilient", 40.0), odd]
    document = FrontierDocument(
        environment={}, points=points, answers=["it is fed_cdp", "none was found"], best=[1, None], valid=False,
        settings={
            "model": "logistic", "attacked": "initial", "victims": 59, "clients": 9, "clients_per_round": 3,
            "rounds": 2, "local_steps": 4, "batch_size": 5, "attacks": "auto",
        },
    )  # fmt: skip
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_frontier(document, console)
    console.file.close()
    said = console.export_text()
    for words in (
        "fed_cdp *",
        "40 (example)",
        "initial weights",
        "59 victims",
        "undecided: [b]few",
        "INVALID",
        "[red]",
    ):
        assert words in said
    narrow = Console(width=110, record=True, file=io.StringIO())
    long = {"strongest": "inverting_gradients", "claimed_epsilon": 12.1, "epsilon": 38.0, "unit": "example"}
    print_frontier(document.model_copy(update={"points": [one.model_copy(update=long) for one in points]}), narrow)
    said = narrow.export_text()
    assert " inconclusive " in said and " inverting_gradients " in said  # each whole in its cell
    save_frontier(tmp_path / "a.png", document)
    save_frontier(tmp_path / "b.png", document)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(ValueError, match="no point"):
        save_frontier(tmp_path / "c.png", document.model_copy(update={"points": []}))


def test_a_proven_epsilon_of_zero_is_drawn_and_what_has_no_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta of .2 over few rounds is kept at 0, which no logarithmic axis has."""
    figures = []
    monkeypatch.setattr(noise_ladders, "save_figure", lambda figure, path: figures.append(figure))
    points = [BASE, point(1, 0.89, "resilient", 40.0), point(9, 0.5, "resilient", 0.0), point(2, 0.7, "leaks")]
    save_frontier(tmp_path / "a.png", FrontierDocument(environment={}, points=points, answers=[], best=[], settings={}))
    panel = figures[0].axes[0]
    drawn = {float(line.get_xdata()[0]) for line in panel.lines if line.get_marker() not in ("None", "", None)}
    assert drawn == {40.0, 0.001} and "0.001: that or less" in panel.get_xlabel()
    assert "in the table alone: fed_cdp (1 point)" in panel.get_xlabel()


def test_bits_are_climbed_as_noise_is(harness: Harness) -> None:
    line = ["frontier", "--dataset", "digits", "--bits", "2,8", "--attack", "cpl,intervals", "--surface", "1",
            "--rounds", "1", "--victims", "3"]  # fmt: skip
    finished = harness(*line, "--json", "--out", "bits")
    assert finished.code == 0
    points = json.loads(finished.out)["points"]
    assert [(one["setting"], one["level"]) for one in points] == [(None, None), ("bits", 2.0), ("bits", 8.0)]
    assert all(one["epsilon"] is None and one["ceiling"] is None for one in points)


def test_where_no_point_can_be_attacked_the_reason_is_the_answer(harness: Harness) -> None:
    line = ["frontier", "--dataset", "digits", "--defense", "fed_cdp", "--sigma", "1", "--attack", "analytic",
            "--model", "lenet", "--rounds", "1", "--victims", "3"]  # fmt: skip
    finished = harness(*line, "--out", "f")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.splitlines()[-1].endswith("use --model mlp2 or another attack")


@pytest.mark.parametrize(("options", "said"), [
    (["--bits", "2.5"], "--bits takes whole numbers"), (["--bits", "1"], "from 2 on"),
    (["--bits", "4", "--defense", "fed_cdp"], "levels of fed_cdp are noise; drop --bits"),
])  # fmt: skip
def test_bits_that_are_none(harness: Harness, options: list[str], said: str) -> None:
    finished = harness("frontier", *options, "--out", "f")
    assert (finished.code, finished.err.count("\n")) == (2, 1) and said in finished.err
