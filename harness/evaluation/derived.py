"""Results derived again wherever somebody else may have touched the files: from victims, controls and settings.

The victims of a cell say its errors, successes, ranks and how each ended, and these its verdict. Its settings, which
its key is a digest of, say what is promised for it. So do p-values of inferred labels, and what Gaussian noise of the
written strength allows. p-values against look-alikes, an attack's own measures, seconds and what compares a tampering
server need the data or the machine, and stay as they are written; a p-value against look-alikes is held against what
the ranks allow, within an order of magnitude.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from harness.attacks.suites import LATEST
from harness.base.errors import UsageError
from harness.base.kinds import EVERY
from harness.base.presence import says_as_much
from harness.base.vectors import Layout
from harness.base.version import __version__
from harness.datasets import DATASETS
from harness.datasets.load import data_root
from harness.evaluation.controls import judge_blind, judge_negative, judge_positive
from harness.evaluation.identifying import IdentityScores
from harness.evaluation.observe import Stage
from harness.evaluation.report_cell import promised, settled
from harness.evaluation.scores import Scores
from harness.experiment import AS_CAPTURED, CellSettings, is_of_project
from harness.models import RowModel
from harness.models.batch_norm import UNCOVERED
from harness.privacy import GaussianLimit
from harness.privacy.contradictions import lineup_p_value
from harness.results import (
    CellResult,
    Control,
    LabelInference,
    Lineup,
    Outcomes,
    Place,
    Rate,
    Statement,
    StoredCell,
    SummaryRow,
    VictimRecord,
    cell_key,
)
from harness.results.record import BLIND, Ceiling, Facts, Summary
from harness.results.schema import SuccessRule
from harness.scoring import METRICS, Ranking, label_accuracy, label_summary, success_table
from harness.scoring.harms import is_accurate, is_of_rows
from harness.scoring.images import groups_of, repeats_of
from harness.scoring.strongest import NONE_TRIED
from harness.scoring.summarise import settles, summarise
from harness.scoring.verdict import (
    LEAK_P,
    NEGATIVE_CONTROL_P,
    Verdict,
    fault_of,
    judge,
    judge_identity,
    within_networks,
)

# Shares of a number by which two may differ: where sums are added up in another order, and where another version of a
# library accounts for an epsilon.
_ROUNDING, _ACCOUNTED = 1e-6, 1e-3
# How improbable it is that permutations drew what is called impossible; how many times the chance of ranks of victims
# of whom the same was made may be exceeded; ranks of such a chance or more, were they independent, are no leak.
_FAR, _UNALIKE, _USUAL = 1e-12, 10, 0.15
# A repeated run takes another time; of verdicts there is more to say than that they differ from a file.
_ELSEWHERE = ("seconds", "verdict", "verdict_reason")
# Sentences may be said in other words from one commit to the next.
_PROSE = ("notes",)
# How it was said before: places where nothing that reconstructs was tried gave nothing back, and one attack was "of 1".
_KIND = re.compile(f"(no ({'|'.join(kind.one for kind in EVERY)}) came back|{NONE_TRIED})$")
_OF_ONE = " of 1 attacks:"
# So much of a text is shown.
_LONGEST = 80
# A p-value by so many permutations, and by how many of its standard errors other ones may have it.
_PERMUTATIONS, _PERMUTED = 9_999, 8
_GAUSSIAN = "Gaussian noise, mu = "
_TWO_DIGITS = 0.06
_SHOWN = re.compile(r"lineup p = ((?:none|[\d.e+-]+)(?:, (?:none|[\d.e+-]+))*)$")
_ENDS = {"diverged": "diverged", "hopeless": "hopeless"}
# What the settings do not say alone: how many examples are public, and whether a network has running statistics.
_SEEN = {"prior", "batch_norm"}


@dataclass(frozen=True)
class Finding:
    """Fault of a verdict, in one line.

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
    cells: Sequence[CellResult], victims: Mapping[str, Sequence[VictimRecord]], files: Mapping[str, StoredCell],
    version: str | None, rows: Sequence[SummaryRow] = (), beside: Sequence[CellResult] = (),
) -> list[Finding]:  # fmt: skip
    """Return what is wrong with the numbers and verdicts of cells, their controls and their summary rows.

    Args:
        cells: of one run.
        victims: by the keys of the cells.
        files: the cells' own files by the same keys, as far as they are at hand; their victims do not matter.
        version: that made them.
        rows: their summary, where one stands beside them.
        beside: cells that only others are held against, such as controls.
    """
    known = {cell.key: cell for cell in [*beside, *cells] if cell.key}
    found = [
        _of_cell(cell, victims.get(cell.key or "", ()), known, files.get(cell.key or ""), version) for cell in cells
    ]
    if rows:
        today = {_place(row): row for row in summarise(of_today(cells, victims))}
        found += [_of_row(row, today.get(_place(row)), known, version) for row in rows]
    return [one for one in found if one is not None]


