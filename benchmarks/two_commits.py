"""Seconds per victim and iteration of gradient matching on two installed versions, in turns.

``python benchmarks/two_commits.py OLD/bin/python NEW/bin/python TURNS "MODEL VICTIMS IMAGES ITERATIONS [ATTACK]"...``
prints for each case the medians of both, and the median of the turns' ratios, of seconds and of seconds of all threads
together. Victims have random images of 32x32 and weights of their own; ``OMP_NUM_THREADS`` chooses the threads, which a
version that can takes as processes of one thread each, as its ``harness evaluate`` does.
"""

import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from statistics import median

SHAPE, CLASSES = (3, 32, 32), 10


def work() -> None:
    """Reads cases from standard input and prints for each: seconds, seconds of all threads, and the loss at the end."""
    import harness.models  # isort: skip  # before torch
    import torch

    from harness.attacks import ATTACKS, run_attack
    from harness.base.building import build
    from harness.models.batch_norm import KnownBatches
    from harness.observation import Observation

    known, seen, threads = "", None, torch.get_num_threads()
    everyone = None  # in a version before it
    for module, kind in (("worker_pool", "WorkerPool"), ("crew", "Crew")):  # its name now and before
        if everyone is None and find_spec(f"harness.parallel.{module}"):
            everyone = getattr(import_module(f"harness.parallel.{module}"), kind)(threads, 1)
    for line in sys.stdin:
        name, rows, batch, iterations, attack = line.split()
        if seen is None or known != f"{name} {rows} {batch}":
            known, model = f"{name} {rows} {batch}", harness.models.RowModel(name, SHAPE, CLASSES)
            random, keys = torch.Generator().manual_seed(1), [(0, row) for row in range(int(rows))]
            images = torch.rand(int(rows), int(batch), *SHAPE, generator=random)
            labels, weights = torch.randint(CLASSES, images.shape[:2], generator=random), model.initial_weights(keys)
            seen = Observation(
                model, weights, model.gradient(weights, images, labels), int(batch), tuple(keys), labels=labels,
                batches=KnownBatches(int(batch)) if model.normalised else None,
            )  # fmt: skip
        built = build(ATTACKS, attack, {"max_iterations": int(iterations)})
        dealt = everyone is not None and not seen.model.evaluates_alone and int(rows) >= 2 * threads
        torch.set_num_threads(1 if dealt else threads)
        began, spent = time.perf_counter(), time.process_time() + (everyone.seconds if dealt else 0.0)
        made = everyone.attack(built, seen, 128) if dealt else run_attack(built, seen)
        took = time.process_time() + (everyone.seconds if dealt else 0.0) - spent
        done = float(made.evaluations.sum())
        print((time.perf_counter() - began) / done, took / done, float(made.loss.sum()))
        sys.stdout.flush()


def compare(pythons: list[str], turns: int, cases: list[str]) -> None:
    """Prints a line per case."""
    workers = [
        subprocess.Popen([python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for python in pythons
    ]

    def ask(worker: subprocess.Popen[str], case: str) -> list[float]:
        assert worker.stdin and worker.stdout
        worker.stdin.write(case + "\n")
        worker.stdin.flush()
        return [float(number) for number in worker.stdout.readline().split()]

    for case in cases:
        name, victims, images, iterations, *attack = case.split()
        attack = attack[0] if attack else "inverting_gradients"
        for worker in workers:
            ask(worker, f"{name} {victims} {images} 1 {attack}")  # warm-up
        whole = f"{name} {victims} {images} {iterations} {attack}"
        pairs = [[ask(worker, whole) for worker in workers] for _ in range(turns)]
        seconds = "; ".join(
            "{}: s {:.4f} CPU s {:.4f}".format(title, *(median(pair[place][unit] for pair in pairs) for unit in (0, 1)))
            for place, title in enumerate(("old", "new"))
        )
        ratios = [median(old[unit] / new[unit] for old, new in pairs) for unit in (0, 1)]
        losses = " ".join(f"{made[2]:.6g}" for made in pairs[0])
        print(f"{case}: {seconds}; old/new: s {ratios[0]:.2f} CPU s {ratios[1]:.2f}; loss {losses}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        work()
    else:
        compare(sys.argv[1:3], int(sys.argv[3]), sys.argv[4:])
