"""Evaluates cells with their controls, once each, and finds again what an earlier run finished.

The main job makes all cells of a run and the result document.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.attacks import Identifier
from harness.base.devices import threads_of
from harness.base.errors import OutputError, UsageError
from harness.base.version import SCHEMA_VERSION, __version__
from harness.evaluation.attacking import Engine, attack_scene, in_one_process
from harness.evaluation.controls import (
    BLIND,
    NEGATIVE,
    ONE_LOOK,
    blind_control,
    checked,
    hiding_factor,
    high_noise_control,
    is_hidden_by_more,
    judge_blind,
    judge_negative,
    judge_positive,
    noiseless_control,
    positive_control,
    smaller,
    with_other_key,
    without_noise,
)
from harness.evaluation.derived import findings, version_of
from harness.evaluation.identifying import identify_scene
from harness.evaluation.observe import Stage
from harness.evaluation.report_cell import cell_result, impossible_cell, needs_labels, victim_records
from harness.evaluation.scores import LPIPS_UNASKED, Scored, score
from harness.evaluation.watching import RunForecast
from harness.experiment import CellSettings
from harness.federation.declared_noise import WrongDeclaration, require_declared
from harness.observation import Observation
from harness.results import CellResult, Control, ResultDocument, RunFolder, StoredCell, VictimRecord, cell_key
from harness.results.environment import environment
from harness.results.record import OWN_CONTROL, Facts
from harness.results.schema import SETTLED
from harness.scoring import LpipsScorer, negative_control_failed
from harness.scoring.summarise import settles, summarise
from harness.scoring.verdict import fault_of

# What rounding may leave between two ways to compute one gradient, as a share of it.
_UNMOVED = 1e-3
_UNPLAYED = "does not know what the defense's research code does to the numbers, other than noise"


class Run:
    """Everything the cells of a run share: data, the output folder, and what is already done.

    Args:
        data_root: where datasets and LPIPS weights lie.
        folder: where results go.
        chunk: most rows attacked together, fewer where memory is short; on CPU it changes no number of a chain of known
            layers.
        resume: use what an earlier run left in the folder.
        draw: called with every new cell, controls left out, before it counts as finished.
        on_cell: called with every finished cell and control.
        stage: where the victims come from, if not from the datasets alone.
        engine: what attacks.
        settles: skip what is left of a suite at a place that leaks to one of its members.
    """

    def __init__(
        self,
        data_root: Path,
        folder: RunFolder,
        chunk: int = 128,
        resume: bool = False,
        draw: Callable[[Scored, CellResult], None] | None = None,
        on_cell: Callable[[CellResult], None] | None = None,
        stage: Stage | None = None,
        engine: Engine = in_one_process,
        settles: bool = False,
    ) -> None:
        self.folder, self.chunk, self.resume, self.draw, self.on_cell = folder, chunk, resume, draw, on_cell
        self.stage, self.engine, self.settles = stage or Stage(data_root, chunk), engine, settles
        self.lpips = LpipsScorer.load(data_root)
        self.done: dict[str, StoredCell] = {}
        self.forecast = RunForecast()
        self._settled: dict[str, str] = {}
        self._attacked: set[str] = set()
        self._declared: set[str] = set()
        self._sources: dict[tuple[object, ...], dict[str, str]] = {}
        self._unwritten: list[tuple[str, dict[str, Any], CellResult, list[VictimRecord]]] = []

    def cell(self, settings: CellSettings, control: str | None = None) -> StoredCell:
        """One cell, or one control cell, with everything its verdict needs.

        A cell whose settings are impossible together is recorded as not applicable.
        """
        settings = _as_control(settings) if control else settings
        identity = self.identity(settings, control)
        key = cell_key(identity)
        if key not in self.done:
            with self.folder.locked(key), self.forecast.at(settings, control):
                stored = self.folder.read_cell(key, identity) if self.resume else None
                # What was impossible may no longer be: the data is fetched, say.
                if stored is None or stored.is_impossible or not self._is_whole(stored):
                    stored = self._fresh(settings, key, identity, control)
            self.done[key] = stored
            if self.on_cell:
                self.on_cell(stored.cell)
        return self.done[key]

    def asked(self, settings: CellSettings, may_skip: bool = True) -> StoredCell:
        """One cell that was asked for: of a suite, the row that says so where an earlier member settled the place.

        What an earlier run left of such a member is taken as it is. ``may_skip``: else it runs in any case.
        """
        place = settings.model_dump_json(exclude={"attack", "attack_args"})
        settler = self._settled.get(place) if self.settles and settings.suite and may_skip else None
        if settler is not None and (skipped := self._skipped(settings, settler)):
            return skipped
        stored = self.cell(settings)
        if settles(stored.cell):
            self._settled.setdefault(place, settings.attack)
        return stored

    def _skipped(self, settings: CellSettings, settler: str) -> StoredCell | None:
        """The row of a member that is skipped; None where it was tried before."""
        identity = self.identity(settings)
        key = cell_key(identity)
        stored = self.done.get(key) or (self.folder.read_cell(key, identity) if self.resume else None)
        if stored is not None and not stored.is_impossible:
            return None
        if key not in self.done:
            with self.folder.locked(key), self.forecast.at(settings, None):
                if stored is None or stored.cell.settled_by != settler:
                    cell = impossible_cell(settings, key, None, f"{SETTLED}{settler}", self.stage.prior(settings))
                    stored = self._kept(key, identity, cell, [])
            self.done[key] = stored
            if self.on_cell:
                self.on_cell(stored.cell)
        return self.done[key]

    def with_told(self, settings: CellSettings) -> list[CellResult]:
        """One cell and, where a suite ran it again, the same with labels known."""
        cell = self.cell(settings).cell
        return [cell, *([self.done[cell.told].cell] if cell.told else [])]

    def identity(self, settings: CellSettings, control: str | None = None) -> dict[str, Any]:
        """Return what tells a cell from all others, by which it is found again: its settings and what computes it."""
        settings = _as_control(settings) if control else settings
        sources = self._own_sources(settings) | {"harness": __version__}
        return {**settings.identity(), **sources, "threads": threads_of(settings.device), "control": control}

    def at_hand(self, settings: CellSettings) -> bool:
        """Return whether a cell is done, or an earlier run seems to have left it."""
        key = cell_key(self.identity(settings))
        return key in self.done or (self.resume and self.folder.has_cell(key))

    def _own_sources(self, settings: CellSettings) -> dict[str, str]:
        """Digests of the user's own files as they were when the run first needed them, which it then keeps loaded."""
        names = settings.model, settings.dataset, settings.defense, settings.attack, settings.prior
        if names not in self._sources:
            self._sources[names] = self.stage.own_sources(settings)
        return self._sources[names]

    def _is_whole(self, stored: StoredCell) -> bool:
        """Takes over a resumed cell's control cells, and the same cell with labels known; False when one of them is
        lost, or one says something else than its victims, and it must be made again."""
        beside = list[CellResult]()
        for key in stored.cell.needed:
            found = self.done.get(key) or self.folder.find_cell(key)
            if found is None or not (key in self.done or self._is_whole(found)):
                return False
            self.done[key] = found
            beside.append(found.cell)
        victims, files = {stored.cell.key or "": stored.victims}, {stored.cell.key or "": stored}
        faults = findings([stored.cell], victims, files, version_of(stored.settings), beside=beside)
        told = [one.line for one in faults if one.kind != "outdated"]
        for line in told:
            sys.stderr.write(f"harness: {line}; it is made again\n")
        return not told

    def _fresh(self, settings: CellSettings, key: str, identity: dict[str, Any], control: str | None) -> StoredCell:
        try:
            scored = self._evaluate(settings, control)
            checks = self._swap(scored) if control else self._checks(scored)
        except (OutputError, WrongDeclaration):
            raise
        except UsageError as error:
            cell, victims = (
                impossible_cell(settings, key, control, self.stage.with_fix(str(error)), self.stage.prior(settings)),
                [],
            )
        else:
            verdict = scored.scores.verdict(checks)
            cell = cell_result(scored, key, control, checks, verdict)
            if control is None and (flags := self._unplayed(settings, cell)):
                cell = cell.model_copy(update={"flags": [*cell.flags, *flags]})
            if control is None and settings.suite and needs_labels(cell):
                told = self.cell(settings.model_copy(update={"labels": "known"}))
                cell = cell.model_copy(update={"told": told.cell.key})
            victims = victim_records(scored, key, control)
            if self.draw and control is None:
                self.draw(scored, cell)
        return self._kept(key, identity, cell, victims)

    def _kept(self, key: str, identity: dict[str, Any], cell: CellResult, victims: list[VictimRecord]) -> StoredCell:
        stored = StoredCell(schema_version=SCHEMA_VERSION, settings=identity, cell=cell, victims=victims)
        self._unwritten.append((key, identity, cell, victims))
        if not all(one.is_impossible for one in (stored, *self.done.values())):
            self.write_impossible()
        return stored

    def write_impossible(self) -> None:
        """Writes what waited for a cell that is possible: mistakes alone leave a folder as it was."""
        for one in self._unwritten:
            self.folder.write_cell(*one)
        self._unwritten.clear()

    def _evaluate(self, settings: CellSettings, control: str | None) -> Scored:
        began = time.perf_counter()
        attack = settings.build_attack()
        if settings.draws and isinstance(attack, Identifier):
            raise UsageError(
                f"attack {settings.attack!r} brings nothing back that rounds of a client could be told by; choose "
                "another, or --same-data batch"
            )
        scene = self.stage.set(settings)
        if settings.suite and (reason := attack.superfluous(scene.observation)):
            raise UsageError(reason)
        if isinstance(attack, Identifier):
            found = identify_scene(settings, attack, scene, self.chunk, must_not_identify=control in NEGATIVE)
            return Scored(settings, scene, None, found, time.perf_counter() - began)
        record = attack_scene(
            settings, scene, self.folder, self.chunk, self.resume, self._attacked, self.forecast, self.engine
        )
        lpips = LPIPS_UNASKED if control else self.lpips
        scores = score(settings, scene, record, lpips, must_not_leak=control in NEGATIVE)
        return Scored(settings, scene, record, scores, time.perf_counter() - began)

    def _checks(self, scored: Scored) -> list[Control]:
        """Runs and judges the controls of a cell; noise controls only where the tap shows the defense's noise, and none
        with more of it where more of it does not hide everything."""
        settings = scored.settings
        checks = [self._positive(scored), *self._swap(scored)]
        if self.stage.plays and settings.defense == "none":  # there is no noise to leave out
            return checks + self._blind(settings)
        noisy = self.stage.set(smaller(settings)).observation
        clean = self.stage.set(without_noise(settings)).observation
        self._require_declared(settings, clean, noisy)
        if self._is_noisy(settings, clean, noisy):
            times = hiding_factor(clean, noisy)
            quiet = self.cell(noiseless_control(settings), "positive_sigma0").cell
            checks.append(judge_positive("positive_sigma0", quiet))
            attack = settings.build_attack()
            # Who knows examples without looking needs no observation to bring them back.
            if is_hidden_by_more(noisy, attack) and attack.knows_of_examples is None:
                checks.append(self._high_noise(high_noise_control(settings, times, hidden=noisy.batches is not None)))
        return checks + self._blind(settings)

    def _is_noisy(self, settings: CellSettings, clean: Observation, noisy: Observation) -> bool:
        """Return whether noise is on what is read: a server's moves models of later rounds too, and hides nothing
        there."""
        if settings.separates:  # there is none: it is refused in sums
            return False
        if settings.rounds_seen > 1 and noisy.noise is None:
            first = (without_noise(settings).in_round(0), smaller(settings).in_round(0))
            clean, noisy = (self.stage.set(one).observation for one in first)
        return clean.fingerprint() != noisy.fingerprint()

    def _require_declared(self, settings: CellSettings, clean: Observation, noisy: Observation) -> None:
        """Holds what research code says of its noise against what it adds, once for a place: of one look and one local
        step, since several leave coordinates in or out, and move the gradients, otherwise with noise than without."""
        one = {"local_steps": 1, "epochs": 1, "client_examples": None, "update_model": "first"}
        steps = one if settings.tap.of_update else {}
        alone = smaller(settings, **ONE_LOOK, **steps)
        place = self.stage.place_of(alone)
        measured = settings.build_defense().measured
        if not (self.stage.plays and measured) or place in self._declared:
            return
        # The mean of looks that leave out other coordinates each is another one without noise than with.
        whole = noisy.local_steps == 1 and (settings.observations == 1 or not noisy.sparse)
        require_declared(settings.defense, settings.tap, clean, noisy, whole)
        if alone != smaller(settings):
            try:
                clean, noisy = (self.stage.set(one).observation for one in (without_noise(alone), alone))
            except UsageError:
                return  # such as clients of whom each takes so many steps
            require_declared(settings.defense, settings.tap, clean, noisy)
        self._declared.add(place)

    def _unplayed(self, settings: CellSettings, cell: CellResult) -> list[str]:
        """Return why an attacker that should know the defense does not know it, and finds nothing. No attacker plays
        research code that does more than add noise and says of nothing else what it is."""
        found = cell.verdict == "leaks" or (cell.identified is not None and cell.identified.identifies)
        bare = positive_control(settings)
        measured = self.stage.plays and settings.build_defense().measured
        if cell.tier == "plain" or found or not measured or bare.tap != settings.tap:
            return []
        clean, bare_seen = (
            self.stage.set(one).observation for one in (smaller(settings, noise_scale=0.0, **ONE_LOOK), bare)
        )
        if clean.clipping is not None or clean.sparse or clean.coding is not None:
            return []
        moved = (clean.target - bare_seen.target).norm() > _UNMOVED * bare_seen.target.norm()
        return [_UNPLAYED] if moved else []

    def _positive(self, scored: Scored) -> Control:
        settings = scored.settings
        if positive_control(settings) == smaller(settings, **ONE_LOOK):
            leaks = scored.scores.succeeds or scored.scores.brings_back
            fix = "raise --victims or the attack's max_iterations" if self.stage.simulates else "capture more clients"
            fix += ", or choose another attack"
            return checked("positive", leaks, OWN_CONTROL if leaks else f"{OWN_CONTROL}; {fix}")
        return judge_positive("positive", self.cell(positive_control(settings), "positive").cell)

    def _high_noise(self, high_noise: CellSettings) -> Control:
        cells = [self.cell(high_noise, "noise_x100").cell]
        if negative_control_failed(cells[0].tested_p):
            cells.append(self.cell(with_other_key(high_noise), "noise_x100").cell)
        return judge_negative("noise_x100", [cell.tested_p for cell in cells], *cells)

    def _blind(self, settings: CellSettings) -> list[Control]:
        blind = blind_control(settings)
        if blind is None:
            return []
        cells = [self.cell(blind, BLIND).cell]
        if negative_control_failed(cells[0].lineup.p_value):
            cells.append(self.cell(with_other_key(blind), BLIND).cell)
        return [judge_blind(*cells)]

    def _swap(self, scored: Scored) -> list[Control]:
        p_values = [scored.scores.swap_p]
        if negative_control_failed(p_values[0]):
            p_values.append(self._evaluate(with_other_key(smaller(scored.settings)), "swap").scores.swap_p)
        return [judge_negative("swap", p_values)]


