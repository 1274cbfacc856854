"""What the server holds tells nothing about one client, and no client ever gives both of somebody's shares."""

import numpy as np
import pytest
from scipy import stats

from harness.secagg import Aborted, Client, Refused, Server, aggregate, open_session, seeded_entropy
from harness.secagg.session import connected, neighbours
from harness.secagg.wire import SERVER, SHARE_ENTRY, Kind, read, unpack, write


def bytes_p_value(words: np.ndarray) -> float:
    """Chi-square test of uniform bytes."""
    return stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue


@pytest.mark.parametrize("degree", [None, 4])
def test_a_masked_vector_is_uniform(degree: int | None) -> None:
    vectors = np.zeros((10, 100_000), dtype=np.uint32)
    parties = open_session(10, 100_000, degree=degree, threshold=3, entropy=seeded_entropy("uniform"))
    result = aggregate(parties, vectors, seed=("uniform", 2))
    assert not result.total.any()
    for masked in result.masked.values():
        assert 1e-4 < bytes_p_value(masked) < 1 - 1e-4
        assert abs(np.corrcoef(masked[1:], masked[:-1])[0, 1]) < 0.02
    # All masked vectors but one, added up, still hide the last one: the self masks remain.
    assert 1e-4 < bytes_p_value(np.sum(list(result.masked.values()), axis=0, dtype=np.uint32)) < 1 - 1e-4


def test_the_uniformity_test_rejects_what_is_not_uniform() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    assert bytes_p_value(words & ~np.uint32(1)) < 1e-9
    assert bytes_p_value(words % np.uint32(2**31 + 2**30)) < 1e-9


def halfway(clients: int = 5, threshold: int = 3, minimum: int = 3) -> tuple[Server, list[Client], dict[int, bytes]]:
    """A session in which all clients have sent their masked vectors; with the server's lists of survivors.

    It trusts the server's lists: what happens where the lists differ is the matter of test_equivocation.
    """
    parties = open_session(clients, 4, 32, None, threshold, minimum, seeded_entropy("halfway"), consistency=False)
    server = Server(parties.session, parties.server_identity)
    identities = enumerate(parties.client_identities)
    members = [Client(parties.session, index, identity, seeded_entropy(index)) for index, identity in identities]
    vector = np.ones(4, dtype=np.uint32)
    for client in members:
        server.receive(client.announce())
    for step in (Client.share, Client.acknowledge, lambda client, message: client.mask(message, vector)):
        for index, message in server.end_round().items():
            server.receive(step(members[index], message))
    return server, members, server.end_round()


def survivors_message(server: Server, client: int, alive: set[int]) -> bytes:
    """The list of survivors of a server that lies, in good form."""
    payload = sum(1 << index for index in alive).to_bytes(1, "little")
    return write(server.session, Kind.SURVIVORS, SERVER, client, payload, server._identity)


def test_one_share_of_each_owner_and_only_once() -> None:
    server, members, lists = halfway()
    answer = members[0].unmask(survivors_message(server, 0, {0, 1, 2, 3}))
    entries = unpack(SHARE_ENTRY, read(server.session, Kind.UNMASKING, SERVER, answer)[1])
    assert {owner: of_seed for owner, of_seed, _ in entries} == {0: 1, 1: 1, 2: 1, 3: 1, 4: 0}
    with pytest.raises(Refused, match="waits for nothing more"):
        members[0].unmask(lists[0])
    assert not members[0]._held and members[0]._masking_key is None


@pytest.mark.parametrize(
    ("alive", "error", "words"),
    [
        ({0, 1}, Aborted, "a sum of 2 clients"),
        ({0}, Aborted, "a sum of 1 clients"),
        ({1, 2, 3, 4}, Refused, "not among the survivors"),
        ({0, 1, 2, 7}, Refused, "one bit per client"),
    ],
)
def test_a_client_does_not_unmask_what_it_should_not(alive: set[int], error: type[Exception], words: str) -> None:
    server, members, lists = halfway()
    with pytest.raises(error, match=words):
        members[0].unmask(survivors_message(server, 0, alive))
    if error is Refused:
        members[0].unmask(lists[0])
    else:
        with pytest.raises(Refused):
            members[0].unmask(lists[0])


def test_a_sum_that_would_fall_apart_is_refused() -> None:
    parties = open_session(8, 4, degree=2, threshold=2, entropy=seeded_entropy("circle"))
    circle = parties.session.graph
    # Two clients far apart on a circle leave two arcs, whose sums the server would learn separately.
    second = next(client for client in range(1, 8) if client not in circle[0] and not circle[0] & circle[client])
    assert connected(circle, range(8)) and not connected(circle, set(range(8)) - {0, second})
    with pytest.raises(Aborted, match="fall apart"):
        aggregate(parties, np.ones((8, 4), dtype=np.uint32), {0: 2, second: 2})


@pytest.mark.parametrize(("clients", "degree"), [(5, 2), (51, 12), (200, 32), (200, None), (33, 32)])
def test_every_client_has_its_number_of_neighbours(clients: int, degree: int | None) -> None:
    graph = neighbours(clients, degree, b"seed")
    assert {len(group) for group in graph} == {degree or clients - 1}
    assert all(client in graph[other] and client != other for client in range(clients) for other in graph[client])
    assert connected(graph, range(clients))
    if degree and degree < clients - 1:
        assert graph != neighbours(clients, degree, b"other")
