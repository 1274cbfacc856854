"""The regression gate: did a defense get less resilient, or an attack silently break, since the committed baseline?"""

from harness.gate.cells import GateCell, Victim, read_runs
from harness.gate.rule import Finding, Report, as_baseline, check, read_baseline, write_baseline
