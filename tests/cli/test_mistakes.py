"""Every user's mistake: exit code 2, one line on standard error that names the fix, nothing on standard output."""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EVALUATE = "evaluate --defense none --dataset digits --victims 2 --attack-arg max_iterations=1 "

# Command line, and what the one line must say.
MISTAKES: dict[str, tuple[str, str]] = {
    # names
    "no defense": ("evaluate", "--defense fed_acdp"),
    "empty defense": ("evaluate --defense ,", "--defense fed_acdp"),
    "defense": ("evaluate --defense fed_acpd", "did you mean 'fed_acdp'"),
    "attack": (EVALUATE + "--attack cpll", "did you mean 'cpl'"),
    "settings of a suite": ("evaluate --defense none --attack auto --attack-arg max_iterations=1", "takes no settings"),
    "settings of a suite beside others": (EVALUATE + "--attack cpl,auto-8 --attack-arg auto.tv=1", "NAME.key=value"),
    "settings of a member": (
        "evaluate --defense none --attack auto,dlg --attack-arg cpl.tv=1",
        "name it with --attack",
    ),
    "a suite without public data": ("evaluate --defense none --attack auto --prior none", "use --prior auto"),
    "suite of another version": (EVALUATE + "--attack auto-0", "unknown attack 'auto-0'"),
    "suite of an earlier version": (EVALUATE + "--attack auto-5", "suite auto-5 belongs to 0.1.7; use auto"),
    "empty attack": (EVALUATE + "--attack ,", "--attack is empty"),
    "public data": (EVALUATE + "--prior digts", "did you mean 'digits'"),
    "no public data": (EVALUATE + "--prior=", "--prior is empty"),
    "empty surface": (EVALUATE + "--surface ''", "--surface is empty; give it a value or leave it out"),
    "empty surfaces": (EVALUATE + "--surface ,", "--surface is empty; give it a value or leave it out"),
    "empty tap": (EVALUATE + "--tap ,", "--tap is empty"),
    "empty output": (EVALUATE + "--out ''", "--out is empty; give it a value or leave it out"),
    "empty output of another command": ("train --dataset cancer --out=", "--out is empty"),
    "a surface and a tap": (EVALUATE + "--surface 2 --tap T1.out", "both --surface and --tap were given; choose one"),
    "a surface and a tap of a frontier": ("frontier --surface 2 --tap T1.out", "choose one"),
    "parts of nothing": (EVALUATE + "--shard 1/0", "take one of 1 to 10000"),
    "nothing new": ("new", "Choose from: attack, defense"),
    "something else new": ("new foo bar", "Invalid value for 'kind': 'foo' is not one of 'attack', 'defense'"),
    "file of public data": (EVALUATE + "--prior absent.npz", "is not a file"),
    "public data of another shape": (EVALUATE + "--prior mnist-sample", "--prior auto"),
    "private data as public": (EVALUATE + "--dataset digits --prior digits", "use --prior auto"),
    "nothing public": (EVALUATE + "--attack blind --prior none", "use --prior auto"),
    "all private data and more": (EVALUATE + "--dataset digits --prior auto --victims 1000", "the rest is public"),
    "public data that are a number": (
        "evaluate --config prior.toml",
        "'prior' in 'prior.toml': Input should be a valid string",
    ),
    "dataset": ("evaluate --defense none --dataset digit", "did you mean 'digits'"),
    "unrecognisable dataset": ("evaluate --defense none --dataset zzz", "mnist-sample"),
    "empty model": (EVALUATE + "--model ,", "--model is empty"),
    "convolution on a table": ("evaluate --defense none --dataset cancer --model lenet", "use --model mlp2"),
    "attack on another network": (EVALUATE + "--model lenet --attack analytic", "use --model mlp2"),
    "model": (EVALUATE + "--model lenett", "did you mean 'lenet'"),
    "an honest server that tampers": (EVALUATE + "--attack imprint --adversary honest", "use --adversary tampering"),
    "a tampering server without an attack": (EVALUATE + "--adversary tampering", "use --attack imprint"),
    "adversary": (EVALUATE + "--adversary curious", "honest or tampering"),
    "fewer bins than images": (
        EVALUATE + "--attack imprint --attack-arg bins=4 --batch-size 8",
        "--attack-arg imprint.bins=64",
    ),
    "traps without a layer for them": (
        "evaluate --defense none --dataset digits --victims 2 --model lenet --attack trap_weights",
        "use --model mlp2",
    ),
    "bins without public data": (EVALUATE + "--attack imprint --prior none", "use --prior auto"),
    "module of a model": (EVALUATE + "--model absent_module:make", "check the module name"),
    "factory of a model": (EVALUATE + "--model math:make", "check its name"),
    "surface": (EVALUATE + "--surface 3", "0 (server), 1 (update) and 2 (local step)"),
    "surface in words": (EVALUATE + "--surface server", "whole numbers"),
    "tap": (EVALUATE + "--tap T2.stp", "T2.step"),
    "tap the defense lacks": (EVALUATE + "--tap T2.clip", "choose T2.step"),
    "preset": ("evaluate --preset glanc", "did you mean 'glance'"),
    "unrecognisable preset": ("evaluate --preset zzz", "tour, glance"),
    "preset and config": ("evaluate --preset glance --config unknown.toml", "choose one"),
    "command": ("evalute", "'evaluate'"),
    "option": (EVALUATE + "--vctims 3", "--victims) (see harness evaluate --help)"),
    "option of a part": ("bench train --vctims 3", "(see harness bench train --help)"),
    "stray word": (EVALUATE + "fed_cdp", "--help"),
    "option without a value": ("evaluate --defense", "requires an argument (see harness evaluate --help)"),
    "section of the list": ("list attack", "choose attacks"),
    "dataset to fetch": ("data fetch mnis", "did you mean 'mnist'"),
    # settings
    "setting": (EVALUATE + "--attack-arg iterations=3", "did you mean 'max_iterations'"),
    "setting of one": (EVALUATE + "--attack-arg cpl.restart=3", "did you mean 'restarts'"),
    "setting of another": (EVALUATE + "--attack-arg dlg.tv=1", "--attack"),
    "setting without a value": (EVALUATE + "--attack-arg tv", "key=value"),
    "NaN": ("evaluate --defense fed_cdp --defense-arg sigma=nan", "sigma: Input should be a finite number"),
    "negative": ("evaluate --defense fed_cdp --defense-arg clip=-1", "clip: Input should be greater than 0"),
    "word for a number": ("evaluate --defense fed_cdp --defense-arg clip=much", "clip: Input should be a valid number"),
    "start": (EVALUATE + "--attack-arg init=zebra", "pattern-1/4"),
    "label rule": (EVALUATE + "--attack-arg label_rule=zebra", "row_sum"),
    # numbers
    "no accountant": ("account --sigma 6 --steps 10 --accountant ,", "or all"),
    "stop rule": ("account --sigma 6 --steps 10 --stop late", "choose paper, filter"),
    "conversion": ("account --sigma 6 --steps 10 --accountant pld --conversion new", "choose mironov, improved"),
    "rate of never": ("account --sigma 6 --steps 10 --sampling-rate 1e-320", "at least 1e-12"),
    "layers": ("account --sigma 6 --steps 10 --layers 1000000000", "less than or equal to 10000000"),
    "clients of an account": ("account --sigma 6 --steps 10 --clients 10000000000", "less than or equal to 10000000"),
    "rounds of a schedule": ("account --sigma-schedule linear --rounds 1000000000", "less than or equal to"),
    "steps of a schedule": ("account --sigma-schedule linear --rounds 10 --steps 10000000000", "less than or equal to"),
    "budget of a galaxy": ("account --sigma 6 --target-epsilon 1e308", "at most 1e+06"),
    "rounds of an audit": ("audit --defense fed_cdp --rounds 1000000000", "take fewer"),
    "canaries": ("audit --defense fed_cdp --canaries 1000000000000", "lower --rounds, --steps, --canaries"),
    "rate of an audit": ("audit --defense fed_cdp --sampling-rate 1e-320", "--sampling-rate must lie in"),
    "clients of a bench": ("bench train --clients 1000000000", "lower --clients or --batch-size"),
    "batch of a bench": ("bench train --batch-size 1000000000", "less than or equal to 1000000"),
    "length of a bench": ("bench secagg --clients 100000 --length 1000000000", "lower --clients or --length"),
    "clients of a training": ("train --dataset cancer --clients 1000000000", "less than or equal to 10000000"),
    "rounds of a training": ("train --dataset cancer --rounds 1000000000", "less than or equal to 10000000"),
    "steps of a training": ("train --dataset cancer --local-steps 1000000000", "less than or equal to 10000000"),
    "work of a training": ("train --dataset cancer --rounds 100000 --batch-size 5000", "more than"),
    "data of a training": (
        "train --dataset cancer --clients 10000000 --examples 10000000 --local-steps 1 --rounds 1",
        "GB are free",
    ),
    "clip of a galaxy": ("evaluate --defense fed_sdp --defense-arg clip=1e308", "take 1e-30 to 1e+30"),
    "floor of a galaxy": ("evaluate --defense fed_acdp --defense-arg floor=1e308", "take 1e-30 to 1e+30"),
    "deviations": ("evaluate --defense secagg_ddp --defense-arg deviations=1e308", "take 1e-30 to 1e+30"),
    "restarts": (EVALUATE + "--attack-arg restarts=1000000000", "less than or equal to 1000"),
    "warm-up": (
        "evaluate --defense none --attack gradinversion --attack-arg warm_up=1000000000",
        "less than or equal to",
    ),
    "looks": (EVALUATE + "--observations 1000000000", "less than or equal to 1000"),
    "steps of all rounds": (EVALUATE + "--rounds 10000000 --steps-per-round 10000000", "take fewer"),
    "chunk of a table": ("reproduce table1 --chunk 0", "--chunk must be at least 1"),
    "no round of a capture": ("judge a --rounds-seen 0", "--rounds-seen must be at least 1"),
    "chunk of a capture": ("judge a --chunk 0", "--chunk must be at least 1"),
    "chunk of a table below 0": ("reproduce table1 --chunk=-5", "--chunk must be at least 1"),
    "victims of a table": ("reproduce table1 --victims 99999999", "less than or equal to"),
    "delta of an atom": ("account --sigma 6 --steps 10 --delta 1e-320", "in (0, 1), at least 1e-30, got"),
    "delta of an audited atom": ("audit --defense fed_cdp --delta 1e-320", "in (0, 1), at least 1e-30, got"),
    "scaled sigma of a galaxy": (
        "train --dataset cancer --rounds 1 --defense fed_sdp --defense-arg sigma=1e30 --defense-arg clip=1",
        "after scaling by the convention",
    ),
    "sigma of a galaxy": ("account --sigma 1e155 --steps 10", "1e-30 to 1e+30"),
    "sigma of an atom": ("account --sigma 1e-300 --steps 10", "1e-30 to 1e+30"),
    "variance": ("train --dataset cancer --defense adaclip --defense-arg variance_high=1e300", "variance_high"),
    "rounds kept": ("train --dataset cancer --rounds 1 --keep-rounds=-1", "rounds 0 to 1"),
    "rounds kept beyond": ("train --dataset cancer --rounds 1 --keep-rounds=2", "rounds 0 to 1"),
    "no victims": ("evaluate --defense none --victims 0", "--victims: Input should be greater than or equal to 1"),
    "victims in words": ("evaluate --defense none --victims two", "--victims"),
    "no batch": (EVALUATE + "--batch-size 0", "--batch-size: Input should be greater"),
    "batch in words": (EVALUATE + "--batch-size a,b", "--batch-size takes whole numbers"),
    "learning rate NaN": (EVALUATE + "--learning-rate nan", "--learning-rate: Input should be a finite number"),
    "learning rate": (EVALUATE + "--learning-rate=-1", "--learning-rate: Input should be greater than 0"),
    "seed": (EVALUATE + "--seed=-1", "--seed 0,1,2"),
    "chunk": (EVALUATE + "--chunk 0", "--chunk must be at least 1"),
    "chunk of the benchmark": ("bench attack --chunk 0", "--chunk must be at least 1"),
    "clients per round": (EVALUATE + "--clients 5", "lower --clients-per-round"),
    "round beyond rounds": (EVALUATE + "--round 100", "raise --rounds"),
    "round without weights": (EVALUATE + "--round 5", "--weights"),
    "local steps seen as one": (EVALUATE + "--local-steps 2", "avg or unroll"),
    "update model": (EVALUATE + "--local-steps 2 --update-model unrol", "'first', 'avg', 'path' or 'unroll'"),
    "labels": (EVALUATE + "--labels guess", "'inferred' or 'known'"),
    "engine": (EVALUATE + "--engine fast", "'batched' or 'reference'"),
    "precision": (EVALUATE + "--dtype float16", "'float32' or 'float64'"),
    "device": (EVALUATE + "--device tpu", "auto, cpu, cuda or cuda:N"),
    # more than the data has
    "victims than images": ("evaluate --defense none --dataset digits --victims 5000", "ask for fewer"),
    "steps than epsilon counts": (
        EVALUATE + "--local-steps 9 --steps-per-round 2",
        "raise --steps-per-round, or lower --local-steps",
    ),
    "clients a round of a training": ("train --clients 5", "lower --clients-per-round"),
    "epochs of nobody's examples": ("train --epochs 2", "give --examples, at least as many as --batch-size"),
    "no epoch": ("train --epochs 0", "--epochs: Input should be greater than or equal to 1"),
    "no delta": ("train --delta 0", "--delta: Input should be greater than or equal to 1e-30, got"),
    "level of dirichlet": ("train --split dirichlet --level 0", "--level 0 does not fit --split dirichlet; give more"),
    "an option of a function for Python": ("account", "add --sigma 6, --sigma-schedule linear"),
    "rounds of a frontier": ("frontier --rounds 0", "--rounds: Input should be"),
    "batches in a config": ("evaluate --config batches.toml", "'batch-size' in 'batches.toml' takes whole numbers"),
    "rounds in a config": ("evaluate --config rounds.toml", "raise 'rounds' in 'rounds.toml'"),
    "an option over a config": ("evaluate --config rounds.toml --rounds 2", "raise --rounds"),
    "no look": (EVALUATE + "--observations 0", "--observations: Input should be greater"),
    "looks in words": (EVALUATE + "--observations many", "--observations takes whole numbers"),
    "batch than classes": (EVALUATE + "--batch-size 11 --distinct-labels", "fewer examples"),
    # files
    "absent config": ("evaluate --config absent.toml", "check --config"),
    "config is a folder": ("evaluate --config folder", "check --config"),
    "config is not TOML": ("evaluate --config broken.toml", "is not TOML"),
    "config is not text": ("evaluate --config binary.toml", "is not TOML"),
    "option in a config": ("evaluate --config unknown.toml", "harness evaluate --help"),
    "type in a config": ("evaluate --config typed.toml", "'victims' in 'typed.toml': Input should be a valid integer"),
    "Boolean in a config": ("evaluate --config boolean.toml", "'victims' in 'boolean.toml': a Boolean is no number"),
    "word for a Boolean in a config": ("evaluate --config no.toml", "'distinct-labels' in 'no.toml': Input should be"),
    "list in a config": ("evaluate --config numbers.toml", "key=value"),
    "weights in a config": ("evaluate --config weights.toml", "check --weights"),
    "absent data": ("evaluate --defense none --dataset absent.npz", "give the path of an .npz file"),
    "corrupt data": ("evaluate --defense none --dataset corrupt.npz", "numpy.savez"),
    "data without labels": ("evaluate --defense none --dataset unlabelled.npz", "has no array 'labels'"),
    "dataset not at hand": ("evaluate --defense none --dataset mnist", "harness data fetch mnist"),
    "data root": ("data status --data-root file", "--data-root or HARNESS_DATA"),
    "output is a file": (
        EVALUATE + "--out file",
        "cannot write 'file' (it is a file); choose another place",
    ),
    "output is a device": (EVALUATE + "--out /dev/null", "cannot write '/dev/null' (it is a device)"),
    "output is a link to nowhere": (EVALUATE + "--out dangling", "cannot write 'dangling' (it is a link)"),
    "output below a file": (EVALUATE + "--out file/below", "choose another place with --out"),
    "absent weights": (EVALUATE + "--weights absent.pt", "check --weights"),
    "corrupt weights": (EVALUATE + "--weights corrupt.pt", "save a state_dict"),
    "weights of another network": (EVALUATE + "--weights other.pt", "save a state_dict"),
}


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Unusable files in the working folder."""
    texts = {
        "file": "",
        "broken.toml": "defense = [",
        "unknown.toml": 'defence = "none"',
        "boolean.toml": 'defense = "none"\nvictims = true',
        "no.toml": 'defense = "none"\ndistinct-labels = "no"',
        "typed.toml": 'defense = "none"\nvictims = "many"',
        "batches.toml": 'defense = "none"\nbatch-size = 2.5',
        "rounds.toml": 'defense = "none"\nrounds = 3\nround = 3',
        "numbers.toml": 'defense = "none"\nattack-arg = [1]',
        "prior.toml": 'defense = "none"\nprior = 3',
        "weights.toml": 'defense = "none"\nweights = 3',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for name in ("corrupt.npz", "corrupt.pt", "binary.toml"):
        (tmp_path / name).write_bytes(b"PK\x03\x04\xff\xfe broken")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    np.savez(tmp_path / "unlabelled.npz", images=np.zeros((3, 8, 8), dtype=np.uint8))
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("line", "fix"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_that_names_the_fix(harness: Callable[..., Any], line: str, fix: str) -> None:
    finished = harness(*shlex.split(line))
    assert finished.code == 2
    assert finished.out == ""
    assert finished.err.startswith("harness: ")
    assert finished.err.count("\n") == 1
    assert fix in finished.err


def test_a_gpu_asked_for_where_there_is_none(harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finished = harness(*shlex.split(EVALUATE + "--device cuda"))
    assert (finished.code, finished.out) == (2, "")
    assert finished.err == "harness: no CUDA device is available here; use --device cpu\n"


def test_a_mistake_leaves_no_traceback_in_a_process_of_its_own(program: str, tmp_path: Path) -> None:
    arguments = [program, "evaluate", "--defense", "fed_acpd", "--out", str(tmp_path / "runs")]
    finished = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == "harness: unknown defense 'fed_acpd'; did you mean 'fed_acdp'?\n"
    assert not (tmp_path / "runs").exists()
