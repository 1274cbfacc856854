"""``harness evaluate`` from the command line to its files."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness.cli.evaluate as command
from harness.cli.grouping import GROUPS
from harness.results import CellResult, ResultDocument, cell_key

Harness = Callable[..., Any]
TINY = ("--dataset", "digits", "--victims", "3", "--surface", "2", "--attack-arg", "max_iterations=5")


def cells(text: str) -> list[CellResult]:
    return [cell for cell in ResultDocument.model_validate_json(text).cells if cell.role == "cell"]


def test_json_is_the_document_and_nothing_else(harness: Harness, tmp_path: Path) -> None:
    finished = harness("evaluate", "--defense", "none", *TINY, "--json")
    assert finished.code == 0
    assert finished.err == ""
    (cell,) = cells(finished.out)
    assert (cell.dataset, cell.defense, cell.attack, cell.surface, cell.victims) == ("digits", "none", "cpl", 2, 3)
    assert cell.attack_args["max_iterations"] == 5
    assert sum(cell.outcomes.model_dump().values()) == 3
    assert json.loads((tmp_path / "runs" / "results.json").read_text()) == json.loads(finished.out)
    assert len(list((tmp_path / "runs" / "pictures").glob("*.png"))) == 1
    records = [json.loads(line) for line in (tmp_path / "runs" / "victims.jsonl").read_text().splitlines()]
    assert len([record for record in records if record["role"] == "cell"]) == 3


def test_the_table_shows_every_cell_and_resuming_changes_nothing(harness: Harness, tmp_path: Path) -> None:
    line = (
        "evaluate",
        "--defense",
        "none,fed_cdp",
        *TINY,
        "--defense-arg",
        "sigma=1",
        "--no-pictures",
        "--out",
        "here",
    )
    first = harness(*line)
    assert first.code == 0
    for word in ("fed_cdp", "none", "positive", "leaks", "controls", "here"):
        assert word in first.out
    assert not (tmp_path / "here" / "pictures").exists()
    stored = {path.name: path.read_bytes() for path in (tmp_path / "here").rglob("*.*") if path.is_file()}
    again = harness(*line, "--resume")
    assert (again.code, again.out, again.err) == (0, first.out, "")
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").rglob("*.*") if path.is_file()} == stored


def test_an_earlier_run_is_not_replaced_in_silence(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    line = ("evaluate", "--defense", "none", *TINY, "--no-pictures", "--out", "here")
    for more, said in (((), False), (("--resume",), False), ((), True)):
        caplog.clear()
        assert harness(*line, *more).code == 0
        assert ("replaces the earlier results in 'here'" in caplog.text) == said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--dataset absent.npz", "is not a file"),
        pytest.param("--dataset digits --prior absent.npz", "is not a file", marks=pytest.mark.slow),
        ("--dataset digits --weights cut.pt", "cut off"),
        ("--dataset digits --cluster foo", "unknown cluster 'foo'"),
        ("--dataset digits --model absent:make", "absent"),
        pytest.param("--dataset absent.npz --defense none,fed_cdp --jobs 2", "is not a file", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_leaves_an_earlier_run_as_it_is(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture, more: str, words: str
) -> None:
    line = ("evaluate", "--defense", "none", *TINY[2:], "--no-pictures", "--out", "here")
    assert harness(*line, "--dataset", "digits").code == 0
    (tmp_path / "cut.pt").write_bytes(b"PK")
    before = {path: path.read_bytes() for path in (tmp_path / "here").rglob("*.*")}
    finished = harness(*line, *more.split())
    assert (finished.code, finished.out, caplog.text) == (2, "", "")
    assert words in finished.err and finished.err.count("\n") == 1
    assert {path: path.read_bytes() for path in (tmp_path / "here").rglob("*.*")} == before


@pytest.mark.parametrize("more", ["", "--resume", "--jobs 2 --attack dlg,cpl"])
@pytest.mark.parametrize("name", ["results.json", "victims.jsonl"])
def test_somebody_elses_files_are_left_alone(harness: Harness, asked: "Asked", name: str, more: str) -> None:
    file = Path("mine") / name
    file.parent.mkdir()
    file.write_text('{"my": "precious"}')
    finished = harness("evaluate", "--defense", "none", *more.split(), "--out", "mine")
    assert (finished.code, finished.err.count("\n"), asked) == (2, 1, [])
    assert f"cannot write 'mine/{name}' (it is a file of yours); choose another place with --out" in finished.err
    assert file.read_text() == '{"my": "precious"}'


class Asked(list[Any]):
    """Stands in for the evaluation and keeps the cells it was asked for."""

    def __call__(self, cells: list[Any], run: Any) -> ResultDocument:
        self[:] = cells
        return ResultDocument(environment={}, cells=[])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    recorder = Asked()
    monkeypatch.setattr(command, "evaluate", recorder)
    monkeypatch.setattr(command, "suitable_jobs", lambda cells, stage, settles: 1)
    return recorder


def test_defaults_are_a_complete_run(harness: Harness, asked: Asked) -> None:
    assert harness("evaluate", "--defense", "fed_acdp", "--attack", "cpl").code == 0
    assert [(cell.dataset, cell.model, cell.defense, cell.surface) for cell in asked] == [
        ("mnist-sample", "lenet", "fed_acdp", surface) for surface in (0, 1, 2)
    ]
    assert {(cell.victims, cell.batch_size, cell.seeds) for cell in asked} == {(64, 1, (0,))}


def test_a_table_is_attacked_on_its_own_network(harness: Harness, asked: Asked) -> None:
    assert harness("evaluate", "--defense", "none", "--dataset", "cancer,digits", "--surface", "2").code == 0
    assert [(cell.dataset, cell.model) for cell in asked] == [("cancer", "mlp2"), ("digits", "lenet")]


def test_lists_are_combined_and_repeats_are_dropped(harness: Harness, asked: Asked) -> None:
    line = "--defense none,fed_cdp --defense none --attack dlg,cpl --batch-size 1,2 --tap T2.step,T0.post"
    assert harness("evaluate", *line.split()).code == 0
    seen = [(cell.defense, cell.attack, cell.batch_size, cell.tap) for cell in asked]
    assert len(seen) == len(set(seen)) == 2 * 2 * 2 * 2


def test_settings_reach_those_that_have_them(harness: Harness, asked: Asked) -> None:
    line = "--defense fed_sdp,fed_cdp,none --surface 2 --defense-arg sigma=2 --defense-arg fed_sdp.clip=3"
    assert harness("evaluate", *line.split()).code == 0
    assert {cell.defense: cell.defense_args for cell in asked} == {
        "fed_sdp": {"sigma": "2", "clip": "3"},
        "fed_cdp": {"sigma": "2"},
        "none": {},
    }


def test_aliases_become_names(harness: Harness, asked: Asked) -> None:
    line = "--defense fed_alphacdp --attack gradinv --attack-arg gradinv.tv=0.5 --surface 2"
    assert harness("evaluate", *line.split()).code == 0
    (cell,) = asked
    assert (cell.defense, cell.attack, cell.attack_args) == ("fed_acdp", "inverting_gradients", {"tv": "0.5"})


def test_a_config_file_and_what_is_given_beside_it(harness: Harness, asked: Asked, tmp_path: Path) -> None:
    text = 'defense = "fed_cdp"\nattack = ["cpl", "dlg"]\nsurface = [2]\nbatch-size = 2\nvictims = 5\nrounds = 7\n'
    (tmp_path / "experiment.toml").write_text(text + 'defense-arg = ["sigma=1"]\ndistinct-labels = true\n')
    assert harness("evaluate", "--config", "experiment.toml", "--victims", "4").code == 0
    assert [(cell.attack, cell.surface, cell.batch_size, cell.victims) for cell in asked] == [
        ("cpl", 2, 2, 4),
        ("dlg", 2, 2, 4),
    ]
    assert {(cell.rounds, cell.distinct_labels, cell.defense_args["sigma"]) for cell in asked} == {(7, True, "1")}


def test_yaml_gives_the_same_cells_as_toml(harness: Harness, asked: Asked, tmp_path: Path) -> None:
    toml = 'defense = "fed_cdp"\nattack = ["cpl", "dlg"]\nsurface = [2]\nlearning-rate = 1e-5\nbatch-size = 2\n'
    yaml = "defense: fed_cdp\nattack: [cpl, dlg]\nsurface:\n- 2\nlearning-rate: 1e-5\nbatch-size: 2\n"
    (tmp_path / "options.toml").write_text(toml + "distinct-labels = true\n")
    (tmp_path / "options.yaml").write_text("%YAML 1.2\n---\n" + yaml + "distinct-labels: true\n")
    assert harness("evaluate", "--config", "options.toml").code == 0
    expected = [cell_key(cell.model_dump()) for cell in asked]
    asked.clear()
    assert harness("evaluate", "--config", "options.yaml").code == 0
    assert [cell_key(cell.model_dump()) for cell in asked] == expected and {cell.learning_rate for cell in asked} == {
        1e-5
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("attack: cpl\nattack: dlg", "line 2: found duplicate key"), ("attack: &a cpl", "anchor"),
        ("attack: *a", "is not YAML"), ("attack: !!str cpl", "tag"), ("attack: !!python/name:os.system", "tag"),
        ("%YAML 1.1\n---\nattack: cpl", "version"), ("- attack", "no list of names"), ("1: cpl", "no list of names"),
        ("attack: cpl\n---\nattack: dlg", "is not YAML"), ("attack: " + "[" * 50_000, "is not YAML"),
        ("victims: " + "9" * 6_000, "is not YAML"), ("attack: [cpl", "is not YAML"), ("atack: cpl", "'atack'"),
        ("shared-weights: no", "shared"), ("attack: no", "'no'"), ("<<: {attack: cpl}", "is not YAML"),
    ],
)  # fmt: skip
def test_yaml_that_is_refused(harness: Harness, asked: Asked, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "options.yml").write_text(text if "defense" in text else text + "\n")
    code, out, err = harness("evaluate", "--defense", "none", "--config", "options.yml")
    assert (code, out, asked) == (2, "", []) and said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "prior"),
    [
        ("--attack cpl", "none"),
        ("--attack cpl,blind", "auto"),
        ("--attack cpl --prior auto", "auto"),
        ("--attack cpl,blind --prior none", "none"),
        ("--attack blind --prior digit", None),
        ("--attack blind --prior digits", "digits"),
    ],
)
def test_one_informed_attack_makes_data_public_for_all(
    harness: Harness, asked: Asked, line: str, prior: str | None
) -> None:
    done = harness("evaluate", "--defense", "none,fed_cdp", *line.split())
    assert done.code == (0 if prior else 2)
    assert {cell.prior for cell in asked} == ({prior} if prior else set())


def test_a_preset_and_what_is_given_beside_it(harness: Harness, asked: Asked) -> None:
    assert harness("evaluate", "--preset", "glance", "--seed", "3,4").code == 0
    assert {(cell.defense, cell.surface, cell.victims, cell.seeds) for cell in asked} == {
        ("none", 2, 12, (3, 4)),
        ("fed_acdp", 2, 12, (3, 4)),
    }


@pytest.mark.parametrize(("more", "tap"), [("--tap T1.out", "T1.out"), ("--surface 1", "T1.out"), ("", "T2.step")])
def test_a_tap_stands_instead_of_a_presets_surface(harness: Harness, asked: Asked, more: str, tap: str) -> None:
    assert harness("evaluate", "--preset", "glance", *more.split()).code == 0
    assert {cell.tap for cell in asked} == {tap}


@pytest.mark.parametrize("more", ["--dataset cancer", "--model lenet", "--dataset mnist-sample --model cnn"])
def test_the_model_of_a_run_on_other_data_or_a_network_of_another_kind(harness: Harness, more: str) -> None:
    small = "--split iid --clients 2 --clients-per-round 2 --rounds 1 --batch-size 2 --local-steps 1 --keep-rounds 1"
    assert harness("train", "--dataset", "digits", "--model", "mlp", *small.split()).code == 0
    finished = harness("evaluate", "--training", "training", "--round", "1", "--surface", "2", *more.split())
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert "training run, mlp on digits, is not" in finished.err
    assert "leave out --dataset and --model" in finished.err


@pytest.mark.parametrize("more", ["--clients 77", "--rounds 1000", "--steps-per-round 9", "--sampling-rate 1"])
def test_what_an_epsilon_depends_on_is_that_of_the_training(harness: Harness, asked: Asked, more: str) -> None:
    small = "--split iid --clients 2 --clients-per-round 2 --rounds 1 --batch-size 2 --local-steps 1 --keep-rounds 1"
    assert harness("train", "--dataset", "digits", "--model", "mlp", *small.split()).code == 0
    run = ("evaluate", "--training", "training", "--round", "1", "--surface", "2")
    finished = harness(*run, *more.split())
    said = f"harness: statements are about the run of --training; leave out {more.split()[0]}\n"
    assert (finished.code, finished.err) == (2, said)
    assert harness(*run, "--clients", "2", "--steps-per-round", "1").code == 0


def test_a_run_whose_negative_control_failed_ends_with_3(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = ResultDocument(environment={}, valid=False, valid_reason="a negative control failed", cells=[])
    monkeypatch.setattr(command, "evaluate", lambda cells, run: invalid)
    assert harness("evaluate", "--defense", "none").code == 3


def test_stopping_it_by_hand_says_how_to_go_on(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(cells: list[Any], run: Any) -> ResultDocument:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "evaluate", interrupted)
    finished = harness("evaluate", "--defense", "none")
    assert (finished.code, finished.out) == (130, "")
    assert finished.err == "harness: stopped; add --resume to the same command to go on\n"


def test_help_begins_with_ten_options_and_every_option_has_a_group(harness: Harness) -> None:
    shown = harness("evaluate", "--help").out
    sections = dict(re.findall(r"^([A-Z][^\n]*):\n((?:  .*\n)+)", shown, re.MULTILINE))
    options = {title: re.findall(r"^  (--[\w-]+|-h)", lines, re.MULTILINE) for title, lines in sections.items()}
    assert list(options) == [*GROUPS["evaluate"], "Help"]
    assert len(options["The first ten"]) == 10 and options["Help"] == ["-h"]
    assert max(map(len, shown.splitlines())) <= 80
