"""The figures of a page: errors, success over thresholds, what a theorem bounds, and truth beside reconstructions."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from harness.base.kinds import Kind
from harness.reports import columns, text
from harness.reports.columns import VERDICT_COLOURS, kinds_of, success_rate
from harness.reports.html import chart, wording
from harness.reports.html.chart import INK, Chart, Line, inline
from harness.reports.html.judged import Estimate
from harness.reports.html.places import GRAVITY, Decided, Shown
from harness.reports.html.run_data import RunData, UnreadableRun, read_bytes
from harness.reports.pictures import first_rows_box, last_row_boxes
from harness.reports.text import at_most, blind, event_of
from harness.reports.text_picture import ShownText, texts_of
from harness.results import Ceiling, CellResult, VictimRecord
from harness.scoring import METRICS

# Figure: how RMSE, PSNR, SSIM and LPIPS spread over the victims.

_DISTRIBUTIONS_NOTE = (
    "Each row is a hill of the victims of one defense: the higher, the more of them; the tick is the median. "
    "A low RMSE and LPIPS and a high PSNR and SSIM, or a high share of tokens, mean that something came back."
)
_METRICS = [
    (name, metric.title, metric.limits) for name, metric in METRICS.items() if metric.title and metric.in_victims
]
_BINS = 20


def distribution_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A panel per metric, a row per defense and observation; None where no victim has any."""
    rows, rest = chart.cut(rows)
    values = {metric: [_values(row, metric) for row in rows] for metric, *_ in _METRICS}
    shown = [entry for entry in _METRICS if any(len(own) for own in values[entry[0]])]
    if not shown:
        return None
    figure, panels = chart.panels(len(rows), len(shown), least=1.8)
    for number, (panel, (metric, heading, limits)) in enumerate(zip(panels, shown, strict=True)):
        for place, (row, own) in enumerate(zip(rows, values[metric], strict=True)):
            if len(own):
                _hill(panel, place, np.clip(own, *limits), limits, row.colour)
        chart.name_rows(panel, [row.label if number == 0 else "" for row in rows])
        margin = 0.06 * (limits[1] - limits[0])  # keeps the outermost labels of neighbours apart
        panel.set_xlim(limits[0] - margin, limits[1] + margin)
        panel.locator_params(axis="x", nbins=3)
        chart.say(panel, xlabel=heading)
    medians = "; ".join(
        f"{row.label}: "
        + ", ".join(f"{heading} {text.number(_median(values[metric][place]))}" for metric, heading, _ in shown)
        for place, row in enumerate(rows[:12])
    )
    heading = "Distributions over victims"
    return Chart(
        heading, inline(figure, name, f"{heading}: {title}", f"Medians. {medians}."), _DISTRIBUTIONS_NOTE + rest
    )


def _values(row: Line, metric: str) -> np.ndarray:
    records = row.shown.run.victims.get(row.shown.cell.key or "", [])
    return np.array([value for one in records if (value := getattr(one, metric, None)) is not None], dtype=float)


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _hill(panel, place: int, values: np.ndarray, limits: tuple[float, float], colour: str) -> None:
    counts, edges = np.histogram(values, bins=_BINS, range=limits)
    base = place + 0.32
    panel.stairs(base - 0.74 * counts / max(1, counts.max()), edges, baseline=base, fill=True, color=colour, alpha=0.6)
    median = float(np.median(values))
    panel.plot([median, median], [place + 0.4, place - 0.44], color=INK, linewidth=1.4)


# Figure: share of images that came back, with its 95% interval.

_SUCCESS_NOTE = (
    "Each row is a defense and the surfaces of observation; the dot is the share of {many} that came back ({success}), "
    "the bar its 95% interval, over victims."
)


