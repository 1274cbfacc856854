"""Whatever is said, or stands in a file: a command ends in time, with exit code 0 to 3, and tells a mistake in a line.

Few examples, always the same ones, in every run of the tests; many, other ones each time, among the slow ones.
"""

import io
import json
import os
import shutil
import signal
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
import typer
from hypothesis import strategies as st

from harness.capture import captured
from harness.cli import run
from harness.cli.app import COMMANDS, app
from harness.models.networks import build_module
from harness.models.row_model import cross_entropy
from harness.testing import digits

pytestmark = pytest.mark.usefixtures("coarse_losses")

Draw = Callable[[st.SearchStrategy[Any]], Any]

SECONDS = 60
FEW, MANY = 3, 150
AMOUNT = pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])

ATTACK = "--attack-arg max_iterations=1 --surface 2 --no-pictures"
FEDERATION = "--clients 4 --clients-per-round 4 --local-steps 1 --batch-size 3 --split iid"
TRAIN = f"train --dataset digits --model logistic {FEDERATION}"
PRUNED = "--defense pruning+quantile --defense-arg pruning.error_feedback=yes"
CHECKED = "check {here}/attacked --baseline {here}/baseline.json"

# What every example begins from, made once.
RUNS = [
    f"evaluate --defense none --dataset digits --model mlp --victims 24 {ATTACK} --out {{here}}/attacked",
    f"{CHECKED} --update",
    f"{TRAIN} --rounds 1 {PRUNED} --keep-rounds 0,1 --out {{here}}/trained",
    f"{TRAIN} --rounds 1 --algorithm scaffold --keep-rounds 1 --out {{here}}/scaffold",
    f"{TRAIN} --rounds 1 --defense global_dp --bayesian --out {{here}}/bayesian",
]


class TooLongError(BaseException):
    """A command that does not end; nothing in it may catch that."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def ends_well(words: list[str]) -> int:
    """Runs a command; its exit code, which is one of those it may end with."""
    said, told = io.StringIO(), io.StringIO()
    with limited(SECONDS), redirect_stdout(said), redirect_stderr(told):
        try:
            code = run(words)
        except TooLongError:
            assert words[0] in ("bench", "view"), words  # may take as long as told to; serves until it is stopped
            return 0
    assert code in (0, 1, 2, 3, 4), told.getvalue()
    if code == 2:
        # Warnings may stand before the one line of the error.
        lines = told.getvalue().splitlines()
        assert lines and all(line.startswith("harness: ") for line in lines), told.getvalue()
    return code


def search(examples: int, one: Callable[[st.DataObject], None]) -> None:
    """Tries examples; when there are few, always the same ones, and no smaller one is looked for."""
    few = examples == FEW
    shrinking = () if few else (hypothesis.Phase.shrink,)
    chosen = hypothesis.settings(
        max_examples=examples, deadline=None, derandomize=few, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=(hypothesis.Phase.generate, *shrinking),
    )  # fmt: skip
    chosen(hypothesis.given(st.data())(one))()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one run of each kind; commands work in it, without other data than the bundled ones."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_DATA", str(folder / "no-data"))
        patch.setenv("HARNESS_TRACEBACK", "1")
        patch.chdir(folder)
        for line in RUNS:
            assert ends_well(line.format(here=folder).split()) in (0, 3)
        capture(folder / "capture")
        os.mkfifo(folder / "pipe")
        (folder / "noise.bin").write_bytes(bytes(range(256)) * 8)
        yield folder


def capture(folder: Path) -> None:
    """A client of one step on one of scikit-learn's digits."""
    network, (images, labels) = build_module("mlp", (1, 8, 8), 10, seed=0), digits(1)
    facts = {"model": "mlp", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1, "batch_size": 1}
    with captured(network, folder, **facts, defense={"name": "noise", "settings": {"amount": 0.1}}) as watched:
        cross_entropy(network, images[0], labels[0]).backward()
        torch.optim.SGD(network.parameters(), lr=0.1).step()
        watched.batch(images[0], labels[0])


# Options -------------------------------------------------------------------------------------------------------

