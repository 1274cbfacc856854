"""Trends instead of equality: does a method stand where the paper has it among the others?"""

from collections.abc import Mapping

from harness.papers.measured import Measured

NOT_AT_HAND, CHANCE, AGREES, DIFFERS = "not at hand", "chance", "agrees", "differs"


def orders(paper: Mapping[str, float], ours: Mapping[str, Measured | None]) -> dict[str, str]:
    """A verdict per method of one group (same data, same federation).

    ``agrees``: above or below every other measured method as printed; equal ones contradict nothing. ``chance``: the
    cell learned nothing, so its place among others that did not either says nothing.
    """
    return {method: _order(method, paper, ours) for method in ours}


def _order(method: str, paper: Mapping[str, float], ours: Mapping[str, Measured | None]) -> str:
    mine = ours[method]
    if mine is None:
        return NOT_AT_HAND
    if mine.chance:
        return CHANCE
    others = [(name, other) for name, other in ours.items() if other is not None]
    fits = all((paper[method] - paper[name]) * (mine.accuracy - other.accuracy) >= 0 for name, other in others)
    return AGREES if fits else DIFFERS


def below_non_private(title: str, ours: Mapping[str, Measured | None]) -> str:
    """One line that says whether the non-private run is above all others of its group."""
    known = {name: made for name, made in ours.items() if made is not None}
    undefended = known.pop("non-private", None)
    if undefended is None or not known:
        return f"{title}: not at hand"
    above = [name for name, made in known.items() if made.accuracy >= undefended.accuracy]
    return f"{title}: non-private ({undefended}) is " + (
        f"not above {', '.join(above)}" if above else "above every row with a defense"
    )
