"""Every table of the report, in the order of the page."""

from collections.abc import Sequence

from harness.reports.html.cell_tables import cell_table, control_summary, control_table, resilience_table
from harness.reports.html.judged_tables import check_table, estimate_table
from harness.reports.html.papers import paper_tables
from harness.reports.html.places import Decided, Shown, decided_places, shown_cells
from harness.reports.html.privacy_table import privacy_table
from harness.reports.html.run_data import RunData
from harness.reports.html.run_tables import environment_table, left_out_table, settings_table
from harness.reports.html.table import Table
from harness.reports.html.training_tables import round_table, training_table
from harness.reports.html.trend import trend_table


def unread(earlier: Sequence[RunData]) -> list[RunData]:
    """The earlier runs that have no place in the trend; the others need no more than their results."""
    return [run for run in earlier if not run.cells]


def all_tables(runs: Sequence[RunData], earlier: Sequence[RunData] = ()) -> list[Table]:
    """Tables that have rows; of ``earlier`` runs only the trend, and those that could not be read."""
    return tables_of(runs, earlier, decided_places(runs), shown_cells(runs))


def tables_of(
    runs: Sequence[RunData], earlier: Sequence[RunData], places: Sequence[Decided], cells: Sequence[Shown]
) -> list[Table]:
    """The same for who has found out already what stands where in ``runs``."""
    trend, missing = trend_table([*earlier, *runs]), left_out_table([*unread(earlier), *runs])
    made = [
        check_table(runs), estimate_table(runs), resilience_table(places), trend, *paper_tables(cells),
        cell_table(cells), training_table(runs), round_table(runs), privacy_table(runs, cells), control_summary(runs),
        control_table(runs), environment_table(runs), settings_table(runs, cells), missing,
    ]  # fmt: skip
    return [table for table in made if table.rows]
