"""``harness reproduce tampering``: servers that tamper, alone and behind secure sums, beside honest ones.

The papers' own attacks stand without a defense at their batch sizes, beside what abstracts and public code say of other
data and networks. Noise is that of the configuration "Fashion-MNIST, 1 step" of secure aggregation with local steps: as
much on the sum as ten clients of theirs add, however many share it here. Both layers of bins have eight bins for every
image that they have to tell apart, so that ``loki`` and ``imprint`` send layers of as many weights.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.base.progress import counted
from harness.experiment import cell_settings
from harness.papers.epsilons import configurations
from harness.papers.grid import Comparison, at_hand
from harness.reports import text
from harness.reports.noise_ladders import Sums, save_secure_sums
from harness.reports.text import event_of
from harness.results import CellResult, Rate
from harness.study.runner import Request

VICTIMS, QUICK_VICTIMS = 64, 12
SUM: dict[str, Any] = {
    "defense": "secagg_ddp", "defense_args": {"sigma": 0.0, "mechanism": "gaussian", "mode": "paper"}, "tap": "T0.in",
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """The least share of images that was published, None where it is not known, and the figure in words."""

    share: float | None = None
    words: str = ""


# Proposition 1 of Fowl et al., as their code (breaching, analysis/imprint_guarantee.py) counts it: all ways of filling
# the bins are taken as equally likely. Of independent images in equally likely bins 88.4% are alone.
FOWL = Published(0.791, "79.1% expected")
# Abstract of Zhao et al.
ZHAO = Published(0.76, "76-86%, 100 clients")
# Abstract of Boenisch et al.: ImageNet.
BOENISCH = Published(0.5, "over 50%, ImageNet")
# Abstract of Dimitrov et al.: exact for batches of up to about 25.
DIMITROV = Published(1.0, "exact to about 25")


@dataclass(frozen=True)
class Cell:
    """An attack and where it was tried; ``clients``: in a secure sum, 1 for one client's own gradient."""

    attack: str
    data: str
    batch: int
    published: Published
    clients: int = 1
    model: str = "lenet"
    arguments: dict[str, Any] = field(default_factory=dict)


CELLS = (
    Cell("imprint", "cifar10", 64, FOWL, arguments={"bins": 512}),
    Cell("imprint", "mnist", 64, FOWL, arguments={"bins": 512}),
    Cell("loki", "mnist", 8, ZHAO, clients=10),
    Cell("trap_weights", "cifar10", 8, Published(), model="mlp2"),
    Cell("trap_weights", "cifar10", 100, BOENISCH, model="mlp2"),
    *(Cell("spear", "cifar10", batch, DIMITROV, model="mlp2") for batch in (4, 8, 20)),
    *(Cell("spear", "mnist", batch, DIMITROV, model="mlp2") for batch in (4, 8)),
)


def beside_the_papers(request: Request) -> Iterator[dict[str, Any]]:
    """A row per cell."""
    for one in request.dealt(CELLS, "row"):
        dataset, _ = at_hand(one.data, request.data_root)
        secure = SUM | {"clients": one.clients, "clients_per_round": one.clients} if one.clients > 1 else {}
        settings = cell_settings(
            dataset=dataset, model=one.model, attack=one.attack, attack_args=one.arguments, batch_size=one.batch,
            victims=request.count(VICTIMS, QUICK_VICTIMS), seeds=request.seeds, device=request.device,
            prior="none" if one.attack == "spear" else "auto", **secure,
        )  # fmt: skip
        cell = request.run.cell(settings).cell
        yield row_of(cell, one.clients, "none", one.published.words, _verdict(cell, one.published))


def _verdict(cell: CellResult, published: Published) -> str:
    strict = cell.asr.get("strict")
    if published.share is None or strict is None or strict.ci95 is None:
        return "-"
    return "agrees" if (strict.ci95[1] or 0.0) >= published.share else "differs"


def row_of(cell: CellResult, clients: int, noise: str, published: str, verdict: str) -> dict[str, Any]:
    """A line of the table; ``clients``: behind one observation."""
    strict, guessed, first = cell.asr.get("strict"), cell.kappa, event_of(cell, "first in its lineup")
    possible = cell.not_applicable_reason is None and strict is not None
    return {
        "attack": cell.attack, "server": "tampers" if cell.tier == "tampering" else "honest",
        "data": cell.dataset, "batch": cell.batch_size, "clients": clients, "noise": noise,
        "strict": f"{strict.successes}/{strict.n}" if possible and strict else "not possible",
        "share [95%]": text.rate(strict) if possible and strict else text.MISSING,
        "blind": text.percent(guessed.rate) if guessed else text.MISSING,
        "first in lineup": text.percent(first.measured.rate) if first else text.MISSING,
        "at most": text.percent_up(first.ceiling) if first and first.ceiling is not None else "no bound",
        "s per victim": _seconds(cell), "promised or published": published, "verdict": verdict if possible else "-",
    }  # fmt: skip


