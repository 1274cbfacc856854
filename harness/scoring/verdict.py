"""Verdict that a cell may claim: leaks, resilient or inconclusive (docs/verdicts.md)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.base.presence import percent_up
from harness.results import CellResult, Control, Identified, Lineup, Rate
from harness.scoring.images import draws_of
from harness.scoring.success import coin_divergence, rate_of, upper_bound, upper_mean, upper_share

CONFIRMED_SUCCESSES = 2
LEAK_P = 0.001
NEGATIVE_CONTROL_P = 1e-4
RESILIENT_RATE = 0.05
# Without any success the upper bound is the rate r with (1 - r)^victims = 5%.
VICTIMS_NEEDED = math.ceil(math.log(0.05) / math.log(1.0 - RESILIENT_RATE))


@dataclass(frozen=True)
class Verdict:
    """A verdict with its reason in one plain sentence."""

    verdict: Literal["leaks", "resilient", "inconclusive"]
    reason: str


def negative_control_failed(p_value: float | None) -> bool:
    """Return whether a lineup p-value shows a leak where there can be none; then the run as a whole is unsound."""
    return p_value is not None and p_value < NEGATIVE_CONTROL_P


def judge(
    confirmed: int, strict_victims: Rate, lineup: Lineup, controls: Iterable[Control], doubt: str | None = None
) -> Verdict:
    """The verdict of one cell, from that cell alone.

    A leak found is a leak whatever the positive controls say; they guard only the claim of resilience, which without
    an attack that is known to work would prove nothing. That a failed negative control invalidates the run, leaks
    included, is for the run to say.

    Args:
        confirmed: images reconstructed by the strict rule *and* ranked first in their lineup.
        strict_victims: victims with any strict success among all victims.
        lineup: the lineup test.
        controls: the controls of this attack, objective, model, surface and batch size.
        doubt: why what the attacker believes of the noise cannot be so, None where it can.
    """
    if confirmed >= CONFIRMED_SUCCESSES and _below(lineup.confirmed_p_value):
        words = f"{confirmed} reconstructions are accurate and nearest to their own truth"
        return Verdict("leaks", f"{words} (p = {lineup.confirmed_p_value:.2g})")
    if _below(lineup.p_value):
        words = "reconstructions are nearer to their own truth than to look-alikes"
        return Verdict("leaks", f"{words} (p = {lineup.p_value:.2g})")
    obstacle = _control_obstacle(list(controls)) or doubt or _evidence_obstacle(strict_victims, lineup.p_value)
    if obstacle is not None:
        return Verdict("inconclusive", obstacle)
    bound = upper_bound(strict_victims.successes, strict_victims.n)
    return Verdict(
        "resilient", f"no leak was found; at most {percent_up(bound)} of victims can be reconstructed (95% confidence)"
    )


def traces_p(cell: CellResult) -> float | None:
    """The lineup's p-value of a cell that leaks without images that are confirmed; None of any other."""
    return cell.lineup.p_value if cell.verdict == "leaks" and cell.confirmed < CONFIRMED_SUCCESSES else None


def within_networks(reason: str, verdict: str, networks: int) -> str:
    """The reason of a verdict on victims who share ``networks`` networks: given these, and no others, they are
    independent, which the bound of a resilience rests on."""
    if verdict != "resilient":
        return reason
    return f"{reason}; of {'this one network' if networks == 1 else f'these {networks} networks'} and no other"


