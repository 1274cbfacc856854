"""Runs an attack on many victims at once: chunks, restarts, freezing of finished rows, best-so-far by loss."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from harness.attacks.adam import Adam, AdamState
from harness.attacks.attack import Attack, Lean, labels_of_starts, require_start
from harness.attacks.lbfgs import LBFGSState
from harness.attacks.residual import is_of_one_level
from harness.attacks.stages import Stage, alike, descent
from harness.base.devices import peak_of
from harness.base.errors import lacks_memory
from harness.models.side_by_side import side_by_side
from harness.observation import Observation

log = logging.getLogger(__name__)

# Coordinates of a gradient that no image moves are left out while an attack descends: they only cost time.


def as_it_is(observation: Observation) -> Observation:
    """Return the observation unchanged."""
    return observation


def without_idle_coordinates(attack: Attack, observation: Observation) -> Lean:
    """Return what leaves these coordinates out of rows of an observation, or what the attack itself makes of them.

    They stay where something was read there, noise for example, since losses would be others; but for a likelihood of
    noise of one known level, to which they add the same number whatever the images. They also stay for attackers who
    know more than gradient, noise and prior, and reckon with every coordinate.
    """
    if (own := attack.read_as(observation)) is not None:
        return own
    by_likelihood = attack.objective == "likelihood" and is_of_one_level(observation)
    told = (
        observation.simulation, observation.model.front, observation.level, observation.carrying, observation.coding,
        observation.optimizer.groups or None,  # of all weights
        *(() if by_likelihood else (observation.noise, observation.prior)),
    )  # fmt: skip
    found = observation.model.without_idle_weights() if all(one is None for one in told) else None
    if found is None:
        return as_it_is
    model, kept = found[0], found[1].to(observation.target.device)
    read_there = observation.target.count_nonzero() != observation.target[:, kept].count_nonzero()
    if read_there and observation.noise is None:
        return as_it_is

    def lean(rows: Observation) -> Observation:
        more = {name: getattr(rows, name) for name in ("correction", "certainty", "trained")}
        beside = {name: value[:, kept] for name, value in more.items() if value is not None}
        return replace(rows, model=model, weights=rows.weights[:, kept], target=rows.target[:, kept], **beside)

    return lean


# When a row of an attack stops, and why (docs/attacks.md).

CAP, CONVERGED, DIVERGED, HOPELESS = range(4)
REASONS = ("cap", "converged", "diverged", "hopeless")

_DIVERGENCE = 1e3


class StopRules:
    """Decides after each outer iteration which rows stop, from losses only."""

    def __init__(self, attack: "Attack", stop_below: Tensor) -> None:
        self.attack = attack
        self.stop_below = stop_below.cpu()
        self.history: list[Tensor] = []

    def stopped(self, active: Tensor, best_loss: Tensor, first_loss: Tensor, last_loss: Tensor) -> Tensor:
        """Stop codes (A,) of the active rows after one more outer iteration; ``CAP`` means not stopped yet.

        Divergence is relative to the row's own first loss: under heavy noise an honest loss starts at 1e7.

        Args:
            active: (A,), on the CPU.
            best_loss: (R,), the best matching losses of all rows, first_loss and last_loss alike.
        """
        # A GPU is waited for once, which is all that the host reads of an iteration.
        every, firsts, lasts = torch.stack([best_loss, first_loss, last_loss]).detach().cpu()
        self.history.append(every)
        best, first, last = every[active], firsts[active], lasts[active]
        codes = torch.full((len(active),), CAP)
        codes[self._hopeless(best, first, active)] = HOPELESS
        codes[self._stalled(best, active) | (best <= self.stop_below[active])] = CONVERGED
        codes[~last.isfinite() | (last > _DIVERGENCE * first.abs())] = DIVERGED
        return codes

    def _hopeless(self, best: Tensor, first: Tensor, active: Tensor) -> Tensor:
        attack = self.attack
        if not attack.patience or len(self.history) < attack.patience:
            return torch.zeros(len(active), dtype=torch.bool)
        slow = best > (1 - attack.patience_drop) * self._ago(attack.patience_window, active)
        return slow & (best > attack.patience_floor * first)

    def _stalled(self, best: Tensor, active: Tensor) -> Tensor:
        # An attack without patience changes its step size on purpose; a standstill means nothing there.
        window, change = self.attack.standstill
        if not self.attack.patience or len(self.history) <= window:
            return torch.zeros(len(active), dtype=torch.bool)
        before = self._ago(window, active)
        return (before - best).abs() <= change * before.abs()

    def _ago(self, iterations: int, active: Tensor) -> Tensor:
        return self.history[max(len(self.history) - 1 - iterations, 0)][active]


Observer = Callable[[Tensor, Tensor, int, Tensor], None]
"""Called after every outer iteration with victims (A,), restarts (A,), the iteration and the best images so far
(A, n, C, H, W) of the rows still running. It returns nothing, so nothing can flow back into the attack."""

Progress = Callable[[int], None]

_WORTH_SHARING = 2**16
"""Values of a victim's images from which threads share its operations, and do not take a victim each."""


