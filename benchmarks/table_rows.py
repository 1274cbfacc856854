"""Whole rows of a table from the gradient of a batch, undefended: `rows` beside TabLeak's public code on Adult.

    HARNESS_DATA=data nice python benchmarks/table_rows.py --batch 8 32 128 --batches 50 --out rows.jsonl --resume

With ``--tableak FOLDER``, a clone of github.com/eth-sri/tableak, its attack runs on the same batches and weights, as
its README calls it: labels known, and ``--restarts 30``; fewer take less time. Its networks read standardised features;
the weights of the first layer are changed so that the network is the same (of mlp2 alone). It knows no missing values,
so all batches are of rows without any; with ``--missing`` all are of rows that lack one at least.
``--dataset`` names another table; ``--one-class`` draws each batch from one class, as where classes are rare.
``--out`` holds a line per batch and attack, with the time of the processor; ``--resume`` keeps those that are there.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from harness.attacks.row_checks import Batch, layer_names
from harness.attacks.rows import Rows, network_of, read_layers
from harness.base.columns import MISSING
from harness.base.randomness import generator
from harness.datasets import Dataset, data_root, load_dataset
from harness.datasets.load import take_part
from harness.models import RowModel
from harness.observation import Observation
from harness.scoring import TableScale, rate_of, summary_of

_ITERATIONS = 1500


@dataclass(frozen=True)
class Case:
    """One batch: its gradient, and, for the measures alone, the rows (n, D) and labels (n,) behind it."""

    observation: Observation
    rows: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Table:
    """The private half of a dataset, the public half as it is, and the scale of errors."""

    private: Dataset
    public: Dataset
    scale: TableScale

    @classmethod
    def load(cls, name: str, missing: bool = False) -> "Table":
        whole = load_dataset(name, data_root(None))
        assert whole.columns is not None
        private, public = (take_part(whole, part, 0.5, purpose="public half") for part in ("train", "test"))
        known = (whole.columns.categories(private.images.flatten(1)) != MISSING).all(1)
        return cls(private.take((known != missing).nonzero()[:, 0]), public, TableScale.of(whole.columns, whole.images))

    def case(self, size: int, number: int, name: str = "mlp2", one_class: bool = False) -> Case:
        """Return a batch on a network of that name, a pure function of these."""
        order = torch.randperm(len(self.private.labels), generator=generator("table rows", size, number))
        if one_class:
            order = order[self.private.labels[order] == self.private.labels[order[0]]]
        order = order[:size]
        images, labels = self.private.images[order][None], self.private.labels[order][None]
        model = RowModel(name, self.private.image_shape, self.private.num_classes)
        weights, key = model.initial_weights([(size, number)]), ((size, number),)
        read = model.gradient(weights, images, labels)
        observation = Observation(model, weights, read, size, key, columns=self.private.columns)
        return Case(observation, images[0].flatten(1), labels[0])

    def measured(self, case: Case, made: Tensor) -> dict[str, Any]:
        """Return the measures of rows (n, D), the most certain first, matched to the truth at the least cost."""
        columns, count, numbers = self.scale.columns, len(made), len(self.scale.columns.continuous)
        right = (columns.categories(case.rows)[:, None] == columns.categories(made)[None]).float().sum(-1)
        error = (case.rows[:, None, :numbers] - made[None, :, :numbers]).abs() / self.scale.deviations
        within = (error <= 0.1).float().sum(-1)
        own, other = linear_sum_assignment(-(right + within - 1e-3 * error.clamp_max(10).sum(-1)).numpy())
        exact = self.scale.strict(case.rows[own][:, None, None].float(), made[other][:, None, None].float()).numpy()
        return {
            "exact": exact.tolist(),
            "columns": float((right + within)[own, other].mean() / (numbers + right.new_tensor(len(columns.groups)))),
            "categories": float(right[own, other].mean() / max(1, len(columns.groups))),
            "first quarter": exact[other < max(1, count // 4)].tolist(),
        }


def ours(case: Case) -> Tensor:
    """Return what the attack makes of a gradient."""
    return Rows().found(case.observation, 0).rows.float()


def bounds(case: Case) -> dict[str, float]:
    """Return the ranks of the first layers' gradients."""
    named = case.observation.model.layout.split(case.observation.target[0].double())
    names = read_layers(case.observation.model)
    ranks = [int(torch.linalg.matrix_rank(named[weight], rtol=1e-6)) for weight, _ in names]
    return {"rank of layer 1": ranks[0], "rank of layer 2": ranks[1]}