def judge_identity(identified: Identified, doubt: str | None, controls: Iterable[Control]) -> Verdict:
    """The verdict of one cell of an attack that reconstructs nothing: it never leaks.

    Args:
        identified: how well truths are told among look-alikes.
        doubt: why what the attacker believes of the noise cannot be so, None where it can.
        controls: as in :func:`judge`; a positive one holds where the attack identifies.
    """
    share = f"{identified.rate or 0:.1%} of truths are the most probable of their look-alikes"
    if identified.identifies:
        words = f"identifies: {share}, by chance {identified.chance or 0:.1%} (p = {identified.p_value:.2g})"
        return Verdict("inconclusive", f"{words}; it knows the candidates and reconstructs nothing")
    obstacle = _control_obstacle(list(controls)) or doubt
    if obstacle is None and identified.beyond_chance is None:
        obstacle = identified.reason or "no victim has same-class decoys"
    if obstacle is not None:
        return Verdict("inconclusive", obstacle)
    bound = identified.beyond_chance or 0.0
    if bound > RESILIENT_RATE:
        few = f"so {identified.n} of them are too few to say that at most 5% stand out (it may be {percent_up(bound)})"
        return Verdict("inconclusive", f"{share}, by chance {identified.chance or 0:.1%}, {few}")
    words = "not identified among look-alikes; at most"
    return Verdict("resilient", f"{words} {percent_up(bound)} of victims stand out beyond guessing (95% confidence)")


