"""What a secure sum hides: attacks on one client's local step and message, and on the sum, which the server gets.

Noise is that of SecAgg's configuration "Fashion-MNIST, 1 step" (epsilon 1 in 20 rounds, by the noise of 10 clients), a
little, and none: then the aggregation protects alone.
"""

import itertools
import math
from typing import Any

from harness.experiment import CellSettings, cell_settings
from harness.federation.taps import SURFACES
from harness.papers.epsilons import configurations
from harness.papers.grid import Comparison, at_hand, number
from harness.results import CellResult
from harness.study.runner import Request

CLIENTS = 10
VICTIMS, QUICK_VICTIMS = 60, 24  # fewer than 59 cannot show resilience, though they show leaks
WEAK = 0.002  # of one client; its images still come back
CONFIGURATION = "Fashion-MNIST, 1 step"

# Attack and most iterations, as in the nightly preset. The closed form reads one example at a time, never a sum.
ATTACKS = {"cpl": 60, "dlg": 60, "idlg": 60, "inverting_gradients": 300, "gradinversion": 300}
QUICK_ATTACKS = {"cpl": 15}
WORDS = {"leaks": "differs", "resilient": "agrees", "inconclusive": "undecided"}


def what_leaks(request: Request) -> Comparison:
    """Verdicts at all surfaces under ``secagg_ddp``; ``--quick`` runs one attack, shortly, on fewer victims."""
    dataset, line = at_hand("mnist", request.data_root)
    one = configurations()[CONFIGURATION]
    attacks = QUICK_ATTACKS if request.quick else ATTACKS
    count = request.count(VICTIMS, QUICK_VICTIMS)
    rows = [
        _row(
            request,
            {"dataset": dataset, "attack": attack, "attack_args": {"max_iterations": cap}, "victims": count},
            noise,
        )
        for (attack, cap), noise in request.dealt(itertools.product(attacks.items(), (one.sigma, WEAK, 0.0)), "row")
    ]
    request.require_whole()
    left_out = ["quick: cpl only, stopped after 15 iterations, and too few victims to show resilience"]
    return Comparison(
        f"SecAgg with distributed noise, {CLIENTS} clients: what leaks where",
        [
            f"{count} victims, batch 1, C=4, Skellam noise in a ring of 32 bits; at surface 0 a victim is a round of "
            f"{CLIENTS} clients, {count * CLIENTS} images in all, seeds {list(request.seeds)}",
            f"epsilon: {one.rounds} rounds of one step, each example in {one.rate:.2%} of them; most iterations: "
            f"{attacks}",
            line, *(left_out if request.quick else []),
        ],
        rows,
        [
            "leaks, resilient or inconclusive is the lineup verdict with its controls; behind it images, or at surface "
            "0 rounds of clients, that were reconstructed strictly",
            "agrees: surface 0 is resilient; undecided: no leak found there, nor resilience shown; differs: it leaks",
            "without noise (σ=0) only the aggregation hides a client",
            "ε of the sum: what is proven against the server; ε of a message: if it could read one client's alone",
        ],
        against="the claim that the sum leaks nothing",
    )  # fmt: skip


def _row(request: Request, common: dict[str, Any], noise: float) -> dict[str, Any]:
    cells = {
        surface: request.run.cell(_settings(request, common, noise, tap)).cell
        for surface, tap in sorted(SURFACES.items(), reverse=True)
    }
    privacy, lineup = {one.view: one.epsilon for one in cells[0].privacy}, cells[0].lineup
    return {
        "attack": common["attack"], "σ per client": f"{noise:g}",
        **{f"surface {surface}": _shown(cell) for surface, cell in cells.items()},
        "lineup p at 0": number(lineup.p_value if lineup else None, 4),
        "ε of the sum": _epsilon(privacy.get("server")), "ε of a message": _epsilon(privacy.get("message")),
        "verdict": WORDS[cells[0].verdict_alone],
    }  # fmt: skip


def _settings(request: Request, common: dict[str, Any], noise: float, tap: str) -> CellSettings:
    one = configurations()[CONFIGURATION]
    return cell_settings(
        **common, model="lenet", defense="secagg_ddp", defense_args={"sigma": noise * math.sqrt(CLIENTS)}, tap=tap,
        clients=CLIENTS, clients_per_round=CLIENTS, rounds=one.rounds, steps_per_round=one.steps,
        sampling_rate=one.rate, seeds=request.seeds, device=request.device,
    )  # fmt: skip


def _epsilon(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _shown(cell: CellResult) -> str:
    if cell.not_applicable_reason:
        return "not run"
    return f"{cell.verdict_alone} ({cell.outcomes.success}/{cell.victims})"
