"""What is dealt to workers: cells that share observations, attacks and controls stay together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.evaluation.controls import positive_control, smaller
from harness.evaluation.outlook import work_of
from harness.evaluation.run import Run
from harness.experiment import CellSettings
from harness.results import cell_key


@dataclass(frozen=True)
class Unit:
    """Cells that one worker makes one after another, with their controls.

    Attributes:
        name: a hash of what they have in common; it is the same in every process that is given the same cells.
        cells: settings that differ in the tap alone, in the order asked for. control: which control they are, if any.
    """

    name: str
    cells: tuple[CellSettings, ...]
    control: str | None = None

    def make(self, run: Run) -> None:
        """Makes its cells, or finds them made."""
        for settings in self.cells:
            run.cell(settings, self.control)

    @property
    def work(self) -> float:
        """Gradients of single images that its attacks evaluate, at most."""
        return sum(work_of(settings) for settings in self.cells)

    @property
    def words(self) -> str:
        """What it is, for a person who waits."""
        first = self.cells[0]
        control = f" ({self.control} control)" if self.control else ""
        return f"{first.attack} vs {first.defense} on {first.dataset}{control}"


def units_of(cells: Sequence[CellSettings], run: Run) -> list[Unit]:
    """The cells of a run as units, in the order asked for."""
    groups: dict[str, list[CellSettings]] = {}
    for settings in cells:
        identity = run.identity(settings)
        groups.setdefault(cell_key(identity | {"tap": None}), []).append(settings)
    return [Unit(name, tuple(members)) for name, members in groups.items()]


def shared_controls(units: Sequence[Unit], run: Run) -> dict[str, Unit]:
    """The undefended controls that several units need, each a unit of its own, by name: made first, nobody waits."""
    found: dict[str, Unit] = {}
    needed: Counter[str] = Counter()
    for unit in units:
        own = undefended(unit, run)
        found |= own
        needed.update(own.keys())
    return {name: unit for name, unit in found.items() if needed[name] > 1}


def undefended(unit: Unit, run: Run) -> dict[str, Unit]:
    """The undefended controls of a unit's cells, by name."""
    controls = {}
    for settings in unit.cells:
        control = positive_control(settings)
        if control != smaller(settings, observations=1):  # else it is its own control
            name = cell_key(run.identity(control, "positive"))
            controls[name] = Unit(name, (control,), "positive")
    return controls
