"""What a run leaves behind: the schema of its results, the folder that holds them, and how they are read back."""

from harness.results.atomic import require_own, require_writable, write_atomic
from harness.results.bound import Bound, Ceiling
from harness.results.claim import claimed
from harness.results.detectable import Detectable
from harness.results.place import Place, PublicData
from harness.results.read import read_results
from harness.results.schema import CellResult, Outcomes, ResultDocument
from harness.results.scores import Control, Identified, LabelInference, Lineup, Rate, Summary
from harness.results.statement import Statement
from harness.results.store import RunFolder, cell_key
from harness.results.summary import AttackStanding, SummaryRow
from harness.results.victim import StoredCell, VictimRecord

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
