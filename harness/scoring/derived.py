"""Verdicts derived again from the victims beside them, wherever somebody else may have touched the files.

What the victims say exactly: how each ended, how many images are accurate and first, and the mean rank of victims of
one image each. p-values need the data; one is held against the ranks where it is far from what they allow.

For reports they are counted harm by harm. A record is *reconstructed* where it comes back by the strict rule; it is
*recognised* where what an attack made is nearer to it than to all its look-alikes; its *membership is told* where an
attacker who is shown it among look-alikes picks it. Every bound is one-sided, by Clopper and Pearson (1934), at 95%.
Records of one client share a fate, so a client is one trial, however many of its records are hit. Clients that hold a
record in common, under several random seeds for example, are one trial too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from harness.attacks.suites import LATEST
from harness.base.version import __version__
from harness.results import CellResult, Identified, Lineup, Place, Rate, SummaryRow, VictimRecord
from harness.scoring.success import STRICT_RMSE, clopper_pearson, upper_bound
from harness.scoring.summarise import settles, summarise
from harness.scoring.verdict import LEAK_P, Verdict, judge, judge_identity

#: How sure the bounds are; a bound on one side leaves all of the remaining chance on the other.
CONFIDENCE = 0.95
# Of a row, beside the verdict, what is read first.
_TOLD = ("headline", "identifies", "attacks")
# By this much two ways to add the same numbers may differ.
_ROUNDING = 1e-6
# An end of an interval that lies by more within that of so many victims was changed, and not rounded.
_NARROWER = 2e-3
# Ranks this improbable cannot come with a p-value above that of a leak, whatever the permutations drew.
_FAR = 1e-12


@dataclass(frozen=True)
class Finding:
    """What is wrong with a verdict, in one line.

    ``kind``: it ``differs`` from what its victims say; it is ``outdated``, made by another version whose rules said
    otherwise; or it is ``unchecked``, since its victims are not all there.
    """

    kind: Literal["differs", "outdated", "unchecked"]
    line: str


def version_of(environment: Mapping[str, Any]) -> str | None:
    """The version of the harness that an environment or the settings of a cell name."""
    versions = environment.get("versions", environment)
    found = versions.get("harness") if isinstance(versions, Mapping) else None
    return found if isinstance(found, str) else None


def findings(
    cells: Sequence[CellResult], victims: Mapping[str, Sequence[VictimRecord]], version: str | None,
    rows: Sequence[SummaryRow] = (),
) -> list[Finding]:  # fmt: skip
    """What is wrong with the verdicts of cells, their controls and their summary rows.

    Args:
        cells: of one run.
        victims: by the keys of the cells.
        version: that made them.
        rows: their summary, where one stands beside them.
    """
    known = {cell.key: cell for cell in cells if cell.key}
    found = [_of_cell(cell, victims.get(cell.key or "", ()), known, version) for cell in cells]
    if rows:
        today = {_place(row): row for row in summarise(of_today(cells, victims))}
        found += [_of_row(row, today.get(_place(row)), known, version) for row in rows]
    return [one for one in found if one is not None]


def of_today(cells: Sequence[CellResult], victims: Mapping[str, Sequence[VictimRecord]]) -> list[CellResult]:
    """Cells with the verdicts that today's rule gives to their victims, where these are all there."""
    return [_of_today(cell, victims.get(cell.key or "", ())) for cell in cells]


def _of_today(cell: CellResult, victims: Sequence[VictimRecord]) -> CellResult:
    changes: dict[str, object] = {}
    if not cell.examples:
        # Settings alone do not tell: the images of all clients of a secure sum are images of one victim.
        changes["examples"] = max(cell.hidden, 1 + max((one.image for one in victims), default=0))
    if cell.not_applicable_reason is None and _all_there(cell, victims):
        found = _derived(cell, victims)
        if found.verdict != cell.verdict:
            changes |= {"verdict": found.verdict, "verdict_reason": found.reason}
    return cell.model_copy(update=changes) if changes else cell


def verdict_of(cell: CellResult) -> Verdict:
    """The verdict that today's rule gives to the numbers of a cell."""
    return _judged(cell, cell.confirmed, cell.outcomes.success)


