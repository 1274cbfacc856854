"""Captures and their documents with one to three mistakes each, through ``harness judge`` and its checks alone.

python benchmarks/mutated_captures.py --count 1500 --seed 0

Every run has to end with an exit code below 70 and without a traceback; whatever is not judged is one line.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import contextlib
import io
import json
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.capture import captured
from harness.cli import run
from harness.models import build_module

_FACTS: dict[str, Any] = {
    "model": "logistic", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1, "batch_size": 1,
}  # fmt: skip
_DECLARED: list[dict[str, Any]] = [
    {"name": "LocalDpMod", "settings": {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 8.0, "delta": 1e-5}},
    {"name": "fixedclipping_mod", "settings": {"clipping_norm": 1.0}},
    {"name": "make_private", "settings": {"noise_multiplier": 1.0, "max_grad_norm": 1.0}},
    {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 6.0, "clipping": "whole"}},
    {"name": "pruning", "settings": {}}, {"name": "quantile", "settings": {}},
]  # fmt: skip
_ODD: list[Any] = [
    None, True, 0, 1, 2, -1, 3, 1e308, 1e-320, 2**70, "", "x", "sgd", "adam", "\x1b[31m", "\ud800", "run:make", "lenet",
    [], [1, 8, 8], [1, 2, 3, 4], {}, {"name": "none"}, [None], "torchvision:resnet18", "mlp+no_dropout", "after",
]  # fmt: skip


def write(folder: Path, draw: random.Random) -> None:
    """A capture that is as it should be."""
    network = build_module("logistic", (1, 8, 8), 10, seed=draw.randrange(3))
    declared = draw.choice([None, *_DECLARED])
    with captured(network, folder, **_FACTS | {"defense": declared}) as capture:
        images = torch.tensor(np.random.default_rng(draw.randrange(99)).random((1, 1, 8, 8)), dtype=torch.float32)
        labels = torch.tensor([draw.randrange(10)])
        nn.functional.cross_entropy(network(images), labels).backward()
        torch.optim.SGD(network.parameters(), lr=0.1).step()
        if draw.random() < 0.7:
            capture.batch(images, labels)


def of_document(folder: Path, draw: random.Random) -> None:
    """Another value, or none, at some place of capture.json."""
    path = folder / "capture.json"
    try:
        place = document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return  # another mistake came first
    while isinstance(place, dict):
        key = draw.choice([*place, "unknown"])
        if isinstance(place.get(key), dict) and draw.random() < 0.7:
            place = place[key]
        elif draw.random() < 0.2:
            place.pop(key, None)
            break
        else:
            number = isinstance(place.get(key), int | float) and draw.random() < 0.6
            place[key] = place[key] * draw.choice([0.5, 2, 10]) if number else draw.choice(_ODD)
            break
    path.write_text(json.dumps(document))


def of_bytes(folder: Path, draw: random.Random) -> None:
    """Flipped, cut or added bytes of any file."""
    path = draw.choice([one for one in sorted(folder.iterdir()) if one.is_file()] or [folder / "capture.json"])
    if not path.exists():
        return
    content = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 6)):
        if content:
            content[draw.randrange(len(content))] = draw.randrange(256)
    kept = draw.choice([len(content), len(content), draw.randrange(len(content) + 1)])
    path.write_bytes(bytes(content[:kept]) + draw.choice([b"", b"", b"PK", bytes(40)]))


def of_arrays(folder: Path, draw: random.Random) -> None:
    """Other values, types, shapes and names of arrays."""
    path = draw.choice([one for one in sorted(folder.glob("*.npz"))] or [folder / "after.npz"])
    try:
        with np.load(path) as archive:
            arrays = dict(archive)
    except Exception:  # numpy raises a dozen types for a damaged archive
        return  # another mistake came first
    if not arrays:
        return
    name = draw.choice(sorted(arrays))
    changed: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda one: one * np.float32(draw.choice([0, -1, 1e30, 1e-40, np.nan, np.inf])), lambda one: one[:0],
        lambda one: one[..., None], lambda one: one.T, lambda one: one.astype(draw.choice([">f8", "f2", "i1", "?"])),
        lambda one: one.astype("c8"), lambda one: one.astype("U5"), lambda one: np.array(3), lambda one: one[::-1],
        lambda one: np.full_like(one, draw.choice([0, 1, 2, 250])),
    ]  # fmt: skip
    # What an earlier mistake made of an array may not admit this one.
    with np.errstate(all="ignore"), contextlib.suppress(IndexError, TypeError, ValueError):
        arrays[name] = draw.choice(changed)(arrays[name])
    if draw.random() < 0.3:
        prefix = draw.choice(["module.", "_orig_mod.", "arr_0", "", "a" * 300, "\x1b[1m"])
        arrays[draw.choice([prefix, prefix + name])] = arrays.pop(name)
    np.savez(path, **arrays)


def of_files(folder: Path, draw: random.Random) -> None:
    """Files that are missing, empty, folders or of another name."""
    path = draw.choice([*sorted(folder.iterdir()), folder / "capture.json"])
    if not path.is_file():
        return
    other = draw.choice(["update.npz", "gradient.npz", "after.pt", "after.safetensors", "truth.npz", "before.npz"])
    if draw.random() < 0.5 and not (folder / other).is_dir():
        path.rename(folder / other)
    else:
        path.unlink()
        draw.choice([lambda: None, path.mkdir, path.touch])()


def run_quietly(arguments: list[str]) -> tuple[int, str]:
    """The exit code, and all that was said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = run(arguments)
        except (Exception, SystemExit):
            said.write(traceback.format_exc())
            code = 70
    return code, said.getvalue()


def main() -> None:
    """Prints how the runs ended, and every one that ended as none should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    codes: dict[str, Counter[int]] = {"judge": Counter(), "judge --checks-only": Counter()}
    bad = 0
    with tempfile.TemporaryDirectory() as root:
        for number in range(chosen.count):
            draw, folder = random.Random(f"{chosen.seed} {number}"), Path(root, "capture")
            write(folder, draw)
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                draw.choice([of_document, of_document, of_bytes, of_arrays, of_arrays, of_files])(folder, draw)
            out = ["--out", str(Path(root, "out")), "--attack", "analytic", "--prior", "digits", "--jobs", "1"]
            for command, more in (("judge", out), ("judge --checks-only", ["--checks-only"])):
                code, said = run_quietly(["judge", str(folder), *more])
                codes[command][code] += 1
                if code >= 70 or "Traceback" in said:
                    bad += 1
                    print(f"{command} of number {number}: exit {code}: {said[-400:]}")
            shutil.rmtree(folder)
    for command, found in codes.items():
        print(f"{command}: {dict(sorted(found.items()))}")
    print(f"{bad} of {2 * chosen.count} runs ended with a traceback or exit code 70")


if __name__ == "__main__":
    main()
