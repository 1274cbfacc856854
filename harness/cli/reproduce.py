"""``harness reproduce``: the papers' tables, ours beside theirs."""
