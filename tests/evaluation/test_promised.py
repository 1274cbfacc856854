"""Which statements are about what is read at a tap."""

from pathlib import Path
from typing import Any

import pytest

from harness.evaluation.report_cell import covers
from harness.federation.taps import Tap
from harness.privacy import GUARANTEES
from harness.privacy.views import REPEATABLE
from harness.reports.columns import guarantees
from harness.results import Statement

AT_SERVER = {Tap.ARRIVED, Tap.RECEIVED, Tap.PUBLISHED}
AFTER_STEP = {Tap.STEP, Tap.UPDATE, Tap.SENT, Tap.DELTA_Y, Tap.DELTA_C, *AT_SERVER}
COVERED: dict[str, set[Tap]] = {
    "sample-DP local view": AFTER_STEP,
    "client-LDP": {Tap.SENT, *AT_SERVER},
    "sample-DDP": AT_SERVER,
    # Of the published model.
    **{name: {Tap.PUBLISHED} for name in ("client-DP central", "sample-DP", "BDP")},
}  # fmt: skip


@pytest.mark.parametrize("guarantee", COVERED)
@pytest.mark.parametrize("tap", Tap)
def test_a_guarantee_covers_what_has_passed_its_noise(guarantee: str, tap: Tap) -> None:
    assert covers(Statement(view="server", guarantee=guarantee, notes=""), tap) == (tap in COVERED[guarantee])


@pytest.mark.parametrize("tap", Tap)
def test_one_message_of_a_secure_sum_is_not_the_sum(tap: Tap) -> None:
    """Nor has a SCAFFOLD client's message passed what is done to updates that leave."""
    message = Statement(view="message", guarantee="sample-DP local view", notes="")
    assert covers(message, tap) == (tap in AFTER_STEP - AT_SERVER)


def test_every_guarantee_is_in_the_table_and_none_covers_nothing() -> None:
    assert set(GUARANTEES) == {*COVERED, "none"}
    assert {covers(Statement(view="server", guarantee="none", notes=""), tap) for tap in Tap} == {None}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        pytest.param({"defense": "fed_cdp", "tap": "T2.raw"}, "none", marks=pytest.mark.slow),
        ({"defense": "fed_cdp", "tap": "T2.step"}, "sample-DP local view, epsilon"),
        ({"defense": "fed_sdp", "tap": "T0.post"}, "none"),
        pytest.param(
            {"defense": "fed_sdp", "defense_args": {"noise_at": "client"}, "tap": "T1.raw"}, "none",
            marks=pytest.mark.slow,
        ),
        ({"defense": "fed_sdp", "defense_args": {"noise_at": "client"}, "tap": "T1.out"}, "client-LDP, epsilon"),
    ],
)  # fmt: skip
def test_a_row_shows_no_epsilon_of_what_was_not_read(
    small: Any, tmp_path: Path, values: dict[str, Any], shown: str
) -> None:
    (cell,) = [one for one in small.play([small.cell(**values)], tmp_path).cells if one.role == "cell"]
    assert guarantees(cell).startswith(shown)
    assert any(statement.epsilon is not None for statement in cell.privacy)
    assert all(REPEATABLE in one.notes for one in cell.privacy if one.guarantee != "none")
