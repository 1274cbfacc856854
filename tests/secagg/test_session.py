"""Settings that are impossible, or cannot bind a server that tells clients different things, are refused by name."""

from typing import Any

import pytest

from harness.base.errors import UsageError
from harness.secagg import open_session


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 1}, "2 to 100000 clients, not 1"),
        ({"bits": 65}, "1 to 64 bits"),
        ({"length": 0}, "at least one element"),
        ({"threshold": 1}, "threshold must be 2 to 6"),
        ({"threshold": 7}, "threshold must be 2 to 6"),
        ({"degree": 1}, "at least 2 neighbours"),
        ({"minimum_clients": 7}, "2 to 6"),
        ({"minimum_clients": 3}, "4 of 6 clients must stay .* raise minimum_clients"),
        ({"minimum_clients": 4, "colluders": 2}, "5 of 6 clients must stay"),
        ({"threshold": 3, "colluders": 3}, "colluders hold enough shares"),
        ({"degree": 2, "threshold": 3, "colluders": 1, "minimum_clients": 5}, "raise degree or minimum_clients"),
        ({"colluders": 6}, "0 to 4 clients may collude"),
        ({"colluders": 5}, "0 to 4 clients may collude"),
        ({"colluders": 3, "minimum_clients": 4, "consistency": False}, "may see a single one; raise minimum_clients"),
        ({"clients": "6"}, "whole number"),
        ({"degree": "4"}, "whole number"),
        ({"minimum_clients": 4.5}, "whole number"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_session(**({"clients": 6, "length": 4} | settings))


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 10, 33, 200])
@pytest.mark.parametrize("degree", [None, 4, 32])
@pytest.mark.parametrize("colluders", [0, 1])
def test_the_defaults_bind_such_a_server(clients: int, degree: int | None, colluders: int) -> None:
    # A sparse graph with colluders needs most clients to stay.
    least = clients if degree and colluders else None
    colluders = min(colluders, clients - 2)
    session = open_session(clients, 1, 32, degree, None, least, colluders=colluders).session
    assert clients + colluders < 2 * session.quorum <= 2 * session.minimum_clients
    assert session.consistency and session.threshold > colluders


@pytest.mark.parametrize("consistency", [True, False])
def test_the_defaults_leave_two_beside_the_colluders(consistency: bool) -> None:
    for colluders in range(9):
        session = open_session(10, 1, colluders=colluders, consistency=consistency).session
        assert session.minimum_clients - colluders >= 2
