"""Many places at once: the chance of some ``leaks`` by noise alone, and which leaks remain by Holm."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from harness.reports.table import print_results
from harness.results import CellResult, Identified, Lineup, Rate, ResultDocument
from harness.scoring.strongest import Multiplicity, of_document
from harness.scoring.summarise import summarise
from harness.scoring.verdict import judge


def page(places: Sequence[float], attacks: int) -> Multiplicity | None:
    """As many places, one attack of each with this lineup p, the others with p = 1."""
    cells = [
        cell(f"{place}-{number}", place, p_value if number == 0 else 1.0)
        for place, p_value in enumerate(places) for number in range(attacks)
    ]  # fmt: skip
    return of_document(summarise(cells), cells)


def cell(key: str, place: int, p_value: float) -> CellResult:
    lineup = Lineup(rate=0.0, mean_rank=0.5, p_value=p_value, confirmed_p_value=1.0)
    verdict = judge(0, Rate(successes=0, n=64, rate=0.0), lineup, []).verdict
    return CellResult(
        key=key, dataset="digits", model="mlp", defense="fed_cdp", attack=key, surface=2, tap="T2.step", seeds=[place],
        victims=64, lineup=lineup, verdict=verdict,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("places", "attacks", "by_noise", "independent"), [(2, 1, 0.004, 0.004), (50, 6, 0.6, 0.453), (50, 20, 1.0, 0.636)]
)
def test_the_chance_adds_up_over_places_and_attacks(
    places: int, attacks: int, by_noise: float, independent: float
) -> None:
    """Two tests of each attack at .001, at .01 over their number where there are more than ten attacks."""
    counted = page([1.0] * places, attacks)
    assert counted and (counted.places, counted.leaking, counted.remaining) == (places, 0, 0)
    assert counted.by_noise == pytest.approx(by_noise) and counted.independent == pytest.approx(independent, abs=1e-3)


@pytest.mark.parametrize(
    ("p_values", "remaining"),
    [
        ([2e-5] * 3 + [9e-4], 4),  # 12 tests each: 9e-4 is .011 of its place, and three places come before it
        ([2e-5] * 3 + [9e-4] + [1.0] * 46, 3),  # among fifty places it is what noise makes
        ([9e-4] + [1.0] * 49, 0),
    ],
)
def test_which_leaks_remain_over_the_page(p_values: list[float], remaining: int) -> None:
    counted = page(p_values, 6)
    assert counted and counted.leaking == sum(p < 1e-3 for p in p_values) and counted.remaining == remaining
    assert counted.unresolved == 0
    assert f"{remaining} of {counted.leaking} leaks remain" in counted.words


def test_what_cannot_leak_is_not_counted() -> None:
    """One place is its own verdict; attacks that only identify, and those that are impossible, make none leak."""
    told = cell("told", 1, 1.0).model_copy(update={"identified": Identified(rate=0.5, n=64, p_value=1.0)})
    refused = cell("refused", 2, 1.0).model_copy(update={"not_applicable_reason": "no gradient there"})
    cells = [cell("one", 0, 1.0), told, refused]
    assert of_document(summarise(cells), cells) is None


def test_what_more_permutations_would_tell_is_not_called_noise() -> None:
    counted = page([2e-4] * 40, 6)
    assert counted and (counted.remaining, counted.unresolved) == (0, 40)
    assert counted.words.endswith("0 of 40 leaks remain; 40 have the smallest p-value that the test can give.")


def test_the_terminal_says_it_of_a_run_of_several_places() -> None:
    cells = [cell(str(place), place, 2e-5) for place in range(3)]
    printed = io.StringIO()
    document = ResultDocument(environment={}, valid=True, cells=cells, summary=summarise(cells))
    print_results(document, Console(file=printed, width=200))
    counted = of_document(document.summary, cells)
    assert counted and "3 of 3 leaks remain." in counted.words and counted.words in printed.getvalue()
