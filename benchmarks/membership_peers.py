"""Our scores of membership beside the authors' own code, on the same models.

    git clone https://github.com/privacytrustlab/ml_privacy_meter && git clone https://github.com/tensorflow/privacy
    nice python benchmarks/membership_peers.py --rmia ml_privacy_meter --lira privacy --dataset mnist --model mlp2

A model is trained on members until it fits them. Reference models are those of ``harness judge --members``, and all
scores are made of the same confidences. Each peer's function runs from the user's own checkout, as it ships: RMIA's
``run_rmia`` (with its default ``offline_a`` of .3, and with the one that ours tunes), and LiRA's
``generate_ours_offline`` with one variance and with one for each example. Non-members are RMIA's population.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import ast
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import numpy as np
import scipy.stats
import torch
from torch.nn import functional

from harness.datasets import Dataset, data_root, load_dataset
from harness.judging.member_signals import Signals, signals_of
from harness.judging.members import Final, Sides
from harness.models import build_module
from harness.scoring.membership import Numbers, best_weight, lira_score, log_probability, rmia_ratio, told


def function_of(source: Path, names: tuple[str, ...], **known: Any) -> Callable[..., Any]:
    """The last of some functions of a peer's file, of which nothing else runs."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    tree.body = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in names]
    space = {"np": np, "scipy": scipy, "Any": Any} | known
    exec(compile(tree, str(source), "exec"), space)
    return space[names[-1]]


def without_twins(data: Dataset, count: int, seed: int) -> Dataset:
    """So many examples, none of them twice."""
    order, known = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(seed)), dict[bytes, int]()
    for place in order.tolist():
        known.setdefault(data.images[place].numpy().tobytes(), place)
        if len(known) == count:
            break
    return data.take(torch.tensor(list(known.values())))


def trained(model: str, members: Dataset, epochs: int, seed: int) -> Final:
    """A model that fits its members, by torch's own Adam."""
    module = build_module(model, members.image_shape, members.num_classes, seed)
    optimizer, random = torch.optim.Adam(module.parameters()), torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(members.labels), generator=random).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(module(members.images[batch]), members.labels[batch]).backward()
            optimizer.step()
    return Final(model, members.image_shape, members.num_classes, "the bench", module)


def of_peers(signals: Signals, rmia: Path | None, lira: Path | None, weight: float) -> dict[str, Numbers]:
    """Scores of the peers, higher for members."""
    scores = dict[str, Numbers]()
    count, each = signals.count, int(signals.out.sum(0)[0])
    if rmia is not None:
        run = function_of(
            rmia / "modules" / "mia" / "attacks" / "rmia.py", ("get_out_ref_signals", "run_rmia"), Optional=Optional
        )
        own = np.exp(log_probability(signals.own))
        references = np.exp(log_probability(signals.references)).T[signals.out.T].reshape(-1, each)
        none = np.zeros(references.shape, dtype=bool)
        for a in dict.fromkeys((0.3, weight)):
            scores[f"RMIA's own, a = {a:g}"] = run(own, references, none, own[count:], references[count:], a, each)
    if lira is not None:
        fit = function_of(lira / "research" / "mi_lira_2021" / "plot.py", ("generate_ours_offline",))
        answers = np.arange(len(signals.own)) < count
        for fixed in (True, False):
            found, _ = fit(
                ~signals.out, signals.references[..., None], answers[None], signals.own[None, :, None],
                fix_variance=fixed,
            )  # fmt: skip
            scores[f"LiRA's own, {'one variance' if fixed else 'a variance each'}"] = -np.array(found)
    return scores


def main() -> None:
    """Print a line for each score."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rmia", type=Path)
    options.add_argument("--lira", type=Path)
    options.add_argument("--dataset", default="mnist")
    options.add_argument("--model", default="mlp2")
    options.add_argument("--members", type=int, default=2000, help="and as many non-members")
    options.add_argument("--epochs", type=int, default=30)
    options.add_argument("--references", type=int, default=8)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    data = without_twins(load_dataset(asked.dataset, data_root(None), "train"), 2 * asked.members, asked.seed)
    half = torch.arange(asked.members)
    sides = Sides(data.take(half), data.take(half + asked.members))
    final = trained(asked.model, sides.members, asked.epochs, asked.seed)
    began = time.monotonic()
    (signals,) = signals_of([final], sides, asked.references, asked.seed, "cpu")
    count, seconds = signals.count, time.monotonic() - began
    weight = best_weight(signals.references[:, count:], signals.seen)
    scores = {
        f"RMIA, ours, a = {weight:g}": rmia_ratio(signals.own, signals.references, signals.out, weight),
        "LiRA, ours": lira_score(signals.own, signals.references, signals.out),
        "loss alone": signals.own,
    } | of_peers(signals, asked.rmia, asked.lira, weight)
    accuracy = signals.right[:count].mean(), signals.right[count:].mean()
    print(f"accuracy {accuracy[0]:.1%} on members, {accuracy[1]:.1%} on non-members; references took {seconds:.0f} s")
    print("| score | AUC | 95% | members at 1% false alarms | 95% |\n|---|---|---|---|---|")
    for name, values in scores.items():
        made = told(name, values[:count], values[count:])
        rate = made.rates[0]
        share = "" if rate.found is None else f"{rate.found / count:.1%}"
        between = "" if rate.low is None or rate.high is None else f"{rate.low:.1%} to {rate.high:.1%}"
        print(f"| {name} | {made.area:.3f} | {made.low:.3f} to {made.high:.3f} | {share or rate.reason} | {between} |")


if __name__ == "__main__":
    main()
