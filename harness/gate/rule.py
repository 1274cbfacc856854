"""The gate's rule: what fails, what is news, and what could not be compared.

For each cell one-sided tests of lineup rank, of log RMSE and of success over at least 24 victims (permutations, and
Fisher's for successes of other victims; Bonferroni over the three), Holm over all cells at family-wise level 0.01, and
an effect: at least 0.1 in ASR or in mean relative rank, or an ASR that was at most 5% and no longer can be. Each cell
has one direction that fails: leaking more where something protects, leaking less where nothing does, for then the
attack is broken. The other direction is news, a family of its own. A cell without room for such an effect in a
direction is left out of that direction's family.

A cell that was skipped, since its place was settled before, is compared with nothing. Where the baseline does not have
the attack that settled the place, this attack is held against the strongest one there.

What cannot be compared fails too, with an outcome of its own: a gate that is silent about a cell does not guard it. An
extra cell is news. So are other versions, another processor or number of threads, under which networks and noise may be
drawn anew: nothing here goes by equal bits. Before and after are two draws for the same victims then, which the paired
test asks no more of.

The committed baseline is compact JSON, one line per cell, so that a diff of it shows which cells moved.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.base.version import SCHEMA_VERSION
from harness.gate.cells import GateCell, Victim, with_titles
from harness.gate.comparing import VICTIMS_NEEDED, Movement, differences, movement, other_versions
from harness.gate.settings import Settings
from harness.results import write_atomic
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, Damaged, Unreadable, checked, parse_json, read_bytes
from harness.scoring.strongest import holm

_FORMAT = 1
_Share = Annotated[float, Field(ge=0, le=1)]
_Distance = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Setting = str | int | float | bool | None


def _scaled(settings: dict[str, _Setting]) -> dict[str, _Setting]:
    scale = settings.get("noise_scale", 1.0)
    if not isinstance(scale, int | float) or not 0 <= scale < math.inf:
        raise ValueError("noise_scale is no number of at least 0")
    return settings


_Settings = Annotated[dict[str, _Setting], AfterValidator(_scaled)]


@dataclass(frozen=True)
class Baseline:
    """Cells to hold runs to, and the versions they were made with."""

    versions: dict[str, Any]
    cells: Sequence[GateCell]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _StoredCell(_Strict):
    """One line: settings that not all cells share, and the victims' numbers side by side."""

    settings: _Settings
    victims: list[str]
    ranks: list[_Share | None]
    rmses: list[_Distance]
    successes: list[_Share]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lengths = {len(self.victims), len(self.ranks), len(self.rmses), len(self.successes), len(set(self.victims))}
        if len(lengths) > 1:
            raise ValueError("a cell's victims, ranks, rmses and successes differ in number")
        return self


class _Document(_Strict):
    kind: Literal["harness gate baseline"]
    format: Literal[1]
    schema_version: int
    versions: dict[str, str | None]
    common: _Settings
    cells: list[_StoredCell]


