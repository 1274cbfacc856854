"""The strongest attack decides: one row for all cells that differ only in the attack."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from harness.attacks.attacker import ATTACKS
from harness.attacks.suites import EXHAUSTIVE
from harness.base.kinds import IMAGES
from harness.results import AttackStanding, CellResult, Identified, Place, SummaryRow
from harness.results.record import BLIND, TIERS, UNDEFENDED, TierWord
from harness.scoring.strongest import NONE_TRIED, WHO_IS_TOLD, Attempt, is_accurate, strongest
from harness.scoring.verdict import within_networks

# What a place's verdict comes to in a few words: withstood by whom, or not.

#: Of a place that is resilient though every attack that worked there carries a flag.
UNFIT = "withstood no attack that was fit to find anything"

#: Where nothing comes back, but membership is told.
TELLS = "tells who took part"


def headline(
    verdict: Literal["leaks", "resilient", "inconclusive"], attempts: Sequence[Attempt], noisy: bool = False,
    skipped: Sequence[Attempt] = (),
) -> str:  # fmt: skip
    """The verdict over all attacks at one place, by what those who were withstood know.

    Args:
        verdict: of the place.
        attempts: all attacks that were possible there.
        noisy: whether noise is declared on what is read there, so that knowing the defense is knowing its noise.
        skipped: members of a suite that did not run, since the place was settled before.
    """
    known = "the noise" if noisy else "the defense"
    if verdict == "inconclusive":
        return _who_took_part(attempts) or "could not tell"
    if verdict == "leaks":
        leaking = [attempt for attempt in attempts if attempt.verdict == "leaks"]
        if all(one.tampering for one in leaking):
            return "fell only to a server that tampers"
        if not all(one.informed for one in leaking):
            return f"fell to attackers who need not know {known}"
        # An attacker who was not tried may have needed no more.
        only = "" if any(not one.informed for one in skipped) else "only "
        return f"fell {only}to attackers who know {known}"
    # Who is told the labels is the same attacker again, and counts once.
    withstood = list({attempt.attack: attempt for attempt in attempts if attempt.was_withstood}.values())
    if not withstood:
        return UNFIT
    labels = f", {WHO_IS_TOLD}" if any(attempt.told for attempt in withstood) else ""
    if not any(attempt.informed for attempt in withstood):
        return f"withstood only attackers who do not know {known}{labels}"
    server = any(attempt.tampering for attempt in withstood)
    if len(withstood) == 1:
        who = "a server that tampers and knows" if server else "an attacker who knows"
        return f"withstood 1 attack, {who} {known}{labels}"
    among = f"attackers who know {known}" + (" and a server that tampers" if server else "")
    return f"withstood {len(withstood)} attacks, among them {among}{labels}"


def _who_took_part(attempts: Sequence[Attempt]) -> str | None:
    """Return the words for a place where no more was found than who took part; None where not even that was."""
    found = [attempt.found for attempt in attempts if attempt.identifies and attempt.found is not None]
    if not found or any(attempt.verdict == "leaks" for attempt in attempts):
        return None
    best = min(found, key=_by_p)
    first = round((best.rate or 0.0) * best.n)
    # An attack that only tells says whether its data are texts, and not whether they are tables.
    kind = next((attempt.kind for attempt in attempts if attempt.kind != IMAGES), IMAGES)
    tried = any(attempt.identifies is None for attempt in attempts)
    rest = f"no {kind.one} came back" if tried else NONE_TRIED
    return f"{TELLS}: {first} of {best.n}, p = {_short(best.p_value)}; {rest}"


def _by_p(found: Identified) -> tuple[float, float]:
    return 1.0 if found.p_value is None else found.p_value, -(found.rate or 0.0)


def _short(p_value: float | None) -> str:
    mantissa, _, exponent = f"{p_value or 0:.1g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


_PLACE = set(Place.model_fields)


def summarise(cells: Iterable[CellResult], plain: bool = False) -> list[SummaryRow]:
    """Summary rows of the cells that were asked for, in their order; controls are left out.

    ``plain``: they are about attackers who do not know the defense, and say so beside their verdict.
    """
    places: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.role == "cell":
            places[cell.model_dump_json(include=_PLACE)].append(cell)
    return _over_rounds([_row(members, plain) for members in places.values()])


def _over_rounds(rows: list[SummaryRow]) -> list[SummaryRow]:
    """The rows with what becomes of each when an attacker keeps the messages of more rounds, as far as that was tried.

    A server keeps them all, so one look that is withstood says less than it seems to.
    """
    alike: dict[str, dict[int, SummaryRow]] = defaultdict(dict)
    for row in rows:
        alike[_but_rounds(row)][_rounds_seen(row)] = row
    found = []
    for row in rows:
        tried = alike[_but_rounds(row)]
        leaking = [rounds for rounds, one in tried.items() if one.verdict == "leaks"]
        told = {"rounds_tried": sorted(tried), "leaks_after": min(leaking, default=None)}
        found.append(row if list(tried) == [1] else row.model_copy(update=told))
    return found


def _but_rounds(row: SummaryRow) -> str:
    options = {name: value for name, value in row.options.items() if name != "rounds_seen"}
    return row.model_copy(update={"options": options}).model_dump_json(include=_PLACE)


def _rounds_seen(row: SummaryRow) -> int:
    seen = row.options.get("rounds_seen", 1)
    return seen if isinstance(seen, int) else 1


def _row(cells: list[CellResult], plain: bool) -> SummaryRow:
    possible = [cell for cell in cells if cell.not_applicable_reason is None]
    identified = [cell.identified.identifies for cell in possible if cell.identified is not None]
    told = _told(cells)
    attempts, noisy = [_attempt(cell, cell.key in told) for cell in possible], any(cell.noise for cell in possible)
    refused = [(_attempt(cell, False), cell.not_applicable_reason) for cell in cells if cell.not_applicable_reason]
    skipped = [_attempt(cell, False) for cell in cells if cell.settled_by]
    examples = max(cell.hidden for cell in cells)
    suite = next((cell.suite for cell in cells if cell.suite), None)
    formed = not plain and cells[0].defense != UNDEFENDED and not any(_declared(cell) for cell in possible)
    decision = strongest(attempts, noisy, suite is not None, examples, refused, formed)
    reason = decision.reason
    if cells[0].shared_weights:
        reason = within_networks(reason, decision.verdict, len(cells[0].seeds))
    return SummaryRow(
        **cells[0].model_dump(include=_PLACE),
        verdict=decision.verdict,
        verdict_reason=reason,
        strongest=decision.attack,
        tier=_highest(cell.tier for cell in possible if cell.attack != BLIND),
        suite=suite,
        headline=headline(decision.verdict, attempts, noisy, skipped),
        identifies=any(identified) if identified else None,
        attacks=[_standing(cell, cell.key in told) for cell in cells],
    )


def _declared(cell: CellResult) -> bool:
    """Return whether noise of a law that has a name is on what is read there."""
    return cell.noise not in (None, "unknown")


def settles(cell: CellResult) -> bool:
    """Return whether a suite's other members need not run at the place of this one: images come back to an attack that
    is fit.

    All its controls held, and the leak stands however many of the attacks that there are were tried beside it. An
    attack that finds nothing settles nothing, and traces leave open whether images come back to another attack.
    """
    member = cell.role == "cell" and cell.suite is not None and cell.suite not in EXHAUSTIVE
    tried = cell.identified is None and cell.not_applicable_reason is None
    if not (member and tried and cell.verdict == "leaks") or cell.flags or cell.warnings:
        return False
    held = any(check.kind == "positive" for check in cell.controls) and all(check.held for check in cell.controls)
    return held and is_accurate(_attempt(cell, False), len(list(ATTACKS)))


def _highest(tiers: Iterable[TierWord]) -> TierWord:
    return TIERS[max((TIERS.index(tier) for tier in tiers), default=0)]


def _told(cells: Iterable[CellResult]) -> set[str]:
    """The keys of second runs, in which labels are known."""
    return {cell.told for cell in cells if cell.told}


def _attempt(cell: CellResult, told: bool) -> Attempt:
    return Attempt(
        cell.attack, cell.verdict, _obstacle(cell), cell.confirmed, cell.outcomes.success, cell.victims, cell.lineup,
        None if cell.identified is None else cell.identified.identifies, cell.tier != "plain",
        tuple(cell.flags), cell.tier == "tampering", cell.several, told, cell.identified,
        cell.kind,
    )  # fmt: skip


def _standing(cell: CellResult, told: bool) -> AttackStanding:
    obstacle = _obstacle(cell)
    return AttackStanding(
        attack=cell.attack, cell=cell.key, tier=cell.tier, verdict=cell.verdict, informative=obstacle is None,
        reason=obstacle, identifies=None if cell.identified is None else cell.identified.identifies,
        flags=cell.flags, told=told,
    )  # fmt: skip


def _obstacle(cell: CellResult) -> str | None:
    """Return why the cell's attack is not known to work there, None where it is."""
    if cell.not_applicable_reason is not None:
        return cell.not_applicable_reason
    positive = [check for check in cell.controls if check.kind == "positive"]
    if not positive:
        return "no positive control was run"
    return next((check.detail or f"{check.name} failed" for check in positive if not check.held), None)
