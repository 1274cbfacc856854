"""Counts the optimizers that the examples of federated frameworks construct, and which of them a capture can hold.

    python benchmarks/frameworks_optimizers.py adap/flower=GITDIR NVIDIA/NVFlare=GITDIR --out FILE.csv

Each GITDIR is a clone, bare or not; what is read is its HEAD. Of the code only class names and arguments are kept.
Without clones, ``--out`` alone counts what stands in the file.
"""

import argparse
import ast
import csv
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from harness.base.errors import UsageError
from harness.base.local_optimizer import with_rate
from harness.capture.optimizers import facts_of

FILE = Path(__file__).with_suffix(".csv")
TORCH = "PyTorch"
# Folders of a repository in which clients are constructed.
_FOLDERS = ("examples/*.py", "framework/*.py")
# What begins so is constructed by a family; the longest beginning counts.
_FAMILIES = {
    "torch.optim.": TORCH, "transformers.AdamW": TORCH, "transformers.optimization.AdamW": TORCH,
    "tensorflow.keras.optimizers.": "Keras", "keras.optimizers.": "Keras", "tf_keras.optimizers.": "Keras",
    "optax.": "JAX", "jax.example_libraries.optimizers.": "JAX", "mlx.optimizers.": "MLX",
    "tfltransfer.optimizers.": "TensorFlow Lite", "sklearn.linear_model.": "scikit-learn",
    "sklearn.neural_network.": "scikit-learn", "sklearn.svm.": "scikit-learn", "sklearn.cluster.": "scikit-learn",
    "xgboost.train": "XGBoost", "xgboost.Booster": "XGBoost", "xgboost.XGB": "XGBoost",
}  # fmt: skip
_OPTAX = {"sgd", "adam", "adamw", "rmsprop", "lion", "adagrad"}
# In the place of what is a variable in the code, and a number when the capture reads it.
_USUAL: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "nesterov": False}
# What plain SGD leaves at torch's defaults.
_BESIDE_RATE = {"momentum", "weight_decay", "nesterov", "dampening", "maximize"}


@dataclass(frozen=True)
class Built:
    """An optimizer, where it is constructed and with which arguments; ``missing``: why no capture can hold it."""

    repository: str
    commit: str
    file: str
    line: int
    name: str
    arguments: str
    family: str
    missing: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether a step is the gradient times the learning rate."""
        given = {one.partition("=")[0].strip() for one in self.arguments.split(";")}
        return self.family == TORCH and self.name == "SGD" and not given & _BESIDE_RATE


def built_in(source: str, repository: str = "", commit: str = "", file: str = "") -> Iterator[Built]:
    """The optimizers that a file constructs, in order."""
    tree = ast.parse(source)
    names = _imported(tree)
    for node in sorted((one for one in ast.walk(tree) if isinstance(one, ast.Call)), key=lambda one: one.lineno):
        whole = _dotted(node.func, names)
        family = _family(whole)
        if family is None and whole.endswith(".compile"):
            told = next((one.value for one in node.keywords if one.arg == "optimizer"), None)
            if isinstance(told, ast.Constant) and isinstance(told.value, str):
                yield Built(repository, commit, file, node.lineno, told.value, "", "Keras")
        elif family is not None:
            given = _arguments(node, family)
            missing = _missing(whole.rpartition(".")[2], node, tree) if family == TORCH else ""
            name = whole.rpartition(".")[2]
            yield Built(repository, commit, file, node.lineno, name, "; ".join(given), family, missing)


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each name that a file imports stands for."""
    found = {"torch": "torch", "tf": "tensorflow"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname or one.name.partition(".")[0]: one.name if one.asname else one.name.partition(".")[0]
                      for one in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The whole name of what is called; what is not a plain name counts as ``?``."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def _family(name: str) -> str | None:
    start = max((one for one in _FAMILIES if name.startswith(one)), key=len, default=None)
    last = name.rpartition(".")[2]
    if start is None or ".lr_scheduler." in name or ".schedules." in name:
        return None
    constructs = last[:1].isupper() or (start == "optax." and last in _OPTAX) or name == start
    return _FAMILIES[start] if constructs and last != "Optimizer" else None


def _arguments(node: ast.Call, family: str) -> list[str]:
    """All but the parameters that are trained; PyTorch's second one is the learning rate."""
    first = 1 if family == TORCH else 0
    placed = [ast.unparse(one) for one in node.args[first:]] if family in (TORCH, "Keras", "JAX", "MLX") else []
    named = [f"{one.arg or '**'}={ast.unparse(one.value)}" for one in node.keywords if one.arg != "params"]
    placed = [f"lr={one}" if family == TORCH and not place else one for place, one in enumerate(placed)]
    return [one for one in (*placed, *(named if family not in ("XGBoost", "scikit-learn") else ())) if len(one) < 80]


def _missing(name: str, node: ast.Call, tree: ast.AST) -> str:
    """Why a capture could not hold a torch optimizer; empty where it can."""
    groups = next((one.value for one in node.keywords if one.arg == "params"), node.args[0] if node.args else None)
    if isinstance(groups, ast.Name) and "group" in groups.id and not _differ_in_rates(groups.id, tree):
        return "arguments of each group of parameters"
    if any(one.arg is None for one in node.keywords):
        return "arguments that are a table made elsewhere"
    given = {one.arg: one.value for one in node.keywords if one.arg and one.arg != "params"}
    if len(node.args) > 1:
        given["lr"] = node.args[1]
    values = {name: _value(name, one) for name, one in given.items()}
    try:
        made = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(1))], **{"lr": 0.01, **values})
        with_rate(facts_of(made))
    except (UsageError, TypeError, ValueError) as problem:
        return str(problem).partition(";")[0]
    return ""


