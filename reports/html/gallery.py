"""Truth beside reconstructions along the iterations: pictures of cells, the telling ones first, within a budget."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.judged import Estimate
from harness.reports.html.places import GRAVITY, Decided, Shown
from harness.reports.html.run_data import RunData, UnreadableRun, read_bytes
from harness.reports.pictures import first_rows_box, last_row_boxes
from harness.reports.text_picture import ShownText, texts_of
from harness.results import CellResult

# Pictures of a run folder, made small: PNG only, of a bounded size, decoded and encoded again.

ROWS = 4
_MOST_PIXELS, _LONGEST_SIDE = 40_000_000, 20_000
_WIDTH, _QUALITY, _THUMB = 960, 45, 56


def open_picture(folder: Path, key: str) -> Image.Image:
    """The picture of a cell. Raises UnreadableRun."""
    if not re.fullmatch(r"[A-Za-z0-9_]{1,80}", key):
        raise UnreadableRun("has no key that could name a picture")
    try:
        # Of all formats the one we write: fewer decoders are fewer ways in.
        picture = Image.open(io.BytesIO(read_bytes(folder, "pictures", f"{key}.png")), formats=["PNG"])
        if picture.width * picture.height > _MOST_PIXELS or max(picture.size) > _LONGEST_SIDE:
            raise UnreadableRun("has too many pixels")
        return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableRun("is not a PNG that can be read") from error


def first_rows(picture: Image.Image) -> Image.Image:
    """The first four victims of a grid, without the title: the page has its own."""
    return picture.crop(first_rows_box(*picture.size, ROWS))


def shrink(picture: Image.Image) -> tuple[bytes, int, int]:
    """The whole picture at most 960 pixels wide as WebP, and its size."""
    scale = min(1.0, _WIDTH / picture.width)
    small = picture.resize(
        (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), Image.Resampling.LANCZOS
    )
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=_QUALITY, method=4)
    return buffer.getvalue(), small.width, small.height


def pair_of(picture: Image.Image) -> tuple[str, str] | None:
    """The last victim's truth and its final reconstruction as small images; None where the grid has no such tiles."""
    boxes = last_row_boxes(*picture.size)
    if boxes is None:
        return None
    truth, final = boxes
    return _thumb(picture.crop(truth)), _thumb(picture.crop(final))


def _thumb(tile: Image.Image) -> str:
    buffer = io.BytesIO()
    tile.resize((_THUMB, _THUMB), Image.Resampling.BOX).save(buffer, "WEBP", quality=60, method=4)
    return data_uri(buffer.getvalue(), "webp")


