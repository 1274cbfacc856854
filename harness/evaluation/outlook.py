"""What is ahead of a run: at which of its cells it is, and how much work is left."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from harness.attacks import Attack
from harness.base.progress import within
from harness.evaluation.controls import drowned_control, noiseless_control, positive_control, smaller
from harness.experiment import CellSettings
from harness.federation.taps import TAPS_OF_VARIATES


class Outlook:
    """Counts the cells of a run. Controls belong to their cell and are not counted; work on them is."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._cell: CellSettings | None = None
        self._begun, self._waiting = set[str](), dict[str, CellSettings]()
        self._count = 0

    @contextmanager
    def over(self, cells: Sequence[CellSettings], at_hand: Callable[[CellSettings], bool]) -> Iterator[None]:
        """Around a run of these cells; those that an earlier run left at hand are done at once."""
        known = {cell.model_dump_json(): cell for cell in cells}
        self._waiting = {name: cell for name, cell in known.items() if not at_hand(cell)}
        self.total, self._count = len(known), len(known) - len(self._waiting)
        with within():
            yield

    @contextmanager
    def at(self, settings: CellSettings, control: str | None) -> Iterator[None]:
        """Around all that one cell, or one control of it, takes."""
        self._begun.add(_name(settings, control))
        if control is None:
            fresh = self._waiting.pop(settings.model_dump_json(), None) is not None or self.total is None
            self._cell, self._count = settings, self._count + fresh
        of = f" of {self.total}" if self.total is not None else ""
        with within(f"its control {control}" if control else f"cell {self._count}{of}"):
            yield

    def work_left(self, early: bool = False) -> float:
        """The work of all cells and controls that have not begun, at most, or ``early``: where nobody has hope.

        Of controls, all that the cells may need; one that fails is made a second time, which is not counted.
        """
        cells = [cell for cell in (self._cell, *self._waiting.values()) if cell is not None]
        needed = {_name(cell, None): cell for cell in self._waiting.values()}
        for cell in cells:
            needed |= {_name(settings, control): settings for control, settings in _controls(cell)}
        return sum(work_of(settings, early) for name, settings in needed.items() if name not in self._begun)


def early_iterations(attack: Attack) -> int:
    """After how many iterations starts without hope are given up; the most there are where none is."""
    gives_up = attack.patience if attack.patience_drop else 0
    return min(gives_up or attack.max_iterations, attack.max_iterations)


def work_of(settings: CellSettings, early: bool = False) -> float:
    """Gradients of single images that its attack evaluates, at most; none where it only compares images.

    ``early``: if every start is given up as soon as that may be.
    """
    attack = settings.build_attack()
    if not isinstance(attack, Attack):
        return 0.0
    images = settings.victims * len(settings.seeds) * settings.examples
    each = getattr(attack.optimizer(), "inner_iterations", 1)
    iterations = early_iterations(attack) if early else attack.max_iterations
    return float(images * attack.starts * iterations * each)


def _controls(cell: CellSettings) -> list[tuple[str, CellSettings]]:
    """The controls that a cell may need, as :class:`harness.evaluation.run.Run` names them."""
    found = [("positive", positive_control(cell))]
    if found[0][1] == smaller(cell, observations=1):
        return []
    return [*found, ("positive_sigma0", noiseless_control(cell)), ("noise_x100", drowned_control(cell))]


def _name(settings: CellSettings, control: str | None) -> str:
    """Names what is attacked once, wherever it is read; of drowned cells, whatever the noise is multiplied by."""
    if control == "noise_x100":
        settings = settings.model_copy(update={"noise_scale": 1.0, "batch_norm": None})
    if control is not None:  # it is the same for an attack that was named itself
        settings = settings.model_copy(update={"suite": None})
    return f"{control} {_reading(settings)} {settings.model_dump_json(exclude={'tap'})}"


def _reading(settings: CellSettings) -> str:
    """What a tap shows: the same as another between which and it the defense does nothing."""
    tap, defense = settings.tap, settings.build_defense()
    if tap.unit == "example" or tap in TAPS_OF_VARIATES:
        return tap
    # Of one local step, an update is a gradient times the learning rate.
    apart = tap.of_update and (
        settings.local_steps > 1 or settings.batch_norm is not None or settings.optimizer != "sgd"
    )
    return " ".join([tap.unit if apart else "step", *(hook for hook in tap.noised_by if defense.acts_at(hook))])