def of_run(cells: Sequence[CellResult], valid: bool, version: str | None) -> list[Finding]:
    """Return what is wrong with the claim that a run with these cells, all that it has, is valid."""
    fault = fault_of(cells) if valid and version == __version__ else None
    return [Finding("differs", f"the run was changed: valid is True, but {fault}")] if fault else []


def of_today(cells: Sequence[CellResult], victims: Mapping[str, Sequence[VictimRecord]]) -> list[CellResult]:
    """Cells with the verdicts that today's rule gives to their victims, where these are all there."""
    return [_of_today(cell, victims.get(cell.key or "", ())) for cell in cells]


def _of_today(cell: CellResult, victims: Sequence[VictimRecord]) -> CellResult:
    changes: dict[str, object] = {}
    if not cell.examples:
        # Settings alone do not tell: the images of all clients of a secure sum are images of one victim.
        changes["examples"] = max(cell.hidden, 1 + max((one.image for one in victims), default=0))
    if cell.not_applicable_reason is None and _all_there(cell, victims):
        found = by_victims(cell, victims)
        if found.verdict != cell.verdict:
            changes |= {"verdict": found.verdict, "verdict_reason": found.verdict_reason}
    return cell.model_copy(update=changes) if changes else cell


def by_victims(cell: CellResult, victims: Sequence[VictimRecord]) -> CellResult:
    """A cell with everything that its victims, all of them, say of it: its numbers and today's verdict."""
    scores = scores_of(cell, victims)
    found = _verdict(cell, scores)
    return cell.model_copy(
        update=_of_victims(cell, scores, victims) | {"verdict": found.verdict, "verdict_reason": found.reason}
    )


def verdict_of(cell: CellResult) -> Verdict:
    """The verdict that today's rule gives to the numbers of a cell."""
    doubt = cell.warnings[0] if cell.warnings else None
    if cell.identified is not None:
        p_value = cell.identified.p_value
        told = cell.identified.model_copy(update={"identifies": p_value is not None and p_value < LEAK_P})
        return judge_identity(told, doubt, cell.controls)
    strict = Rate(successes=min(cell.outcomes.success, cell.victims), n=cell.victims)
    return judge(cell.confirmed, strict, cell.lineup, cell.controls, doubt)


def _of_cell(
    cell: CellResult, victims: Sequence[VictimRecord], known: Mapping[str, CellResult], file: StoredCell | None,
    version: str | None,
) -> Finding | None:  # fmt: skip
    who = f"{cell.attack} against {cell.defense} at {cell.tap} on {cell.dataset}"
    possible, old = cell.not_applicable_reason is None, _made_under(version, cell.suite)
    if cell.settled_by is not None and not old:
        named = [one for one in known.values() if _is_settler(one, cell)]
        if found := _of_skipped(who, cell, named):
            return found
    if possible and not _all_there(cell, victims):
        state = "are not all beside it" if victims else "are not beside it"
        return Finding("unchecked", f"verdict not checked: the victims of {who} {state}")
    scores = scores_of(cell, victims) if possible else None
    verdict = _verdict(cell, scores) if scores else Verdict("inconclusive", "not applicable")
    if version == __version__:
        problems = itertools.chain(
            _contradictions(cell, scores, victims, file, known), _of_records(cell, scores, victims)
        )
        problem = next(problems, None)
        if problem is not None:
            return Finding("differs", f"{who} was changed: {problem}")
    source = "its victims say" if possible else "it is impossible:"
    if verdict.verdict != cell.verdict:
        return _differing(who, cell.verdict, verdict.verdict, source, version, cell.suite)
    if old or says_as_much(cell.verdict_reason, verdict.reason):
        return None
    said = f"its verdict_reason is {cell.verdict_reason!r}, {source} {verdict.reason!r}"
    return Finding("differs", f"{who} was changed: {said}")


