"""Captures of the same clients in several rounds, put side by side: each client once, with all that it sent."""

from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import UsageError
from harness.judging.federation import CapturedClients

_ASKED = "--rounds-seen"


def over_rounds(clients: Sequence[CapturedClients], rounds: int) -> list[CapturedClients]:
    """Each client once, as it was in its first round, with ``later`` ones beside it; unchanged for a single round.

    Args:
        clients: groups whose batches are of the same sizes, with their truth.
        rounds: how many rounds of the same examples an attacker has of each client, the first ones in order.

    Raises:
        UsageError: the truth or a client's name is missing, a client has fewer captures, two of one round, other
            examples in one of them, or an optimizer that remembers earlier rounds.
    """
    return list(clients) if rounds == 1 else [_side_by_side(one, rounds) for one in clients]


def _side_by_side(captured: CapturedClients, rounds: int) -> CapturedClients:
    if captured.images is None:
        raise UsageError(f"{_ASKED} needs each capture's truth, to know that its examples are the same in every round")
    if captured.record.state == "carried":
        raise UsageError(f"{_ASKED} combines clients that begin each round anew; these carry an optimizer's state on")
    of_client: dict[str, dict[int, int]] = {}
    for row, (name, at) in enumerate(zip(captured.names, captured.at, strict=True)):
        if name is None:
            raise UsageError(f'{_ASKED} needs to know which captures are of one client; add "client" to capture.json')
        known = of_client.setdefault(name, {})
        if at in known:
            raise UsageError(f"client {name!r} has two captures of round {at}; leave one of them out")
        known[at] = row
    rows = [_first_of(name, known, rounds) for name, known in of_client.items()]
    for name, own in zip(of_client, rows, strict=True):
        _require_same_examples(captured, name, own)
    first, *later = (captured.take([own[number] for own in rows]) for number in range(rounds))
    return replace(first, later=tuple(later), digest=" ".join(one.digest for one in (first, *later)))


def _first_of(name: str, known: dict[int, int], rounds: int) -> list[int]:
    if len(known) < rounds:
        raise UsageError(
            f"client {name!r} was captured in {len(known)} round(s), fewer than {_ASKED} {rounds}; lower it, or leave "
            "that client out"
        )
    return [known[at] for at in sorted(known)[:rounds]]


def _require_same_examples(captured: CapturedClients, name: str, rows: Sequence[int]) -> None:
    """The same in the same steps; within one step their order makes no difference."""
    assert captured.images is not None and captured.labels is not None
    size = captured.record.step_size

    def steps(row: int) -> list[list[bytes]]:
        examples = zip(captured.images[row].numpy(), captured.labels[row].tolist(), strict=True)  # pyright: ignore
        named = [image.tobytes() + bytes(str(label), "ascii") for image, label in examples]
        return [sorted(named[first : first + size]) for first in range(0, len(named), size)]

    first = steps(rows[0])
    for row in rows[1:]:
        if steps(row) != first:
            raise UsageError(
                f"client {name!r} trained on other examples in round {captured.at[row]} than in round "
                f"{captured.at[rows[0]]}; {_ASKED} combines rounds of the same examples"
            )
