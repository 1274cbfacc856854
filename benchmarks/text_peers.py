"""``span`` beside the public code of DAGER, on the weights of ``minilm`` and the same batches of ``notes``.

    git clone https://github.com/insait-institute/dager-gradient-inversion dager
    python -m venv dager.venv
    dager.venv/bin/pip install torch==2.4.0 transformers==4.45.1 peft==0.13.0 rouge-score scipy
    OMP_NUM_THREADS=1 nice python benchmarks/text_peers.py runs.jsonl --dager dager --python dager.venv/bin/python

Needs the extra [text]. Both are handed the same gradients, both have one core. A line of runs.jsonl is one batch of one
attack; what is there is not run again, so a run that was stopped goes on, and after ``--minutes`` it stops by itself.
Sizes take turns. Without --dager, span alone runs. The table at the end is of all lines. See dager_worker.py for what
had to be fixed around the public code.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.span import Span
from harness.base.randomness import generator
from harness.base.words import PAD, tokens_of
from harness.datasets import Dataset, data_root, divide, load_dataset
from harness.models import RowModel, words_of
from harness.models.text_transformer import file_of
from harness.observation import Observation
from harness.scoring.texts import rouge

WORKER = Path(__file__).with_name("dager_worker.py")
SIZES = (1, 4, 8, 16, 32)
#: Texts of one length that DAGER tries, as it is shipped.
SHIPPED = 10_000_000
_COLUMNS = ("pairs", "rouge1", "rouge2", "seconds")


@dataclass(frozen=True)
class Batch:
    """Of private notes, with the gradient of a network whose head is drawn anew for each."""

    size: int
    number: int
    data: Dataset
    model: RowModel

    @cached_property
    def chosen(self) -> Tensor:
        """Which notes (n,)."""
        drawn = torch.randperm(len(self.data.labels), generator=generator("text peers", self.size, self.number))
        return drawn[: self.size]

    @cached_property
    def tokens(self) -> Tensor:
        """(n, T)."""
        return tokens_of(self.data.images[self.chosen])

    @property
    def pairs(self) -> int:
        """How many pairs of a token and a place there are."""
        return sum(len(column[column != PAD].unique()) for column in self.tokens.T)

    @cached_property
    def observation(self) -> Observation:
        key = (self.size, self.number)
        weights = self.model.initial_weights([key])
        images, labels = self.data.images[self.chosen][None], self.data.labels[self.chosen][None]
        return Observation(self.model, weights, self.model.gradient(weights, images, labels), self.size, (key,))


def by_span(batch: Batch, limit: float) -> dict[str, Any]:
    """Texts in token numbers and seconds of the processor, as by :func:`by_dager`; none where it takes too many."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    seen, begun = batch.observation, time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        made = tokens_of(run_attack(Span(), seen).images).view(batch.size, -1).tolist()
    except TimeoutError:
        return {"texts": [], "seconds": limit, "error": f"stopped after {limit:g} s"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"texts": made, "seconds": time.process_time() - begun}


def by_dager(batch: Batch, asked: argparse.Namespace) -> dict[str, Any]:
    """By the checkout, in a process of its own that ends after so many seconds of the processor."""
    parts = batch.model.layout.split(batch.observation.target)
    queries = [part[0].chunk(3)[0].clone() for name, part in parts.items() if name.endswith("in_proj_weight")]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "bert-base-uncased").symlink_to(file_of("model.safetensors").parent)
        torch.save(queries, place / "queries.pt")
        given = {
            "texts": [batch.data.texts[one] for one in batch.chosen.tolist()],
            "labels": batch.data.labels[batch.chosen].tolist(), "gradients": str(place / "queries.pt"),
        }  # fmt: skip
        line = [str(asked.python), str(WORKER), str(asked.dager.resolve()), folder, str(asked.tries)]
        limited = partial(resource.setrlimit, resource.RLIMIT_CPU, (asked.limit, asked.limit + 5))
        done = subprocess.run(line, input=json.dumps(given), capture_output=True, text=True, preexec_fn=limited)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"texts": [], "seconds": asked.limit, "error": f"stopped after {asked.limit} s"}
    if done.returncode:
        raise SystemExit(done.stderr[-2_000:])
    return json.loads(done.stdout.splitlines()[-1]) | {"tries": asked.tries}


