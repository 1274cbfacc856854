"""The report people look at: one self-contained page from runs that may come from anywhere, and its tables as files."""

from harness.reports.html.page import make_page
from harness.reports.html.run_data import RunData
from harness.reports.html.runs import read_runs, with_trainings, without_collecting
from harness.reports.html.tables import all_tables, unread

__all__ = ["RunData", "all_tables", "make_page", "read_runs", "unread", "with_trainings", "without_collecting"]