def _seconds(cell: CellResult) -> str:
    return text.MISSING if cell.seconds is None else f"{cell.seconds / cell.victims:.2f}"


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
    """None, and that of SecAgg with local steps."""
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
        guessed = next((cell.kappa for cell in cells.values() if cell.kappa), None)
        rows += [_row(cell, clients, noise, guessed) for cell in cells.values()]
    request.require_whole()
    panels = [Sums(f"{noise.name} on the sum" if noise.sigma else "no noise", lines) for noise, lines in made.items()]
    save_secure_sums(request.run.folder.path / PICTURE, panels)
    return rows


def rounds_of(request: Request, clients: int, attack: str = "loki") -> int:
    """Return how many rounds are attacked; ``--victims`` sets that number itself."""
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


def _row(cell: CellResult, clients: int, noise: Noise, guessed: Rate | None) -> dict[str, Any]:
    if not noise.sigma:
        return row_of(cell, clients, noise.name, "", "-")
    epsilon = next((one.epsilon for one in cell.privacy if one.view == "server"), None)
    promise = "blind" + (f", ε {epsilon:.2g}" if epsilon else "")
    return row_of(
        cell,
        clients,
        f"σ={noise.sigma:.3g}",
        promise,
        "differs" if _beyond(cell.asr.get("strict"), guessed) else "agrees",
    )


def _beyond(measured: Rate | None, guessed: Rate | None) -> bool:
    """Return whether intervals say that more images came back than blindly."""
    if measured is None or guessed is None or measured.ci95 is None or guessed.ci95 is None:
        return False
    return (measured.ci95[0] or 0.0) > (guessed.ci95[1] or 0.0)


_LEFT_OUT = (
    "quick: fewer victims, rounds and numbers of clients; of attacks that optimise only cpl and map, stopped after 15 "
    "and 10 iterations"
)


def tampering_servers(request: Request) -> Comparison:
    """The papers' attacks beside their figures, then secure sums of 2 to 50 clients judged again."""
    rows = [*beside_the_papers(request), *judge_sums(request)]
    lines = [at_hand(name, request.data_root)[1] for name in ("mnist", "cifar10")]
    (_, noise), few = noises(), rounds_of(request, 2, "cpl")
    return Comparison(
        "Servers that tamper, and secure sums of their clients' gradients",
        [
            f"{request.count(VICTIMS, QUICK_VICTIMS)} victims per published attack, seeds {list(request.seeds)}",
            f"secure sums: {rounds_of(request, 2)} rounds of 2 clients to {rounds_of(request, 50)} of 50 ({few} to "
            f"{rounds_of(request, 50, 'cpl')} where an attack optimises), batches of {BATCH}, LeNet, {BINS} bins per "
            f"image that they tell apart, attacks {', '.join(attacks_of(request, 2))}",
            f"noise: {noise.name} on the sum, shared by all its clients, that of SecAgg with "
            "local steps on Fashion-MNIST, one local step",
            *lines, *([_LEFT_OUT] if request.quick else []),
        ],
        rows,
        [
            "strict: images back within an RMSE of 0.1; blind: by guessing the class mean without a gradient",
            "first in lineup: nearest to their own truth among look-alikes; at most: by any attacker, by theorem",
            "s per victim: playing the round, attack and scoring, on this machine; of a sum, per round of clients",
            "agrees: as many images as were published, within the interval; behind noise, no more than blindly",
            "published: Fowl et al. 2022 (imprint, by their public code); abstracts of Zhao et al. 2023 (loki), of "
            "Boenisch et al. 2023 (trap_weights) and of Dimitrov et al. 2024 (spear)",
            "blind, ε: no more than blindly, and the epsilon of the sum in as many rounds as the configuration has",
            "published figures are of other data and networks; differences are left standing",
            f"picture: {PICTURE} in the output folder",
        ],
        against="what was published, or what noise promises",
    )  # fmt: skip
