"""Secure sums of N clients, with and without distributed noise, against honest servers and servers that tamper.

Noise is that of S000's configuration "Fashion-MNIST, 1 step": as much on the sum as ten clients of theirs add, however
many share it here. Both layers of bins have eight bins for every image that they have to tell apart, so that ``loki``
and ``imprint`` send layers of the same number of weights.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.experiment import cell_settings
from harness.frontier.request import Request
from harness.papers.data import at_hand
from harness.papers.epsilons import configurations
from harness.progress import counted
from harness.reports.secure_sums import Sums, save_secure_sums
from harness.reproduction.tampering.row import row_of
from harness.results import CellResult, Rate

CONFIGURATION = "Fashion-MNIST, 1 step"
CLIENTS, QUICK_CLIENTS = (2, 5, 10, 20, 50), (2, 10, 50)
#: Clients behind the rounds of a cell, all together, where attacks are in closed form, and where they optimise for
#: minutes; and fewest rounds.
CLOSED_FORM, OPTIMISED, FEWEST = (200, 40), (40, 4), 2
BATCH, BINS = 2, 8
# Most iterations, as in the nightly preset and in the table of what a secure sum hides.
ITERATIONS, QUICK_ITERATIONS = {"cpl": 60, "inverting_gradients": 300, "map": 40}, {"cpl": 15, "map": 10}
PICTURE = "secure-sums.png"


@dataclass(frozen=True)
class Noise:
    """``sigma`` of the sum, in clipping bounds; its ``name`` in the table and above the panel."""

    name: str
    sigma: float


def noises() -> tuple[Noise, Noise]:
    """None, and that of S000."""
    one = configurations()[CONFIGURATION]
    sigma = one.sigma * math.sqrt(one.clients)
    return Noise("none", 0.0), Noise(f"Skellam, σ={sigma:.3g}", sigma)


def judge_sums(request: Request) -> list[dict[str, Any]]:
    """Rows of every attack, number of clients and noise; draws the picture beside the results."""
    made: dict[Noise, dict[str, dict[int, CellResult]]] = {noise: {} for noise in noises()}
    places = [(noise, clients) for noise in made for clients in (QUICK_CLIENTS if request.quick else CLIENTS)]
    rows = []
    for noise, clients in request.dealt(places, "sum"):
        cells = dict(_cells(request, noise, clients))
        for attack, cell in cells.items():
            made[noise].setdefault(attack, {})[clients] = cell
        luck = next((cell.kappa for cell in cells.values() if cell.kappa), None)
        rows += [_row(cell, clients, noise, luck) for cell in cells.values()]
    request.require_whole()
    panels = [Sums(f"{noise.name} on the sum" if noise.sigma else "no noise", lines) for noise, lines in made.items()]
    save_secure_sums(request.run.folder.path / PICTURE, panels)
    return rows


def rounds_of(request: Request, clients: int, attack: str = "loki") -> int:
    """How many rounds are attacked; ``--victims`` says so itself."""
    full, quick = OPTIMISED if attack in ITERATIONS else CLOSED_FORM
    return request.victims or max(FEWEST, request.count(full, quick) // clients)


def attacks_of(request: Request, clients: int) -> dict[str, dict[str, Any]]:
    """Settings of each attack."""
    iterations = QUICK_ITERATIONS if request.quick else ITERATIONS
    return {attack: {"max_iterations": most} for attack, most in iterations.items()} | {
        "imprint": {"bins": BINS * BATCH * clients}, "loki": {"bins": BINS * BATCH},
    }  # fmt: skip


def _cells(request: Request, noise: Noise, clients: int) -> Iterator[tuple[str, CellResult]]:
    dataset, _ = at_hand("mnist", request.data_root)
    one = configurations()[CONFIGURATION]
    for attack, arguments in counted(attacks_of(request, clients).items(), "attack"):
        settings = cell_settings(
            dataset=dataset, attack=attack, attack_args=arguments, victims=rounds_of(request, clients, attack),
            batch_size=BATCH, prior="auto", defense="secagg_ddp",
            defense_args={"sigma": noise.sigma, "protocol": "sum"}, tap="T0.in", clients=clients,
            clients_per_round=clients, rounds=one.rounds, steps_per_round=one.steps, sampling_rate=one.rate,
            seeds=request.seeds, device=request.device,
        )  # fmt: skip
        yield attack, request.run.cell(settings).cell


def _row(cell: CellResult, clients: int, noise: Noise, luck: Rate | None) -> dict[str, Any]:
    if not noise.sigma:
        return row_of(cell, clients, noise.name, "", "-")
    epsilon = next((one.epsilon for one in cell.privacy if one.view == "server"), None)
    promise = "blind" + (f", ε {epsilon:.2g}" if epsilon else "")
    return row_of(
        cell, clients, f"σ={noise.sigma:.3g}", promise, "differs" if _beyond(cell.asr.get("strict"), luck) else "agrees"
    )


def _beyond(measured: Rate | None, luck: Rate | None) -> bool:
    """Whether intervals say that more images came back than blindly."""
    if measured is None or luck is None or measured.ci95 is None or luck.ci95 is None:
        return False
    return (measured.ci95[0] or 0.0) > (luck.ci95[1] or 0.0)
