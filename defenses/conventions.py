"""Noise on clipped per-example gradients: the three conventions in use (docs/defenses.md).

====================  ==========================  =====================================
convention            noise std on the batch mean  source
====================  ==========================  =====================================
``sum`` (default)     sigma * S / B               DP-SGD; released Fed-CDP code
``per_example``       sigma * S / sqrt(B)         Fed-αCDP text, section 5.2
``mean``              sigma * S                   Fed-αCDP, Algorithm 1
====================  ==========================  =====================================
"""

from typing import Any, Literal

from harness.federation.taps import Point

Convention = Literal["sum", "per_example", "mean"]

_WORDS = {
    "sum": "noise std sigma*S on the sum of clipped per-example gradients (sigma*S/B on their mean)",
    "per_example": "noise std sigma*S on each clipped per-example gradient (sigma*S/sqrt(B) on their mean)",
    "mean": "noise std sigma*S on the mean of clipped per-example gradients",
}


def in_words(convention: Convention) -> str:
    """Return where the noise is added, for the sentence under a table."""
    return _WORDS[convention]


def acting_at(convention: Convention) -> dict[str, Any]:
    """The arguments ``at`` and ``on_mean`` of noise by a convention."""
    return {"at": Point.EXAMPLES if convention == "per_example" else Point.STEP, "on_mean": convention == "mean"}
