"""Evaluates cells with their controls, once each, and finds again what an earlier run finished."""

import time
from collections.abc import Callable
from pathlib import Path

from harness import SCHEMA_VERSION
from harness.errors import OutputError, UsageError
from harness.evaluation.attacking import attack_scene
from harness.evaluation.controls import (
    NEGATIVE,
    drowned_control,
    judge_negative,
    judge_positive,
    noiseless_control,
    positive_control,
    smaller,
    took_steps,
    with_other_key,
    without_noise,
)
from harness.evaluation.observe import Stage
from harness.evaluation.picture import save_cell_picture
from harness.evaluation.report_cell import cell_result, impossible_cell, victim_records
from harness.evaluation.scored import Scored
from harness.evaluation.scores import LPIPS_UNASKED, score
from harness.experiment import CellSettings
from harness.own_sources import own_sources
from harness.results import CellResult, ControlCheck, RunFolder, StoredCell, cell_key
from harness.scoring import Control, LpipsScorer, judge, negative_control_failed


class Run:
    """Everything the cells of a run share: data, the output folder, and what is already done.

    Args:
        data_root: where datasets and LPIPS weights lie.
        folder: where results go.
        chunk: rows attacked together; bounds memory, and on CPU changes no number of a chain of known layers.
        resume: use what an earlier run left in the folder.
        pictures: draw a grid per cell.
        on_cell: called with every finished cell and control.
    """

    def __init__(
        self,
        data_root: Path,
        folder: RunFolder,
        chunk: int = 128,
        resume: bool = False,
        pictures: bool = True,
        on_cell: Callable[[CellResult], None] | None = None,
    ) -> None:
        self.folder, self.chunk, self.resume, self.pictures, self.on_cell = folder, chunk, resume, pictures, on_cell
        self.stage = Stage(data_root, chunk)
        self.lpips = LpipsScorer.load(data_root)
        self.done: dict[str, StoredCell] = {}
        self._attacked: set[str] = set()
        self._sources: dict[tuple[str, str], dict[str, str]] = {}

    def cell(self, settings: CellSettings, control: str | None = None) -> StoredCell:
        """One cell, or one control cell, with everything its verdict needs.

        A cell whose settings are impossible together is recorded as not applicable.
        """
        identity = {**settings.identity(), **self._own_sources(settings), "control": control}
        key = cell_key(identity)
        if key not in self.done:
            stored = self.folder.read_cell(key, identity) if self.resume else None
            if stored is None or not self._controls_at_hand(stored):
                stored = self._fresh(settings, key, identity, control)
            self.done[key] = stored
            if self.on_cell:
                self.on_cell(stored.cell)
        return self.done[key]

    def _own_sources(self, settings: CellSettings) -> dict[str, str]:
        """Digests of the user's own files as they were when the run first needed them, which it then keeps loaded."""
        files = settings.model, settings.dataset
        if files not in self._sources:
            self._sources[files] = own_sources(*files)
        return self._sources[files]

    def _controls_at_hand(self, stored: StoredCell) -> bool:
        """Takes over a resumed cell's control cells; False when one of them is lost and must be made again."""
        for key in (key for check in stored.cell.controls for key in check.cells):
            found = self.done.get(key) or self.folder.find_cell(key)
            if found is None:
                return False
            self.done[key] = found
        return True

    def _fresh(self, settings: CellSettings, key: str, identity: dict[str, object], control: str | None) -> StoredCell:
        try:
            scored = self._evaluate(settings, control)
            checks = self._swap(scored) if control else self._checks(scored)
        except OutputError:
            raise
        except UsageError as error:
            cell, victims = impossible_cell(settings, key, control, str(error)), []
        else:
            controls = [Control(check.name, check.held, check.detail) for check in checks]
            scores = scored.scores
            verdict = judge(scores.confirmed, scores.strict_victims, scores.lineup.p_value, controls)
            cell = cell_result(scored, key, control, checks, verdict)
            victims = victim_records(scored, key, control)
            if self.pictures and control is None:
                save_cell_picture(self.folder, key, scored, cell)
        self.folder.write_cell(key, identity, cell, victims)
        return StoredCell(schema_version=SCHEMA_VERSION, settings=identity, cell=cell, victims=victims)

    def _evaluate(self, settings: CellSettings, control: str | None) -> Scored:
        began = time.perf_counter()
        scene = self.stage.set(settings)
        record = attack_scene(settings, scene, self.folder, self.chunk, self.resume, self._attacked)
        lpips = LPIPS_UNASKED if control else self.lpips
        scores = score(settings, scene, record, lpips, must_not_leak=control in NEGATIVE)
        return Scored(settings, scene, record, scores, time.perf_counter() - began)

    def _checks(self, scored: Scored) -> list[ControlCheck]:
        """Runs and judges the controls of a cell; noise controls only where the tap shows the defense's noise."""
        settings = scored.settings
        checks = [self._positive(scored), *self._swap(scored)]
        shown = self.stage.set(smaller(settings)).observation.fingerprint()
        if self.stage.set(without_noise(settings)).observation.fingerprint() != shown:
            quiet = self.cell(noiseless_control(settings), "positive_sigma0").cell
            checks.append(_check(judge_positive("positive_sigma0", quiet), quiet))
            checks.append(self._drowned(settings))
        return checks

    def _positive(self, scored: Scored) -> ControlCheck:
        settings, scores = scored.settings, scored.scores
        if positive_control(settings) == smaller(settings, observations=1):
            leaks = judge(scores.confirmed, scores.strict_victims, scores.lineup.p_value, []).verdict == "leaks"
            return _check(Control("positive", leaks, "this cell has no defense and is its own control"))
        undefended = self.cell(positive_control(settings), "positive").cell
        return _check(judge_positive("positive", undefended), undefended)

    def _drowned(self, settings: CellSettings) -> ControlCheck:
        cells = [self.cell(drowned_control(settings), "noise_x100").cell]
        if negative_control_failed(cells[0].lineup.p_value):
            cells.append(self.cell(with_other_key(drowned_control(settings)), "noise_x100").cell)
        if not took_steps(cells[0]):
            return _check(Control("noise_x100", False, "no optimizer step was taken"), *cells)
        return _check(judge_negative("noise_x100", [cell.lineup.p_value for cell in cells]), *cells)

    def _swap(self, scored: Scored) -> list[ControlCheck]:
        p_values = [scored.scores.swap.p_value if scored.scores.swap else None]
        if negative_control_failed(p_values[0]):
            again = self._evaluate(with_other_key(smaller(scored.settings)), "swap")
            p_values.append(again.scores.swap.p_value if again.scores.swap else None)
        return [_check(judge_negative("swap", p_values))]


def _check(control: Control, *cells: CellResult) -> ControlCheck:
    return ControlCheck(
        name=control.name, held=control.held, detail=control.detail, cells=[cell.key for cell in cells if cell.key]
    )