def _of_cell(
    cell: CellResult, victims: Sequence[VictimRecord], known: Mapping[str, CellResult], version: str | None
) -> Finding | None:
    who = f"{cell.attack} against {cell.defense} at {cell.tap} on {cell.dataset}"
    if cell.settled_by is not None and not _made_under(version, cell.suite):
        return _of_skipped(who, cell, [one for one in known.values() if _is_settler(one, cell)])
    if cell.not_applicable_reason is not None:
        said = "it is impossible:"
        return (
            None
            if cell.verdict == "inconclusive"
            else _differing(who, cell.verdict, "inconclusive", said, version, cell.suite)
        )
    if not _all_there(cell, victims):
        state = "are not all beside it" if victims else "are not beside it"
        return Finding("unchecked", f"verdict not checked: the victims of {who} {state}")
    problem = next(_contradictions(cell, victims, known), None) if version == __version__ else None
    if problem is not None:
        return Finding("differs", f"{who} was changed: {problem}")
    today = _derived(cell, victims).verdict
    if today == cell.verdict:
        return None
    return _differing(who, cell.verdict, today, "its victims say", version, cell.suite)


def _is_settler(one: CellResult, skipped: CellResult) -> bool:
    """Whether a cell is of the attack that is named as why another did not run."""
    alike = one.attack == skipped.settled_by and one.suite == skipped.suite and one.labels == skipped.labels
    return alike and one.role == "cell" and _place(one) == _place(skipped)


def _of_skipped(who: str, cell: CellResult, named: Sequence[CellResult]) -> Finding | None:
    if not named:
        return Finding("unchecked", f"verdict not checked: {cell.settled_by}, which settled {who}, is not beside it")
    if any(settles(one) for one in named) and cell.verdict == "inconclusive":
        return None
    return Finding("differs", f"{who} was changed: it is skipped, but {cell.settled_by} does not settle its place")


def _derived(cell: CellResult, victims: Sequence[VictimRecord]) -> Verdict:
    successes = len({(one.seed, one.victim) for one in victims if one.outcome == "success"})
    confirmed = _confirmed(victims)
    return _judged(cell, cell.confirmed if confirmed is None else confirmed, successes)


def _judged(cell: CellResult, confirmed: int, successes: int) -> Verdict:
    doubt = cell.warnings[0] if cell.warnings else None
    if cell.identified is not None:
        p_value = cell.identified.p_value
        told = cell.identified.model_copy(update={"identifies": p_value is not None and p_value < LEAK_P})
        return judge_identity(told, doubt, cell.controls)
    strict = Rate(successes=min(successes, cell.victims), n=cell.victims)
    return judge(confirmed, strict, cell.lineup, cell.controls, doubt)


def _of_row(
    row: SummaryRow, today: SummaryRow | None, known: Mapping[str, CellResult], version: str | None
) -> Finding | None:
    who = f"{row.defense} at {row.tap} on {row.dataset}"
    if today is None or any(one.cell and one.cell not in known for one in row.attacks):
        return Finding("unchecked", f"verdict not checked: the cells of {who} are not all beside it")
    if today.verdict != row.verdict:
        return _differing(who, row.verdict, today.verdict, "its attacks say", version, row.suite)
    changed = [name for name in _TOLD if getattr(row, name) != getattr(today, name)]
    if not changed or _made_under(version, row.suite):
        return None
    return Finding("differs", f"the row of {who} was changed: its {changed[0]} is not what its attacks say")


def _differing(who: str, said: str, today: str, source: str, version: str | None, suite: str | None) -> Finding:
    if made := _made_under(version, suite):
        return Finding("outdated", f"{who}: made under {made} rules: {said}; under today's: {today}")
    return Finding("differs", f"the verdict of {who} was changed: it says {said}, {source} {today}")


def _made_under(version: str | None, suite: str | None) -> str | None:
    """Whose rules a verdict goes by: another version's, or those of a suite that is no longer the latest; else None."""
    if version != __version__:
        return f"{version}'s" if version else "another version's"
    latest = suite and LATEST.get(suite.rpartition("-")[0], suite)
    return None if suite == latest else f"{suite}'s"


