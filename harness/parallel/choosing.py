"""How many processes suit a run, where nobody says: by measurement (docs/scaling.md)."""

from collections.abc import Sequence

import torch
from loky import cpu_count

from harness.attacks import Attack
from harness.base.errors import UsageError
from harness.base.limits import free_memory
from harness.base.vectors import Layout
from harness.evaluation.observe import Stage
from harness.evaluation.outlook import work_of
from harness.experiment import CellSettings
from harness.models import build_module
from harness.models.batch_norm import trained_layers
from harness.models.networks import ImageShape
from harness.models.rows import ways_of
from harness.parallel.crew import can_be_sent

# Gradients of single images, at most: about what two workers could do while they start, on networks of so many weights.
_WORTH_SHARING, _SMALL = 1e5, 2**15
# Fewer victims take a process hardly less time, but of larger networks.
_LEAST_VICTIMS, _LEAST_OF_LARGER, _LARGER = 8, 2, 2**19
# Bytes that a process takes before it attacks anything (350 to 400 million), and then for an attack on small networks.
_OF_A_PROCESS = 1e9


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
    """Processes for cells of one network that are made one after another, each attack's victims dealt to them.

    One for networks whose rows are evaluated one after another, which threads share as well, without a copy of what
    was observed; and where every attack is over at once.
    """
    long = [cell for cell in cells if _is_dealt(cell)]
    weights = _weights_if_together(long[0].model, image_shape, classes) if long else None
    if weights is None:
        return 1
    free = free_memory()
    most = cpu_count() if free is None else min(cpu_count(), int(free // _OF_A_PROCESS))
    least = _LEAST_VICTIMS if weights < _LARGER else _LEAST_OF_LARGER
    worth = [cell for cell in long if work_of(cell) * max(1.0, weights / _SMALL) >= _WORTH_SHARING]
    victims = [_victims(cell) for cell in worth if can_be_sent(_victims(cell), weights, _bytes(cell))]
    return max(1, min(most, max(victims, default=0) // least))


def largest_crew(cells: Sequence[CellSettings]) -> int:
    """The processes that have anything to do there: two victims each."""
    return max([1, *(_victims(cell) // 2 for cell in cells)])


def _is_dealt(cell: CellSettings) -> bool:
    attack = cell.build_attack()
    return cell.device == "cpu" and cell.engine != "reference" and isinstance(attack, Attack) and attack.dealt


def _weights_if_together(model: str, image_shape: ImageShape, classes: int) -> int | None:
    """Weights of a network whose rows are evaluated together; None for others, and where there is none."""
    try:
        network = build_module(model, image_shape, classes, seed=0)
    except UsageError:  # said when the cell is made
        return None
    weights = Layout.of(network).total
    return None if ways_of(network, weights, bool(trained_layers(network)))[0].alone else weights


def _bytes(cell: CellSettings) -> int:
    return getattr(torch, cell.dtype).itemsize


def _victims(cell: CellSettings) -> int:
    return cell.victims * len(cell.seeds)


def _work_of_groups(cells: Sequence[CellSettings]) -> list[float]:
    groups: dict[str, float] = {}
    for cell in cells:
        name = cell.model_dump_json(exclude={"tap"})
        groups[name] = max(groups.get(name, 0.0), work_of(cell))
    return list(groups.values())
