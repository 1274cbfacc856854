"""How much noise is needed, and what it costs: accuracy, proven epsilon and leakage along a defense's noise."""

from harness.frontier.climb import make_frontier, make_frontier_shard
from harness.frontier.settings import FrontierSettings, known_dataset, usual

__all__ = ["FrontierSettings", "known_dataset", "make_frontier", "make_frontier_shard", "usual"]