def judged(batch: Batch, made: list[list[int]]) -> dict[str, float]:
    """How many texts came back exactly, and the mean ROUGE of all, paired as most of their tokens are shared."""
    texts = torch.full((batch.size, max(map(len, [*made, batch.tokens[0]]))), PAD)
    for row, text in zip(texts, made, strict=False):
        row[: len(text)] = torch.tensor(text, dtype=torch.long)
    first, second = (index.flatten() for index in torch.meshgrid(*[torch.arange(batch.size)] * 2, indexing="ij"))
    shared = rouge(batch.tokens[first], texts[second], 1).reshape(batch.size, batch.size)
    texts = texts[torch.from_numpy(linear_sum_assignment(-shared)[1])]
    own = torch.nn.functional.pad(batch.tokens, (0, texts.shape[1] - batch.tokens.shape[1]), value=PAD)
    scores = {f"rouge{length}": float(rouge(batch.tokens, texts, length).mean()) for length in (1, 2)}
    return {"exact": int((own == texts).all(1).sum())} | scores


def table(lines: list[dict[str, Any]]) -> str:
    """A row for each attack and size."""
    rows = [
        "| attack | batch | batches | pairs, width 384 | exact texts | ROUGE-1 | ROUGE-2 | seconds a batch | errors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size, attack in sorted({(line["size"], line["attack"]) for line in lines}):
        own = [line for line in lines if (line["size"], line["attack"]) == (size, attack)]
        pairs, one, two, seconds = (np.array([line[of] for line in own]) for of in _COLUMNS)
        exact, failed = sum(line["exact"] for line in own), sum("error" in line for line in own)
        rows.append(
            f"| `{attack}` | {size} | {len(own)} | {pairs.min()} to {pairs.max()} | {exact} of {size * len(own)} | "
            f"{one.mean():.3f} | {two.mean():.3f} | {np.median(seconds):.0f} | {failed} |"
        )
    hours = [line["search"] * SHIPPED / line["tries"] / 3600 for line in lines if line["size"] > 1 and "search" in line]
    if hours:
        rows.append(
            f"\nWith {SHIPPED:,} tries, a batch of several would take DAGER about {np.median(hours):.0f} hours."
        )
    return "\n".join(rows)


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("runs", type=Path, help="a line of JSON for each batch")
    read.add_argument("--dager", type=Path, help="a clone of its repository")
    read.add_argument("--python", type=Path, default=Path(sys.executable), help="of its environment")
    read.add_argument(
        "--tries", type=int, default=3_000, help=f"texts of one length that DAGER tries, {SHIPPED:,} as it ships"
    )
    read.add_argument("--limit", type=int, default=600, help="seconds of the processor for one batch")
    read.add_argument("--minutes", type=float, default=60)
    read.add_argument("--batches", type=int, default=20, help="of each size")
    read.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    asked = read.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("notes", data_root(None), words=words_of("minilm"))
    model = RowModel("minilm", data.image_shape, data.num_classes)
    private = divide(data, "notes", "auto", data_root(None)).private
    lines = [json.loads(line) for line in asked.runs.read_text().splitlines()] if asked.runs.exists() else []
    done, begun = {(line["attack"], line["size"], line["number"]) for line in lines}, time.perf_counter()
    attacks: dict[str, Callable[[Batch], dict[str, Any]]] = {"span": lambda batch: by_span(batch, asked.limit)}
    if asked.dager:
        attacks["dager"] = lambda batch: by_dager(batch, asked)
    for number in range(asked.batches):
        for size in asked.sizes:
            batch = Batch(size, number, private, model)
            for attack, run in attacks.items():
                if (attack, size, number) in done or time.perf_counter() - begun > 60 * asked.minutes:
                    continue
                made = run(batch)
                line = {"attack": attack, "size": size, "number": number, "pairs": batch.pairs}
                line |= judged(batch, made.pop("texts")) | made
                lines.append(line)
                with asked.runs.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), file=sys.stderr, flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
