"""What a run leaves behind: the schema of its results, the folder that holds them, and how they are read back."""

from harness.results.atomic import write_atomic
from harness.results.read import read_results
from harness.results.schema import (
    CellResult,
    ControlCheck,
    LabelInference,
    Lineup,
    MetricSummary,
    Outcomes,
    PrivacyStatement,
    RateSummary,
    ResultDocument,
)
from harness.results.store import RunFolder, cell_key
from harness.results.summary import AttackStanding, Place, SummaryRow
from harness.results.victim import StoredCell, VictimRecord

__all__ = [
    "AttackStanding",
    "CellResult",
    "ControlCheck",
    "LabelInference",
    "Lineup",
    "MetricSummary",
    "Outcomes",
    "Place",
    "PrivacyStatement",
    "RateSummary",
    "ResultDocument",
    "RunFolder",
    "StoredCell",
    "SummaryRow",
    "VictimRecord",
    "cell_key",
    "read_results",
    "write_atomic",
]
