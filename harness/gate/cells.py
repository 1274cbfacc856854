"""Cells as the gate compares them: the settings that must agree, and three numbers per victim.

A victim is the private images behind one observation. Under several seeds the same images may be attacked more than
once, with another network and other noise each time: their numbers are averaged, so that victims stay independent.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UsageError
from harness.evaluation.derived import findings, of_run, version_of
from harness.experiment import only_tells
from harness.gate.settings import Settings, effective, named, told_apart
from harness.results import ResultDocument, RunFolder, StoredCell, VictimRecord, read_results

# A reconstruction that cannot be measured is no better than the worst image in [0, 1].
_WORST_RMSE = 1.0
# Below it a reconstruction is exact to any eye, and the logarithm only measures rounding.
_BEST_RMSE = 1e-5
# Controls that tell whether the attack works; noise_x100 and swap have a rule of their own and invalidate the run.
_ATTACK_CONTROLS = ("positive", "positive_sigma0")
# Digits of a digest that name the content of a user's own data.
_MARK = 12


@dataclass(frozen=True)
class Victim:
    """One victim's numbers, rounded as a baseline keeps them.

    ``rank``: mean relative place of its images in their lineups, 0 nearest and 1 farthest, None without decoys;
    ``rmse``: geometric mean over its images; ``success``: share of its attacks that succeeded.
    """

    rank: float | None
    rmse: float
    success: float


@dataclass(frozen=True)
class GateCell:
    """A cell's effective settings and its victims by identity.

    ``settled_by``: the member of its suite that settled the place before, so that nobody was attacked; else None.
    ``called``: its title among others (:func:`with_titles`), by its place where empty.
    """

    settings: Settings
    victims: Mapping[str, Victim]
    settled_by: str | None = None
    called: str = field(default="", compare=False)

    @property
    def place(self) -> tuple[str, ...]:
        """Return what people call the cell: dataset, defense, attack, tap, and whether its noise was taken away."""
        names = ("dataset", "defense", "attack", "tap")
        return (*(str(self.settings.get(name)) for name in names), "" if self.noise_scale == 1 else "without noise")

    @cached_property
    def title(self) -> str:
        """The place in one line, with what is not a default."""
        dataset, _, attack, tap, _ = self.place
        return self.called or f"{named(self.settings)} / {attack} / {tap} / {dataset}"

    @property
    def noise_scale(self) -> float:
        """Return what the defense's noise is multiplied with."""
        scale = self.settings.get("noise_scale", 1.0)
        assert isinstance(scale, int | float)  # of a run and of a baseline alike
        return float(scale)

    @property
    def tests_the_attack(self) -> bool:
        """Return whether nothing protects here, so that a weaker attack is a broken one."""
        return self.settings.get("defense") == "none" or self.noise_scale == 0

    @property
    def reconstructs(self) -> bool:
        """Return whether its attack makes examples: what only tells them apart has neither successes nor errors."""
        return not only_tells(str(self.settings.get("attack")))

    @cached_property
    def ranks(self) -> NDArray[np.float64]:
        """(V,) relative ranks in the order of ``victims``; NaN where there was no lineup."""
        return np.array([math.nan if v.rank is None else v.rank for v in self.victims.values()])

    @cached_property
    def log_rmse(self) -> NDArray[np.float64]:
        """(V,) natural logarithms."""
        return np.log(np.clip([v.rmse for v in self.victims.values()], _BEST_RMSE, None))

    @cached_property
    def successes(self) -> NDArray[np.float64]:
        """(V,) shares in [0, 1]."""
        return np.array([v.success for v in self.victims.values()])


def read_runs(paths: Iterable[Path], only_today: bool = False) -> tuple[list[GateCell], dict[str, Any], list[str]]:
    """The cells of one or more run folders; equal settings are one cell, whose victims come from all of them.

    Args:
        only_today: refuse a verdict that another version's rules made and today's do not; else it is told.

    Returns:
        The cells, those that were skipped among them, the versions they were made with, and what is wrong with the
        runs in plain sentences: a failed negative control, or cells whose files are missing or damaged and that are
        left out.

    Raises:
        UsageError: a folder holds no finished run, the runs were made with different versions, or a verdict is not that
            of its victims.
    """
    stored: list[StoredCell] = []
    versions: dict[str, Any] | None = None
    problems: list[str] = []
    for path in paths:
        document, own_cells, found = read_run(path, only_today)
        own = _versions(document)
        if versions not in (None, own):
            raise UsageError(f"{str(path)!r} was made with other versions than the run before it; check them apart")
        versions = own
        problems += found
        stored += own_cells
    return merged(stored), versions or {}, problems


def read_run(path: Path, only_today: bool = False) -> tuple[ResultDocument, list[StoredCell], list[str]]:
    """The document of a run, the files of its cells and of controls that tell whether an attack works, and what is
    wrong with it; arguments and errors as of :func:`read_runs`."""
    document = read_results(path)
    problems = []
    if not document.valid:
        state = "invalid" if document.complete else "unfinished"
        problems.append(f"the run {str(path)!r} is {state}: {document.valid_reason}")
    stored = _cells_of(path, document, problems)
    return document, stored, problems + _told(path, document, stored, only_today)