def as_baseline(cells: Sequence[GateCell], versions: dict[str, Any]) -> Baseline:
    """Cells of a run as a baseline."""
    return Baseline(versions, sorted(cells, key=lambda cell: (cell.place, sorted(map(repr, cell.settings.items())))))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write the file, whole or not at all.

    Raises:
        UsageError: the folder cannot be written.
    """
    common = _common([cell.settings for cell in baseline.cells])
    head = {
        "kind": "harness gate baseline", "format": _FORMAT, "schema_version": SCHEMA_VERSION,
        "versions": baseline.versions, "common": common,
    }  # fmt: skip
    lines = [json.dumps(_stored(cell, common), separators=(",", ":"), allow_nan=False) for cell in baseline.cells]
    whole = (
        json.dumps(head, separators=(",", ":"), allow_nan=False)[:-1] + ',"cells":[\n' + ",\n".join(lines) + "\n]}\n"
    )
    write_atomic(path, whole.encode(), "--baseline")


def _common(settings: Sequence[Settings]) -> Settings:
    first = settings[0] if settings else {}
    return {name: value for name, value in first.items() if all((name, value) in s.items() for s in settings)}


def _stored(cell: GateCell, common: Settings) -> dict[str, Any]:
    return {
        "settings": {name: value for name, value in cell.settings.items() if name not in common},
        "victims": list(cell.victims),
        "ranks": [victim.rank for victim in cell.victims.values()],
        "rmses": [victim.rmse for victim in cell.victims.values()],
        "successes": [victim.success for victim in cell.victims.values()],
    }


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        UsageError: there is none, or it is half-written, of another format or schema, or not a baseline.
    """
    try:
        content = read_bytes(path, MOST_OF_A_DOCUMENT)
    except Absent as error:
        raise UsageError(f"there is no baseline {str(path)!r}; add --update to make it from these runs") from error
    except Unreadable as problem:
        raise UsageError(f"the baseline {str(path)!r} {problem.reason}; check --baseline") from problem
    try:
        return _parse(path, parse_json(content))
    except Damaged as problem:
        raise UsageError(f"the baseline {str(path)!r} {problem}; {_FIX}") from problem


def _parse(path: Path, document: Any) -> Baseline:
    if not isinstance(document, dict) or document.get("kind") != "harness gate baseline":
        raise UsageError(f"{str(path)!r} is not a baseline of harness check; {_FIX}")
    for name, ours in (("format", _FORMAT), ("schema_version", SCHEMA_VERSION)):
        if document.get(name) != ours:
            raise UsageError(f"the baseline {str(path)!r} has another {name} than this harness ({ours}); {_FIX}")
    stored = checked(_Document, document)
    return Baseline(stored.versions, with_titles([_cell(line, stored.common) for line in stored.cells]))


_FIX = "restore it, or make it again with --update"


def _cell(line: _StoredCell, common: dict[str, _Setting]) -> GateCell:
    numbers = zip(line.victims, line.ranks, line.rmses, line.successes, strict=True)
    return GateCell(
        common | line.settings,
        {name: Victim(rank=rank, rmse=rmse, success=success) for name, rank, rmse, success in numbers},
    )


FAMILY_ALPHA = 0.01

Kind = Literal[
    "regression", "broken attack", "invalid run", "missing", "incomparable",
    "other versions", "extra", "more resilient", "stronger attack", "skipped", "unmoved",
]  # fmt: skip
FAILING: tuple[Kind, ...] = ("regression", "broken attack", "invalid run", "missing", "incomparable")

# Whose next minor version may draw other networks and other noise, and round differently.
_COMPARED_VERSIONS = ("harness", "torch")


@dataclass(frozen=True)
class Finding:
    """Statement about one cell; ``p`` is adjusted over the cells, for the direction that ``kind`` names."""

    kind: Kind
    cell: str
    dataset: str
    detail: str
    movement: Movement | None = None
    p: float | None = None

    @property
    def fails(self) -> bool:
        """Return whether it makes the check fail."""
        return self.kind in FAILING


