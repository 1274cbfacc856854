"""Decay policies of the noise multiplier, Fed-αCDP[σ] (docs/defenses.md).

Two readings exist. ``eps``: the per-step epsilon follows the policy and sigma = sqrt(2 ln(1.25/delta)) / epsilon with
delta = 1e-5, which reproduces the rounds of the paper's Table VIII; it fixes sigma altogether. ``sigma``: the printed
formulas on sigma itself between ``sigma_start`` and ``sigma_end``.
"""

import difflib
import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from harness.base.errors import UsageError
from harness.base.limits import require_steps
from harness.results.files import Unreadable, read_text

Policy = Literal["fixed", "linear", "staircase", "exponential", "cyclic"]
Space = Literal["eps", "sigma"]

_CLASSICAL_GAUSSIAN = math.sqrt(2 * math.log(1.25 / 1e-5))


@dataclass(frozen=True)
class NoiseSchedule:
    """The noise multiplier as a function of round and local step.

    ``cycles`` is gamma_4 of the printed cyclic formula; the cyclic policy always works in sigma space and is floored
    at ``sigma_end`` (the printed one falls to nearly zero noise).
    """

    policy: Policy
    space: Space
    sigma_start: float
    sigma_end: float
    rounds: int
    steps_per_round: int
    cycles: int = 4

    def sigma(self, round_index: int, step: int = 0) -> float:
        """The multiplier used in local step ``step`` (0-based) of round ``round_index`` (0-based)."""
        if self.policy == "fixed":
            return self.sigma_start
        if self.space == "eps" and self.policy != "cyclic":
            done = (round_index * self.steps_per_round + step) / (self.rounds * self.steps_per_round)
            return _CLASSICAL_GAUSSIAN / self._step_epsilon(done)
        return self._printed(round_index)

    def over(self, rounds: int, steps_per_round: int) -> "NoiseSchedule":
        """Return the schedule over other rounds."""
        return replace(self, rounds=rounds, steps_per_round=steps_per_round)

    def words(self) -> str:
        """The multiplier, or the policy that it follows."""
        if self.policy == "fixed":
            return f"sigma={self.sigma_start:g}"
        return f"sigma by policy {self.policy} ({'sigma' if self.policy == 'cyclic' else self.space} space)"

    def _step_epsilon(self, done: float) -> float:
        """Per-step epsilon after a share ``done`` in [0, 1) of all local steps."""
        if self.policy == "linear":
            return done + 0.30747
        if self.policy == "staircase":
            return 0.1 * math.floor(10 * done + 1e-9) + 0.35747
        return math.exp(1.664 * done - 1.1809)

    def _printed(self, round_index: int) -> float:
        start, end, last = self.sigma_start, self.sigma_end, max(self.rounds - 1, 1)
        if self.policy == "linear":
            return start * (1 - (1 - end / start) / last * round_index)
        if self.policy == "staircase":
            stair = max(self.rounds / 10, 1)
            return start * (1 - (1 - end / start) / 9 * math.floor(round_index / stair))
        if self.policy == "exponential":
            return start * math.exp(-math.log(start / end) / last * round_index)
        period = math.ceil(self.rounds / self.cycles)
        return end + (start - end) / 2 * (math.cos(math.pi * (round_index % period) / period) + 1)


# Noise schedules for `harness account`: a policy by name, or a file of sigmas.

_DEFAULT_ROUNDS = 100
_START = 15.0
POLICIES: tuple[Policy, ...] = tuple(policy for policy in get_args(Policy) if policy != "fixed")


