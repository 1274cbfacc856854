"""Amount of noise that is needed, and its cost: accuracy, proven epsilon and leakage along a defense's noise."""

from harness.study.climb import FrontierSettings, make_frontier, make_frontier_shard, usual

__all__ = ["FrontierSettings", "make_frontier", "make_frontier_shard", "usual"]
