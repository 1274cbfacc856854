"""How many images come back from updates of clients with momentum and Adam, beside what is expected of the attacks.

    HARNESS_DATA=data nice python benchmarks/real_clients.py --victims 64 --out real_clients.jsonl --resume

MNIST, labels known; a client sends its weights after its local steps in single precision. ``before`` takes the update
divided by the rate and the steps for a gradient (``avg``), whatever the optimizer. ``new`` is the strongest attack of
those that the declared optimizer admits, with ``unroll`` of several steps: one rule for all rows, the quickest first,
until one brings 0.95 back. With ``--quick`` the aim is enough, and ``before`` is left out. Before an attack it is told
how long it takes: from the least, if every start is given up, to the most. Victims are attacked in parts, each a line
of ``--out``, and ``--resume`` takes the lines of as many victims from there. ``--jobs`` shares a part among processes,
which is faster than threads; ``--forecast`` attacks nothing. Rows whose expected value is 1 have to reach
0.95, others their value less 0.12, and the mean of all rows the mean of the values. Rows of plain SGD at the same rate
and at that times 1 - momentum stand below, for a comparison with momentum.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from harness.attacks import ATTACKS, Attack, reconstructing, run_attack
from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN
from harness.base.progress import progress
from harness.datasets import data_root
from harness.evaluation.attacking import at_once
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.watching import between, early_iterations
from harness.experiment import CellSettings, cell_settings
from harness.observation import Observation
from harness.parallel.worker_pool import WorkerPool, worker_pool
from harness.scoring.images import match, pairwise_mse
from harness.scoring.success import STRICT_RMSE

MOMENTUM, ADAM = "sgd:lr=0.01,momentum=0.9", "adam:lr=0.001"
# Of a row that is expected to be 1, and what others may fall short by.
SURE, SLACK = 0.95, 0.12
# Of each victim, where several steps are played.
STARTS = 4
# Victims in a part, and iterations by which its time is forecast.
PART, TIMED = 32, 2
BEFORE = "before"


@dataclass(frozen=True)
class Row:
    """One kind of client; ``expected``: the share of images that came back in other hands, None where nobody tried."""

    model: str
    optimizer: str
    steps: int
    batch: int
    expected: float | None = None

    def __str__(self) -> str:
        return f"{self.model}, {self.optimizer}, {self.steps} steps, batch {self.batch}"

    @property
    def aim(self) -> float | None:
        """The least share that is enough."""
        if self.expected is None:
            return None
        return SURE if self.expected == 1 else max(0.0, self.expected - SLACK)


ROWS = (
    Row("mlp2", MOMENTUM, 1, 1, 1.0), Row("mlp2", MOMENTUM, 1, 4, 0.95), Row("mlp2", MOMENTUM, 2, 1, 1.0),
    Row("mlp2", MOMENTUM, 5, 1, 0.14), Row("mlp2", MOMENTUM, 10, 1, 0.77), Row("mlp2", MOMENTUM, 2, 4, 0.80),
    Row("mlp2", MOMENTUM, 5, 4, 0.31),
    Row("mlp2", ADAM, 1, 1, 1.0), Row("mlp2", ADAM, 1, 4, 0.81), Row("mlp2", ADAM, 2, 1, 0.0),
    Row("lenet", ADAM, 1, 1, 0.62), Row("lenet", ADAM, 2, 1, 0.34),
    Row("lenet", MOMENTUM, 1, 1, 1.0), Row("lenet", MOMENTUM, 1, 2, 0.97), Row("lenet", MOMENTUM, 1, 4, 0.81),
    Row("lenet", MOMENTUM, 2, 4, 0.28), Row("lenet", MOMENTUM, 5, 1, 0.57), Row("lenet", MOMENTUM, 10, 1, 0.09),
)  # fmt: skip
PLAINLY = tuple(
    Row(model, f"sgd:lr={rate}", steps, 1)
    for model in ("mlp2", "lenet") for steps in (1, 2, 5) for rate in (0.01, 0.001)
)  # fmt: skip
LENET_WITH_MOMENTUM = (Row("lenet", MOMENTUM, 2, 1),)


def settings_of(row: Row, asked: "Table") -> CellSettings:
    """The cell that observes it."""
    return cell_settings(
        dataset="mnist", model=row.model, tap="T1.out", victims=asked.victims, seeds=(asked.seed,), labels="known",
        optimizer=row.optimizer, local_steps=row.steps, batch_size=row.batch,
        update_model="unroll" if row.steps > 1 else "first",
    )  # fmt: skip


Tries = list[tuple[str, dict[str, object]]]


def attacks_of(observation: Observation) -> Tries:
    """What is tried: for every client the same, but signs, which only adaptive steps leave, are of one attack more, and
    a loss of several steps is descended from several starts."""
    found: Tries = [("spear", {})]
    if observation.optimizer.name != "sgd":
        found.append(("inverting_gradients", {"max_iterations": 1000}))
    found.append(("cpl", {}))
    return found if observation.local_steps == 1 else [*found, ("cpl", {"restarts": STARTS})]


def as_a_gradient(observation: Observation) -> Observation:
    """The observation of who knows of no optimizer: the update, divided by the rate and the steps."""
    reading, rate = observation.reading, observation.learning_rate
    assert reading is not None
    if reading.adaptive is not None:
        target = reading.adaptive.step(observation.target)
    else:
        target = observation.target * (reading.rate / rate)
    return replace(
        observation, target=target, reading=None, certainty=None, optimizer=PLAIN,
        update_model="avg" if observation.local_steps > 1 else "first",
    )  # fmt: skip


def back(truth: Tensor, images: Tensor) -> float:
    """The share of true images that came back."""
    made = torch.where(images.isfinite(), images, 0.5)
    errors = pairwise_mse(truth, made)
    own = errors.gather(2, match(truth, made)[..., None])
    return float((own.sqrt() <= STRICT_RMSE).double().mean())


def forecast(name: str, arguments: dict[str, object], seen: Observation, chunk: int, jobs: int) -> tuple[float, float]:
    """Seconds that an attack takes at least, if every start is given up, and at most, by some iterations of a part.

    Raises:
        UsageError: it is impossible.
    """
    attack = reconstructing(build(ATTACKS, name, arguments))
    if attack.closed_form:
        return 0.0, 0.0
    few = seen.take(torch.arange(min(PART // jobs, seen.rows)))
    begun = reconstructing(build(ATTACKS, name, arguments | {"max_iterations": TIMED}))
    run_attack(begun, few.take(torch.arange(2)), chunk)  # what is only done once
    began = time.perf_counter()
    run_attack(begun, few, chunk)
    each = (time.perf_counter() - began) / TIMED * seen.rows / few.rows / jobs
    return each * early_iterations(attack), each * attack.max_iterations


@dataclass(frozen=True)
class Table:
    """Finished attacks, in a file of lines; each of all victims, or of a part of them that begins with ``first``."""

    file: Path
    victims: int
    seed: int
    done: dict[tuple[str, str, int | None], float | None]
    everyone: WorkerPool
    jobs: int
    only_forecast: bool = False

    @classmethod
    def of(cls, asked: argparse.Namespace, everyone: WorkerPool) -> "Table":
        """An empty one, or where it goes on what the file has of so many victims of that seed."""
        file: Path = asked.out
        lines = file.read_text().splitlines() if asked.resume and file.exists() else []
        if not asked.resume and not asked.forecast:
            file.write_text("")
        own = asked.victims, asked.seed
        known = [one for one in map(json.loads, lines) if (one["victims"], one.get("seed", 0)) == own]
        done = {(one["row"], one["attack"], one.get("first")): one["back"] for one in known}
        return cls(file, asked.victims, asked.seed, done, everyone, asked.jobs, asked.forecast)

    def share(self, row: Row, name: str, arguments: dict[str, object], scene: Scene, seen: Observation) -> float | None:
        """What comes back by an attack; None where it is impossible, which is told."""
        starts = f" x{arguments['restarts']}" if "restarts" in arguments else ""
        attacked = f"{name}{starts}" if seen is scene.observation else BEFORE
        if (str(row), attacked, None) in self.done:
            return self.done[str(row), attacked, None]
        attack, began = reconstructing(build(ATTACKS, name, arguments)), time.perf_counter()
        found, why = 0.0, ""
        try:
            chunk = at_once(attack, seen, self.victims, settings_of(row, self))
            waiting = [first for first in range(0, seen.rows, PART) if (str(row), attacked, first) not in self.done]
            if waiting:
                takes = [
                    one * len(waiting) * PART / seen.rows for one in forecast(name, arguments, seen, chunk, self.jobs)
                ]
                print(f"  {row}: {attacked} takes {between(*takes)}", flush=True)
            if self.only_forecast:
                return None
            with progress(f"{row}: {attacked}", seen.rows, "victims") as bar:
                for first in range(0, seen.rows, PART):
                    size = min(PART, seen.rows - first)
                    found += self._part(row, attacked, attack, scene, seen, first, chunk) * size / seen.rows
                    bar.advance(size)
        except UsageError as error:
            why = f": {error}"
        told = "impossible" if why else f"{found:.2f}"
        print(f"  {row}: {attacked} {told} in {time.perf_counter() - began:.0f} s{why}", flush=True)
        return None if why else found

    def _part(
        self, row: Row, attacked: str, attack: Attack, scene: Scene, seen: Observation, first: int, chunk: int
    ) -> float:
        """What comes back of the victims from ``first`` on."""
        known = self.done.get((str(row), attacked, first))
        if known is not None:
            return known
        began, rows = time.perf_counter(), torch.arange(first, min(first + PART, seen.rows))
        made = self.everyone.attack(attack, seen.take(rows), chunk)
        found = back(scene.truth.images[rows], made.images)
        line = {
            "row": str(row),
            **asdict(row),
            "attack": attacked,
            "victims": self.victims,
            "seed": self.seed,
            "first": first,
        }
        with self.file.open("a") as file:
            seconds = round(time.perf_counter() - began, 1)
            file.write(json.dumps(line | {"back": found, "seconds": seconds}) + "\n")
        return found


def shares(row: Row, stage: Stage, table: Table, enough: float) -> Iterator[tuple[str, float]]:
    """What comes back by each attack that is possible, until so much comes back."""
    scene = stage.set(settings_of(row, table))
    for name, arguments in attacks_of(scene.observation):
        found = table.share(row, name, arguments, scene, scene.observation)
        if found is not None:
            yield f"{name} x{STARTS}" if arguments.get("restarts") else name, found
        if found is not None and found >= enough:
            return


def before(row: Row, stage: Stage, table: Table) -> float | None:
    """What came back by the best attack that takes an update for a gradient."""
    scene = stage.set(settings_of(row, table))
    return table.share(row, "cpl", {}, scene, as_a_gradient(scene.observation))


def line_of(row: Row, best: tuple[str, float], earlier: float | None) -> str:
    """A row of the printed table."""
    aim = "" if row.aim is None else f"{row.aim:.2f} {'reached' if best[1] >= row.aim else 'MISSED'}"
    told = ("" if one is None else f"{one:.2f}" for one in (earlier, best[1], row.expected))
    old, new, expected = told
    return f"| {row} | {old} | {new} | {best[0]} | {expected} | {aim} |"


def main() -> None:
    """Print every attack as it ends, each row as soon as it is there, and what was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victims", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of which victims and weights")
    parser.add_argument("--out", type=Path, default=Path("real_clients.jsonl"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--rows", default="", help="only those whose name has this")
    parser.add_argument("--quick", action="store_true", help="leave out what reaches no aim, and before")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--forecast", action="store_true", help="attack nothing: tell how long each attack takes")
    asked = parser.parse_args()
    with worker_pool(asked.jobs, 1 if asked.jobs > 1 else None, []) as everyone:
        print_rows(asked, Table.of(asked, everyone))


def print_rows(asked: argparse.Namespace, table: Table) -> None:
    """Attack every row that is asked for."""
    stage = Stage(data_root(None), asked.victims)
    rows = [row for row in (*ROWS, *LENET_WITH_MOMENTUM, *PLAINLY) if asked.rows in str(row)]
    found: dict[Row, tuple[str, float]] = {}
    for row in rows:
        enough = SURE if row.aim is None or not asked.quick else row.aim
        made = list(shares(row, stage, table, enough))
        if asked.forecast:
            continue
        found[row] = max(made, key=lambda one: one[1])
        print(line_of(row, found[row], None), flush=True)
    if asked.forecast:
        return
    lines = [line_of(row, found[row], None if asked.quick else before(row, stage, table)) for row in rows]
    print("\n| client | before | new | by | expected | aim |\n|---|---|---|---|---|---|")
    print("\n".join(lines))
    pairs = [(found[row][1], row.expected) for row in rows if row.expected is not None]
    if pairs:
        new, expected = (fmean(column) for column in zip(*pairs, strict=True))
        print(f"mean of {len(pairs)} rows: {new:.3f}, expected {expected:.3f}")


if __name__ == "__main__":
    main()
