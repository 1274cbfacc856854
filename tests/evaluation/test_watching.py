"""How long an attack and what follows it take is told after its first iterations, where it is worth telling."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.attacks import reconstructing
from harness.base.progress import progress
from harness.evaluation import watching
from harness.evaluation.watching import AttackForecast, RunForecast, work_of
from harness.experiment import cell_settings
from harness.federation.taps import SURFACES

FIX = "; fewer victims or a GPU make it shorter"
EARLY = " (hopeless starts stop at iteration 30 of 500)"
CELL = cell_settings(dataset="digits", victims=64, attack_args={"max_iterations": 500, "restarts": 2})


@pytest.mark.parametrize(
    ("first", "each", "others", "said", "at"),
    [
        (1000, 0.001, 0, None, None),
        (10, 1.2, 0, "about 2 minutes to at most 40 minutes", 6),
        (10, 36.0, 0, "about 72 minutes to at most 20 hours", 3),
        (10, 36.0, 1, "about 72 minutes to at most 20 hours, with all remaining cells and controls about "
         "2 hours to at most 40 hours", 3),
        (10, 0.01, 9, "about 2 seconds to at most 20 seconds, with all remaining cells and controls about "
         "12 seconds to at most 3 minutes", 6),
        (72, 72.0, 0, "about 2 hours to at most 40 hours", 1),
    ],
)  # fmt: skip
def test_a_few_iterations_tell(
    first: float, each: float, others: int, said: str | None, at: int | None, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """64 victims with two starts, 32 starts at a time: four turns of 500 iterations at most. The first one is slow.

    Who has no hope is given up after 30.
    """
    now, seen = [0.0], list[int]()
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ahead = SimpleNamespace(work_left=lambda early=False: others * work_of(CELL, early))

    def observer(victims: Any, restarts: Any, iteration: int, images: Any) -> None:
        seen.append(iteration)
        told.append(len(caplog.records))

    told = list[int]()
    with caplog.at_level(logging.WARNING), progress("attacking", 64) as bar:
        watched = AttackForecast(observer, bar, 64, reconstructing(CELL.build_attack()), CELL, ahead)  # type: ignore[arg-type]
        for iteration in range(1, 20):
            now[0] += first if iteration == 1 and first != 1000 else each
            watched(torch.arange(32), torch.zeros(32), iteration, torch.zeros(32))
    assert seen == list(range(1, 20))
    expected = [f"harness: cpl on 64 victims takes {said}{EARLY}{FIX}"] if said else []
    assert [record.getMessage() for record in caplog.records] == expected
    assert (told.index(1) if said else None) == at


@pytest.mark.parametrize("never", [{"patience": 0}, {"patience": 500}, {"patience_drop": 0}])
def test_where_nobody_is_given_up_there_is_one_time(
    never: dict[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    settings = CELL.model_copy(update={"attack_args": {"max_iterations": 500, **never}})
    with caplog.at_level(logging.WARNING), progress("attacking", 64) as bar:
        watched = AttackForecast(None, bar, 64, reconstructing(settings.build_attack()), settings, RunForecast())
        for iteration in range(1, 8):
            now[0] += 3.6
            watched(torch.arange(64), torch.zeros(64), iteration, torch.zeros(64))
    assert caplog.messages == [f"harness: cpl on 64 victims takes at most 30 minutes{FIX}"]


def test_what_is_under_way_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress("attacking", 64, "victims") as bar:
        watched = AttackForecast(None, bar, 64, reconstructing(CELL.build_attack()), CELL)
        shown = list[float]()
        monkeypatch.setattr(bar, "under_way", lambda part, note: shown.append(part))
        for rows, iteration in ((32, 1), (32, 250), (32, 500)):
            watched(torch.arange(rows), torch.zeros(rows), iteration, torch.zeros(rows))
        watched.advance(16)
        watched(torch.arange(32), torch.zeros(32), 250, torch.zeros(32))
    assert shown == pytest.approx([16 / 500, 8, 16, 8])


LIVES = {"all go to the cap": 10_000.0, "most end early": 40.0, "all end very early": 8.0}


@pytest.mark.parametrize("mean", LIVES.values(), ids=LIVES)
def test_time_left_goes_by_rows_that_ended(mean: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 starts, 32 at a time, of exponential lives; an iteration of a start takes a second."""
    now = [0.0]
    monkeypatch.setattr("harness.base.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    random = torch.Generator().manual_seed(3)
    lives = torch.empty(4, 32).exponential_(1 / mean, generator=random).ceil().clamp(max=500)
    total, early, said = float(lives.sum()), float("nan"), ""
    with progress("attacking", 64, "victims", at_most=True) as bar:
        watched = AttackForecast(None, bar, 64, reconstructing(CELL.build_attack()), CELL)
        for turn in lives:
            for iteration in range(1, int(turn.max()) + 1):
                going = int((turn >= iteration).sum())
                now[0] += going
                watched(torch.arange(going), torch.zeros(going), iteration, torch.zeros(going))
                if early != early and now[0] > total / 10:
                    early, said = now[0] + (bar.left() or 0.0), bar._left_in_words()
            watched.advance(16)
    assert early == pytest.approx(total, rel=0.3)  # the cap alone would say 64,000
    assert ("about" in said) == (mean < 500)


def cell(**values: Any) -> Any:
    return cell_settings(
        **{"dataset": "digits", "victims": 64, "attack_args": {"max_iterations": 10, "patience": EARLIER}} | values
    )


# 64 victims, of a control 24: each for ten outer iterations of at most twenty gradients.
OWN, CONTROL, EARLIER = 64 * 200, 24 * 200, 4
PLANS = {
    "one without a defense is its own control": ([cell()], [], 0),
    "a defended one has three": ([cell(defense="fed_cdp")], [], 3 * CONTROL),
    "two share one": ([cell(defense="fed_cdp"), cell(defense="fed_sdp")], [], OWN + 5 * CONTROL),
    "a batch is as many images": ([cell(), cell(batch_size=3)], [], 3 * OWN),
    "three surfaces show the same": ([cell(tap=tap) for tap in SURFACES.values()], [], 0),
    "unless the defense acts between": (
        [cell(defense="noise", tap=tap) for tap in SURFACES.values()],
        [],
        OWN + (1 + 2 + 2) * CONTROL,
    ),
    "or it is several steps": (
        [cell(tap=tap, local_steps=2, update_model="unroll") for tap in SURFACES.values()],
        [],
        OWN,
    ),
    "what is at hand is done": ([cell(), cell(batch_size=3)], [1], 0),
    "no gradient, no work": ([cell(), cell(attack="identify", attack_args={})], [], 0),
}


@pytest.mark.parametrize(("cells", "at_hand", "left"), PLANS.values(), ids=PLANS)
def test_work_ahead(cells: list[Any], at_hand: list[int], left: int) -> None:
    """While the first cell is attacked."""
    forecast = RunForecast()
    done = [cells[place] for place in at_hand]
    with forecast.over(cells, done.__contains__), forecast.at(cells[0], None):
        assert forecast.work_left() == left
        assert forecast.work_left(early=True) == left * EARLIER / 10
