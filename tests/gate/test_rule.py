"""What fails, what is news and what cannot be compared, on synthetic cells with known effect."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.gate import GateCell, Report, as_baseline, check
from harness.gate.comparing import movement

Made = Callable[..., GateCell]
VERSIONS = {"harness": "0.1.0", "torch": "2.11.0"}


def verdict(old: list[GateCell], new: list[GateCell], **options: Any) -> Report:
    return check(as_baseline(old, VERSIONS), new, options.pop("versions", VERSIONS), **options)


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_the_same_run_again_passes(cell: Made) -> None:
    cells = [cell(0.5), cell(1.0, defense="none"), cell(0.0, tap="T1.out")]
    report = verdict(cells, cells)
    assert kinds(report) == ["unmoved"] * 3 and not report.failed
    assert all(finding.p == 1.0 for finding in report.findings)


# Share reconstructed before and now, whether nothing protects, and what is said.
MOVES = {
    "a defense leaks": (0.0, 0.6, {}, "regression"),
    "a leaky defense leaks more": (0.4, 0.95, {}, "regression"),
    "a defense got better": (0.9, 0.1, {}, "more resilient"),
    "the attack broke": (1.0, 0.3, {"defense": "none"}, "broken attack"),
    "the attack broke without noise": (1.0, 0.3, {"noise_scale": 0.0}, "broken attack"),
    "a better attack": (0.2, 0.9, {"defense": "none"}, "stronger attack"),
    "too little to matter": (0.5, 0.53, {}, "unmoved"),
}


@pytest.mark.parametrize(("before", "after", "settings", "kind"), MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("first", [0, 1000], ids=["same victims", "other victims"])
def test_directions(cell: Made, before: float, after: float, settings: dict, kind: str, first: int) -> None:
    report = verdict([cell(before, 48, 1, **settings)], [cell(after, 48, 2, first, **settings)])
    assert kinds(report) == [kind]
    assert report.failed == (kind in ("regression", "broken attack"))


@pytest.mark.parametrize("others", [16, 48])
def test_victims_that_the_baseline_has_not_count_too(cell: Made, others: int) -> None:
    """Runs of several seeds are pooled; what leaks under a seed that the baseline does not have is a leak."""
    old, leaking = cell(0.0, 32, 1), cell(1.0, others, 2, 1000)
    pooled = GateCell(old.settings, dict(old.victims) | dict(leaking.victims))
    assert kinds(verdict([old], [pooled])) == ["regression"]
    harmless = GateCell(old.settings, dict(old.victims) | dict(cell(0.0, others, 3, 1000).victims))
    assert kinds(verdict([old], [harmless])) == ["unmoved"]
    # What all known victims say, for better or by too little to count, hides no leak of others.
    for times in (3, 0.5):
        known = {name: replace(victim, rmse=times * victim.rmse) for name, victim in old.victims.items()}
        pooled = GateCell(old.settings, known | dict(leaking.victims))
        assert kinds(verdict([old], [pooled])) == ["regression"]


def test_significant_but_small_is_no_alarm(cell: Made) -> None:
    """RMSE halves for everybody, which any test sees; neither success nor rank moves by 0.1."""
    old = cell(0.0, 64, 3)
    nearer = {name: type(victim)(victim.rank, victim.rmse / 2, victim.success) for name, victim in old.victims.items()}
    new = GateCell(old.settings, nearer)
    assert movement(old, new).more_leaking < 1e-4
    assert kinds(verdict([old], [new])) == ["unmoved"]


def test_large_but_not_significant_is_no_alarm(cell: Made) -> None:
    """Three more of 24 is an effect of 0.125 that chance makes often."""
    old = cell(0.0, 24, 4)
    few = {
        name: type(victim)(0.0, 0.05, 1.0) if place < 3 else victim
        for place, (name, victim) in enumerate(old.victims.items())
    }
    moved = movement(old, GateCell(old.settings, few))
    assert moved.moved(more=True)
    assert kinds(verdict([old], [GateCell(old.settings, few)])) == ["unmoved"]


def test_leaving_the_ceiling_and_the_floor_is_seen(cell: Made) -> None:
    sure, gone = cell(1.0, 48, 5, defense="none"), cell(0.6, 48, 6, 1000, defense="none")
    assert kinds(verdict([sure], [gone])) == ["broken attack"]
    floor, left = cell(0.0, 48, 7), cell(0.4, 48, 8, 1000)
    assert kinds(verdict([floor], [left])) == ["regression"]
    assert not movement(sure, gone).may_leak_more


def succeeding(cell: Made, hits: int, victims: int = 64, **settings: Any) -> GateCell:
    """The same victims each time, whose ranks and RMSE do not tell who is brought back."""
    made = cell(0.0, victims, 3, **settings)
    return GateCell(made.settings, {
        name: replace(victim, success=float(place < hits)) for place, (name, victim) in enumerate(made.victims.items())
    })  # fmt: skip


@pytest.mark.parametrize(("before", "after", "victims", "settings", "said"), [
    (1, 60, 64, {}, "regression"), (63, 4, 64, {"defense": "none"}, "broken attack"), (0, 90, 1000, {}, "regression"),
    (0, 2, 64, {}, "unmoved"), (20, 21, 64, {}, "unmoved"), (300, 360, 1000, {}, "unmoved"),
])  # fmt: skip
def test_successes_are_tested_wherever_they_began(
    cell: Made, before: int, after: int, victims: int, settings: dict[str, Any], said: str
) -> None:
    """Of 1,000 victims 90 are less than a tenth, but more than a resilience allows; 60 more of 300 are chance to none,
    and less than counts."""
    old, new = (succeeding(cell, hits, victims, **settings) for hits in (before, after))
    (found,) = verdict([old], [new]).findings
    assert found.kind == said and bool(found.detail) == (before == 300)


def test_shares_of_other_victims_count_too(cell: Made) -> None:
    """Nobody was brought back before, and now everybody is under one of three seeds."""
    old, other = succeeding(cell, 0), succeeding(cell, 0)
    new = GateCell(other.settings, {
        str(1000 + place): replace(victim, success=0.3333) for place, victim in enumerate(other.victims.values())
    })  # fmt: skip
    assert kinds(verdict([old], [new])) == ["regression"]


def test_a_cell_at_the_ceiling_costs_the_others_no_power(cell: Made) -> None:
    """Holm counts the cells that could fail: those that leak fully under a defense cannot leak more."""
    full = [cell(1.0, 24, place, tap=f"T{place}") for place in range(30)]
    moved = cell(0.35, 24, 41), cell(0.95, 24, 42)
    alone = verdict([moved[0]], [moved[1]]).findings[0]
    among = verdict([*full, moved[0]], [*full, moved[1]]).of("regression")[0]
    assert among.p == alone.p


def test_holm_counts_the_cells(cell: Made) -> None:
    """The very same movement is an alarm alone and none among four hundred."""
    old, new = cell(0.2, 24, 11), cell(0.75, 24, 12, 1000)
    others = [cell(0.3, 24, 100 + place, tap=f"T{place}") for place in range(400)]
    alone, among = verdict([old], [new]), verdict([*others, old], [*others, new])
    assert alone.failed
    assert among.of("unmoved", "regression")[0].p >= alone.findings[0].p
    assert not among.failed


def test_missing_extra_and_incomparable_are_told_apart(cell: Made) -> None:
    old = [cell(0.5), cell(0.5, tap="T1.out"), cell(0.5, tap="T0.in"), cell(0.5, tap="T0.post")]
    few = cell(0.5, 12, 1, 1000, tap="T0.post")
    report = verdict(old, [cell(0.5, batch_size=4), cell(0.5, tap="T1.out"), cell(0.5, attack="dlg"), few])
    said = {finding.kind: finding.detail for finding in report.findings if finding.kind != "incomparable"}
    assert set(said) == {"missing", "extra", "unmoved"}
    told = [finding.detail for finding in report.of("incomparable")]
    assert told == ["other settings: batch_size 1 -> 4", "too few victims: 12, the test needs 24"]
    assert report.failed
    assert not verdict(old[:1], [old[0], cell(0.5, attack="dlg")]).failed  # an extra cell alone is news


def test_a_setting_added_since_may_stand_at_its_default(cell: Made) -> None:
    old = cell(0.5)
    at_default = GateCell(old.settings | {"observations": 1, "attack.restarts": 1}, old.victims)
    changed = GateCell(old.settings | {"observations": 9}, old.victims)
    gone = GateCell({k: v for k, v in old.settings.items() if k != "defense.clip"}, old.victims)
    assert kinds(verdict([old], [at_default])) == ["unmoved"]
    assert verdict([old], [changed]).findings[0].detail == "other settings: observations 1 -> 9"
    assert verdict([old], [gone]).findings[0].detail == "other settings: defense.clip 4.0 -> absent"


def test_other_versions_are_news_and_cells_are_compared(cell: Made) -> None:
    """Networks and noise drawn anew for the same victims are no regression; noise that is gone is one all the same."""
    other = VERSIONS | {"torch": "2.12.0"}
    report = verdict([cell(0.3, 32, 1)], [cell(0.3, 32, 2)], versions=other)
    assert not report.failed and kinds(report) == ["other versions", "unmoved"]
    assert "torch 2.11.0 -> 2.12.0" in report.findings[0].detail
    assert kinds(verdict([cell(0.1, 32, 1)], [cell(0.95, 32, 2)], versions=other)) == ["regression", "other versions"]
    assert kinds(verdict([cell()], [cell()], versions=VERSIONS | {"torch": "2.11.4"})) == ["unmoved"]


def test_what_is_only_incomparable_is_no_regression(cell: Made) -> None:
    changed = verdict([cell(0.5), cell(0.5, tap="T1.out")], [cell(0.5, batch_size=4), cell(0.5, tap="T1.out")])
    assert changed.failed and changed.only_incomparable
    worse = verdict(
        [cell(0.5), cell(0.1, 32, 1, tap="T1.out")], [cell(0.5, batch_size=4), cell(0.95, 32, 2, tap="T1.out")]
    )
    assert worse.failed and not worse.only_incomparable
    assert not verdict([cell()], [cell()]).only_incomparable


def test_nothing_in_common_is_a_mistake(cell: Made) -> None:
    with pytest.raises(UsageError, match="no cell of the baseline"):
        verdict([cell()], [cell(attack="dlg")])


def test_an_invalid_run_fails(cell: Made) -> None:
    report = verdict([cell()], [cell()], problems=["the run 'x' is invalid: swap"])
    assert report.failed and kinds(report) == ["invalid run", "unmoved"]


@pytest.mark.slow
def test_family_alarm_rate_and_power_over_whole_runs(cell: Made) -> None:
    """Forty honest runs of twelve cells with other victims; and as many in which one cell lost its noise."""
    rates = [0.0, 0.0, 0.1, 0.2, 0.5, 0.5, 0.7, 0.9, 1.0, 1.0, 1.0, 0.95]
    defenses = ["fed_cdp"] * 8 + ["none"] * 4

    def run(draw: int, faulty: bool = False) -> list[GateCell]:
        own = [0.9 if faulty and place == 2 else rate for place, rate in enumerate(rates)]
        return [
            cell(rate, 32, 1000 * draw + place, 1000 * draw, tap=f"T{place}", defense=defense)
            for place, (rate, defense) in enumerate(zip(own, defenses, strict=True))
        ]

    old = run(0)
    honest = sum(verdict(old, run(draw)).failed for draw in range(1, 41))
    caught = sum(verdict(old, run(draw, faulty=True)).failed for draw in range(41, 81))
    print(f"alarms in 40 honest runs: {honest}; faults caught in 40: {caught}")
    assert honest <= 2
    assert caught >= 38


def test_without_the_effect_rule_or_holm_honest_runs_would_alarm(cell: Made) -> None:
    """What the rule is for: at a bare 5% level per cell most honest runs of many cells show something."""
    olds = [cell(0.5, 32, place) for place in range(20)]
    bare = [
        any(
            movement(old, cell(0.5, 32, 500 * draw + place, 1000)).more_leaking <= 0.05
            for place, old in enumerate(olds)
        )
        for draw in range(1, 11)
    ]
    assert np.mean(bare) > 0.3


def skipped(cell: Made, **settings: Any) -> GateCell:
    return GateCell(cell(**settings).settings, {}, settled_by="patches")


PATCHES = {"attack": "patches"}
SKIPPED: dict[str, tuple[list[tuple[float, dict[str, Any]]], list[tuple[float, dict[str, Any]]], list[str], bool]] = {
    "beside an equal settler": ([(1.0, PATCHES), (0.0, {})], [(1.0, PATCHES)], ["skipped", "unmoved"], False),
    "beside a settler that found nothing before": (
        [(0.0, PATCHES), (0.0, {})], [(1.0, PATCHES)], ["regression", "skipped"], True,
    ),
    "where nothing came back before": ([(0.0, {})], [(1.0, PATCHES)], ["regression", "skipped"], True),
    "where it came back before": ([(1.0, {})], [(1.0, PATCHES)], ["skipped", "unmoved"], False),
    "where another brought it back": (
        [(0.0, {}), (1.0, {"attack": "map"})], [(1.0, PATCHES), (1.0, {"attack": "map"})],
        ["skipped", "unmoved", "unmoved"], False,
    ),
    "with its controls": (
        [(1.0, PATCHES), (0.0, {}), (1.0, {"noise_scale": 0.0}), (1.0, {"defense": "none"})], [(1.0, PATCHES)],
        ["skipped", "unmoved"], False,
    ),
    "but not another attack's": (
        [(1.0, PATCHES), (0.0, {}), (1.0, {"noise_scale": 0.0, "attack": "map"})], [(1.0, PATCHES)],
        ["missing", "skipped", "unmoved"], True,
    ),
    "but not at another tap": (
        [(1.0, PATCHES), (0.0, {}), (0.0, {"tap": "T1.out"})], [(1.0, PATCHES)],
        ["missing", "skipped", "unmoved"], True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SKIPPED)
def test_a_skipped_cell_is_no_regression_but_its_place_may_be(cell: Made, case: str) -> None:
    before, after, expected, failed = SKIPPED[case]
    old, new = ([cell(leak, 48, 1, **own) for leak, own in side] for side in (before, after))
    report = verdict(old, [*new, skipped(cell)])
    assert (sorted(kinds(report)), report.failed) == (expected, failed)