def success_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """Dots with intervals, a row per defense and observation; None where no cell has a rate."""
    rated = [row for row in rows if (found := row.shown.cell.asr.get("strict")) and found.rate is not None]
    if not rated:
        return None
    rated, rest = chart.cut(rated)
    figure, [panel] = chart.panels(len(rated), 1)
    for place, row in enumerate(rated):
        found = row.shown.cell.asr["strict"]
        rate = _percent(found.rate)
        low, high = (_percent(end) for end in found.ci95 or (found.rate, found.rate))
        panel.plot([low, high], [place, place], color=row.colour, linewidth=5, alpha=0.45, solid_capstyle="round")
        panel.plot([rate], [place], color=row.colour, marker="o", markersize=6)
        # Beside the interval, on whichever side there is room.
        left = high < 60
        panel.annotate(
            success_rate(row.shown.cell), (high if left else low, place), xytext=(8 if left else -8, 0),
            textcoords="offset points", ha="left" if left else "right", va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
    chart.name_rows(panel, [row.label for row in rated])
    panel.set_xlim(-2, 102)
    panel.set_xticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)])
    chart.say(panel, xlabel="success [95%]")
    spoken = "; ".join(f"{row.label}: {success_rate(row.shown.cell)}" for row in rated[:12])
    heading = "Success with intervals"
    note = _SUCCESS_NOTE.format(**asdict(_kind(rated))) + rest
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), note)


def _kind(rows: Sequence[Line]) -> Kind:
    return kinds_of(row.shown.cell for row in rows)


def _percent(rate: float | None) -> float:
    return 100 * min(1.0, max(0.0, rate or 0.0))


# Figure: how many images had come back by which iteration.

_TAUS_NOTE = (
    "Each line is the share of a defense's victims that had met the success rule by an iteration; a line that stays "
    "at the bottom never succeeded. All lines end at the attack's cap."
)


def tau_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A curve per defense and observation; None where victims have no tau."""
    rows, rest = chart.cut(rows)
    curves = [(row, *curve) for row in rows if (curve := _curve(row))]
    if not curves:
        return None
    cap = max(2.0, *(end for *_, end in curves))
    figure, [panel] = chart.panels(0, 1, least=max(3.4, 0.17 * len(curves) + 1.0))
    panel.set_position((0.08, 0.17, 0.52, 0.75))
    for number, (row, iterations, total, _) in enumerate(curves):
        steps = np.concatenate(([1.0], np.sort(iterations), [cap]))
        shares = np.concatenate((np.arange(len(iterations) + 1), [len(iterations)])) * 100 / total
        # Thinner and thinner, or curves that agree would hide each other.
        panel.step(
            steps, shares, where="post", label=row.label, linewidth=max(1.0, 5.0 - 3.4 * number / len(curves)),
            color=chart.COLOURS[number % len(chart.COLOURS)], linestyle=chart.DASHES[number // 8 % 4],
        )  # fmt: skip
    panel.set_xscale("log")
    panel.set_xlim(1, cap * 1.05)
    panel.set_ylim(-3, 106)
    panel.set_yticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)])
    chart.say(panel, xlabel="iteration", ylabel="victims that came back")
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if tick <= cap]
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    chart.legend(panel, loc="upper left", bbox_to_anchor=(1.03, 1.02), borderaxespad=0)
    spoken = "; ".join(f"{row.label}: {len(found)} of {total} in the end" for row, found, total, _ in curves[:12])
    heading = "Iterations until success"
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), _TAUS_NOTE + rest)


def _curve(row: Line) -> tuple[np.ndarray, int, float] | None:
    """(iterations of first success, victims, cap), or None."""
    records = [one for one in row.shown.run.victims.get(row.shown.cell.key or "", []) if one.tau is not None]
    if not records:
        return None
    cap = _cap(row.shown.cell, records)
    found = [min(max(one.tau or 1.0, 1.0), cap) for one in records if (one.tau or cap) < cap]
    return np.array(found), len(records), cap


def _cap(cell: CellResult, records: Sequence[VictimRecord]) -> float:
    cap = cell.attack_args.get("max_iterations")
    known = cap if isinstance(cap, int | float) and cap >= 1 else max(one.tau or 1.0 for one in records)
    return float(min(max(known, 1.0), 1e6))


# Figure: what was measured from below, and what a theorem says from above, with blind guesses between.

_THEOREM_NOTE = (
    "The dot is what the attack reached, the bar its 95% interval, the short line in the page's ink what a blind guess "
    "reaches. The shaded part is what the theorem leaves to any attacker, up to its edge; where no bound exists "
    "nothing limits a better attack. A rate significantly beyond the edge makes the run invalid. Small shares are "
    "drawn wider."
)
_BOUND = chart.COLOURS[0]
_TICKS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
_HALF = 0.36  # of a row
_NONE, _WORD, _GAP = "no bound exists", 0.32, 0.03  # its length, and what is left free beside it


def _events(kind: Kind) -> dict[str, str]:
    """Each event in words."""
    return {"first in its lineup": "first in the lineup", "strict image": kind.success}


def theorem_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A panel for each event, a row per defense and observation; None where no cell knows of theorems."""
    known = [row for row in rows if row.shown.cell.bound is not None and row.shown.cell.bound.events]
    if not known:
        return None
    known, rest = chart.cut(known)
    there = _events(_kind(known)).items()
    events = {event: words for event, words in there if any(event_of(row.shown.cell, event) for row in known)}
    figure, panels = chart.panels(len(known), len(events))
    for panel, (event, words) in zip(panels, events.items(), strict=True):
        for place, row in enumerate(known):
            _row(panel, place, row, event)
        chart.name_rows(panel, [row.label for row in known] if panel is panels[0] else [""] * len(known))
        panel.set_xscale("function", functions=(lambda share: share**0.5, lambda length: length**2))
        panel.set_xlim(0, 1.15)
        panel.set_xticks(_TICKS, [text.percent(tick) for tick in _TICKS])
        chart.say(panel, xlabel=words)
    _legend(panels[0])
    spoken = "; ".join(_spoken(row) for row in known[:12])
    heading = "The theorem beside what was measured"
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), _THEOREM_NOTE + rest)