def _all_there(cell: CellResult, victims: Sequence[VictimRecord]) -> bool:
    return bool(victims) and len({(one.seed, one.victim) for one in victims}) == cell.victims


def _confirmed(victims: Sequence[VictimRecord]) -> int | None:
    """Images that are accurate and first; None where the records do not say which rows of a table are accurate."""
    if all(one.image == 0 for one in victims):
        return sum(one.outcome == "success" and _is_first(one) for one in victims)
    if _is_of_rows(victims):
        return None
    return sum(is_accurate(one) and _is_first(one) for one in victims)


def _is_of_rows(victims: Iterable[VictimRecord]) -> bool:
    """Whether they are of a table."""
    return any(one.continuous_rmse is not None or one.categorical_accuracy is not None for one in victims)


def is_accurate(one: VictimRecord) -> bool:
    """Return whether an image, a text or a row of a table came back by the strict rule of its data."""
    exact = (one.model_extra or {}).get("text_exact")
    if exact is not None:
        return exact == 1
    if _is_of_rows([one]):
        return one.categorical_accuracy in (None, 1) and (one.continuous_rmse or 0.0) <= STRICT_RMSE
    return one.rmse is not None and one.rmse <= STRICT_RMSE


def _is_first(one: VictimRecord) -> bool:
    return one.lineup_rank == 1 and (one.lineup_size or 0) > 1


def _contradictions(
    cell: CellResult, victims: Sequence[VictimRecord], known: Mapping[str, CellResult]
) -> Iterator[str]:
    """Numbers of a cell that are not those of its victims, and positive controls that are not those of their cells."""
    ended = dict.fromkeys(name for name, _ in cell.outcomes)
    last = {(one.seed, one.victim): one.outcome for one in victims}
    counted = {name: sum(outcome == name for outcome in last.values()) for name in ended}
    for name, said in cell.outcomes:
        if said != counted[name]:
            yield f"it says that {said} victims ended as {name}, its victims say {counted[name]}"
    confirmed = None if cell.identified else _confirmed(victims)
    if confirmed is not None and confirmed != cell.confirmed:
        yield f"it says that {cell.confirmed} {cell.kind.many} are accurate and first, its victims say {confirmed}"
    if all(one.image == 0 for one in victims):
        yield from _of_ranks(cell.identified or cell.lineup, victims)
    yield from _of_rates(cell, victims)
    for check in cell.controls:
        made = [known[key] for key in check.cells if key in known]
        if check.kind == "positive" and made and made[0].succeeds != check.held:
            yield f"its control {check.name} {'held' if check.held else 'failed'}, the cell of that says otherwise"


def _of_rates(cell: CellResult, victims: Sequence[VictimRecord]) -> Iterator[str]:
    """The success rate; of victims of one image each, an interval narrower than so many allow."""
    if "epochs" in cell.options:
        return  # an image has several records there, which count once together
    single, strict = all(one.image == 0 for one in victims), cell.asr.get("strict")
    if strict is not None and strict.rate is not None and (single or not _is_of_rows(victims)):
        hits = sum(one.outcome == "success" if single else is_accurate(one) for one in victims)
        if abs(strict.rate - hits / len(victims)) > _ROUNDING:
            yield f"it says a success rate of {strict.rate:.4g}, its victims say {hits / len(victims):.4g}"
        (low, high), (below, above) = clopper_pearson(hits, len(victims)), strict.ci95 or (0.0, 1.0)
        if single and ((below or 0.0) > low + _NARROWER or (1.0 if above is None else above) < high - _NARROWER):
            yield f"its interval {strict.ci95} is narrower than {hits} successes of {len(victims)} victims allow"


