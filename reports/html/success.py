"""Figure: share of images that came back, with its 95% interval."""

from collections.abc import Sequence

from harness.reports.columns import success_rate
from harness.reports.html import chart
from harness.reports.html.chart import Chart, Line
from harness.reports.html.svg import INK, inline

NOTE = (
    "Each row is a defense and the surfaces of observation; the dot is the share of images with RMSE at most 0.1, "
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
        rate = _share(found.rate)
        low, high = (_share(end) for end in found.ci95 or (found.rate, found.rate))
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
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), NOTE + rest)


def _share(rate: float | None) -> float:
    return 100 * min(1.0, max(0.0, rate or 0.0))
