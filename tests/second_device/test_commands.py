"""Commands on the CPU and on an emulated GPU: equal outcomes, verdicts and trained networks.

Run by ``.ci/second_device``: ``pytest -p second_device -m second_device`` with this folder on PYTHONPATH. What takes no
part here is on one device by construction: numerics of cuBLAS and cuDNN, and anything about time.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.second_device

ROOT = Path(__file__).parents[2]
_QUICK = "--victims 3 --no-pictures --jobs 1 --dataset digits --model mlp --surface 2"
_TRAIN = (
    "--clients 6 --clients-per-round 3 --rounds 2 --local-steps 3 --batch-size 4 --dataset digits --model mlp --seed 0"
)

EVALUATED = {
    "papers": f"--defense none,fed_sdp,fed_cdp,fed_acdp --attack cpl --attack-arg max_iterations=8 {_QUICK}",
    # Without a line search the last bits of a loss of 10^7 decide what comes back; lenet's are smaller.
    "labels": "--defense none,fed_cdp --attack dlg,idlg --attack-arg max_iterations=8 --dataset mnist-sample "
    "--victims 2 --no-pictures --jobs 1 --surface 2",
    "adam": f"--defense none,fed_cdp --attack inverting_gradients --attack-arg max_iterations=25 {_QUICK}",
    "informed": "--defense none,fed_acdp --attack map,identify,slope,levels,blind --prior auto "
    f"--attack-arg map.max_iterations=2 {_QUICK}",
    "batches": "--defense none,fed_cdp --attack map,membership --prior auto --batch-size 2 "
    f"--attack-arg map.max_iterations=3 {_QUICK}",
    "steps": "--defense none,fed_cdp --attack cpl --batch-size 2 --local-steps 2 --update-model unroll "
    f"--attack-arg max_iterations=2 {_QUICK.replace('--surface 2', '--surface 1')}",
    "sums": "--defense secagg_ddp --attack map,identify --prior auto --clients-per-round 4 --model logistic "
    "--attack-arg map.max_iterations=2 --victims 3 --no-pictures --jobs 1 --dataset digits --surface 0",
    "spear": "--defense none,fed_cdp --attack spear --batch-size 4 --victims 3 --no-pictures --jobs 1 --dataset digits "
    "--model mlp2 --surface 2",
    "tampering": "--defense none,fed_cdp --attack imprint,loki --adversary tampering --prior auto "
    f"--attack-arg imprint.bins=32 --attack-arg loki.bins=16 {_QUICK}",
    "learned": "--defense fed_cdp --attack learned --prior auto --shared-weights --model logistic --victims 3 "
    "--no-pictures --jobs 1 --dataset digits --surface 2",
    "laplace": "--defense noise --defense-arg distribution=laplace --defense-arg amount=0.01 --attack map,identify "
    f"--prior auto --attack-arg map.max_iterations=3 {_QUICK}",
    "adam client": "--defense none --optimizer adam:lr=0.001 --attack inverting_gradients,cpl --prior auto "
    f"--attack-arg max_iterations=10 {_QUICK.replace('--surface 2', '--surface 1')}",
    "rounds": f"--defense fed_cdp --rounds-seen 1,3 --attack identify --prior auto {_QUICK}",
    "texts": "--defense none --attack token_rows,span --dataset notes --victims 2 --no-pictures --jobs 1 --surface 2",
    "texts by beginnings": "--defense none --attack span --dataset notes --model text_writer --batch-size 2 "
    "--victims 2 --no-pictures --jobs 1 --surface 2",
    "texts after Adam": "--defense none --attack span --dataset notes --optimizer adam --learning-rate 0.001 "
    "--update-model avg --victims 2 --no-pictures --jobs 1 --surface 1",
    "vit": "--defense none,fed_cdp --attack patches --model vit --dataset cifar10-sample --victims 2 --no-pictures "
    "--jobs 1 --surface 2",
    "tables": "--defense none --attack rows --dataset cancer --model ft_transformer --batch-size 2 --victims 1 "
    "--no-pictures --jobs 1 --surface 2",
    "convolutions": "--defense none,fed_cdp --attack cpl --dataset mnist-sample --victims 2 --no-pictures --jobs 1 "
    "--attack-arg max_iterations=4 --surface 2",
    "batch norm": "--defense none --attack gradinversion --dataset cifar10-sample --model resnet8 --batch-size 2 "
    "--victims 2 --attack-arg max_iterations=3 --no-pictures --jobs 1 --surface 2",
}

TRAINED = {
    name: f"--defense {name} {_TRAIN} {more}"
    for name, more in {
        "none": "", "fed_cdp": "--chunk 2", "fed_acdp": "", "fed_sdp": "", "quantile": "", "adaclip": "",
        "secagg_ddp": "--split iid --examples 20", "dp_local": "--algorithm scaffold --split iid --examples 20",
    }.items()
}  # fmt: skip

_CANARIES = "--canaries 40 --others 6 --steps 2 --rounds 2 --dataset digits --model mlp"
AUDITED = {
    "examples": "--defense fed_cdp,fed_acdp --sampling-rate 0.5 --canary together,norm",
    "clients": "--defense fed_sdp --canary together",
    "sums": "--defense secagg_ddp --clients-per-round 4 --canary together",
}

Command = Callable[..., Any]


def both(harness: Command, command: str, words: str) -> tuple[Path, Path]:
    folders = Path("cpu").absolute(), Path("cuda").absolute()
    for folder in folders:
        done = harness(command, *words.split(), "--device", folder.name, "--out", str(folder))
        assert done.code in (0, 3), done.err
    return folders


@pytest.mark.parametrize("name", EVALUATED)
def test_outcomes_and_verdicts_are_equal(harness: Command, name: str) -> None:
    on_cpu, on_cuda = (told(folder) for folder in both(harness, "evaluate", EVALUATED[name]))
    assert on_cuda == on_cpu


def told(folder: Path) -> list[object]:
    """What a run says of each cell, and what became of each victim."""
    cells = json.loads((folder / "results.json").read_text())["cells"]
    lines = (json.loads(line) for line in (folder / "victims.jsonl").read_text().splitlines())
    said = sorted((one["defense"], one["attack"], one["tap"], str(one.get("verdict"))) for one in cells)
    return [said, sorted((one["role"], *(str(one[key]) for key in _VICTIM)) for one in lines)]


_VICTIM = ("defense", "attack", "tap", "victim", "image", "outcome", "label")


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_equal(harness: Command, name: str) -> None:
    on_cpu, on_cuda = (json.loads((one / "training.json").read_text()) for one in both(harness, "train", TRAINED[name]))
    assert numbers(on_cuda) == pytest.approx(numbers(on_cpu), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", AUDITED)
def test_audits_are_equal(harness: Command, name: str) -> None:
    on_cpu, on_cuda = (
        harness("audit", *f"{AUDITED[name]} {_CANARIES} --json --device {device}".split()) for device in ("cpu", "cuda")
    )
    assert on_cpu.code == 0, on_cpu.err
    assert json.loads(on_cuda.out)["audits"] == json.loads(on_cpu.out)["audits"], on_cuda.err


def numbers(document: Any, at: str = "") -> dict[str, float]:
    """All numbers of a document but those of the machine and of time."""
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if not set(key.split("_")) & _MACHINE}
        return {place: value for key, one in kept.items() for place, value in numbers(one, f"{at}.{key}").items()}
    if isinstance(document, list):
        return {place: value for i, one in enumerate(document) for place, value in numbers(one, f"{at}[{i}]").items()}
    return {at: float(document)} if isinstance(document, int | float) else {}


_MACHINE = {"seconds", "memory", "environment", "device", "threads", "key", "written"}


def test_where_memory_ends_the_attack_goes_on_with_fewer_victims(
    harness: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Free memory is asked before the chunk is chosen; another process may take some of it afterwards."""
    import second_device

    from harness.base import devices

    device = second_device.install()
    starts = "--attack cpl --attack-arg max_iterations=3 --attack-arg restarts=16 --chunk 512"
    words = f"evaluate --defense none {starts} {_QUICK} --device cuda".split()
    words[words.index("--victims") + 1] = "24"
    device.reset_peak(0)
    assert harness(*words, "--out", "whole").code in (0, 3)
    monkeypatch.setattr(devices, "_free", lambda device: None)
    usual = device.limit()
    device.set_limit(device.held(0) + (device.peak(0) - device.held(0)) * 2 // 3)
    try:
        done = harness(*words, "--out", "halves")
    finally:
        device.set_limit(usual)
    assert done.code in (0, 3), done.err
    assert "memory ended; the attack goes on with" in caplog.text
    assert told(Path("halves")) == told(Path("whole"))


def test_a_gpu_is_chosen_by_its_number(harness: Command) -> None:
    import second_device

    device = second_device.install()
    before = device.held(0)
    device.reset_peak(0)
    device.reset_peak(1)
    words = f"evaluate --defense fed_cdp --attack cpl --attack-arg max_iterations=3 {_QUICK}".split()
    assert harness(*words, "--device", "cuda:1", "--out", "second").code in (0, 3)
    assert device.peak(1) > 0
    assert device.peak(0) == before, "something was computed on the other GPU"
    assert harness(*words, "--device", "cpu", "--out", "cpu").code in (0, 3)
    assert told(Path("second")) == told(Path("cpu"))
    missing = harness(*words, "--device", "cuda:7", "--out", "third")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "the GPUs here are cuda:0, cuda:1" in missing.err


def test_a_process_computes_on_its_own_gpu(harness: Command, tmp_path: Path) -> None:
    """As each of ``--jobs N`` takes one, in the order in which they begin."""
    import second_device

    from harness.parallel.processes import take_place

    device = second_device.install()
    assert [take_place(tmp_path) for _ in range(3)] == [0, 1, 2]
    words = f"evaluate --defense none,fed_cdp --attack cpl,identify --prior auto {_QUICK} --device cuda".split()
    before = device.held(0)
    device.reset_peak(0)
    torch.cuda.set_device(1)
    try:
        assert harness(*words, "--attack-arg", "cpl.max_iterations=3", "--out", "own").code in (0, 3)
    finally:
        torch.cuda.set_device(0)
    assert device.peak(1) > 0
    assert device.peak(0) == before, "something was computed on the other GPU"


def test_devices_do_not_mix() -> None:
    """The emulation refuses what CUDA refuses, or it would show nothing."""
    here, there = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    for other in (torch.ones(3), there):
        with pytest.raises(RuntimeError, match="same device"):
            here + other
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())


