"""The papers' tables, ours beside theirs."""
