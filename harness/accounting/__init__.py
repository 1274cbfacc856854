"""What noise costs in privacy, by every accountant."""

from harness.accounting.account import account

__all__ = ["account"]
