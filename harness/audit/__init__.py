"""The empirical audit: how large epsilon must at least be, found by looking for canaries in what one run released.

Source: Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", 2023. See docs/accounting.md.
"""

from harness.audit.run import AuditResult, audit
from harness.audit.settings import DESIGNS, AuditSettings, audit_settings

__all__ = ["DESIGNS", "AuditResult", "AuditSettings", "audit", "audit_settings"]