def _is_settler(one: CellResult, skipped: CellResult) -> bool:
    """Return whether a cell is of the attack that is named as why another did not run."""
    alike = one.attack == skipped.settled_by and one.suite == skipped.suite and one.labels == skipped.labels
    return alike and one.role == "cell" and _place(one) == _place(skipped)


def _of_skipped(who: str, cell: CellResult, named: Sequence[CellResult]) -> Finding | None:
    if not named:
        return Finding("unchecked", f"verdict not checked: {cell.settled_by}, which settled {who}, is not beside it")
    if any(settles(one) for one in named) and cell.verdict == "inconclusive":
        return None
    return Finding("differs", f"{who} was changed: it is skipped, but {cell.settled_by} does not settle its place")


def _of_row(
    row: SummaryRow, today: SummaryRow | None, known: Mapping[str, CellResult], version: str | None
) -> Finding | None:
    who = f"{row.defense} at {row.tap} on {row.dataset}"
    if today is None or any(one.cell and one.cell not in known for one in row.attacks):
        return Finding("unchecked", f"verdict not checked: the cells of {who} are not all beside it")
    if today.verdict != row.verdict:
        return _differing(who, row.verdict, today.verdict, "its attacks say", version, row.suite)
    if _made_under(version, row.suite):
        return None
    if _KIND.sub("", row.headline) == _KIND.sub("", today.headline):
        row = row.model_copy(update={"headline": today.headline})
    if _OF_ONE in row.verdict_reason:
        row = row.model_copy(update={"verdict_reason": row.verdict_reason.replace(_OF_ONE, ":")})
    written, again = (one.model_dump(mode="json") for one in (row, today))
    for place, said, follows in differing_in(written, again, ""):
        return Finding("differs", f"the row of {who} was changed: {_told(place, said, 'by its attacks', follows)}")
    return None


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
    """Return whether the records are those of all victims, with as many examples each."""
    attacked = {(one.seed, one.victim) for one in victims}
    return bool(victims) and len(attacked) == cell.victims and len(victims) % cell.victims == 0


def _of_records(
    cell: CellResult, scores: Scores | IdentityScores | None, victims: Sequence[VictimRecord]
) -> Iterator[str]:
    """Yield a line for a record that is another cell's, or another victim's, or that says another end."""
    if scores is None:
        return
    each = cell.victims // max(1, len(cell.seeds)), len(victims) // cell.victims
    places = itertools.product(cell.seeds, *map(range, each))
    own = {"cell": cell.key, **{name: getattr(cell, name) for name in ("role", "dataset", "defense", "attack", "tap")}}
    ends = np.repeat(scores.outcomes(), each[1])
    for record, place, end in zip(victims, places, ends, strict=False):
        due = own | dict(zip(("seed", "victim", "image"), place, strict=True)) | {"outcome": str(end)}
        for name, follows in due.items():
            if getattr(record, name) != follows:
                yield _told(f"{name} of a victim", getattr(record, name), "by its cell", follows)


def _contradictions(
    cell: CellResult, scores: Scores | IdentityScores | None, victims: Sequence[VictimRecord],
    file: StoredCell | None, known: Mapping[str, CellResult],
) -> Iterator[str]:  # fmt: skip
    """Fields of a cell that are not what its victims, the cells of its controls, its settings and its file say."""
    settings = file and file.settings
    if scores is None:
        yield from _differences(cell, _NOTHING | {"outcomes": Outcomes(not_applicable=cell.victims)}, "as impossible")
    else:
        yield from _differences(cell, _of_victims(cell, scores, victims), "by its victims", _of_draws(settings))
        if scores.groups is None:  # those of victims who hold the same image are not independent
            yield from _of_ranks(cell, scores, victims)
        yield from _differences(cell, {"controls": _of_controls(cell, scores, known)}, "by the cells of its controls")
    yield from _differences(cell, _of_settings(cell, settings), "by its settings", _PROSE, _ACCOUNTED)
    if file is not None:
        if cell_key(file.settings) != cell.key:
            yield "the settings in its own file are not those that its key is a digest of"
        yield from _differences(cell, dict(file.cell), "in its own file", _ELSEWHERE)


