"""Truth beside reconstructions along the iterations: pictures of cells, the telling ones first, within a budget."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.reports import columns, text
from harness.reports.html import pixels, wording
from harness.reports.html.places import Decided, Shown
from harness.reports.html.reading import UnreadableRun
from harness.results import CellResult

_MOST_BYTES, _MOST_PICTURES = 2_200_000, 72


@dataclass(frozen=True)
class Picture:
    """A picture of one or more places that show the same; ``anchor`` is where entries of the matrix link to."""

    anchor: str
    kind: str
    title: str
    places: str
    alt: str
    source: str
    width: int
    height: int

    @property
    def badge(self) -> str:
        return f"{wording.SYMBOLS[self.kind]} {wording.WORDS[self.kind]}"


@dataclass
class Gallery:
    """``anchors`` and ``pairs`` (truth, reconstruction) are by (run, key); ``left_out`` says what is not shown."""

    pictures: list[Picture] = field(default_factory=list)
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    pairs: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def gallery(decided: Sequence[Decided], shown: Sequence[Shown]) -> Gallery:
    """Pictures of the strongest attacks, then of the others, as long as they fit."""
    made, spent, unread, over = Gallery(), 0, 0, 0
    for members in _alike(decided, shown):
        first = members[0]
        try:
            picture = pixels.open_picture(first.run.folder, first.cell.key or "")
        except UnreadableRun as problem:
            unread += 1
            if not problem.absent:
                made.left_out.append(f"picture {text.safe(first.cell.key or '?', 64)} of {first.run.name} {problem}")
            continue
        if not columns.is_table(first.cell):
            pair, picture = pixels.pair(picture), pixels.first_rows(picture)
            made.pairs |= {_name(member): pair for member in members if pair}
        if spent > _MOST_BYTES or len(made.pictures) >= _MOST_PICTURES:
            over += 1
            continue
        content, *size = pixels.shrink(picture)
        spent += len(content)
        anchor = f"picture-{len(made.pictures) + 1}"
        made.anchors |= {_name(member): anchor for member in members}
        made.pictures.append(_picture(anchor, members, pixels.data_uri(content, "webp"), *size))
    _say_what_is_missing(made, unread, over)
    return made


def _say_what_is_missing(made: Gallery, unread: int, over: int) -> None:
    if unread:
        made.left_out.append(f"{wording.plural(unread, 'cell')} without a picture that can be read")
    if over:
        made.left_out.append(
            f"{wording.plural(over, 'picture')} of weaker attacks or later settings, to keep the file small; they lie "
            "in the folders pictures of the runs"
        )


def _alike(decided: Sequence[Decided], shown: Sequence[Shown]) -> list[list[Shown]]:
    """Cells of one attack on the same observation show the same and share a picture; the strongest attacks lead."""
    leading = {(place.run.name, place.cell.key) for place in decided if place.cell is not None}
    groups: dict[tuple[object, ...], list[Shown]] = {}
    possible = [item for item in shown if item.cell.not_applicable_reason is None]
    for item in sorted(possible, key=lambda item: (item.run.name, item.cell.key) not in leading):
        cell = item.cell
        # A cell without an observation's name shares with no other.
        same = cell.observation_id or (cell.tap, cell.key)
        groups.setdefault((item.run.name, item.setting, *item.row, cell.attack, same), []).append(item)
    return list(groups.values())


def _name(item: Shown) -> tuple[str, str]:
    return item.run.name, item.cell.key or ""


def _picture(anchor: str, members: Sequence[Shown], source: str, width: int, height: int) -> Picture:
    first = members[0]
    cell: CellResult = first.cell
    inward = sorted(members, key=lambda member: -(member.cell.surface or 0))
    places = wording.join([wording.surface(member.cell) for member in inward])
    title = f"{first.defense} against {text.safe(cell.attack, 40)}"
    kind = min((member.cell.verdict for member in members), key=("leaks", "inconclusive", "resilient").index)
    alt = (
        f"Grid of victims: each row shows a true image, its reconstruction along the iterations of "
        f"{text.safe(cell.attack, 40)}, and the final one. Defense {first.defense}, read at {places}, "
        f"{first.setting}. Verdict {cell.verdict}, success {columns.success_rate(cell)}, "
        f"median RMSE {columns.median_error(cell)}."
    )
    success = f"success {columns.success_rate(cell)}"
    detail = " · ".join(filter(None, (f"read at {places}", success, first.setting, first.arguments)))
    return Picture(anchor, kind, title, detail, alt, source, width, height)
