"""Figure: how RMSE, PSNR, SSIM and LPIPS spread over the victims."""

from collections.abc import Sequence

import numpy as np

from harness.reports import text
from harness.reports.html import chart
from harness.reports.html.chart import Chart, Line
from harness.reports.html.svg import INK, inline
from harness.scoring import METRICS

NOTE = (
    "Each row is a hill of the victims of one defense: the higher, the more of them; the tick is the median. "
    "A low RMSE and LPIPS and a high PSNR and SSIM mean that images came back."
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
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"Medians. {medians}."), NOTE + rest)


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