def _of_ranks(test: Lineup | Identified, victims: Iterable[VictimRecord]) -> Iterator[str]:
    """Of victims of one image each: the mean rank, and a p-value that these ranks cannot have."""
    places = [
        (one.lineup_rank, one.lineup_size)
        for one in victims
        if one.lineup_rank is not None and one.lineup_size is not None and one.lineup_size > 1
    ]
    if not places or test.mean_rank is None:
        return
    ranks, sizes = np.array(places, dtype=float).T
    mean = float(((ranks - 1) / (sizes - 1)).mean())
    if abs(mean - test.mean_rank) > 1e-6:
        yield f"it says a mean rank of {test.mean_rank:.4g}, its victims say {mean:.4g}"
    error = float(np.sqrt(((sizes + 1) / (12 * (sizes - 1))).sum())) / len(ranks)
    chance = float(
        min(stats.norm.cdf((mean - 0.5) / error), stats.poisson.sf((ranks == 1).sum() - 1, (1 / sizes).sum()))
    )
    if chance < _FAR and (test.p_value is None or test.p_value >= LEAK_P):
        yield f"it says p = {test.p_value}, which the ranks of its victims cannot have"


def _place(row: Place) -> str:
    return row.model_dump_json(include=set(Place.model_fields))


Client = tuple[int, int]


@dataclass(frozen=True)
class Count:
    """A harm, counted.

    Attributes:
        records: that were attacked. hit: of them, with the harm; None where the files do not say it of each record.
        clients: that count as one trial each. touched: of them, with the harm for at least one record.
    """

    records: int
    hit: int | None
    clients: int
    touched: int

    @property
    def at_most(self) -> float:
        """The largest share of clients that the numbers allow, one-sided."""
        return upper_bound(self.touched, self.clients, CONFIDENCE)

    @property
    def at_least(self) -> float:
        """The smallest share of clients that the numbers allow, one-sided."""
        return clopper_pearson(self.touched, self.clients, 2.0 * CONFIDENCE - 1.0)[0]


def reconstructed(attacks: Iterable[Sequence[VictimRecord]]) -> Count:
    """Records that any of the attacks at one place brought back."""
    found = [one for victims in attacks for one in victims]
    trials = _trials(found)
    several = any(one.image for one in found)
    is_table = _is_of_rows(found)
    touched = {trials[_client(one)] for one in found if one.outcome == "success"}
    hit = {_record(one) for one in found if (is_accurate(one) if several else one.outcome == "success")}
    records = len({_record(one) for one in found})
    return Count(records, None if several and is_table else len(hit), len(set(trials.values())), len(touched))


def first_in_lineup(victims: Sequence[VictimRecord]) -> Count:
    """Records that one attack puts first among their look-alikes; those without look-alikes do not count."""
    told = [one for one in victims if one.lineup_rank is not None and (one.lineup_size or 0) > 1]
    trials = _trials(told)
    first = [one for one in told if one.lineup_rank == 1]
    touched = {trials[_client(one)] for one in first}
    return Count(
        len({_record(one) for one in told}), len({_record(one) for one in first}), len(set(trials.values())),
        len(touched),
    )  # fmt: skip


def by_guessing(victims: Iterable[VictimRecord]) -> float | None:
    """The share of records that a guess puts first, the mean of 1 / size of the lineups; None without lineups."""
    sizes = [one.lineup_size for one in victims if one.lineup_rank is not None and (one.lineup_size or 0) > 1]
    return sum(1.0 / (size or 1) for size in sizes) / len(sizes) if sizes else None


def _client(one: VictimRecord) -> Client:
    return one.seed, one.victim


def _record(one: VictimRecord) -> tuple[object, ...]:
    """A record, once under all random seeds where its place in the data is known."""
    if one.dataset_index is not None:
        return one.dataset, one.dataset_index
    return one.seed, one.victim, one.image


def _trials(victims: Iterable[VictimRecord]) -> dict[Client, Client]:
    """The trial that each client belongs to, named by one of its clients."""
    parent: dict[Client, Client] = {}
    holders: dict[tuple[str, int], Client] = {}

    def root(client: Client) -> Client:
        while parent[client] != client:
            client = parent[client]
        return client

    for one in victims:
        parent.setdefault(_client(one), _client(one))
        if one.dataset_index is not None:
            holder = holders.setdefault((one.dataset, one.dataset_index), _client(one))
            parent[root(_client(one))] = root(holder)
    return {client: root(client) for client in parent}