def data_uri(content: bytes, kind: str) -> str:
    """An image as part of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


_MOST_BYTES, _MOST_PICTURES = 2_200_000, 72


@dataclass(frozen=True)
class Picture(wording.Marked):
    """A picture of one or more places that show the same, or in its place the texts that it shows.

    ``anchor`` is where entries of the matrix link to, ``file`` where it lies whole, ``chief`` whether it is of the
    attack that decides.
    """

    anchor: str
    kind: str
    title: str
    places: str
    detail: str
    alt: str
    file: str
    chief: bool
    source: str
    width: int
    height: int
    texts: Sequence[ShownText] = ()


@dataclass
class Gallery:
    """``anchors`` and ``pairs`` (truth, reconstruction) are by (run, key); ``left_out`` says what is not shown."""

    pictures: list[Picture] = field(default_factory=list)
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    pairs: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def has_texts(self) -> bool:
        """Whether any of it is text."""
        return any(picture.texts for picture in self.pictures)

    @property
    def chief(self) -> list[Picture]:
        """Pictures of the attacks that decide."""
        return [picture for picture in self.pictures if picture.chief]

    @property
    def others(self) -> list[Picture]:
        """All other pictures."""
        return [picture for picture in self.pictures if not picture.chief]


def gallery(decided: Sequence[Decided], shown: Sequence[Shown], runs: Sequence[RunData] = ()) -> Gallery:
    """Pictures of captured clients, of the strongest attacks, then of the others, as long as they fit."""
    made, spent, unread, over = Gallery(), 0, 0, 0
    chief = {(place.run.name, place.cell.key) for place in decided if place.cell is not None}
    for candidate in [*_guesses(runs), *_alike(chief, shown)]:
        try:
            picture = open_picture(candidate.folder, candidate.key)
        except UnreadableRun as problem:
            unread += 1
            if not problem.absent:
                made.left_out.append(f"picture {text.safe(candidate.key or '?', 64)} of {candidate.run} {problem}")
            continue
        if candidate.rows_of_victims:
            pair, picture = pair_of(picture), first_rows(picture)
            made.pairs |= {(candidate.run, key): pair for key in candidate.keys if pair}
        if spent > _MOST_BYTES or len(made.pictures) >= _MOST_PICTURES:
            over += 1
            continue
        texts = texts_of(picture.info)
        content, width, height = shrink(picture)
        spent += len(content)
        anchor = f"picture-{len(made.pictures) + 1}"
        made.anchors |= {(candidate.run, key): anchor for key in candidate.keys}
        source = "" if texts else data_uri(content, "webp")
        made.pictures.append(candidate.shown(anchor, source, width, height, texts))
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


@dataclass(frozen=True)
class _Candidate:
    """A picture that may be shown: ``keys`` are all cells that it shows, ``key`` names its file."""

    run: str
    folder: Path
    key: str
    keys: tuple[str, ...]
    rows_of_victims: bool
    chief: bool
    kind: str
    words: tuple[str, str, str, str]

    def shown(self, anchor: str, source: str, width: int, height: int, texts: Sequence[ShownText]) -> Picture:
        file = f"{self.run}/pictures/{text.safe(self.key, 64)}.png"
        return Picture(anchor, self.kind, *self.words, file, self.chief, source, width, height, texts)


def _alike(chief: set[tuple[str, str | None]], shown: Sequence[Shown]) -> list[_Candidate]:
    """Cells of one attack on the same observation show the same and share a picture; the strongest attacks lead."""
    groups: dict[tuple[object, ...], list[Shown]] = {}
    # What cannot be run has no picture, nor what reconstructs nothing.
    possible = [item for item in shown if item.cell.not_applicable_reason is None and item.cell.identified is None]
    for item in sorted(possible, key=lambda item: (item.run.name, item.cell.key) not in chief):
        cell = item.cell
        # A cell without an observation's name shares with no other.
        same = cell.observation_id or (cell.tap, cell.key)
        groups.setdefault((item.run.name, item.setting, *item.row, cell.attack, same), []).append(item)
    settings = len({item.setting for item in shown})
    return [_of_cells(members, chief, settings > 1) for members in groups.values()]


def _of_cells(members: Sequence[Shown], chief: set[tuple[str, str | None]], name_setting: bool) -> _Candidate:
    first = members[0]
    cell: CellResult = first.cell
    inward = sorted(members, key=lambda member: -(member.cell.surface or 0))
    places = wording.join([wording.where(member.cell) for member in inward])
    attack, success = text.safe(cell.attack, 40), f"success {columns.success_rate(cell)}"
    texts = columns.is_of_texts(cell)
    near = f"tokens right {columns.tokens_right(cell)}" if texts else f"median RMSE {columns.median_error(cell)}"
    alt = (
        f"{_shown(cell, attack)} Defense {first.defense}, read {places}, {first.setting}. Verdict "
        f"{cell.verdict_alone}, {success}, {near}."
    )
    detail = " · ".join(filter(None, (success, first.arguments, first.setting if name_setting else "")))
    words = f"{first.defense} against {attack}", places, detail, alt
    keys = tuple(member.cell.key or "" for member in members)
    return _Candidate(
        first.run.name, first.run.folder, cell.key or "", keys,
        not (columns.is_table(cell) or columns.is_of_texts(cell)),
        (first.run.name, cell.key) in chief, min((member.kind for member in members), key=GRAVITY.index), words,
    )  # fmt: skip


def _shown(cell: CellResult, attack: str) -> str:
    if columns.is_of_texts(cell):
        return f"Victims: each true text, and below it what {attack} made of it, wrong tokens marked."
    return (
        f"Grid of victims: each row shows a true {cell.kind.one}, its reconstruction along the iterations of {attack}, "
        "and the final one."
    )


def _guesses(runs: Sequence[RunData]) -> list[_Candidate]:
    """What attacks made of captured clients whose truth nobody knows."""
    return [
        _Candidate(run.name, run.folder, f"judged_{one.attack}", (), False, True, one.kind, _of_guess(one))
        for run in runs
        if run.judged
        for one in run.judged.estimates
    ]


def _of_guess(one: Estimate) -> tuple[str, str, str, str]:
    attack = text.safe(one.attack, 40)
    alt = f"What {attack} made of each captured client. {one.said}"
    return f"captured clients against {attack}", "no truth known", one.said, alt
