"""Tables of what was attacked: places, cells and controls."""

from collections.abc import Sequence

from harness.reports import columns, text
from harness.reports.columns import kinds_of
from harness.reports.html import wording
from harness.reports.html.places import Decided, Shown
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, figure, make, words
from harness.reports.text import at_most, blind, event_of
from harness.results import CellResult, Control
from harness.results.schema import SuccessRule
from harness.scoring import METRICS, Metric

_SHOWN = [metric for metric in METRICS.values() if metric.title]

_PLACE = (
    Head("setting", choice=True), Head("defense", choice=True), Head("arguments"),
    Head("surface", choice=True), Head("verdict", choice=True),
)  # fmt: skip


def verdict_value(kind: str) -> Value:
    """A verdict with its symbol and style."""
    return Value(f"{wording.SYMBOLS[kind]} {wording.WORDS[kind]}", kind, kind)


def _word(item: Decided | Shown, told: bool) -> Value:
    """The verdict; where an attack that reconstructs nothing tells the truth among look-alikes, that too."""
    value = verdict_value(item.kind)
    says_so = told and item.kind not in ("impossible", "skipped", "invalid")
    return Value(f"{value.shown} · identifies", value.order, value.kind) if says_so else value


def _rate(cell: CellResult | None, rule: SuccessRule = "strict") -> Value:
    summary = cell.asr.get(rule) if cell is not None else None
    return Value(text.rate(summary), summary.rate if summary is not None else None)


def _lineup(cell: CellResult | None) -> Value:
    """The p-value by which truths are nearer than look-alikes: of a leak that no image shows, all there is."""
    value = cell.tested_p if cell is not None else None
    return Value(text.p_value(value), value)


def _measured(cell: CellResult, metric: Metric) -> Value:
    value = getattr(cell.metrics.get(metric.name), metric.shown, None)
    return Value(text.percent(value), value) if metric.digits is None else figure(value, metric.digits)


def _theorem(cell: CellResult) -> tuple[Value, ...]:
    """First places with their interval, blindly, and at most; and of successes at most."""
    first, strict = (event_of(cell, name) for name in ("first in its lineup", "strict image"))
    rate, kappa = first and first.measured.rate, first and first.kappa
    return (
        Value(text.rate(first and first.measured), rate), Value(blind(first), kappa),
        *(
            Value(at_most(cell.bound, event) or text.MISSING, event and event.ceiling) for event in (first, strict)
        ),
    )  # fmt: skip


def _place(item: Decided | Shown, at: wording.Placed) -> tuple[Value, ...]:
    return (
        words(item.setting), words(item.defense), words(item.arguments),
        Value(wording.surface(at), -1.0 if at.surface is None else float(at.surface)),
    )  # fmt: skip


def resilience_table(places: Sequence[Decided]) -> Table:
    """The verdict on each defense at each place over all attacks."""
    rows = [
        (
            *_place(place, place.summary), _word(place, bool(place.summary.identifies)),
            words(place.summary.tier), words(place.summary.strongest),
            _rate(place.cell), _lineup(place.cell),
            words(place.why),
            words(", ".join(_tried(place))), words(place.summary.suite),
        )
        for place in places
    ]  # fmt: skip
    titles = (
        *_PLACE, Head("tier", choice=True), Head("strongest attack", choice=True), Head("success [95%]", number=True),
        Head("lineup p", number=True), Head("why", wide=True), Head("attacks tried"), Head("suite", choice=True),
    )  # fmt: skip
    kind = kinds_of(cell for place in places for cell in place.cells)
    return make(
        "resilience", "What leaks where: the strongest attack decides", titles, rows,
        f"Success: share of {kind.many} that came back ({kind.success}), with its 95% interval, over victims. Lineup "
        f"p: probability that true {kind.many} are this much closer than look-alikes by chance; a place may leak by it "
        "alone.",
    )  # fmt: skip


def _tried(place: Decided) -> list[str]:
    """The attacks that were possible there and not skipped."""
    unrun = {cell.key for cell in place.cells if cell.not_applicable_reason is not None}
    return [one.attack for one in place.summary.attacks if one.cell not in unrun]


def cell_table(cells: Sequence[Shown]) -> Table:
    """Every cell with all its numbers."""
    own = columns.own_measures(item.cell for item in cells)
    titles = (
        *_PLACE, Head("attack", choice=True), Head("tier", choice=True), Head("success [95%]", number=True),
        Head("identified [95%]", number=True), Head("success by SSIM", number=True),
        Head("success as in Table III", number=True),
        *(Head(metric.title, number=True) for metric in _SHOWN),
        *(Head(text.safe(name, 40), number=True) for name in own),
        Head("tau", number=True), Head("labels", number=True), Head("lineup p", number=True),
        Head("first in lineup [95%]", number=True), Head("first, blindly", number=True),
        Head("first, by the theorem", number=True), Head("success, by the theorem", number=True), Head("outcomes"),
        Head("visible to clients", wide=True),
        Head("seconds", number=True), Head("why", wide=True), Head("suite", choice=True), Head("cell"),
    )  # fmt: skip
    return make(
        "cells", "Every attack at every place", titles, [_cell(item, own) for item in cells],
        "RMSE and RMSE/std are medians over all victims; PSNR, SSIM, LPIPS and tau are means. A victim that is never "
        "reconstructed counts with the iteration cap in tau. An informed attacker knows the defense and its noise. An "
        "attacker that identifies distinguishes known examples and reconstructs none. A tampering server sends "
        "manipulated weights; clients could see the Kolmogorov-Smirnov distances of weights and gradients from those "
        "of an honest round.",
    )  # fmt: skip