def _versions(document: ResultDocument) -> dict[str, Any]:
    versions = document.environment.get("versions")
    return versions if isinstance(versions, dict) else {}


def _cells_of(path: Path, document: ResultDocument, problems: list[str]) -> list[StoredCell]:
    folder = RunFolder(path if os.path.isdir(path) else path.parent)
    found = []
    for cell in document.cells:
        if (cell.not_applicable_reason and not cell.settled_by) or not (
            cell.role == "cell" or cell.control in _ATTACK_CONTROLS
        ):
            continue
        stored = folder.find_cell(cell.key or "")
        if stored is None:
            problems.append(f"a cell of {cell.defense} in {str(path)!r} is not checked: its file is missing or damaged")
        else:
            found.append(stored)
    return found


def _told(path: Path, document: ResultDocument, stored: Sequence[StoredCell], only_today: bool) -> list[str]:
    """Return what is wrong with the verdicts of a document beside its victims, where it is no reason to refuse it."""
    victims = {one.cell.key or "": one.victims for one in stored}
    cells = [cell for cell in document.cells if cell.key in victims or cell.not_applicable_reason]
    whole = all(cell in cells for cell in document.cells if cell.role == "cell")
    rows = document.summary if whole else ()
    # A cell's own file is named by what it says of its version; a document is not.
    version = version_of(stored[0].settings if stored else document.environment)
    found = of_run(document.cells, document.valid, version)
    found += findings(cells, victims, {one.cell.key or "": one for one in stored}, version, rows)
    refused = ("differs", "outdated") if only_today else ("differs",)
    for one in found:
        if one.kind in refused:
            raise UsageError(f"{str(path)!r}: {one.line}; run harness evaluate again")
    return [one.line for one in found]


def merged(cells: Iterable[StoredCell]) -> list[GateCell]:
    """Stored cells as the gate sees them; a control that repeats a cell's settings joins that cell."""
    members: dict[str, list[StoredCell]] = defaultdict(list)
    settings: dict[str, Settings] = {}
    settlers: dict[str, str | None] = {}
    for stored in cells:
        own = effective(stored)
        key = repr(sorted(own.items()))
        settings[key] = own
        members[key].append(stored)
        settlers[key] = stored.cell.settled_by
    return with_titles([
        GateCell(settings[key], victims, None if victims else settlers[key])
        for key, same in members.items()
        for victims in [_victims(same)]
    ])  # fmt: skip


def with_titles(cells: Sequence[GateCell]) -> list[GateCell]:
    """Return the cells with titles that tell them apart."""
    titles = told_apart([(cell.title, cell.settings) for cell in cells])
    return [replace(cell, called=title) for cell, title in zip(cells, titles, strict=True)]


def _victims(cells: Iterable[StoredCell]) -> dict[str, Victim]:
    # A victim's number is of its own run: that of the same number and seed in another run may be somebody else.
    attacked: dict[tuple[int, str, int, int], dict[int, VictimRecord]] = defaultdict(dict)
    for run, stored in enumerate(cells):
        own = _own_data(stored)
        for record in stored.victims:
            attacked[run, own, record.seed, record.victim][record.image] = record
    looks: dict[str, list[Victim]] = defaultdict(list)
    for (_, own, seed, number), images in attacked.items():
        looks[own + _identity(seed, number, images.values())].append(_one(list(images.values())))
    return {name: _average(same) for name, same in looks.items()}


def _own_data(stored: StoredCell) -> str:
    """Return a mark of the content that the user's own data had. The example at a place of other content may be another
    one."""
    digests = (stored.settings.get(name) for name in ("dataset_file", "dataset_source"))
    return "".join(f"{str(digest)[:_MARK]} " for digest in digests if digest)


def _identity(seed: int, victim: int, records: Iterable[VictimRecord]) -> str:
    places = [record.dataset_index for record in records]
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        return f"seed {seed} victim {victim}"
    return "+".join(str(place) for place in sorted(known))


def _one(records: list[VictimRecord]) -> Victim:
    ranks = [
        (record.lineup_rank - 1) / (record.lineup_size - 1)
        for record in records
        if record.lineup_rank is not None and record.lineup_size is not None and record.lineup_size > 1
    ]
    return Victim(
        float(np.mean(ranks)) if ranks else None,
        math.exp(np.mean([math.log(_rmse(record)) for record in records])),
        float(any(record.outcome == "success" for record in records)),
    )


def _rmse(record: VictimRecord) -> float:
    value = record.continuous_rmse if record.continuous_rmse is not None else record.rmse
    return _WORST_RMSE if value is None else max(value, _BEST_RMSE)


def _average(looks: list[Victim]) -> Victim:
    ranks = [look.rank for look in looks if look.rank is not None]
    rmse = math.exp(np.mean([math.log(look.rmse) for look in looks]))
    success = float(np.mean([look.success for look in looks]))
    # Rounded here and not when written: a run must equal the baseline that was made of it.
    return Victim(round(float(np.mean(ranks)), 4) if ranks else None, float(f"{rmse:.4g}"), round(success, 4))