@dataclass(frozen=True)
class Reconstruction:
    """The output of an attack on R observations.

    Attributes:
        images: (R, n, C, H, W), always finite, not clamped.
        labels: (R, n).
        loss: (R,), matching loss of ``images``. initial_loss: (R,), of the start.
        stop_reason: (R,), ``CAP``, ``CONVERGED``, ``DIVERGED`` or ``HOPELESS``.
        iterations: (R,), outer iterations of the kept start. evaluations: (R,), gradient evaluations of all starts.
        restart: (R,), which start was kept.
    """

    images: Tensor
    labels: Tensor
    loss: Tensor
    initial_loss: Tensor
    stop_reason: Tensor
    iterations: Tensor
    evaluations: Tensor
    restart: Tensor


def run_attack(
    attack: Attack,
    observation: Observation,
    chunk: int = 128,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Reconstruction:
    """Attacks every row of an observation.

    Args:
        attack: which attack.
        observation: R rows; all the attack ever sees.
        chunk: rows (victims times restarts) optimised together; bounds memory and never changes a result on CPU.
        observer: see :data:`Observer`; rows are reported with their index in ``observation``.
        progress: called with the number of victims that are done since the last call.
    """
    labels = labels_of_starts(attack, observation)
    victims_per_chunk = victims_together(attack, observation, chunk)
    lean, parts, groups = without_idle_coordinates(attack, observation), [], alike(observation)
    waiting = [part for group in groups for part in group.split(victims_per_chunk)]
    while waiting:
        victims = waiting.pop(0)
        if len(victims) > victims_per_chunk:
            waiting[:0] = victims.split(victims_per_chunk)
            continue
        try:
            made = _ChunkRun(attack, observation, labels, victims, observer, lean).run()
        except Exception as error:
            if len(victims) == 1 or not lacks_memory(error):
                raise
            made = None
        if made is not None:
            parts.append(made)
            if progress:
                progress(len(victims))
            continue
        # Only here, since the exception holds what the chunk held.
        victims_per_chunk = len(victims) // 2
        waiting.insert(0, victims)
        _tell_less(victims_per_chunk, observation)
    starts = {name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0].__dataclass_fields__}
    chosen, order = choose_restarts(Reconstruction(**starts), attack.starts), torch.cat(groups).argsort()
    return Reconstruction(**{name: getattr(chosen, name)[order] for name in starts})


