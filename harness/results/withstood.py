"""Which attacks a defense may be said to have withstood."""

from harness.results.record import VerdictWord


def was_withstood(verdict: VerdictWord, works: bool, identifies: bool | None, flagged: bool) -> bool:
    """Whether an attack that works and was fit to find something found nothing.

    Args:
        verdict: of its cell.
        works: whether its positive controls held.
        identifies: None for an attack that reconstructs. One that does not has to show that it identifies nobody: the
            verdict over all attacks rests on those that reconstruct, and leaves open what it could not tell.
        flagged: whether it was unfit there.
    """
    if not works or flagged or identifies:
        return False
    return verdict == "resilient" if identifies is not None else verdict != "leaks"