def schedule_rounds(
    text: str, sigma: float | None, sigma_end: float | None, rounds: int | None, steps: int | None
) -> list[list[float]]:
    """The sigmas of each round's steps.

    Args:
        text: ``linear``, ``staircase`` or ``exponential`` (per-step epsilons decay, which fixes sigma), the same with
            ``:sigma`` (sigma itself decays from ``sigma`` to ``sigma_end``), ``cyclic`` (sigma too), or a file.
        sigma: start of a schedule on sigma (15).
        sigma_end: its end (4.85).
        rounds, steps: how many rounds (100), and how many steps in all of them (one per round).

    Raises:
        UsageError: unknown name, unreadable file, numbers that do not fit each other, or noise that reaches zero.
    """
    policy, _, space = text.partition(":")
    if policy in POLICIES:
        made = _named(policy, space or ("sigma" if policy == "cyclic" else "eps"), sigma, sigma_end, rounds, steps)
    elif not os.path.exists(text):
        near = difflib.get_close_matches(policy, POLICIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose {', '.join(POLICIES)} or a file of numbers"
        raise UsageError(f"no schedule and no file is called {text!r}; {hint}")
    else:
        _refuse_sigma(sigma, sigma_end, "a file")
        made = _split(_read(Path(text)), rounds, steps)
    for number, one in enumerate(made):
        if not all(map(math.isfinite, one)):
            raise UsageError(f"the sigma of round {number} is not finite; keep every sigma a number above 0")
        if not all(value > 0 for value in one):
            raise UsageError(f"the schedule reaches zero noise in round {number}; keep every sigma above 0")
    return made


def _named(
    policy: Policy, space: str, sigma: float | None, sigma_end: float | None, rounds: int | None, steps: int | None
) -> list[list[float]]:
    if space not in ("eps", "sigma") or (policy == "cyclic" and space == "eps"):
        raise UsageError(f"the schedule {policy!r} has no {space!r} reading; choose {policy}:sigma")
    if space == "eps":
        _refuse_sigma(sigma, sigma_end, f"the schedule {policy!r}")
    rounds = _DEFAULT_ROUNDS if rounds is None else rounds
    per_round = _per_round(rounds, steps)
    end = 4.85 if sigma_end is None else sigma_end
    if not end > 0:
        raise UsageError(f"the schedule reaches zero noise ({end:g}); keep --sigma-end above 0")
    schedule = NoiseSchedule(policy, space, _START if sigma is None else sigma, end, rounds, per_round)
    return [[schedule.sigma(number, step) for step in range(per_round)] for number in range(rounds)]


def _refuse_sigma(sigma: float | None, sigma_end: float | None, what: str) -> None:
    if sigma is not None or sigma_end is not None:
        raise UsageError(f"{what} fixes sigma; leave out --sigma and --sigma-end, or choose linear:sigma")


def _per_round(rounds: int, steps: int | None) -> int:
    if rounds < 1:
        raise UsageError(f"--rounds must be at least 1, got {rounds}")
    steps = rounds if steps is None else steps
    if steps < 1 or steps % rounds:
        raise UsageError(f"{steps} steps do not divide into {rounds} rounds; make --steps a multiple of --rounds")
    require_steps(rounds, steps // rounds)
    return steps // rounds


def _split(sigmas: list[float], rounds: int | None, steps: int | None) -> list[list[float]]:
    """A sigma per round, or per step."""
    count = len(sigmas)
    rounds = count if rounds is None else rounds
    per_round = _per_round(rounds, count if steps is None and count % rounds == 0 else steps)
    if count == rounds:
        return [[sigma] * per_round for sigma in sigmas]
    if count != rounds * per_round:
        raise UsageError(
            f"the file has {count} sigmas for {rounds} rounds of {per_round} steps; give one per round or step"
        )
    return [sigmas[first : first + per_round] for first in range(0, count, per_round)]


def _read(path: Path) -> list[float]:
    try:
        text = read_text(path)
        values = json.loads(text) if text.lstrip().startswith("[") else text.replace(",", " ").split()
        sigmas = [float(value) for value in values]
    except Unreadable as problem:
        raise UsageError(f"{str(path)!r} {problem.reason}; check --sigma-schedule") from problem
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} does not hold numbers only; write one sigma per line") from error
    if not sigmas:
        raise UsageError(f"{str(path)!r} is empty; write one sigma per line")
    return sigmas