def _cell(item: Shown, own: Sequence[str]) -> tuple[Value, ...]:
    cell = item.cell
    told = cell.identified.rate if cell.identified is not None else None
    return (
        *_place(item, cell), _word(item, _told(cell)),
        words(columns.attacker(cell)), words(cell.tier), _rate(cell), Value(columns.identified(cell), told),
        _rate(cell, "ssim"), _rate(cell, "table3"), *(_measured(cell, metric) for metric in _SHOWN),
        *(figure(getattr(cell.metrics.get(name), "mean", None), 3) for name in own),
        figure(getattr(cell.metrics.get("tau"), "mean", None), 0),
        Value(text.percent(cell.label.accuracy), cell.label.accuracy),
        _lineup(cell), *_theorem(cell), words(columns.outcomes(cell)),
        words("; ".join(columns.detectable(cell).splitlines()) if cell.detectable else None),
        figure(cell.seconds, 1), words(_why(cell)), words(cell.suite), words(cell.key, 64),
    )  # fmt: skip


def _why(cell: CellResult) -> str:
    warnings, flags = (f"warning: {said}" for said in cell.warnings), (f"unfit: {said}" for said in cell.flags)
    return "; ".join([cell.not_applicable_reason or cell.verdict_reason, *warnings, *flags])


def _told(cell: CellResult) -> bool:
    return cell.identified is not None and cell.identified.identifies


_CONTROLS = {
    "positive": "no defense: must leak",
    "positive_sigma0": "the defense without its noise: must leak",
    "noise_x100": "at least a hundred times the noise: must not leak",
    "swap": "another victim's truth: must not leak",
    "blind": "a guess from public data, without a gradient: must not leak",
}


def control_summary(runs: Sequence[RunData]) -> Table:
    """Return a table of how often each control held, and where it did not."""
    held: dict[str, list[bool]] = {}  # of those that could be tested
    failed: dict[str, dict[str, None]] = {}
    for run in runs:
        for cell in (cell for cell in run.cells if cell.role == "cell"):
            for check in cell.controls:
                held.setdefault(check.name, []).extend([] if check.is_untested else [check.held])
                if not check.held:
                    where = f"{columns.attacker(cell)} against {cell.defense} at {cell.tap}: {check.detail}"
                    failed.setdefault(check.name, {})[text.safe(where, 160)] = None
    rows = [
        (
            words(name, 40), words(_CONTROLS.get(name)),
            Value(f"{'✔' if all(found) else '✖'} {sum(found)} of {len(found)}", sum(found) / len(found),
                  "resilient" if all(found) else "leaks") if found else _UNTESTED,
            words("; ".join(failed.get(name, {})), 600),
        )
        for name, found in held.items()
    ]  # fmt: skip
    titles = (Head("control"), Head("what it is"), Head("held", choice=True), Head("where it failed", wide=True))
    return make("control-summary", "Controls", titles, rows, _WHY_CONTROLS)


_UNTESTED = Value("· not tested", None, "untried")
_WHY_CONTROLS = (
    "They keep the verdicts honest. Without the positive ones a failing attack would prove nothing; a negative one "
    "that leaks makes the whole run invalid."
)


def _outcome(check: Control) -> Value:
    if check.is_untested:
        return _UNTESTED
    return Value("✔ held", 1.0, "resilient") if check.held else Value("✖ failed", 0.0, "leaks")


def control_table(runs: Sequence[RunData]) -> Table:
    """Each control once per group of cells it was run for, and whether it held."""
    found: dict[tuple[str, ...], list[CellResult]] = {}
    outcomes: dict[tuple[str, ...], Value] = {}
    for run in runs:
        for cell in (cell for cell in run.cells if cell.role == "cell"):
            for check in cell.controls:
                key = (run.name, cell.dataset, cell.defense, columns.attacker(cell), check.name, check.detail)
                found.setdefault(key, []).append(cell)
                if key not in outcomes or not check.held:
                    outcomes[key] = _outcome(check)
    rows = [
        (
            words(run), words(name, 40), words(_CONTROLS.get(name)),
            outcomes[key],
            words(dataset, 40), words(defense, 60), words(attack, 60),
            words(", ".join(dict.fromkeys(wording.surface(cell) for cell in cells))), words(detail, 200),
        )
        for key, cells in found.items()
        for run, dataset, defense, attack, name, detail in [key]
    ]  # fmt: skip
    titles = (
        Head("run"), Head("control", choice=True), Head("what it is"), Head("held", choice=True),
        Head("dataset", choice=True), Head("defense", choice=True), Head("attack", choice=True),
        Head("read at"), Head("seen", wide=True),
    )  # fmt: skip
    return make(
        "controls", "Each control by itself", titles, rows, _WHY_CONTROLS,
    )  # fmt: skip