def losses(case: Case, made: Tensor) -> dict[str, float]:
    """Return the squared distance of gradients as a share of the gradient, at the truth and at what was reached: rows
    (n, D), each with the label of the true row that it is matched to."""
    seen = case.observation
    named = seen.model.layout.split(seen.target[0].double() * len(made))
    sums = tuple(torch.cat([named[one], named[other][:, None]], 1) for one, other in read_layers(seen.model))
    batch = Batch(network_of(seen.model, seen.weights[0], named), sums)
    own, other = linear_sum_assignment(torch.cdist(case.rows.double(), made.double()).numpy())
    at_truth = batch.unexplained(case.rows.double(), case.labels, 0)
    return {"loss at the truth": at_truth, "loss reached": batch.unexplained(made[other].double(), case.labels[own], 0)}


def blind(table: Table) -> Callable[[Case], Tensor]:
    """Return a guess that has seen no gradient: public rows, as many as are asked for."""

    def guess(case: Case) -> Tensor:
        keys = case.observation.keys[0]
        order = torch.randperm(len(table.public.labels), generator=generator("blind rows", *keys))
        return table.public.images[order[: len(case.rows)]].flatten(1)

    return guess


def tableak(folder: Path, restarts: int) -> Callable[[Case], Tensor]:
    """Return TabLeak's attack, of a clone of its repository; its files are read from there."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    import attacks.gradient_inversion_attack as theirs  # type: ignore[import-not-found]

    from attacks import invert_grad  # type: ignore[import-not-found]
    from datasets import ADULT  # type: ignore[import-not-found]

    # It writes into a leaf in place, which PyTorch allowed until 1.7; of a copy the values are the same.
    bound = theirs.continuous_sigmoid_bound
    theirs.continuous_sigmoid_bound = lambda values, **more: bound(values.clone(), **more)
    data = ADULT()
    data.standardize()
    place = _places(data)

    def attack(case: Case) -> Tensor:
        model = case.observation.model
        named = {name: part[0] for name, part in model.layout.split(case.observation.weights).items()}
        names = layer_names(model)
        linear = [torch.nn.Linear(named[one].shape[1], len(named[one])) for one, _ in names]
        network = torch.nn.Sequential(*(part for layer in linear for part in (layer, torch.nn.ReLU())))[:-1]
        scale, shift = data.std, data.mean
        low, size = _ranges(data)
        rows = torch.zeros(len(case.rows), len(scale))
        rows[:, place] = case.rows * size + low
        with torch.no_grad():
            for (weight, bias), layer in zip(names, network[::2], strict=True):
                layer.weight.copy_(named[weight])
                layer.bias.copy_(named[bias])
            first = torch.zeros_like(network[0].weight)
            first[:, place] = named[names[0][0]] / size
            network[0].bias += first @ shift - (named[names[0][0]] / size) @ low
            network[0].weight.copy_(first * scale)
        shown = (rows - shift) / scale
        made = network(shown)
        expected = model.logits(case.observation.weights, case.rows[None, :, None, None])[0]
        assert torch.allclose(made, expected, atol=1e-3), "the networks differ"
        loss = torch.nn.CrossEntropyLoss()
        read = [part.detach() for part in torch.autograd.grad(loss(made, case.labels), list(network.parameters()))]
        found = invert_grad(
            net=network, training_criterion=loss, true_grad=read, true_label=case.labels, true_data=shown,
            reconstruction_loss="cosine_sim", dataset=data, max_iterations=_ITERATIONS, post_selection=restarts,
            softmax_trick=True, sigmoid_trick=True, pooling="median+softmax",
        )  # fmt: skip
        plain = found.detach() * scale + shift
        return (plain[:, place] - low) / size

    return attack


def _places(data: Any) -> Tensor:
    """Where each of our features stands among theirs."""
    from harness.datasets.adult import COLUMNS

    found = [data.train_feature_index_map[name][1][0] for name in COLUMNS.continuous]
    for group in COLUMNS.groups:
        theirs, first = data.features[group.name], data.train_feature_index_map[group.name][1][0]
        found += [first + theirs.index(category) for category in group.categories]
    return torch.tensor(found)


def _ranges(data: Any) -> tuple[Tensor, Tensor]:
    """Smallest values and ranges of our features in their units."""
    from harness.datasets.adult import _RANGES, COLUMNS

    low, size = torch.zeros(COLUMNS.width), torch.ones(COLUMNS.width)
    for place, (least, most) in enumerate(_RANGES.values()):
        low[place], size[place] = least, most - least
    return low, size


def known_share(table: Table, cases: list[Case]) -> float:
    """Return the share of the batches' rows whose exact copy is in the public half."""
    public = {row.tobytes() for row in table.public.images.flatten(1).numpy()}
    return float(np.mean([row.tobytes() in public for case in cases for row in case.rows.numpy()]))


