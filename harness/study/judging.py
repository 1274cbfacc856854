"""One place, judged twice on the same observations: by attackers who do not know the defense, and by all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.attacks import expanded
from harness.base.progress import counted
from harness.experiment import CellSettings, cell_settings
from harness.results import CellResult, SummaryRow
from harness.scoring.summarise import summarise
from harness.study.request import Request

#: Fewer victims than 59 cannot show resilience.
VICTIMS, QUICK_VICTIMS = 100, 60
WORDS = {"leaks": "N", "resilient": "Y", "inconclusive": "?"}
#: Who attacks; ``--quick``: the papers' own attack and those that know the defense.
ATTACKS, QUICK_ATTACKS = ("auto",), ("cpl", "map", "identify")


@dataclass(frozen=True)
class Judged:
    """The cells of all attacks at one place, and the verdicts over those of the plain tier alone and over all."""

    cells: list[CellResult]
    plain: SummaryRow
    informed: SummaryRow

    @property
    def fell(self) -> bool:
        """Whether knowing the defense overturns that it withstood."""
        return self.plain.verdict != "leaks" and self.informed.verdict == "leaks"

    def best(self, tier: str | None = None) -> CellResult | None:
        """The cell of the (tier's) attack that brings most images back; None where none was possible."""
        possible = [
            cell for cell in self.cells
            if tier in (None, cell.tier) and cell.not_applicable_reason is None and "strict" in cell.asr
        ]  # fmt: skip
        return max(possible, key=lambda cell: cell.outcomes.success, default=None)

    @property
    def identified(self) -> CellResult | None:
        """The cell of the attack that only tells known images apart, where it was possible."""
        return next((cell for cell in self.cells if cell.identified and not cell.not_applicable_reason), None)


def cells_at(request: Request, attacks: Sequence[str], **settings: Any) -> list[CellSettings]:
    """The cells of every attack at one place; ``settings`` are a cell's without its attack."""
    common = {"seeds": request.seeds, "device": request.device, "prior": "auto"} | settings
    return [
        cell_settings(attack=chosen.attack, attack_args=dict(chosen.arguments), suite=chosen.suite, **common)
        for chosen in expanded([(name, {}) for name in attacks])
    ]


def judge(request: Request, attacks: Sequence[str] = (), **settings: Any) -> Judged:
    """Runs every attack at one place, those of the request where none is named."""
    asked = cells_at(request, attacks or attacks_of(request), **settings)
    cells = [cell for one in counted(asked, "attack") for cell in request.run.with_told(one)]
    (informed,) = summarise(cells)
    # A verdict without the informed is that of attacks which were named one by one.
    plain = summarise(cell.model_copy(update={"suite": None}) for cell in cells if cell.tier == "plain")
    return Judged(cells, plain[0] if plain else informed, informed)


def attacks_of(request: Request) -> tuple[str, ...]:
    """Names of the attacks and suites that are tried."""
    return QUICK_ATTACKS if request.quick else ATTACKS


def strict(cell: CellResult | None) -> str:
    """Images brought back, of all; ``-`` where no attack was possible."""
    return "-" if cell is None else f"{cell.asr['strict'].successes}/{cell.asr['strict'].n}"
