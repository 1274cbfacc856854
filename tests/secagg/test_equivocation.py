"""A server that tells clients different things: it recovers a vector without the consistency check, never with it.

The attacks are as strong as we know how: one short list of members for the victim, so that few masks hide it, and lists
of survivors by which helpers give the seed of its self mask and the masking keys of those few.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from harness.secagg import Session, open_session, recommended_degree, seeded_entropy

VICTIM, LENGTH = 0, 4
Told = Mapping[int, frozenset[int]]
Case = tuple[int, int | None, int | None]


def by_short_list(session: Session, one_list: bool = False) -> tuple[Told, Told]:
    """The victim masks for as few as it accepts; helpers are told, each as far as it accepts, that those are gone.

    Args:
        one_list: all helpers are told the same, so that nobody can see a difference between lists of survivors.
    """
    everybody = frozenset(range(session.clients))
    few = np.random.default_rng(0).permutation(sorted(session.graph[VICTIM]))[: session.threshold - 1].tolist()
    # Outside the neighbourhood nobody's word changes the victim's masks.
    short = everybody - (session.graph[VICTIM] - frozenset(few))
    members = dict.fromkeys(everybody, everybody) | {VICTIM: short}
    gone = {helper: frozenset(few) for helper in everybody} if one_list else spread(session, few)
    survivors = {helper: everybody - gone.get(helper, frozenset()) for helper in everybody}
    return members, survivors | {VICTIM: short}


def spread(session: Session, few: list[int]) -> dict[int, frozenset[int]]:
    """Whom each helper is told to be gone, so that t helpers say so of each of the few: a flow through a network."""
    helpers = sorted(set(range(session.clients)) - {VICTIM})
    source, sink, size = len(few) + len(helpers), len(few) + len(helpers) + 1, len(few) + len(helpers) + 2
    capacity = np.zeros((size, size), dtype=np.int32)
    capacity[source, : len(few)] = session.threshold
    for place, helper in enumerate(helpers, len(few)):
        capacity[place, sink] = min(
            len(session.holders(helper)) - session.threshold, session.clients - session.minimum_clients
        )
        for row, owner in enumerate(few):
            capacity[row, place] = owner in session.graph[helper]
    flow = maximum_flow(csr_array(capacity), source, sink).flow.toarray()
    return {
        helper: frozenset(owner for row, owner in enumerate(few) if flow[row, place] > 0)
        for place, helper in enumerate(helpers, len(few))
    }


def by_halves(session: Session) -> tuple[Told, Told]:
    """Half of the victim's holders are told that it stays, the others that it is gone."""
    everybody = frozenset(range(session.clients))
    told_gone = sorted(session.graph[VICTIM])[::2]
    survivors = {helper: everybody - {VICTIM} if helper in told_gone else everybody for helper in everybody}
    return dict.fromkeys(everybody, everybody), survivors


def attacks(session: Session) -> Iterable[tuple[Told, Told]]:
    yield by_halves(session)
    yield by_short_list(session)
    yield by_short_list(session, one_list=True)


def recovering(lying_server: Any, case: Case, consistency: bool, enough: int = 3) -> int:
    """How many of the attacks recovered the victim's vector; no more are tried after ``enough``."""
    clients, degree, threshold = case
    entropy = seeded_entropy("liar", clients)
    parties = open_session(clients, LENGTH, 32, degree, threshold, entropy=entropy, consistency=consistency)
    found = 0
    for members, survivors in attacks(parties.session):
        vector = lying_server(parties, members, survivors).attack()
        assert vector is None or vector.tolist() == [100 + VICTIM] * LENGTH
        found += vector is not None
        if found == enough:
            break
    return found


CASES = [(10, None, 2), (12, 6, 3)]
SLOW = [
    (50, 24, None), (50, 24, 8), (10, None, 6), (20, None, 11), (20, None, 12), (100, None, 60), (100, None, 61),
    *((clients, recommended_degree(clients), None) for clients in (64, 100, 200)),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_lying_server_recovers_a_vector_only_without_the_consistency_check(lying_server: Any, case: Case) -> None:
    assert recovering(lying_server, case, consistency=False, enough=1) == 1
    assert recovering(lying_server, case, consistency=True) == 0


@pytest.mark.parametrize(("clients", "degree"), [
    (4, None), (4, 2), (12, 4), *(pytest.param(10, one, marks=pytest.mark.slow) for one in (None, 6)),
])  # fmt: skip
def test_whatever_the_threshold(lying_server: Any, clients: int, degree: int | None) -> None:
    for threshold in range(2, (degree or clients - 1) + 2):
        assert recovering(lying_server, (clients, degree, threshold), consistency=True) == 0


@pytest.mark.parametrize(
    ("case", "check"),
    [
        ((12, 6, 3), "harness.secagg.client.require_signed"),
        pytest.param((50, 24, 8), "harness.secagg.client.require_signed", marks=pytest.mark.slow),
        ((10, None, 2), "harness.secagg.client.require_certificate"),
    ],
)
def test_both_signatures_are_needed(lying_server: Any, case: Case, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The members' for the short list that all survivors agree on, the survivors' for two lists."""
    monkeypatch.setattr(check, lambda *_: None)
    assert recovering(lying_server, case, consistency=True, enough=1) == 1
