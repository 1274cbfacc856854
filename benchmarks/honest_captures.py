"""200 honest clients' federations, 20 kinds with 10 seeds each, checked with the truth and without it.

python benchmarks/honest_captures.py

Prints false alarms, and how often the checks that apply say that all holds. A check does not apply where nothing of its
kind is declared, or where the declared noise hides what it measures from everybody:

* the bound: where a norm of twice the bound is no more than the noise's own spread at the checks' level;
* noise: where none is declared, or its law is not Gaussian, or no single deviation of it is published;
* the truth: where the defense draws more than noise, such as coordinates, or noise of no published deviation.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.stats import chi2

from federation_cases import Case, captures, checks_of_folders, suite_cases
from harness.datasets import data_root
from harness.judging.capture import read_capture
from harness.judging.declared import groups_of
from harness.judging.evidence import ALARMS, LEVEL, Check, Evidence
from harness.judging.federation import federations
from harness.judging.noise_checks import ANEW, BOUND, ENOUGH, NO_MORE, SHAPE, UNROUNDED

KINDS = (
    "nothing declared", "nothing declared, in half precision", "momentum, one step", "small last batch",
    "several epochs", "a clip alone", "one example each", "weak noise", "clipped per tensor", "Poisson batches",
    "Poisson batches of a size that nobody gave", "batches of two sizes", "small last batch under noise",
    "momentum under clip and noise", "Adam under clip and noise", "weight decay under weak noise",
    "noise on statistics of BatchNorm too", "shared noise on a grid", "pruned, then noise",
    "clip and noise in half precision",
)  # fmt: skip
SEEDS = range(10)
_OF_NOISE = {ENOUGH, NO_MORE, SHAPE, ANEW, UNROUNDED}


def applies(check: Check, evidence: Evidence) -> bool:
    """Whether what is declared lets anybody measure what a check asks."""
    noise, level = evidence.noise, evidence.level
    single = noise is not None and level is not None and noise.law == "gaussian"
    if check.name in _OF_NOISE:
        return single
    if check.name == "the truth explains what was sent":
        return (noise is None or level is not None) and not evidence.defense.sparse_at(evidence.settings.tap)
    if check.name != BOUND:
        return True
    if evidence.bound is None or evidence.clipping is None or (noise is not None and level is None):
        return False
    _, sizes = evidence.norms(evidence.clipping.grouping == "layer")
    if not level:
        return True
    hidden = level * np.sqrt(chi2.isf(LEVEL / (evidence.captured.clients * len(sizes)), sizes)) + evidence.bound
    return bool((np.sqrt((2 * evidence.bound) ** 2 + level**2 * sizes) >= hidden).all())


def checked(case: Case, root: Path) -> Iterator[tuple[bool, Check, bool]]:
    """The checks of a case with the truth and without it: whether it is there, the check, and whether it applies."""
    with TemporaryDirectory() as folder:
        folders = list(captures(case, Path(folder), root))
        # Where clients' batches differ, their noise does by that much: no check applies to one group alone.
        clients = federations([read_capture(one) for one in folders], attacked=False)
        group = groups_of(clients, "captures", ["cpl"], "none", "cpu")[0]
        evidence = Evidence(group.captured, group.cell)
        for truth in (True, False):
            for check in checks_of_folders(folders, root if truth else None):
                yield truth, check, applies(check, evidence)


def main() -> None:
    """Prints counts for each kind and for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS, help="One of the kinds; all without it.")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="How many of the seeds.")
    parser.add_argument("--out", type=Path, help="A file for the counts as JSON.")
    chosen = parser.parse_args()
    cases, total = {case.about: case for case in suite_cases()}, Counter[str]()
    root, rows, unsure = data_root(None), {}, Counter[tuple[str, str]]()
    for kind in chosen.kind or KINDS:
        counts = Counter[str]()
        for seed in SEEDS[: chosen.seeds]:
            for truth, check, applicable in checked(replace(cases[kind], seed=seed), root):
                counts["checks"] += 1
                counts["hold"] += check.outcome == "holds"
                counts["alarms"] += check.outcome in ALARMS
                counts["applicable"] += applicable
                counts["applicable that hold"] += applicable and check.outcome == "holds"
                if applicable and check.outcome == "cannot tell":
                    unsure[check.name, check.detail.partition(":")[0]] += 1
                if check.outcome in ALARMS:
                    print(f"  {kind}, seed {seed}, truth {truth}: {check.name}: {check.outcome}, {check.detail}")
        rows[kind] = dict(counts)
        total += counts
        print(f"{kind}: {dict(counts)}", flush=True)
    runs = len(rows) * len(SEEDS[: chosen.seeds])
    print(f"{runs} federations, each with the truth and without: {total['alarms']} false alarms")
    print(f"hold: {total['hold']} of {total['checks']} checks ({total['hold'] / total['checks']:.1%})")
    share = total["applicable that hold"] / total["applicable"]
    print(f"hold, of those that apply: {total['applicable that hold']} of {total['applicable']} ({share:.1%})")
    for (name, detail), count in unsure.most_common(12):
        print(f"applies, and cannot be told {count} times: {name}: {detail}")
    if chosen.out:
        chosen.out.write_text(json.dumps({"kinds": rows, "all": dict(total)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
