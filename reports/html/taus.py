"""Figure: how many images had come back by which iteration."""

from collections.abc import Sequence

import numpy as np

from harness.reports.html import chart
from harness.reports.html.chart import Chart, Line
from harness.reports.html.svg import inline
from harness.results import CellResult, VictimRecord

NOTE = (
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
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), NOTE + rest)


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