def _differ_in_rates(name: str, tree: ast.AST) -> bool:
    """Whether a file writes these groups of parameters down, with learning rates and weight decays alone."""
    made = [
        one.value for one in ast.walk(tree)
        if isinstance(one, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in one.targets)
    ]  # fmt: skip
    tables = [table for one in made if isinstance(one, ast.List) for table in one.elts]
    keys = {ast.unparse(key).strip("'") for table in tables if isinstance(table, ast.Dict) for key in table.keys if key}
    return bool(keys) and len(made) == 1 and keys <= {"params", "lr", "weight_decay"}


def _value(name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _USUAL.get(name, 0.0)


def read(repository: str, folder: str) -> list[Built]:
    """The optimizers of a clone's examples."""
    commit = _git(folder, "rev-parse", "HEAD").strip()
    words = "optim|sgd|adam|sklearn|xgboost"
    listed = _git(folder, "grep", "-liE", words, "HEAD", "--", *_FOLDERS).splitlines()
    found = list[Built]()
    for path in sorted(one.partition(":")[2] for one in listed):
        try:
            found += built_in(_git(folder, "show", f"HEAD:{path}"), repository, commit, path)
        except SyntaxError:
            print(f"{path} is no Python 3 and left out")
    return [one for one in found if not one.file.endswith("_test.py")]


def _git(folder: str, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True).stdout


def counts(found: Sequence[Built]) -> list[str]:
    """What is counted, a line for each repository."""
    lines = []
    for repository in dict.fromkeys(one.repository for one in found):
        own = [one for one in found if one.repository == repository]
        of_torch = [one for one in own if one.family == TORCH]
        plain, held = (sum(flags) for flags in zip(*((one.is_plain, not one.missing) for one in of_torch), strict=True))
        others = Counter(one.family for one in own if one.family != TORCH)
        said = ", ".join(f"{name} {count}" for name, count in sorted(others.items())) or "none"
        lines.append(
            f"{repository}: {len(own)} optimizers; of {len(of_torch)} of PyTorch {plain} are plain SGD, {held} can be "
            f"captured and judged; no PyTorch network: {sum(others.values())} ({said})"
        )
        lines += [f"  not: {one.file}:{one.line} {one.name}: {one.missing}" for one in of_torch if one.missing]
    return lines


def stored(file: Path = FILE) -> list[Built]:
    """What stands in the file."""
    with file.open(encoding="utf-8", newline="") as rows:
        return [Built(**{**row, "line": int(row["line"])}) for row in csv.DictReader(rows)]  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", nargs="*", help="OWNER/NAME=GITDIR")
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args()
    found = [one for clone in chosen.clones for one in read(*clone.split("=", 1))]
    if found:
        with chosen.out.open("w", encoding="utf-8", newline="") as rows:
            writer = csv.DictWriter(rows, [one.name for one in fields(Built)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, found))
    print("\n".join(counts(found or stored(chosen.out))))


if __name__ == "__main__":
    main()