WORDS = st.one_of(
    st.sampled_from([
        "", " ", ",", ",,", "=", "-", "--", "0", "1", "2", "3", "-1", "1.5", "nan", "inf", "-inf", "1e308", "1e-320",
        "9" * 40, "1" * 5000, "10000000000", "x", "a\0b", "é", "\ud800", "\u202e", "x" * 5000, "[1]", "{}", "none",
        "fed_cdp", "fed_cdp+noise", "+", "cpl", "digits", "mlp", "logistic", "os:system", "math:pi", ":", "sigma=1e308",
        "sigma=", "=3", "sigma=nan", "clip=0", ".=1", "all", "0,1", "T0.in", "1,1", "{}", "%s", "\n", "true",
    ]),
    st.sampled_from([
        "attacked", "trained", "scaffold", "bayesian", "absent", "absent/deep", "pipe", "noise.bin", "/dev/zero",
        "/dev/null", "/dev/full", "/proc/self/mem", "/", "baseline.json", "attacked/results.json", 
        "../..", "trained/models/round_00001.pt", "trained/models/round_00001.state.json", "x.npz", "noise.bin/x",
        "~", "x" * 300,
    ]),
    st.text(string.printable, max_size=6),
)  # fmt: skip

JUDGED = "judge {here}/capture --attack analytic --prior digits"
# What a command needs to end soon; the ones that are not named need nothing.
LINES = {
    "account": ["account --sigma 6 --sampling-rate 0.01 --steps 10", "account --training {here}/bayesian",
                "account --sigma-schedule linear --rounds 3"],
    "audit": ["audit --defense fed_cdp --canary alone --canaries 20 --others 4 --steps 1 --dataset digits --model mlp"],
    "bench": ["bench secagg --clients 3 --length 4", "bench train --dataset digits --clients 1 --repeats 1",
              "bench attack --dataset digits --victims 1 --growth 0"],
    "check": [CHECKED, f"{CHECKED} --update"],
    "compare": ["compare {here}/attacked {here}/attacked"],
    "data": ["data status", "data fetch digits", "data fetch x"],
    "evaluate": [f"evaluate --defense none --dataset digits --model mlp --victims 2 {ATTACK}",
                 f"evaluate --training {{here}}/trained --round 1 --victims 2 {ATTACK}"],
    "frontier": ["frontier --dataset digits --defense fed_cdp --sigma 1 --attack cpl --victims 2 --clients 4 "
                 "--clients-per-round 4 --rounds 1 --local-steps 1 --batch-size 4"],
    "history": ["history {here}/attacked {here}/attacked"],
    "judge": [JUDGED],
    "report": ["report {here}/attacked {here}/trained"],
    "reproduce": ["reproduce x", "reproduce secagg-accounting"],
    "train": [f"{TRAIN} --rounds 1", f"{TRAIN} --rounds 2 --algorithm scaffold --resume --out {{here}}/scaffold"],
}  # fmt: skip


def parameters(words: list[str]) -> list[Any]:
    """The options and arguments of the command of a line."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "get_command"):
            break
        command = command.get_command(None, word) or command
    return command.params


@AMOUNT
@pytest.mark.parametrize("name", COMMANDS)
def test_options(name: str, examples: int, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(data: st.DataObject) -> None:
        place = fresh(here, tmp_path)
        monkeypatch.chdir(place)
        words = data.draw(st.sampled_from(LINES.get(name, [name]))).format(here=place).split()
        for _ in range(data.draw(st.integers(1, 3))):
            chosen = data.draw(st.sampled_from(parameters(words)), label="option")
            value = data.draw(WORDS, label="value")
            if chosen.param_type_name == "argument":
                words.append(value)
            elif chosen.is_flag:
                words.append(data.draw(st.sampled_from([*chosen.opts, *chosen.secondary_opts])))
            else:
                words.append(f"{chosen.opts[0]}={value}")
        ends_well(words)

    search(examples, one)


# What examples like these brought to light.
FOUND = {
    "data root": (f"data status --data-root {'x' * 300}", 2),
    "schedule": (f"account --sigma-schedule {'x' * 300}", 2),
    "report": (f"report attacked --out {'x' * 300}", 2),
    "run of a report": (f"report {'x' * 300}", 2),
    "run of a merge": (f"merge {'x' * 300} attacked --out both", 2),
    "run of a site": (f"site {'x' * 300} --out board", 2),
    "run of a gate": (f"compare {'x' * 300} attacked", 2),
    "dataset": (f"evaluate --defense none --dataset {'x' * 300}.npz", 2),
    "no training in a run": ("report attacked --out one.html", 0),
}
LONG = pytest.param(
    "bench attack --dataset digits --victims 1 --growth 0", 0, id="one victim of a benchmark", marks=pytest.mark.slow
)


@pytest.mark.parametrize(("line", "code"), [*(pytest.param(*case, id=name) for name, case in FOUND.items()), LONG])
def test_found(line: str, code: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    assert ends_well(line.split()) == code


def fresh(here: Path, tmp_path: Path) -> Path:
    """A copy of the runs in place of the one before."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    return Path(shutil.copytree(here, tmp_path / "copy", copy_function=copied))


