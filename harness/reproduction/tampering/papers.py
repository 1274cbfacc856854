"""The papers' own attacks without a defense, at their batch sizes, beside what was published.

Figures are those of abstracts and of public code, where they could be looked up; other data and networks than ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.experiment import cell_settings
from harness.frontier.request import Request
from harness.papers.data import at_hand
from harness.reproduction.tampering.row import row_of
from harness.results import CellResult

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