#: Transfers taken out of the source: file, what stands there, what stands there without it, and the command that fails.
#: Not noticed is ``model.to(device, dtype)`` in ``evaluation/observe.py``: networks compute with weights that they are
#: given, which are on the device, and their own are asked for by few.
REMOVED = {
    "rows that go on": (
        "attacks/engine.py", "optimizer.take(self._doubled(positions).to(self.position.device))",
        "optimizer.take(self._doubled(positions))", EVALUATED["papers"].replace("=8", "=60"),
    ),
    "starts": (
        "attacks/engine.py", "len(keys)).to(observation.target)", "len(keys))", EVALUATED["papers"],
    ),
    "labels of restarts that are left out": (
        "attacks/engine.py", "(self.labels >= 0).all(1).cpu()", "(self.labels >= 0).all(1)", EVALUATED["informed"],
    ),
    "images of a class": (
        "attacks/map.py", "images[rows].to(seen.target)", "images[rows]", EVALUATED["informed"],
    ),
    "candidates": ("attacks/identify.py", "images[:, None].to(target)", "images[:, None]", EVALUATED["informed"]),
    "brightness": ("attacks/imprint.py", ").to(observation.target)", ")", EVALUATED["tampering"]),
    "what the attacker knows of a class": (
        "harness/evaluation/observe.py", "prior=split.prior.to(device, dtype)", "prior=split.prior",
        EVALUATED["informed"],
    ),
    "words": ("attacks/token_layers.py", "images_of(some).to(own)", "images_of(some)", EVALUATED["texts"]),
}  # fmt: skip

#: A command of which one file is read with another text in place of one.
_PATCHED = """
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import second_device

file, here, without, *words = sys.argv[1:]
usual = SourceFileLoader.get_code


def patched(loader, name):
    if loader.path != file:
        return usual(loader, name)
    return compile(Path(file).read_text().replace(here, without), file, "exec")


SourceFileLoader.get_code = patched
second_device.install()
from harness.cli import run

sys.exit(run(words))
"""


@pytest.mark.parametrize("name", REMOVED)
def test_a_transfer_that_is_missing_is_noticed(tmp_path: Path, name: str) -> None:
    file, here, without, words = REMOVED[name]
    assert (ROOT / file).read_text().count(here) == 1, f"{here!r} does not stand in {file} once"
    program = [sys.executable, "-c", _PATCHED, str(ROOT / file), here, without]
    done = subprocess.run(
        [*program, "evaluate", *words.split(), "--device", "cuda"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "HARNESS_TRACEBACK": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode not in (0, 3), "nobody notices that it is missing"
    assert "EMULATED" in done.stderr, done.stderr