def _as_control(settings: CellSettings) -> CellSettings:
    """Return the settings of a control. It is the same control for an attack that was named itself."""
    return settings.model_copy(update={"suite": None})


# Writing the document takes longer with every cell of it, and may take this share of a run's time.
_SHARE = 0.05


def evaluate(cells: list[CellSettings], run: Run) -> ResultDocument:
    """Evaluates cells one after another; writes results.json and victims.jsonl at the end, and now and then before.

    Where no cell is possible nothing is written, and what an earlier run left is kept.

    Raises:
        UsageError: there are no cells, or every one is impossible; the message is what most of them say.
    """
    if not cells:
        raise UsageError("there is no cell to evaluate; name a defense and an attack")
    asked: list[StoredCell] = []
    written, took = 0.0, 0.0
    with run.forecast.over(cells, run.at_hand):
        for settings in cells:
            asked.append(run.asked(settings))
            began = time.monotonic()
            if len(asked) < len(cells) and not _impossible(asked) and began - written > took / _SHARE:
                _write(asked, run, cells[0].device, complete=False)
                written = time.monotonic()
                took = written - began
    require_possible(asked)
    return _write(asked, run, cells[0].device)


def require_possible(asked: Sequence[StoredCell]) -> None:
    """Check that any cell could be evaluated.

    Raises:
        UsageError: all are impossible; the message is what most of them say.
    """
    if asked and _impossible(asked):
        reasons = Counter(stored.cell.not_applicable_reason for stored in asked)
        raise UsageError(reasons.most_common(1)[0][0] or "no cell could be evaluated")