def _row(panel: Axes, place: int, row: Line, name: str) -> None:
    event, bound = event_of(row.shown.cell, name), row.shown.cell.bound
    if event is None or bound is None:
        return
    if event.ceiling is not None:
        edge = _share(event.ceiling)
        panel.fill_between([0, edge], place - _HALF, place + _HALF, color=_BOUND, alpha=0.16, lw=0)
        panel.plot([edge, edge], [place - _HALF, place + _HALF], color=_BOUND, linewidth=2)
    elif bound.theorem is None:
        panel.text(_room(event) ** 2, place, _NONE, va="center", fontsize=8, color=INK)
    if event.kappa is not None:
        panel.plot([_share(event.kappa)] * 2, [place - 0.24, place + 0.24], color=INK, linewidth=1.4)
    if event.measured.rate is not None:
        low, high = (_share(end) for end in event.measured.ci95 or (event.measured.rate,) * 2)
        panel.plot([low, high], [place, place], color=row.colour, linewidth=4, alpha=0.5, solid_capstyle="round")
        panel.plot([_share(event.measured.rate)], [place], color=row.colour, marker="o", markersize=5, clip_on=False)


def _room(event: Ceiling) -> float:
    """Return where a word of so many lengths of the axis hides no mark: on the right if it can, in roots of shares."""
    low, high = (_share(end) ** 0.5 for end in event.measured.ci95 or (event.measured.rate,) * 2)
    blind_at = _share(event.kappa) ** 0.5
    places = (1 - _WORD, blind_at + _GAP, _GAP)

    def free(start: float) -> bool:
        end = start + _WORD
        return not start < blind_at < end and (end < low - _GAP or high + _GAP < start)

    return next(filter(free, places), places[0])


def _legend(panel: Axes) -> None:
    """Draw what the marks mean, above the rows."""
    marks: dict[str, dict[str, Any]] = {
        "measured [95%]": {"color": VERDICT_COLOURS["inconclusive"], "marker": "o", "linewidth": 3},
        "blind guess": {"color": INK, "marker": "|", "markersize": 9, "linestyle": ""},
        "at most, by the theorem": {"color": _BOUND, "marker": "|", "markersize": 9, "linewidth": 6, "alpha": 0.5},
    }
    for words, style in marks.items():
        panel.plot([], [], label=words, **style)
    chart.legend(panel, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(marks), borderaxespad=0)


def _spoken(row: Line) -> str:
    cell = row.shown.cell
    said = (
        f"{words} {text.rate(event.measured)}, blind guess {blind(event)}, {at_most(cell.bound, event)}"
        for name, words in _events(cell.kind).items()
        if (event := event_of(cell, name))
    )
    return f"{row.label}: {'; '.join(said)}"


def _share(rate: float | None) -> float:
    return min(1.0, max(0.0, rate or 0.0))


# --------------------------------------------------------------------------------------
# Truth beside reconstructions along the iterations: pictures of cells, the telling ones first, within a budget.


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
        """Return whether any of it is text."""
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
            # Without the title: the page has its own.
            pair, picture = pair_of(picture), picture.crop(first_rows_box(*picture.size, ROWS))
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
    attack, success = columns.attacker(cell), f"success {columns.success_rate(cell)}"
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
    """Return what attacks made of captured clients whose truth nobody knows."""
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
