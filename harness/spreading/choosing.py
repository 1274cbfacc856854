"""How many processes suit a run, where nobody says: by measurement (docs/scaling.md)."""

from collections.abc import Sequence

from loky import cpu_count

from harness.attacks import Attack
from harness.errors import UsageError
from harness.evaluation.observe import Stage
from harness.evaluation.outlook import work_of
from harness.experiment import CellSettings
from harness.models import build_module
from harness.models.batch_norm import trained_layers
from harness.models.networks import ImageShape
from harness.models.ways import ways_of
from harness.spreading.crew import can_be_sent
from harness.vectors.layout import Layout

# Gradients of single images, at most: about what two workers could do while they start.
_WORTH_SHARING = 1e5
# Fewer victims take a process hardly less time.
_LEAST_VICTIMS = 8


def is_one_group(cells: Sequence[CellSettings]) -> bool:
    """Whether cells differ in the tap alone, and so are made one after another."""
    return len(_work_of_groups(cells)) == 1


def suitable_jobs(cells: Sequence[CellSettings], stage: Stage) -> int:
    """As many processes as this machine has cores and the run has groups of cells, or victims; one where they would
    not pay.

    With two cores two processes of one thread take 0.7 of the time of one process of two.
    """
    if any(cell.device != "cpu" for cell in cells):
        return 1
    groups = _work_of_groups(cells)
    if len(groups) == 1:
        try:
            data = stage.dataset(cells[0].dataset)
        except UsageError:  # said when the cell is made
            return 1
        return suitable_crew(cells, data.image_shape, data.num_classes)
    shared = sum(groups) - max(groups, default=0.0)
    return min(cpu_count(), len(groups)) if shared >= _WORTH_SHARING else 1


def suitable_crew(cells: Sequence[CellSettings], image_shape: ImageShape, classes: int) -> int:
    """Processes for cells of one network that are made one after another, each attack's victims dealt to them."""
    worth = [cell for cell in cells if work_of(cell) >= _WORTH_SHARING and can_be_dealt(cell, image_shape, classes)]
    return max([1, *(min(cpu_count(), _victims(cell) // _LEAST_VICTIMS) for cell in worth)])


def largest_crew(cells: Sequence[CellSettings]) -> int:
    """The processes that have anything to do there: two victims each."""
    return max([1, *(_victims(cell) // 2 for cell in cells)])


def can_be_dealt(cell: CellSettings, image_shape: ImageShape, classes: int) -> bool:
    """Whether several processes attack the victims of a cell faster than one process whose threads share them.

    Not those of networks whose rows are evaluated one after another, which threads share as well, without a copy of
    what was observed.
    """
    attack = cell.build_attack()
    if cell.device != "cpu" or cell.engine == "reference" or not isinstance(attack, Attack) or attack.closed_form:
        return False
    try:
        network = build_module(cell.model, image_shape, classes, seed=0)
    except UsageError:  # said when the cell is made
        return False
    weights = Layout.of(network).total
    alone = ways_of(network, weights, bool(trained_layers(network)))[0].alone
    return not alone and can_be_sent(_victims(cell), weights)


def _victims(cell: CellSettings) -> int:
    return cell.victims * len(cell.seeds)


def _work_of_groups(cells: Sequence[CellSettings]) -> list[float]:
    groups: dict[str, float] = {}
    for cell in cells:
        name = cell.model_dump_json(exclude={"tap"})
        groups[name] = max(groups.get(name, 0.0), work_of(cell))
    return list(groups.values())