def victims_together(attack: Attack, observation: Observation, chunk: int) -> int:
    """Return how many victims are attacked together where ``chunk`` rows (victims times restarts) are allowed."""
    most = max(chunk // attack.starts, 1)
    if observation.model.evaluates_alone:
        most = min(most, torch.get_num_threads() if _is_light(observation) else 1)
    return min(most, observation.rows)


def _tell_less(victims: int, observation: Observation) -> None:
    log.warning("harness: memory ended; the attack goes on with %d victims at a time", victims)
    if observation.target.device.type == "cuda":
        torch.cuda.empty_cache()


def _is_light(observation: Observation) -> bool:
    values = observation.examples * math.prod(observation.model.image_shape)
    return values < _WORTH_SHARING and observation.target.device.type == "cpu"


#: Victims of whom the memory is measured, at most.
MEASURED = 2


def memory_of_row(attack: Attack, observation: Observation) -> float:
    """Bytes that a row (a start of a victim) takes while it is attacked, measured on a victim or two."""
    few = torch.arange(min(MEASURED, observation.rows))
    seen = observation.take(few.to(observation.target.device))
    labels = labels_of_starts(attack, seen)

    def begin() -> object:
        # In another order, since a chunk of many rows copies what is known of its own, and all of them are not copied.
        run = _ChunkRun(attack, seen, labels, few.flip(0), None, attack.read_as(seen) or as_it_is)
        run.enter(attack.stages(run.observation)[-1])  # the last one takes the most
        position = run.position[run.rows]
        state = attack.optimizer().start(position)
        return run, state, run._evaluate(position)

    return peak_of(begin) / (len(few) * attack.starts)


# Seconds beyond which two victims stand for all of them.
_LONG = 1.0


def seconds_of_row(attack: Attack, observation: Observation, chunk: int) -> float:
    """Seconds that one gradient of a row (a start of a victim) takes among those attacked together, measured at starts.

    No step is taken. Victims are two, and as many as fit together where that is over at once.

    Raises:
        UsageError: the attack is impossible there.
    """
    most = min(observation.rows, max(chunk // attack.starts, 1))
    each = _gradient_of_row(attack, observation, min(2, most))
    return _gradient_of_row(attack, observation, most) if most > 2 and most * attack.starts * each < _LONG else each


def _gradient_of_row(attack: Attack, observation: Observation, victims: int) -> float:
    seen = observation.take(torch.arange(victims, device=observation.target.device))
    lean = without_idle_coordinates(attack, observation)
    run = _ChunkRun(attack, seen, labels_of_starts(attack, seen), torch.arange(victims), None, lean)
    position = run.position[run.rows]
    began = time.perf_counter()
    run._evaluate(position)
    first = time.perf_counter() - began
    if first < _LONG:  # what is only done once is a part of it
        began = time.perf_counter()
        run._evaluate(position)
        first = time.perf_counter() - began
    return first / max(1, len(run.active.unique()))


def choose_restarts(starts: Reconstruction, restarts: int) -> Reconstruction:
    """Keeps of each victim's starts (consecutive rows) the one with the smallest matching loss."""
    loss = starts.loss.reshape(-1, restarts)
    restart = loss.nan_to_num(nan=torch.inf).argmin(1)
    kept = restart + torch.arange(len(restart), device=restart.device) * restarts
    chosen = {name: getattr(starts, name)[kept] for name in starts.__dataclass_fields__}
    chosen["evaluations"] = starts.evaluations.reshape(-1, restarts).sum(1)
    return Reconstruction(**chosen)


class _Part(NamedTuple):
    """Rows that are evaluated together: their places among the active ones, what is known of them, their victims."""

    rows: Tensor
    seen: Observation
    labels: Tensor | None
    victims: Tensor


class _ChunkRun:
    """All starts of some victims, optimised in lockstep; rows that stop are compacted away."""

    def __init__(
        self,
        attack: Attack,
        observation: Observation,
        labels: Tensor | None,
        victims: Tensor,
        observer: Observer | None,
        lean: Lean = as_it_is,
    ) -> None:
        self.attack, self.observer = attack, observer
        self.victims = victims.repeat_interleave(attack.starts)
        self.restarts = torch.arange(attack.starts).repeat(len(victims))
        index = self.victims.to(observation.target.device)
        self.observation = lean(observation.take(index))
        keys = [(*key, restart) for key, restart in zip(self.observation.keys, self.restarts.tolist(), strict=True)]
        self.observation = self.whole = replace(self.observation, keys=tuple(keys))
        self.labels = None if labels is None else labels[index, self.restarts.to(index.device)]
        self.position = require_start(attack.start(self.observation, keys), len(keys)).to(observation.target)
        # What is no number diverges at once, and then stands for nothing.
        self.best = self.position.nan_to_num(0.0, 0.0, 0.0)
        rows = len(keys)
        self.best_loss = self.position.new_full((rows,), torch.inf)
        self.first_loss = self.position.new_full((rows,), torch.nan)
        self.last_loss = self.first_loss.clone()
        self.evaluations = self.position.new_full((rows,), float(attack.effort(self.observation)))
        self.iterations = torch.zeros(rows, dtype=torch.long)
        self.reason = torch.full((rows,), CAP)
        # Of starts that are left out nothing is computed: their loss stays infinite, and none of them is chosen.
        wanted = torch.ones(rows, dtype=torch.bool) if self.labels is None else (self.labels >= 0).all(1).cpu()
        self.wanted = wanted.nonzero()[:, 0]
        self._focus(self.wanted)

    def _focus(self, rows: Tensor) -> None:
        """Makes ``rows`` the active ones.

        Where rows are evaluated together a single one is doubled, since one row alone takes other CPU kernels.
        """
        self.active = self._doubled(rows)
        self.rows = self.active.to(self.position.device)
        self.seen = self.observation.take(self.rows)
        self.seen_labels = None if self.labels is None else self.labels[self.rows]
        victims = self.victims[self.active].to(self.rows.device)
        self.every = _Part(self.rows, self.seen, self.seen_labels, victims)
        self.parts = self._split() if self.observation.model.evaluates_alone else []
        self.apart = _is_light(self.seen)

    def _split(self) -> list["_Part"]:
        """The active rows of one victim each."""
        victims = self.victims[self.active]
        parts = []
        for positions in (victims[:, None] == victims.unique()).T:
            index = positions.nonzero()[:, 0].to(self.position.device)
            labels = None if self.seen_labels is None else self.seen_labels[index]
            parts.append(_Part(index, self.seen.take(index), labels, victims[positions].to(index.device)))
        return parts

    def _doubled(self, rows: Tensor) -> Tensor:
        return rows.repeat(2) if len(rows) == 1 and not self.observation.model.evaluates_alone else rows

    def run(self) -> Reconstruction:
        stages, done = self.attack.stages(self.whole), 0
        settings = descent(self.attack.optimizer(), stages, stages[0])
        optimizer = settings.start(self.position[self.rows])
        for number, stage in enumerate(stages):
            was, settings = settings, descent(self.attack.optimizer(), stages, stage)
            # Adam goes on, its rate falls over all stages; curvatures that L-BFGS has seen were those of another loss.
            if number and (settings != was or not isinstance(settings, Adam)):
                self._focus(self.wanted)
                optimizer = settings.start(self.best[self.rows])
            self.enter(stage)
            self._descend(optimizer, range(done + 1, done + stage.iterations + 1))
            done += stage.iterations
            same = number + 1 == len(stages) or descent(self.attack.optimizer(), stages, stages[number + 1]) == settings
            if isinstance(settings, Adam) and same and not self.reason[self.active].eq(CAP).any():
                break
        return self._result()

    def enter(self, stage: Stage) -> None:
        """Makes a stage's loss that of the active rows."""
        observation = stage.seen(self.whole)
        if observation is self.observation:
            return
        self.observation = observation
        self._focus(self.active.unique())
        self.best_loss[self.rows], self.first_loss[self.rows] = torch.inf, torch.nan

    def _descend(self, optimizer: AdamState | LBFGSState, iterations: range) -> None:
        attack, rules = self.attack, StopRules(self.attack, self.attack.stop_below(self.observation))
        for iteration in iterations:
            self.evaluations[self.rows] += optimizer.step(self._evaluate)
            optimizer.position = attack.after_step(optimizer.position, list(self.seen.keys), iteration)
            self.iterations[self.active] = iteration
            self._report(iteration)
            stopped = rules.stopped(self.active, self.best_loss, self.first_loss, self.last_loss)
            found = attack.solved_rows(self.seen, self.best[self.rows], self.seen_labels)
            stopped = stopped if found is None else torch.where(found.cpu(), CONVERGED, stopped)
            self.reason[self.active] = stopped
            going = stopped == CAP
            if not going.any():
                break
            if not going.all():
                # A doubled single row keeps one copy here; _focus doubles it again.
                rows, positions = _first_occurrences(self.active, going)
                self._focus(rows)
                optimizer.take(self._doubled(positions).to(self.position.device))

    def _evaluate(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and gradient of the active rows; remembers the best finite iterate of each by matching loss."""
        position = position.detach()
        if self.parts:
            made = side_by_side(lambda part: self._evaluate_part(part, position[part.rows]), self.parts, self.apart)
            loss, matching, gradient = (torch.cat(pieces) for pieces in zip(*made, strict=True))
        else:
            loss, matching, gradient = self._evaluate_part(self.every, position)
        rows = self.rows
        better = matching.isfinite() & (matching < self.best_loss[rows]) & position.isfinite().all(1)
        self.best[rows] = torch.where(better[:, None], position, self.best[rows])
        self.best_loss[rows] = torch.where(better, matching, self.best_loss[rows])
        self.first_loss[rows] = torch.where(self.first_loss[rows].isnan(), matching, self.first_loss[rows])
        self.last_loss[rows] = matching
        return loss, gradient

    def _evaluate_part(self, part: "_Part", position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, matching loss and gradient of some rows at their positions."""
        leaf = position.detach().requires_grad_(True)
        with torch.enable_grad():
            dummy = self.attack.dummy(part.seen, leaf, part.labels)
            matching = self.attack.matching(part.seen, dummy)
            loss = matching + self.attack.penalty(part.seen, dummy, part.victims)
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return loss.detach(), matching.detach(), gradient

    def _report(self, iteration: int) -> None:
        if self.observer is None:
            return
        dummy = self.attack.dummy(self.seen, self.best[self.rows], self.seen_labels)
        count = len(self.active.unique())
        self.observer(
            self.victims[self.active][:count], self.restarts[self.active][:count], iteration,
            dummy.images[:count].detach().clone(),
        )  # fmt: skip

    def _result(self) -> Reconstruction:
        self._focus(torch.arange(len(self.victims)))
        dummy = self.attack.dummy(self.seen, self.best[self.rows], self.seen_labels)
        targets = dummy.targets if dummy.targets.dim() == 2 else dummy.targets.argmax(-1)
        count = len(self.victims)
        loss, shown = self.best_loss, self.attack.loss_of_shown(self.seen, dummy)
        loss = loss if shown is None else torch.where(loss.isfinite(), shown.to(loss), loss)
        return Reconstruction(
            images=dummy.images[:count].detach().cpu(), labels=targets[:count].cpu(), loss=loss.cpu(),
            initial_loss=self.first_loss.cpu(), stop_reason=self.reason, iterations=self.iterations,
            evaluations=self.evaluations.cpu(), restart=self.restarts,
        )  # fmt: skip


def _first_occurrences(active: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
    """Rows still going, each once, and their positions among the active rows."""
    positions = going.nonzero()[:, 0]
    if len(positions) == 2 and active[positions[0]] == active[positions[1]]:
        positions = positions[:1]
    return active[positions], positions