# A cell in which nobody is attacked says nothing but why.
_NOTHING: dict[str, Any] = {
    "metrics": {}, "asr": {}, "confirmed": 0, "lineup": Lineup(), "identified": None, "label": LabelInference(),
    "controls": [], "privacy": [], "bound": None, "detectable": None,
}  # fmt: skip


def _differences(
    cell: CellResult, fields: Mapping[str, Any], source: str, but: Collection[str] = (), within: float = _ROUNDING
) -> Iterator[str]:  # fmt: skip
    """Yield where the fields of a cell are not these, with what is written and what follows.

    Args:
        but: names that are left out.
        within: what numbers may be off by, of themselves.
    """
    again = CellResult.model_validate(dict(cell) | dict(fields))
    said, found = (one.model_dump(mode="json", include=set(fields)) for one in (cell, again))
    for place, written, follows in differing_in(said, found, "", within):
        if place.rpartition(".")[2] not in but:
            yield _told(place, written, source, follows)


def differing_in(said: Any, found: Any, place: str, within: float = _ROUNDING) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two JSON documents differ by more than rounding, and what each says; words and counts are equal."""
    if isinstance(said, dict) and isinstance(found, dict):
        for name in dict.fromkeys([*said, *found]):
            yield from differing_in(said.get(name), found.get(name), f"{place}.{name}" if place else name, within)
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for number, (one, other) in enumerate(zip(said, found, strict=True)):
            yield from differing_in(one, other, f"{place}[{number}]", within)
    elif not _is_as_good_as(said, found, within):
        yield place, said, found


def _is_as_good_as(said: Any, found: Any, within: float) -> bool:
    if type(said) is float and type(found) in (float, int):
        return math.isclose(said, found, rel_tol=within, abs_tol=_ROUNDING**2)
    if isinstance(said, str) and isinstance(found, str):
        return says_as_much(said, found)
    return said == found and isinstance(said, bool) == isinstance(found, bool)


def _told(place: str, said: Any, source: str, follows: Any) -> str:
    return f"{place} is {_short(said)}, {source} it is {_short(follows)}"


def _short(value: Any) -> str:
    said = f"{value:.6g}" if isinstance(value, float) else str(value)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


# --------------------------------------------------------------------------------------
# From victims.


def scores_of(cell: CellResult, victims: Sequence[VictimRecord]) -> Scores | IdentityScores:
    """The numbers of a cell as whoever scored it had them, from the records of all its victims.

    What records do not hold, such as p-values, is the cell's.
    """
    shape = cell.victims, len(victims) // cell.victims
    held = [dict(one) for one in victims]

    def values(name: str, missing: float = math.nan) -> NDArray[np.float64]:
        return np.array([missing if one.get(name) is None else one[name] for one in held], dtype=np.float64)

    def each(name: str) -> NDArray[np.float64]:
        return values(name).reshape(shape)[:, 0]  # it stands beside each of a victim's examples

    ranks, sizes = values("lineup_rank", 1).reshape(shape), values("lineup_size", 1).astype(np.int64).reshape(shape)
    told = sizes > 1
    test = cell.lineup if cell.identified is None else cell.identified
    places = {
        "rate": float((told & (ranks == 1)).sum() / told.sum()),
        "mean_rank": float(((ranks - 1)[told] / (sizes - 1)[told]).mean()),
    } if told.any() else {}  # fmt: skip
    lineup = Lineup.model_validate(test.model_dump(include={"p_value", "reason"}) | {
        "confirmed_p_value": cell.lineup.confirmed_p_value, **places
    })  # fmt: skip
    ranking = Ranking(ranks, sizes, told & (ranks == 1), lineup)
    indices = values("dataset_index").reshape(shape)
    known, doubt = not np.isnan(indices).any(), cell.warnings[0] if cell.warnings else None
    groups = groups_of(indices.astype(np.int64)) if known else None
    clusters = len(cell.seeds) if cell.shared_weights and len(cell.seeds) > 1 else cell.victims
    if cell.identified is not None:
        return IdentityScores(ranking, None, each("gradient_evaluations"), doubt, clusters, groups)
    there = victims[0].model_fields_set
    names = [name for name, metric in METRICS.items() if metric.in_victims and name in there]
    metrics = {name: values(name) for name in names} | {"tau": values("tau")}
    metrics |= _following(cell, metrics) | {name: each(name) for name in ("gradient_evaluations", "steps_taken")}
    table, texts = is_of_rows(victims), "text_exact" in there
    success: dict[SuccessRule, NDArray[np.bool_]] = {"strict": np.array([is_accurate(one) for one in victims])}
    if not (table or texts) and {"rmse", "rmse_raw"} <= metrics.keys():
        success = success_table(metrics)
    ends = [one["outcome"] for one in held[:: shape[1]]]
    return Scores(
        metrics, {}, success, ranking, None, _labels(cell, held, shape, groups), values("inferred_label"),
        [_ENDS.get(one, "cap") for one in ends], metrics["steps_taken"], metrics["gradient_evaluations"], each("loss"),
        each("initial_loss"), torch.empty(0), cell.victims, clusters, doubt, groups,
        repeats_of(indices.astype(np.int64)) if known else None,
    )  # fmt: skip


def _labels(
    cell: CellResult, held: Sequence[Mapping[str, Any]], shape: tuple[int, int], groups: NDArray[np.int64] | None
) -> LabelInference:  # fmt: skip
    """Those of a cell with the accuracy and the p-value that its records say; of pooled rounds they do not say it."""
    found = [(one.get("inferred_label"), one.get("label")) for one in held]
    if cell.label.accuracy is None or cell.options.get("same_data") == "client" or any(None in pair for pair in found):
        return cell.label
    inferred, truth = torch.tensor(found, dtype=torch.long).T.reshape(2, *shape)
    again = {"accuracy": float(label_accuracy(inferred, truth).mean())}
    found_p = label_summary(inferred, truth, truth, cell.seeds[0], groups=groups).p_value
    if cell.label.p_value is not None and found_p is not None:
        # Another version of numpy may draw other permutations.
        width = _PERMUTED * math.sqrt((found_p * (1 - found_p) + _PERMUTED / _PERMUTATIONS) / _PERMUTATIONS)
        if abs(found_p - cell.label.p_value) > width:
            again["p_value"] = found_p
    return cell.label.model_copy(update=again)


def _verdict(cell: CellResult, scores: Scores | IdentityScores) -> Verdict:
    found = scores.verdict(cell.controls)
    if not cell.shared_weights:
        return found
    return Verdict(found.verdict, within_networks(found.reason, found.verdict, len(cell.seeds)))


def _following(cell: CellResult, metrics: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Metrics that are functions of others: of the root mean squared error, and of the share of right categories."""
    found = {}
    if "rmse" in metrics:
        error = metrics["rmse"]
        found |= {"mse": error**2, "rmse_seed": error**2}
        (distance, mean) = (one and one.mean for one in (cell.metrics.get("l2dist"), cell.metrics.get("rmse")))
        # An example has a whole number of features, the same in all victims.
        features = round((distance / mean) ** 2) if distance and mean else 0
        found["l2dist"] = error * math.sqrt(features)
    if "categorical_accuracy" in metrics:
        share = metrics["categorical_accuracy"]
        found["categories_all_right"] = np.where(np.isnan(share), math.nan, share == 1)
    return found