def copied(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copyfile(source, target)


# Files ---------------------------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(400):
    DEEP = [DEEP]

ODD = st.one_of(
    st.sampled_from([
        None, 3, -1, 0, "x", "", [], {}, 1e308, -1e308, float("nan"), float("inf"), 10**30, True, DEEP, "a\0b",
        [1, [2, "x"]], {"a": {"b": 1}}, "../../x", 1.5, 2**63, "\ud800", "9" * 5000, "[]", "2020-01-01",
    ]),
    st.text(max_size=5), st.integers(), st.floats(),
)  # fmt: skip


def tensors() -> list[Any]:
    return [
        torch.zeros(()), torch.zeros(0), torch.zeros(3), torch.zeros(650, dtype=torch.float64), torch.zeros(650, 1),
        torch.zeros(650, dtype=torch.int64), torch.zeros(650, dtype=torch.bool), torch.full((650,), torch.nan),
        torch.zeros(650).to_sparse(), torch.zeros(650, dtype=torch.complex64), torch.zeros(650, dtype=torch.float16),
        torch.zeros(4, 650, dtype=torch.float64), torch.zeros(1).expand(2**33), torch.zeros(650, device="meta"),
        torch.full((650,), 1e38), torch.tensor(-1.0), torch.tensor(2**62),
    ]  # fmt: skip


def arrays(array: np.ndarray) -> list[Any]:
    others = [np.zeros(3), np.zeros(()), array.astype("U5"), array[..., None], array[:0] if array.ndim else array]
    if array.dtype.kind in "fiu":
        kinds = (np.complex64, np.float16, np.uint64, np.int8, bool)
        others += [array.astype(float) * np.nan, -array.astype(float), *(array.astype(kind) for kind in kinds)]
    return others


def places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a tree of dictionaries and lists; of long lists, in their first entries."""
    if place:
        yield place
    entries = (
        content.items() if isinstance(content, dict) else enumerate(content[:4]) if isinstance(content, list) else ()
    )
    for name, entry in entries:
        yield from places(entry, (*place, name))


def change(content: Any, draw: Draw, odd: st.SearchStrategy[Any]) -> Any:
    """The tree with one entry taken away, renamed or replaced."""
    found = list(places(content))
    if not found or draw(st.integers(0, 30)) == 0:
        return draw(odd)
    *way, last = draw(st.sampled_from(found))
    inner = content
    for name in way:
        inner = inner[name]
    how = draw(st.sampled_from(["lost", "renamed", "other", "other", "other"]))
    if how == "lost" or (how == "renamed" and not isinstance(inner, dict)):
        del inner[last]
    elif how == "renamed":
        inner[f"{last}x"] = inner.pop(last)
    else:
        inner[last] = draw(odd)
    return content


def change_bytes(path: Path, draw: Draw) -> None:
    content = bytearray(path.read_bytes())
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(draw(st.sampled_from([1, 5]))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    path.write_bytes(content)


def change_json(path: Path, draw: Draw) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()), draw, ODD)))


def change_tensors(path: Path, draw: Draw) -> None:
    content = dict(torch.load(path, weights_only=True))
    texts = [name for name in ("settings", "rounds") if isinstance(content.get(name), str)]
    if texts and draw(st.booleans()):
        name = draw(st.sampled_from(texts))
        content[name] = json.dumps(change(json.loads(content[name]), draw, ODD))
    else:
        content = change(content, draw, st.one_of(st.sampled_from(tensors()), ODD))
    torch.save(content, path)


def change_arrays(path: Path, draw: Draw) -> None:
    with np.load(path) as archive:
        content = {name: archive[name] for name in archive.files}
    name = draw(st.sampled_from(sorted(content)))
    other = draw(st.sampled_from([None, *range(len(arrays(content[name])))]), label=name)
    if other is None:
        del content[name]
    else:
        content[name] = arrays(content[name])[other]
    np.savez(path, **content)


CHANGES = {".json": change_json, ".pt": change_tensors, ".npz": change_arrays}

ATTACKED = (
    f"evaluate --defense none --dataset digits --model mlp --victims 24 {ATTACK} --out {{here}}/attacked --resume"
)
SEEN = [CHECKED, "compare {here}/attacked {here}/attacked", "history {here}/attacked", "report {here}/attacked",
        "report {here}/attacked --format md", ATTACKED]  # fmt: skip
BAYESIAN = f"{TRAIN} --rounds 2 --defense global_dp --bayesian --resume --out {{here}}/bayesian"
KEPT = f"--round 1 --victims 2 {ATTACK.replace('--surface 2', '--surface 1')}"

# Files, and the commands that read them.
FILES: dict[str, list[str]] = {
    "attacked/results.json": SEEN,
    "attacked/cells/*": SEEN,
    "attacked/reconstructions/*": [ATTACKED],
    "baseline.json": [f"{CHECKED} --junit j.xml --summary s.md --json", CHECKED],
    "*/training.json": [
        "report {here}/trained {here}/scaffold {here}/bayesian", "account --training {here}/bayesian",
        f"evaluate --training {{here}}/trained {KEPT}", f"evaluate --training {{here}}/scaffold {KEPT}",
    ],
    "scaffold/checkpoint.pt": [LINES["train"][1]],
    "trained/checkpoint.pt": [f"{TRAIN} --rounds 2 {PRUNED} --resume --out {{here}}/trained"],
    "bayesian/checkpoint.pt": [BAYESIAN],
    "bayesian/norms/*": ["account --training {here}/bayesian", BAYESIAN],
    "trained/models/*1.*": [
        f"evaluate --training {{here}}/trained {KEPT}",
        "evaluate --dataset digits --model logistic --defense quantile --weights {here}/trained/models/round_00001.pt "
        "--server-state {here}/trained/models/round_00001.state.json " + KEPT,
    ],
    "scaffold/models/*1.*": [f"evaluate --training {{here}}/scaffold {KEPT}"],
    "capture/*": [JUDGED, "judge {here}/capture --attack analytic"],
    "own.npz": [f"evaluate --defense none --dataset {{here}}/own.npz --model mlp --victims 2 {ATTACK}"],
}  # fmt: skip


# Other files of theirs are read by the same commands, or by the same code.
REPEATED = ("attacked/cells/*", "scaffold/checkpoint.pt")


@AMOUNT
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ()) for name in FILES
])  # fmt: skip
def test_files(name: str, examples: int, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(data: st.DataObject) -> None:
        place = fresh(here, tmp_path)
        monkeypatch.chdir(place)
        np.savez(place / "own.npz", images=np.linspace(0, 1, 2560).reshape(40, 8, 8), labels=np.arange(40) % 4)
        path = data.draw(st.sampled_from(sorted(place.glob(name))))
        change_file = change_bytes if data.draw(st.integers(0, 4)) == 0 else CHANGES[path.suffix]
        change_file(path, data.draw)
        ends_well(data.draw(st.sampled_from(FILES[name])).format(here=place).split())

    search(examples, one)


# Configurations ------------------------------------------------------------------------------------------------

CONFIG = {"defense": '"none"', "dataset": '"digits"', "model": '"mlp"', "victims": "2", "surface": "2",
          "attack-arg": '"max_iterations=1"'}  # fmt: skip
TOML = st.sampled_from([
    "3", "-1", "0", '"x"', '""', "[]", '[1,"x"]', "[[1]]", "{a=1}", "nan", "inf", "1e308", "true", "2020-01-01",
    "07:32:00", '"a\\u0000b"', "9" * 25, "[{}]", f'"{"a" * 3000}"', '"/"', '[""]', '"0"', "[true]", '"../.."', 
    "[" * 500 + "]" * 500,
    "{a=" * 400 + "1" + "}" * 400, "x", "'''\n'''", "1979-05-27T07:32:00Z", "0x_", "é",
])  # fmt: skip


@AMOUNT
def test_configurations(examples: int, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [each.opts[0].removeprefix("--") for each in parameters(["evaluate"]) if each.opts[0] != "--json"]

    def one(data: st.DataObject) -> None:
        monkeypatch.chdir(tmp_path)
        chosen = data.draw(st.dictionaries(st.sampled_from(options), TOML, min_size=1, max_size=2))
        lines = [f"{name} = {value}" for name, value in (CONFIG | chosen).items()]
        (tmp_path / "options.toml").write_text("\n".join(lines))
        ends_well(["evaluate", "--config", "options.toml", "--no-pictures"])

    search(examples * 3, one)