@dataclass(frozen=True)
class Report:
    """All findings, the worst first."""

    findings: list[Finding]

    @property
    def failed(self) -> bool:
        """Return whether anything fails."""
        return any(finding.fails for finding in self.findings)

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        compared = sum(finding.movement is not None for finding in self.findings)
        counts = {kind: len(self.of(kind)) for kind in FAILING}
        said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"{'FAILED: ' + said if said else 'passed'}; {plural(compared, 'cell')} compared with the baseline"

    def document(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {"failed": self.failed, "headline": self.headline, "findings": [asdict(f) for f in self.findings]}

    @property
    def only_incomparable(self) -> bool:
        """Return whether it fails for nothing but cells that could not be compared."""
        return self.failed and all(one.kind == "incomparable" for one in self.findings if one.fails)

    def of(self, *kinds: Kind) -> list[Finding]:
        """The findings of some kinds."""
        return [finding for finding in self.findings if finding.kind in kinds]


@dataclass(frozen=True)
class Matching:
    """Pairs (old, new) of equal settings; pairs of one place but other settings, with what differs; and the rest."""

    same: list[tuple[GateCell, GateCell]]
    other_settings: list[tuple[GateCell, GateCell, list[str]]]
    missing: list[GateCell]
    extra: list[GateCell]


def match_cells(old: Sequence[GateCell], new: Sequence[GateCell]) -> Matching:
    """Pair cells with equal settings first, then, place by place, those that differ in the fewest settings."""
    matching = Matching([], [], list(old), list(new))
    candidates = [
        (differences(before.settings, after.settings), before, after)
        for before in old
        for after in new
        if before.place == after.place
    ]
    for changed, before, after in sorted(candidates, key=lambda candidate: len(candidate[0])):
        if not (_holds(matching.missing, before) and _holds(matching.extra, after)):
            continue
        _drop(matching.missing, before)
        _drop(matching.extra, after)
        if changed:
            matching.other_settings.append((before, after, changed))
        else:
            matching.same.append((before, after))
    return matching


# Cells are told apart by identity: comparing them would compare all their victims.
def _holds(cells: list[GateCell], one: GateCell) -> bool:
    return any(cell is one for cell in cells)


def _drop(cells: list[GateCell], one: GateCell) -> None:
    cells[:] = [cell for cell in cells if cell is not one]


def check(
    baseline: Baseline, cells: Sequence[GateCell], versions: dict[str, Any], problems: Sequence[str] = ()
) -> Report:
    """Compare a run with the baseline.

    Args:
        baseline: what to hold the run to.
        cells: the run's cells.
        versions: the libraries the run was made with.
        problems: what is wrong with the run itself; each fails.

    Raises:
        UsageError: not a single cell can be compared.
    """
    faults = [Finding("invalid run", "", "", problem) for problem in problems]
    news = [Finding("other versions", "every cell", "", other) for other in _other_minors(baseline.versions, versions)]
    skipped, ran = [cell for cell in cells if cell.settled_by], [cell for cell in cells if not cell.settled_by]
    matching = match_cells(baseline.cells, ran)
    spared = [cell for cell in matching.missing if any(_spares(one, cell) for one in skipped)]
    instead = _settlers(skipped, matching.extra, baseline.cells)
    if not matching.same and not matching.other_settings and not instead:
        if problems:
            raise UsageError(f"nothing can be compared: {problems[0]}; run harness evaluate again")
        raise UsageError("no cell of the baseline is in the runs; check the preset, or add --update for a new baseline")
    gone = [cell for cell in matching.missing if not _holds(spared, cell)]
    findings = [*faults, *news, *(_finding("missing", cell, "in the baseline but not in the runs") for cell in gone)]
    findings += [
        _finding("extra", cell, "not in the baseline; add --update to guard it")
        for cell in matching.extra
        if not any(cell is settler for _, settler in instead)
    ]
    findings += [_finding("skipped", cell, f"settled by {cell.settled_by}, which leaks there") for cell in skipped]
    findings += [
        _finding("incomparable", after, f"other settings: {', '.join(changed[:3])}")
        for _, after, changed in matching.other_settings
    ]
    findings += _moved([*matching.same, *instead])
    order = [*FAILING, "other versions", "stronger attack", "more resilient", "extra", "skipped", "unmoved"]
    return Report(sorted(findings, key=lambda finding: order.index(finding.kind)))


#: What a control that tests the attack has otherwise than its cell, beside the defense's own settings.
_OF_A_CONTROL = ("defense", "noise_scale", "tap", "observations", "rounds_seen", "same_data")


def _spares(skipped: GateCell, old: GateCell) -> bool:
    """Return whether a cell of the baseline is one that was skipped, or a control of that one."""
    if not old.tests_the_attack:
        return not differences(old.settings, skipped.settings)
    return not differences(*(_without(one.settings, *_OF_A_CONTROL) for one in (old, skipped)))


def _without(settings: Settings, *names: str) -> Settings:
    return {name: value for name, value in settings.items() if name.partition(".")[0] not in names}


def _settlers(
    skipped: Sequence[GateCell], extra: Sequence[GateCell], baseline: Sequence[GateCell]
) -> list[tuple[GateCell, GateCell]]:
    """Attacks that settled a guarded place and are not in the baseline, each behind the strongest one there.

    What they bring back is news of the place, whose other attacks did not run.
    """
    found = list[tuple[GateCell, GateCell]]()
    for settler in extra:
        place, name = _without(settler.settings, "attack"), settler.settings.get("attack")
        spared = [one for one in skipped if one.settled_by == name and _without(one.settings, "attack") == place]
        own = {key: value for key, value in settler.settings.items() if key not in place}
        old = [cell for cell in baseline if not differences(_without(cell.settings, "attack") | own, place | own)]
        if spared and old and not settler.tests_the_attack:
            found.append((max(old, key=_strength), settler))
    return found


def _strength(cell: GateCell) -> tuple[float, float]:
    ranks = [victim.rank for victim in cell.victims.values() if victim.rank is not None]
    return float(cell.successes.mean()), -sum(ranks) / len(ranks) if ranks else 0.0


def _moved(pairs: Sequence[tuple[GateCell, GateCell]]) -> list[Finding]:
    """The findings of comparable cells."""
    tested: list[tuple[GateCell, Movement]] = []
    findings = []
    for old, new in pairs:
        moved = movement(old, new)
        if moved is None:
            least = min(len(old.victims), len(new.victims))
            few = f"too few victims: {least}, the test needs {VICTIMS_NEEDED}"
            findings.append(_finding("incomparable", new, few))
        else:
            tested.append((new, moved))
    failing = _family(tested, lambda cell: not cell.tests_the_attack)
    news = _family(tested, lambda cell: cell.tests_the_attack)
    for (cell, moved), bad, good in zip(tested, failing, news, strict=True):
        guards = not cell.tests_the_attack
        if bad <= FAMILY_ALPHA and moved.moved(more=guards):
            findings.append(_finding("regression" if guards else "broken attack", cell, moved=moved, p=bad))
        elif good <= FAMILY_ALPHA and moved.moved(more=not guards):
            findings.append(_finding("more resilient" if guards else "stronger attack", cell, moved=moved, p=good))
        else:
            small = "significantly, but by too little to count" if min(bad, good) <= FAMILY_ALPHA else ""
            findings.append(_finding("unmoved", cell, small, moved, bad))
    return findings


def _family(tested: Sequence[tuple[GateCell, Movement]], upwards: Callable[[GateCell], bool]) -> list[float]:
    """Adjusted p-values of one direction per cell: leaking more where ``upwards`` says so, leaking less elsewhere."""
    raw: list[float | None] = []
    for cell, moved in tested:
        more = upwards(cell)
        room = moved.may_leak_more if more else moved.may_leak_less
        raw.append((moved.more_leaking if more else moved.less_leaking) if room else None)
    adjusted = iter(holm([p for p in raw if p is not None]))
    return [1.0 if p is None else next(adjusted) for p in raw]


def _finding(
    kind: Kind, cell: GateCell, detail: str = "", moved: Movement | None = None, p: float | None = None
) -> Finding:
    return Finding(kind, cell.title, str(cell.settings.get("dataset")), detail, moved, p)


def _other_minors(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A sentence where compared libraries differ in their major or minor version."""
    other = [
        f"{name} {before} -> {after}"
        for name in _COMPARED_VERSIONS
        for _, before, after in other_versions({name: old.get(name)}, {name: new.get(name)})
        if _minor(before) != _minor(after)
    ]
    return [f"compared statistically, since noise and networks may be drawn anew: {', '.join(other)}"] if other else []


def _minor(version: object) -> list[str]:
    return str(version).split(".")[:2]