def _of_victims(cell: CellResult, scores: Scores | IdentityScores, victims: Sequence[VictimRecord]) -> dict[str, Any]:
    """Every field of a cell that its victims say; what they do not say of it is the cell's."""
    claims = {"confirmed": 0, "identified": None} | scores.claims()
    del claims["warnings"]
    for name in ("metrics", "asr"):
        said = getattr(cell, name)
        known = {one: value for one, value in claims[name].items() if one in said and not _is_missing(said[one], value)}
        claims[name] = said | known
    for name in ("lineup", "label"):
        claims[name] = claims[name].model_copy(update={"reason": getattr(cell, name).reason})
    if cell.bound is None:
        return claims
    mu = cell.bound.mu
    limit = GaussianLimit(mu) if mu is not None and (cell.bound.theorem or "").startswith(_GAUSSIAN) else None
    events = [one.model_copy(update=_of_event(one, scores, claims["asr"], limit, victims)) for one in cell.bound.events]
    title = {} if limit is None else {"theorem": limit.title}
    return claims | {"bound": cell.bound.model_copy(update={"events": events} | title)}


def _is_missing(said: Summary | Rate, found: Summary | Rate) -> bool:
    """Return whether neither has a number; why, only the cell says."""
    return all((one.mean if isinstance(one, Summary) else one.rate) is None for one in (said, found))


