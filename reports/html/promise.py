"""What is promised of what an adversary reads at a place, in a few words beside its verdict."""

from dataclasses import dataclass

from harness.reports import text
from harness.reports.html.places import Decided
from harness.results import Statement


@dataclass(frozen=True)
class Promise:
    """``words``: the epsilon that holds there, or that nothing does; ``detail``: what else is claimed or covered."""

    words: str
    detail: str = ""


_NOTHING = "nothing promised"


def promise(place: Decided) -> Promise:
    """The weakest promise that covers the place; one about something else is none."""
    cell = next((cell for cell in place.cells if cell.not_applicable_reason is None), None)
    if cell is None:
        return Promise("")
    proven = [one for one in cell.privacy if one.epsilon is not None]
    here = [one for one in proven if one.covers is not False]
    if here:
        weakest = max(here, key=_epsilon)
        said, tag = f"epsilon {text.epsilon(_epsilon(weakest))}", text.safe(weakest.guarantee, 40)
        if text.too_large(_epsilon(weakest)):
            return Promise(_NOTHING, ", ".join([said, tag, *_claim(here)]))
        return Promise(said, ", ".join([tag, *_claim(here)]))
    if proven:
        other = min(proven, key=_epsilon)
        elsewhere = f"epsilon {text.epsilon(_epsilon(other))} holds, but not of what is read here"
        return Promise(_NOTHING, ", ".join([elsewhere, *_claim(proven)]))
    return Promise(_NOTHING, ", ".join(_claim(cell.privacy)))


def _epsilon(statement: Statement) -> float:
    return statement.epsilon or 0.0


def _claim(statements: list[Statement]) -> list[str]:
    """What the defense's paper claims, whether or not it holds."""
    claimed = [one.claimed_epsilon for one in statements if one.claimed_epsilon is not None]
    return [f"its paper claims {min(claimed):.3g}"] if claimed else []
