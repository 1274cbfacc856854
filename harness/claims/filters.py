"""All filters that are known, by the names that their frameworks give them.

To add one, write a function under ``@register`` in the module of its kind and a line in tests/claims/test_cases.py.
"""

from harness.claims import central, frameworks, platforms, sparse_vector
from harness.claims.answers import Filter
from harness.claims.registry import KNOWN, find_filter

__all__ = ["FILTERS", "central", "find_filter", "frameworks", "platforms", "sparse_vector"]

_ORDER = ("flower", "flip", "nvflare", "opacus", "openfl", "appfl", "fedml", "pfl", "tff", "jax_privacy", "paper")
#: The filters, framework by framework.
FILTERS: dict[str, Filter] = {
    name: KNOWN[name] for name in sorted(KNOWN, key=lambda name: _ORDER.index(name.partition(":")[0]))
}