def _of_event(
    event: Ceiling, scores: Scores | IdentityScores, asr: Mapping[str, Rate], limit: GaussianLimit | None,
    victims: Sequence[VictimRecord],
) -> dict[str, Any]:  # fmt: skip
    """Return what victims say of an event, and what Gaussian noise lets it be at most; other laws stay as written."""
    sizes, kappa = scores.ranking.sizes[scores.ranking.sizes > 1], event.kappa
    if event.event == "strict image" or not len(sizes):
        found: dict[str, Any] = {"measured": asr["strict"] if event.event == "strict image" else Rate()}
    else:
        kappa = event.kappa and float((1 / sizes).mean())  # who knows examples beforehand has none
        found = {"measured": scores.lineups, "kappa": kappa}
        labels = np.array([[-1 if one.label is None else one.label] for one in victims])
        if limit is not None and kappa is not None and scores.groups is None and scores.ranking.sizes.shape[1] == 1:
            found["p_value"] = lineup_p_value(scores.ranking.first, scores.ranking.sizes, labels, limit)
    if limit is not None and kappa is not None and 0 <= kappa <= 1:
        found["ceiling"] = limit.ceiling(kappa)
    ceiling = found.get("ceiling", event.ceiling)
    return found | {"says_little": ceiling is not None and ceiling > 0.5}


def _of_draws(settings: Facts | None) -> tuple[str, ...]:
    """Return what depends on which victims are independent, where records do not say that: captures of one client are
    not."""
    unsaid = settings is None or settings.get("weights") == AS_CAPTURED
    return ("ci95", "beyond_chance", "p_value") if unsaid else ()


def _of_ranks(cell: CellResult, scores: Scores | IdentityScores, victims: Sequence[VictimRecord]) -> Iterator[str]:
    """Yield a line for each p-value that the ranks of victims cannot have, whatever the look-alikes were.

    Ranks vary the most where the same was made of all victims of a class: their sum is then that of Mann and Whitney,
    and who is first depends on one common chance. They vary the least where they are independent, or tie.
    """
    ranking, tested, labels = scores.ranking, cell.tested_p, [-1 if one.label is None else one.label for one in victims]
    told, classes = ranking.sizes > 1, np.reshape(labels, ranking.sizes.shape)
    if not told.any() or tested is None or any(one.dataset_index is None for one in victims):
        return
    ranks, first = ranking.ranks[told], ranking.first[told]
    kinds, counts = np.unique(np.stack([classes[told], ranking.sizes[told] - 1]), axis=1, return_counts=True)
    apart = (ranks - 1) / (ranking.sizes[told] - 1) - 0.5

    def at_most(chance: float) -> float:
        return float(1 + stats.poisson.isf(_FAR, _UNALIKE * chance * _PERMUTATIONS)) / (1 + _PERMUTATIONS)

    def alike(flags: NDArray[np.bool_]) -> float:
        chance = lineup_p_value(flags[:, None], ranking.sizes[told][:, None], classes[told][:, None], GaussianLimit(0))
        return 1.0 if chance is None else chance

    wide, narrow = ((counts * (more + kinds[1] + 1) / (12 * kinds[1])).sum() for more in (counts, 1))
    # Ties take spread: where all others tie, ranks vary no more than these do, and one of the whole class can be first.
    narrow = max(min(narrow, (apart**2).sum()), _FAR)
    widest, least = (float(stats.norm.cdf(apart.sum() / math.sqrt(one))) for one in (wide, narrow))
    hits = float(stats.poisson.sf(first.sum() - 1, (counts / (kinds[1] + counts)).sum()))
    low = tested < LEAK_P and min(least, hits) > _USUAL
    if low or tested > 2 * at_most(min(widest, alike(first))):
        yield f"p_value is {tested}, which the ranks of its victims cannot have"
    accurate = cell.lineup.confirmed_p_value
    if isinstance(scores, Scores) and accurate is not None:
        confirmed = first & scores.success["strict"].reshape(told.shape)[told]
        if accurate > at_most(alike(confirmed)):
            yield f"confirmed_p_value is {accurate}, which the ranks of its victims cannot have"


