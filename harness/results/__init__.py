"""Results that a run leaves behind: their schema, the folder that holds them, and how they are read back."""

from harness.results.atomic import claimed, require_own, require_writable, write_atomic
from harness.results.record import (
    Bound,
    Ceiling,
    Control,
    Detectable,
    Identified,
    LabelInference,
    Lineup,
    Place,
    PublicData,
    Rate,
    Statement,
    Summary,
)
from harness.results.schema import (
    AttackStanding,
    CellResult,
    Outcomes,
    ResultDocument,
    StoredCell,
    SummaryRow,
    VictimRecord,
)
from harness.results.store import NoFolder, RunFolder, cell_key, read_results

__all__ = [
    "AttackStanding",
    "Bound",
    "Ceiling",
    "CellResult",
    "Control",
    "Detectable",
    "Identified",
    "LabelInference",
    "Lineup",
    "NoFolder",
    "Outcomes",
    "Place",
    "PublicData",
    "Rate",
    "ResultDocument",
    "RunFolder",
    "Statement",
    "StoredCell",
    "Summary",
    "SummaryRow",
    "VictimRecord",
    "cell_key",
    "claimed",
    "read_results",
    "require_own",
    "require_writable",
    "write_atomic",
]