def told(lines: list[dict[str, Any]], attack: str, size: int) -> str | None:
    """Return an attack's line for batches of a size, with 95% intervals over batches."""
    own = [line for line in lines if line["attack"] == attack and line["size"] == size]
    if not own:
        return None
    exact, columns = rate_of(np.array([line["exact"] for line in own])), summary_of([line["columns"] for line in own])
    first = rate_of(np.array([line["first quarter"] for line in own]))
    low, high = (min(max(one, 0.0), 1.0) for one in columns.ci95 or (0.0, 1.0))  # of a few batches, it goes beyond
    seconds = np.median([line["seconds"] for line in own])
    return (
        f"| {size} | {attack} | {len(own)} | {100 * (exact.rate or 0):.1f}% [{100 * exact.ci95[0]:.1f}-"
        f"{100 * exact.ci95[1]:.1f}] | {100 * (columns.mean or 0):.1f}% [{100 * low:.1f}-{100 * high:.1f}] | "
        f"{100 * (first.rate or 0):.1f}% | {seconds:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--model", default="mlp2")
    parser.add_argument("--dataset", default="adult")
    parser.add_argument("--one-class", action="store_true", help="batches whose rows are all of one class")
    parser.add_argument("--missing", action="store_true", help="rows that lack a value, in place of those that do not")
    parser.add_argument("--tableak", type=Path, help="a clone of github.com/eth-sri/tableak")
    parser.add_argument("--restarts", type=int, default=30, help="of TabLeak")
    parser.add_argument("--only-tableak", action="store_true", help="leave our attack out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args()
    out, table = asked.out.resolve(), Table.load(asked.dataset, asked.missing)
    attacks: dict[str, Callable[[Case], Tensor]] = {} if asked.only_tableak else {"rows": ours, "blind": blind(table)}
    if asked.tableak:
        attacks[f"TabLeak, {asked.restarts} restarts"] = tableak(asked.tableak.resolve(), asked.restarts)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if asked.resume and out.exists() else []
    with out.open("a" if asked.resume else "w") as file:
        for size in asked.batch:
            for number in range(asked.batches):
                for name, attack in attacks.items():
                    if any((line["attack"], line["size"], line["number"]) == (name, size, number) for line in lines):
                        continue
                    case, began = table.case(size, number, asked.model, asked.one_class), time.process_time()
                    torch.manual_seed(number)
                    made = attack(case)
                    line = {"attack": name, "size": size, "number": number, "seconds": time.process_time() - began}
                    line |= table.measured(case, made) | bounds(case) | losses(case, made)
                    lines.append(line)
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    print(f"{size} {number} {name}: {np.mean(line['exact']):.3f} exact, {line['columns']:.3f} columns, "
                          f"{line['seconds']:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
    print("| batch | attack | batches | exact rows | columns right | exact in the first quarter | median time |")
    print("|---|---|---|---|---|---|---|")
    for size in asked.batch:
        for name in dict.fromkeys(line["attack"] for line in lines):
            if (line := told(lines, name, size)) is not None:
                print(line)
        ranks = [line for line in lines if line["size"] == size]
        if not ranks:
            continue
        numbers = sorted({line["number"] for line in ranks})
        cases = [table.case(size, number, asked.model, asked.one_class) for number in numbers]
        print(f"batch {size}: {100 * known_share(table, cases):.2f}% of rows have an exact copy in the public half; "
              f"rank of the gradient of layer 1 {np.median([line['rank of layer 1'] for line in ranks]):.0f}, "
              f"of layer 2 {np.median([line['rank of layer 2'] for line in ranks]):.0f} (median)")  # fmt: skip
        reached = [line for line in ranks if line["attack"] == "rows" and "loss reached" in line]
        if reached:
            both = ("loss at the truth", "loss reached")
            truth, made = (np.median([line[name] for line in reached]) for name in both)
            print(f"batch {size}: squared distance of gradients, of the whole: {truth:.1e} at the truth, {made:.1e} "
                  "reached (median)")  # fmt: skip


if __name__ == "__main__":
    main()
