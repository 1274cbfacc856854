"""The verdict on a defense at one place, from every attack that was tried there (docs/verdicts.md).

What a row of cells that differ only in the attack may claim:

* **leaks**, if an attack leaks. A leak is evidence in itself: it counts even where the attack's positive control
  failed, because controls guard the claim that nothing leaks and no other. It is one of k attacks, each of which is
  tested at 0.001 twice (accurate images that are nearest to their own truth, two or more, and the lineup), so the
  chance of any false leak is at most k/500 (Bonferroni); with more than ten attacks p must be below 0.01/k, so that
  a row never wrongly says ``leaks`` with more than 2%.
* **resilient**, if no attack leaks (not even by a test that the above discounts), at least one attack that works is
  itself resilient, and no attack, working or not, has reconstructed so much that its success rate may exceed 5%.
  That every attack has to pass needs no correction: whichever attack truly exceeds 5% passes with a chance of at most
  5% (an intersection-union test, Berger 1982).
* **inconclusive** otherwise.

An attack *works* where its positive controls held: it leaks on that model without the defense, and through the defense
without its noise. One that does not is uninformative: its failure supports nothing. The strongest attack is, among
those that bear the verdict (leaking, resilient, or just working), the one with most victims reconstructed,
then the smallest lineup p.

An attack was *withstood* where it works, carries no flag that says it was unfit
(:mod:`harness.evaluation.report_cell`), and neither leaks nor, if that is all it does, may identify anybody: only such
attacks are counted in words.

An attack that only *identifies* reconstructs nothing: it makes no row leak, and none resilient. Where it identifies,
the reason begins with that word, and the row is inconclusive unless it leaks. Where the defense adds noise, and no
attack that knows it was tried and failed, the reason of ``resilient`` ends with that.

``resilient`` needs an attack that was withstood; where a *suite* was tried, one of the highest tier that is possible
there. Where a defense has no noise of a declared law, one of them has to know the defense: it changes the form of what
is sent, and the failure of an attacker who takes that for a gradient says nothing. What numbers in a coarser form tell
(``reads_coding``) is a part of that knowledge. No theorem bounds what such a defense leaks, and the reason says so.

Where *several* examples lie behind one observation (a batch, local steps, a sum of clients), ``resilient`` needs two
attackers that are fit for several, whoever named them: one that reconstructs and knows the defense, and a membership
test. Both have to be withstood; the reason says which one is missing, and why.

An attack that is shut out (``SHUT_OUT``) would read the network after a step of training: no row is resilient by that.

An attack that a budget left too little time (``NO_TIME``) changes no other attack's verdict, and no row is resilient.

Where inferred labels are at chance a suite runs again with labels known (``told``). These attacks decide among
themselves by the same rule: ``resilient`` needs that nothing comes back where labels are known either, and what does
is named in the reason. They make no row leak, since this attacker was given what others could not read.

Each row is a claim of its own; over the rows of a run their chances of error add up
(:mod:`harness.scoring.strongest`).

Over many places, noise alone makes some of a page of verdicts. The rule bounds the chance of a false ``leaks`` at one
place, and over the places of a page these chances add up. The page as a whole is tested by Holm (1979): the chance that
any leak which remains is false is at most 5%, however places depend on each other.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.attacks.attacker import SHUT_OUT
from harness.base.kinds import IMAGES, Kind
from harness.base.presence import percent_up, up
from harness.results import CellResult, Identified, Lineup, SummaryRow
from harness.results.schema import SETTLED, was_withstood
from harness.scoring.success import upper_bound
from harness.scoring.verdict import CONFIRMED_SUCCESSES, LEAK_P, RESILIENT_RATE, VICTIMS_NEEDED, too_few

FAMILY_P = 0.01
REBUILDS = "an attacker that reconstructs several and knows the defense"
TELLS = "a membership test"
WHO_IS_TOLD = "even to attackers who know the labels"
WHOLE_SUITE = "; add --attack auto"
#: How the reason begins where a budget is why an attack did not run, or on fewer clients.
NO_TIME = "the budget left it too little time"
#: The same where a part of it ran, whose results stand in a cell of their own.
IN_PART = f"{NO_TIME} for all of it"
#: Who is missing where a defense without noise was tried by others alone.
KNOWS = "an attacker that knows the defense"
#: Of a place where attacks only told who took part.
NONE_TRIED = "no attack that reconstructs was tried"
TRACES = "traces come back, nearer to their own truth than to look-alikes"


@dataclass(frozen=True)
class Attempt:
    """One attack's cell.

    ``obstacle``: why the attack is uninformative there, None where it works; ``confirmed``: images that are accurate
    and first in their lineup; ``successes`` of ``victims`` with an accurate image; ``lineup``: the cell's test;
    ``identifies``: None for an attack that reconstructs; ``informed``: whether it knows the defense's noise;
    ``flags``: why it was not fit there; ``tampering``: whether its server sends weights of its own making;
    ``several``: whether it is fit where several examples lie behind one observation; ``told``: whether it is a second
    run, with labels known; ``found``: how well it tells truths, None for an attack that reconstructs;
    ``kind``: what it makes.
    """

    attack: str
    verdict: Literal["leaks", "resilient", "inconclusive"]
    obstacle: str | None
    confirmed: int
    successes: int
    victims: int
    lineup: Lineup
    identifies: bool | None = None
    informed: bool = False
    flags: tuple[str, ...] = ()
    tampering: bool = False
    several: bool = False
    told: bool = False
    found: Identified | None = None
    kind: Kind = IMAGES

    @property
    def bound(self) -> float:
        """95% upper bound of the share of victims this attack reconstructs."""
        return upper_bound(self.successes, self.victims)

    @property
    def was_withstood(self) -> bool:
        """See :func:`harness.results.schema.was_withstood`."""
        return was_withstood(self.verdict, self.obstacle is None, self.identifies, bool(self.flags))


@dataclass(frozen=True)
class Decision:
    """A verdict over all attacks, the strongest of them (None where none works), and a plain sentence why."""

    verdict: Literal["leaks", "resilient", "inconclusive"]
    attack: str | None
    reason: str


def strongest(
    attempts: Sequence[Attempt], noisy: bool = False, suite: bool = False, examples: int = 1,
    refused: Sequence[tuple[Attempt, str]] = (), formed: bool = False,
) -> Decision:  # fmt: skip
    """The verdict over the attacks that were possible; the rule is the module's text.

    Args:
        attempts: all of them.
        noisy: whether noise is declared on what is read there.
        suite: whether a whole suite was tried, whose verdict needs an attack of the highest tier that was fit.
        examples: behind one observation.
        refused: attacks that are impossible there, and why.
        formed: whether a defense acts there without noise of a declared law.
    """
    identifying = [attempt for attempt in attempts if attempt.identifies]
    inferring = [attempt for attempt in attempts if not attempt.told]
    decision = _of_reconstructions([attempt for attempt in inferring if attempt.identifies is None], inferring)
    if decision.verdict == "resilient":
        decision = _reserved(decision, attempts, suite, examples, refused)
    reason = decision.reason
    if identifying:
        reason = f"identifies: {_names(identifying)} tells the truth among look-alikes; {reason}"
        if decision.verdict == "resilient":
            decision = replace(decision, verdict="inconclusive")
    withstood = any(one.informed and one.was_withstood for one in attempts)
    if decision.verdict == "resilient" and not withstood:
        if formed:
            reason = f"no attack leaks, but {KNOWS} was not tried and withstood" + ("" if suite else WHOLE_SUITE)
            return replace(decision, verdict="inconclusive", reason=reason)
        reason += ", by attackers who do not know the noise" if noisy else ""
    if decision.verdict == "resilient" and formed:
        reason += "; bound: none"  # no noise, no theorem: an observation about these attackers alone
    return replace(decision, reason=reason)


def _reserved(
    decision: Decision, attempts: Sequence[Attempt], suite: bool, examples: int,
    refused: Sequence[tuple[Attempt, str]],
) -> Decision:  # fmt: skip
    """A row in which no attack leaks, once everything else that a resilience needs was asked for."""
    late = [attempt for attempt, reason in refused if reason.startswith(NO_TIME)]
    if late:
        return _open(decision, f"the budget left {_names(late)} too little time; judge without --budget")
    skipped = [attempt for attempt, reason in refused if reason.startswith(SETTLED)]
    if skipped:
        return _open(decision, f"{_names(skipped)} did not run; add --all-members")
    shut_out = [attempt for attempt, reason in refused if SHUT_OUT in reason]
    if shut_out:
        return _open(decision, f"{_names(shut_out)} reads such a network and is shut out by these weights alone")
    told = [attempt for attempt in attempts if attempt.told]
    if told:
        again = _of_reconstructions(told, told)
        if again.verdict != "resilient":
            reason = f"where labels are inferred no attack leaks; where they are known, {again.reason}"
            return replace(again, verdict="inconclusive", reason=reason)
        decision = replace(decision, reason=f"{decision.reason}, {WHO_IS_TOLD}")
    # What reconstructs several and was withstood is fit in itself.
    obstacle = _missing(attempts, examples, suite, refused) if examples > 1 else _unfit(attempts, suite)
    return decision if obstacle is None else _open(decision, obstacle)


def _open(decision: Decision, obstacle: str) -> Decision:
    return replace(decision, verdict="inconclusive", reason=f"no attack leaks, but {obstacle}")


def _missing(
    attempts: Sequence[Attempt], examples: int, suite: bool, refused: Sequence[tuple[Attempt, str]]
) -> str | None:
    """Return which attacker that several examples call for was not withstood, and why; None where both were."""
    rebuilding = [one for one in attempts if one.several and one.informed and one.identifies is None]
    telling = [one for one in attempts if one.several and one.identifies is not None]
    absent, why = [], list[str]()
    for name, fit in ((REBUILDS, rebuilding), (TELLS, telling)):
        if any(one.was_withstood or one.identifies for one in fit):
            continue
        absent.append(name)
        why += [f"{one.attack}: {one.obstacle or next(iter(one.flags), 'it could not tell')}" for one in fit]
    if not absent:
        return None
    said = f"{examples} examples lie behind one observation, and {' and '.join(absent)} "
    said += f"{'was' if len(absent) == 1 else 'were'} not tried and withstood"
    why += [f"{one.attack}: {reason}" for one, reason in refused if one.several]
    said = "; ".join([said, *dict.fromkeys(why)])
    return said if suite else said + WHOLE_SUITE


def _unfit(attempts: Sequence[Attempt], suite: bool) -> str | None:
    """Return why no attack can be said to have been withstood; of a suite, no attack of the highest tier that was
    possible. None where one can."""
    tier = (suite and [attempt for attempt in attempts if attempt.informed]) or attempts
    if any(attempt.was_withstood for attempt in tier):
        return None
    flags = [f"{attempt.attack}: {attempt.flags[0]}" for attempt in tier if attempt.flags]
    name = ("informed " if tier[0].informed else "plain ") if suite else ""
    return "; ".join([f"no {name}attack that was fit to find anything was withstood", *flags])


def _of_reconstructions(attempts: Sequence[Attempt], tried: Sequence[Attempt]) -> Decision:
    if tried and not attempts:
        return Decision("inconclusive", None, NONE_TRIED)
    leaking = [attempt for attempt in attempts if attempt.verdict == "leaks"]
    standing = [attempt for attempt in leaking if _stands(attempt, len(attempts))]
    if standing:
        chief = max(standing, key=_strength)
        return Decision("leaks", chief.attack, _what_leaks(standing, len(attempts)))
    working = [attempt for attempt in attempts if attempt.obstacle is None]
    obstacle = _obstacle(attempts, leaking, working)
    if obstacle is not None:
        return Decision("inconclusive", max(working, key=_strength).attack if working else None, obstacle)
    chief = max((attempt for attempt in working if attempt.verdict == "resilient"), key=_strength)
    most = percent_up(max(attempt.bound for attempt in attempts))
    return Decision("resilient", chief.attack, f"no attack leaks; each reconstructs at most {most} of victims")


def _what_leaks(standing: Sequence[Attempt], tried: int) -> str:
    """Return what came back, by which attacks: whole examples, or no more than traces of them."""
    accurate = [attempt for attempt in standing if is_accurate(attempt, tried)]
    among = "" if tried == 1 else f" of {tried} attacks"
    if not accurate:
        return f"{_names(standing)}{among}: {_traces(standing)}"
    said = f"{_names(accurate)}{among}: {accurate[0].kind.many} come back"
    faint = [attempt for attempt in standing if attempt not in accurate]
    return f"{said}; {_names(faint)}: {_traces(faint)}" if faint else said


def _traces(faint: Sequence[Attempt]) -> str:
    """That no image shows it, with the p-value that does."""
    return f"{TRACES} (p = {min(attempt.lineup.p_value or 0.0 for attempt in faint):.2g})"


def leak_level(tried: int) -> float:
    """Return what a p-value must stay below to count as a leak, at a place where so many attacks were tried."""
    return min(LEAK_P, FAMILY_P / tried)


def is_accurate(leak: Attempt, tried: int) -> bool:
    """Return whether accurate images remain significant among so many attacks."""
    # A document from before accurate images were tested has no p-value of theirs: it stands by what it says.
    confirmed = 0.0 if leak.lineup.confirmed_p_value is None else leak.lineup.confirmed_p_value
    return leak.confirmed >= CONFIRMED_SUCCESSES and confirmed < leak_level(tried)


def _stands(leak: Attempt, tried: int) -> bool:
    """Return whether a leak remains one among so many attacks."""
    by_lineup = leak.lineup.p_value is not None and leak.lineup.p_value < leak_level(tried)
    return by_lineup or is_accurate(leak, tried)


def _obstacle(attempts: Sequence[Attempt], leaking: Sequence[Attempt], working: Sequence[Attempt]) -> str | None:
    """Return why resilience may not be claimed either, or None."""
    if not attempts:
        return "no attack is possible there"
    if leaking:
        return f"what {_names(leaking)} found is no longer significant among {len(attempts)} attacks"
    if not working:
        return "no attack is known to work there"
    if not any(attempt.verdict == "resilient" for attempt in working):
        most = max(attempt.victims for attempt in working)
        if most < VICTIMS_NEEDED:
            return f"no attack leaks, but {too_few(most)} to show resilience (needs {VICTIMS_NEEDED})"
        return f"no attack leaks, but none that works there shows resilience ({_names(working)})"
    doubtful = [attempt for attempt in attempts if attempt.bound > RESILIENT_RATE]
    if doubtful:
        worst = max(doubtful, key=_strength)
        return f"{worst.attack} may reconstruct as many as {percent_up(worst.bound)} of victims"
    return None


def _strength(attempt: Attempt) -> tuple[float, float]:
    return attempt.successes, -(math.inf if attempt.lineup.p_value is None else attempt.lineup.p_value)


def _names(attempts: Sequence[Attempt]) -> str:
    return ", ".join(attempt.attack for attempt in attempts)


PAGE_P = 0.05
#: The smallest p-value that the usual number of permutations can give: evidence that more of them would sharpen.
_LEAST_P = 2e-4
#: Two tests of each attack: accurate images that are nearest to their own truth, and the lineup.
_TESTS = 2


@dataclass(frozen=True)
class Multiplicity:
    """Meaning of many places for a page's ``leaks``.

    Attributes:
        places: at which an attack that reconstructs was possible.
        leaking: of them, say ``leaks``.
        remaining: of these, still do where all places are tested together.
        unresolved: of the others, have the smallest p-value that permutations could give.
        by_noise: bound of the chance that noise alone makes some place say ``leaks``, whatever ties places together.
        independent: the same, were places independent of each other.
    """

    places: int
    leaking: int
    remaining: int
    unresolved: int
    by_noise: float
    independent: float

    @property
    def words(self) -> str:
        """Both in plain words."""
        chance = f"at most {_percent(self.by_noise)}"
        if self.independent < 0.95 * self.by_noise:
            chance += f" ({_percent(self.independent)} if places are independent)"
        said = f"If nothing leaks, the chance that one of {self.places} places still says leaks is {chance}."
        if not self.leaking:
            return said
        said += f" Corrected for many tests (Holm, {PAGE_P:.0%}), {self.remaining} of {self.leaking} leaks remain"
        return said + (
            f"; {self.unresolved} have the smallest p-value that the test can give." if self.unresolved else "."
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in order: below alpha are those rejected at family-wise error rate alpha."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = largest
    return adjusted


def over_places(places: Iterable[tuple[SummaryRow, Sequence[CellResult]]]) -> Multiplicity | None:
    """The chances over summary rows with their cells; None for fewer than two places that could leak."""
    rows: list[bool] = []
    levels: list[float] = []
    least: list[float] = []
    p_values: list[float] = []
    for row, cells in places:
        tested = [cell for cell in cells if cell.identified is None and cell.not_applicable_reason is None]
        if not tested:
            continue
        count = _TESTS * len(tested)
        rows.append(row.verdict == "leaks")
        levels.append(min(1.0, count * leak_level(len(tested))))
        least.append(min(map(_least, tested)))
        p_values.append(min(1.0, count * least[-1]))
    if len(rows) < 2:
        return None
    remain = [leaks and p <= PAGE_P for leaks, p in zip(rows, holm(p_values), strict=True)]
    lost = [leaks and not kept for leaks, kept in zip(rows, remain, strict=True)]
    unresolved = sum(one and p <= _LEAST_P for one, p in zip(lost, least, strict=True))
    independent = -math.expm1(sum(math.log1p(-min(level, 1 - 1e-12)) for level in levels))
    return Multiplicity(len(rows), sum(rows), sum(remain), unresolved, min(1.0, sum(levels)), independent)


def of_document(summary: Iterable[SummaryRow], cells: Iterable[CellResult]) -> Multiplicity | None:
    """Return the chances over the places of a run's summary and the cells that it names; see :func:`over_places`."""
    known: Mapping[str | None, CellResult] = {cell.key: cell for cell in cells if cell.role == "cell"}
    return over_places((row, [known[one.cell] for one in row.attacks if one.cell in known]) for row in summary)


def _least(cell: CellResult) -> float:
    """The smaller p-value of a cell's two tests; 1 where neither can leak."""
    found = [cell.lineup.p_value]
    if cell.confirmed >= CONFIRMED_SUCCESSES:
        found.append(cell.lineup.confirmed_p_value)
    return min((one for one in found if one is not None), default=1.0)


def _percent(share: float) -> str:
    return f"{up(100 * share, 2)}%" if share < 0.99 else "100%"