def require_derived(made: Sequence[StoredCell]) -> None:
    """Check that victims say the same as verdicts.

    Raises:
        UsageError: a verdict is not that of its victims; shards are not merged then.
    """
    victims = {stored.cell.key or "": stored.victims for stored in made}
    version = version_of(made[0].settings) if made else None
    files = {stored.cell.key or "": stored for stored in made}
    for found in findings([stored.cell for stored in made], victims, files, version):
        raise UsageError(f"{found.line}; delete the file of that cell and make its shard again")


def _impossible(asked: Sequence[StoredCell]) -> bool:
    return all(stored.is_impossible for stored in asked)


def _write(asked: Sequence[StoredCell], run: Run, device: str, complete: bool = True) -> ResultDocument:
    made = with_controls(asked, run.done)
    whole = document_of([stored.cell for stored in made], environment(device))
    document = whole if complete else _unfinished(whole, run.forecast.total)
    run.folder.write_results(document, [record for stored in made for record in stored.victims])
    return document


def _unfinished(document: ResultDocument, planned: int | None) -> ResultDocument:
    """Return what stands in the folder while the run goes on, and is left there by one that was stopped."""
    told = {cell.told for cell in document.cells}
    done = sum(cell.role == "cell" and cell.key not in told for cell in document.cells)
    reason = f"{done} of {planned} cells are done; add --resume to the same command to go on"
    return document.model_copy(update={"valid": False, "valid_reason": reason, "complete": False, "planned": planned})


def with_controls(asked: Sequence[StoredCell], done: Mapping[str, StoredCell]) -> list[StoredCell]:
    """Cells in the order asked for, each before the same with labels known, then their controls in the order of the
    cells: the same whoever made which.

    Args:
        done: cells and controls by their keys.
    """
    cells = {one.cell.key: one for one in with_told(asked, done)}
    keys = (key for stored in cells.values() for key in stored.cell.needed)
    return [*cells.values(), *(done[key] for key in dict.fromkeys(keys) if key not in cells)]


def with_told(asked: Sequence[StoredCell], done: Mapping[str, StoredCell]) -> list[StoredCell]:
    """Cells in the order asked for, each before the same with labels known where a suite ran it again."""
    return [one for stored in asked for one in (stored, *([done[stored.cell.told]] if stored.cell.told else []))]


def document_of(cells: list[CellResult], made_in: Facts) -> ResultDocument:
    """The result document of cells that were evaluated in an environment."""
    fault = fault_of(cells)
    return ResultDocument(
        environment=made_in, valid=fault is None, valid_reason=fault, cells=cells, summary=summarise(cells),
        planned=sum(cell.role == "cell" for cell in cells),
    )  # fmt: skip