# --------------------------------------------------------------------------------------
# From other cells and from settings.


def _of_controls(cell: CellResult, scores: Scores | IdentityScores, known: Mapping[str, CellResult]) -> list[Control]:
    """The controls of a cell as the cells that were run for them say; others as they are."""
    return [_of_control(check, scores, [known[key] for key in check.cells if key in known]) for check in cell.controls]


def _of_control(check: Control, scores: Scores | IdentityScores, made: Sequence[CellResult]) -> Control:
    if check.kind == "positive" and check.is_own:
        return check.model_copy(update={"held": scores.succeeds or scores.brings_back})
    if check.name == "swap" and (shown := _SHOWN.match(check.detail)):
        p_values = [None if one == "none" else float(one) for one in shown[1].split(", ")]
        if any(one is not None and abs(one / NEGATIVE_CONTROL_P - 1) < _TWO_DIGITS for one in p_values):
            return check  # which side of it the whole number is on was not kept
        return check.model_copy(update={"held": judge_negative(check.name, p_values).held})
    if not made or len(made) < len(check.cells):
        return check
    if check.kind == "positive":
        return judge_positive(check.name, made[0])
    if check.name == BLIND:
        today = judge_blind(*made)
        alike = check.detail.replace("by luck", "by chance") == today.detail
        return today.model_copy(update={"detail": check.detail}) if alike else today
    return judge_negative(check.name, [one.tested_p for one in made], *made)


def _of_settings(cell: CellResult, settings: Facts | None) -> dict[str, Any]:
    """Every field of a cell that its settings say; of a user's own code nothing, which is not run here."""
    if settings is None or not is_of_project(settings):
        return {}
    own = {name: value for name, value in settings.items() if name in CellSettings.model_fields}
    try:
        found = CellSettings.model_validate(own)
        fields = {name: value for name, value in settled(found, None).items() if name not in _SEEN}
        return fields | _of_privacy(cell, found)
    except (ValidationError, UsageError):  # such as an older suite, or a plugin that is not installed here
        return {}


def _of_privacy(cell: CellResult, settings: CellSettings) -> dict[str, Any]:
    # Captured clients have no dataset that could be loaded, and a server that tampers changes the network.
    if cell.tier == "tampering" or settings.weights == AS_CAPTURED or cell.not_applicable_reason is not None:
        return {}
    network = _network(settings.dataset, settings.model, str(data_root(None)))
    if network is None:
        return {}
    layout, uncovered = network
    uncovered = uncovered or (UNCOVERED if cell.batch_norm == "sent" else None)
    alike = settings.model_dump_json(exclude={"attack", "attack_args", "suite", "prior", "labels"})
    return {"privacy": list(_promised(alike, layout, uncovered))}


@lru_cache(maxsize=64)
def _network(dataset: str, model: str, root: str) -> tuple[Layout, str | None] | None:
    """The layout of a network, and what of it or its data no epsilon covers; None where it cannot be had here."""
    if dataset not in DATASETS:
        return None
    try:
        data = Stage(Path(root), 1).dataset(dataset, model)
        built = RowModel(model, data.image_shape, data.num_classes, data.images)
    except UsageError:
        return None
    return built.layout, built.uncovered or data.uncovered


@lru_cache(maxsize=256)
def _promised(settings: str, layout: Layout, uncovered: str | None) -> tuple[Statement, ...]:
    return tuple(promised(CellSettings.model_validate_json(settings), layout, uncovered))


def _place(row: Place) -> str:
    return row.model_dump_json(include=set(Place.model_fields))
