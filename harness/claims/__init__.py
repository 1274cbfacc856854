"""Claims of frameworks' filters beside what is proven of them, without running or importing any framework."""

import sys
from types import ModuleType
from typing import Any


class _Asked(ModuleType):
    """``harness.claims(...)`` asks, as a function would; the parts of this package stay below its name."""

    def __call__(self, *sources: Any, **facts: Any) -> list[dict[str, Any]]:
        """See :func:`harness.claims.asked.claims`."""
        from harness.claims.asked import claims

        return claims(*sources, **facts)


sys.modules[__name__].__class__ = _Asked