def identified_of(
    first: NDArray[np.bool_],
    sizes: NDArray[np.int64],
    lineup: Lineup,
    clusters: int | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Identified:
    """Places (V, B) of true images in their lineups in the form of the document; lineups of size 1 are left out.

    The interval is over as many ``clusters`` of consecutive victims, by default over victims, and over the
    ``groups`` (V,) of those who share images.
    """
    informative = sizes > 1
    if not informative.any():
        return Identified(reason=lineup.reason)
    draws, there = (draws_of(one, clusters or len(first), groups)[0] for one in (first, informative))
    rate = rate_of(draws, there)
    apart = (first, informative) if groups is None else (draws, there)
    most, chance = upper_share(apart[0], counted=apart[1]), float((1 / sizes[informative]).mean())
    return Identified(
        rate=rate.rate, n=rate.n, ci95=rate.ci95, chance=chance, mean_rank=lineup.mean_rank, p_value=lineup.p_value,
        beyond_chance=max(0.0, (most - chance) / (1 - chance)), identifies=_below(lineup.p_value),
    )  # fmt: skip


@dataclass(frozen=True)
class OfExamples:
    """Distinct examples of some clients that one attack brought back, and what follows for other clients.

    Attributes:
        clients: k, each an independent draw however many examples it holds. examples: distinct ones of all of them.
        back: of these, brought back. touched: clients of whom any was.
        most: 95% upper bound of the share of another client's examples that come back, in the mean.
        needed: clients with as much brought back of each from which this bound is 5%; None where no number is enough.
    """

    attack: str
    clients: int
    examples: int
    back: int
    touched: int
    most: float
    needed: int | None

    @property
    def said(self) -> str:
        """Sentence that says who counts, and what is known."""
        who = f"{self.clients} client{'' if self.clients == 1 else 's'}"
        said = (
            f"{self.attack}: {self.back} of the {self.examples} distinct examples of {who} came back, each matched to "
            "one reconstruction and counted once however often it was trained on; "
        )
        if self.most <= RESILIENT_RATE:
            most = percent_up(self.most)
            return f"{said}of another client at most {most} do, in the mean (95% confidence over clients)"
        little = f"that another client loses at most {RESILIENT_RATE:.0%}"
        if self.needed is None:
            return f"{said}so much came back that no number of such clients can show {little}"
        return f"{said}{little} cannot be said with {who}: at least {self.needed} such clients are needed"


def of_examples(attack: str, back: Sequence[NDArray[np.bool_]]) -> OfExamples:
    """Return what came back of the distinct examples (n,) of each client."""
    shares = np.array([own.mean() for own in back])
    mean = float(shares.mean())
    needed = None
    if mean < RESILIENT_RATE:
        needed = math.ceil(-math.log(0.05) / coin_divergence(mean, RESILIENT_RATE))
    return OfExamples(
        attack, len(back), sum(len(own) for own in back), sum(int(own.sum()) for own in back),
        int((shares > 0).sum()), upper_mean(shares), needed,
    )  # fmt: skip


def too_few(victims: int) -> str:
    """Says that so many are."""
    return f"{victims} {'victim is' if victims == 1 else 'victims are'} too few"


def _below(p_value: float | None) -> bool:
    return p_value is not None and p_value < LEAK_P


def _control_obstacle(controls: list[Control]) -> str | None:
    """Return why the controls do not let a lack of leaks mean anything, or None."""
    for control in controls:
        if not control.held:
            return f"{control.kind} control failed: {control.detail or control.name}"
    if not any(control.kind == "positive" for control in controls):
        return "no positive control was run, so nothing shows that the attack works at all"
    return None


def _evidence_obstacle(strict_victims: Rate, lineup_p: float | None) -> str | None:
    """Return why the measurement itself does not show resilience, or None."""
    if lineup_p is None:
        return "no victim has same-class decoys, so the lineup test could not be made"
    successes, victims = strict_victims.successes, strict_victims.n
    bound = upper_bound(successes, victims)
    if bound <= RESILIENT_RATE:
        return None
    if successes == 0:
        return f"{too_few(victims)} to bound the success rate below 5% (needs {VICTIMS_NEEDED})"
    most = percent_up(bound)
    return f"{successes} of {victims} victims were reconstructed, so the success rate may be as high as {most}"


# Whether a run may be used at all: one rule for its document, its page and its exit code.

#: Chance at most that any of a run's theorems looks contradicted while all of them hold.
CONTRADICTION_P = 1e-4


def took_steps(cell: CellResult) -> bool:
    """Return whether any optimizer moved: the first gradient evaluation only looks."""
    evaluations = cell.metrics.get("gradient_evaluations")
    return evaluations is not None and evaluations.mean is not None and evaluations.mean > 1


def _shows_something(cell: CellResult) -> bool:
    return cell.not_applicable_reason is None if cell.control == "blind" else took_steps(cell)


def fault_of(cells: Sequence[CellResult]) -> str | None:
    """Return why the verdicts of a run with these cells must not be used, None where they may.

    A negative control leaked, an attacker did what a theorem rules out, or no cell that was asked for could be
    evaluated. A control in which no optimizer step was taken shows nothing, neither a leak: it leaves the cells that
    depend on it inconclusive, and the run valid. Only the control ``blind`` takes none and still shows something, if it
    could be made.
    """
    idle = {cell.key for cell in cells if cell.role == "control" and not _shows_something(cell)}
    for cell in cells:
        for check in cell.controls:
            if check.kind == "negative" and not check.held and idle.isdisjoint(check.cells):
                where = f"{cell.attack} against {cell.defense} at {cell.tap}"
                return f"negative control {check.name} failed for {where} ({check.detail})"
    if impossible := _contradiction(cells):
        return impossible
    asked = [cell for cell in cells if cell.role == "cell"]
    if asked and all(cell.not_applicable_reason for cell in asked):
        return f"no cell could be evaluated: {asked[0].not_applicable_reason}"
    return None


def _contradiction(cells: Sequence[CellResult]) -> str | None:
    """The event that is least probable under its theorem, where it is too improbable for so many (Holm 1979)."""
    bounds = [(cell, cell.bound) for cell in cells if cell.bound is not None]
    found = [
        (event.p_value, event, cell, bound)
        for cell, bound in bounds
        for event in bound.events
        if event.p_value is not None
    ]
    if not found:
        return None
    p_value, event, cell, bound = min(found, key=lambda one: one[0])
    if p_value >= CONTRADICTION_P / len(found):
        return None
    return (
        f"{cell.attack} against {cell.defense} at {cell.tap} did what no attacker can: {event.event} "
        f"{event.measured.successes} of {event.measured.n} times, where {bound.theorem} allows "
        f"a share of {event.ceiling:.3g} (p = {p_value:.2g}); the noise or the clip is not what {cell.defense} declares"
    )
