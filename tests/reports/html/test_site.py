"""The board's pages: rows in words, one page each, and whatever a card says stays text."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.reports.html.site import make_site
from harness.results import CellResult, Statement
from harness.results.card import Card, Reported

MakeCell = Callable[..., CellResult]
OutlineOf = Callable[[str], Any]


def test_a_row_says_what_its_card_says(cards: list[Card], outline_of: OutlineOf) -> None:
    page = outline_of(make_site(cards)["index.html"].decode())
    for words in (
        "5 of 9 rows: private data, or traces of them, come back.", "1 of 9 rows: every attack was withstood.",
        "1 of 9 rows: of runs that must not be used.", "1 row of these: the paper says that nothing does.",
        "12.5, too large to promise anything (example)", "90.6%", "25%", "none exists",
        "! invalid", "– not run", "? undecided",
    ):  # fmt: skip
        assert words in page.text
    links = {link["href"] for link in page.all("a")}
    assert {f"rows/{card.name}.html" for card in cards} <= links


def test_a_rows_page_shows_attacks_controls_promises_and_how_to_make_it_again(
    cards: list[Card], outline_of: OutlineOf
) -> None:
    card = cards[1]
    page = outline_of(make_site([card])[f"rows/{card.name}.html"].decode())
    for words in (
        "resilient: ", "12.5, too large to promise anything (example) at delta 1e-05: why",
        "90.6% of 360 test examples after 20 rounds", card.hash,
        "clients 100",
        "harness 0.1.2, torch 2.14", f"harness verify {card.name}.json harness evaluate --defense fed_cdp",
        "Every attack at every place", "Each control by itself", "✔ held",
    ):  # fmt: skip
        assert words in page.text
    assert f"../cards/{card.name}.json" in {link["href"] for link in page.all("a")}


HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}\x1b[31m\u202e"


def test_nothing_in_a_card_becomes_markup_or_part_of_a_path(
    a_cell: MakeCell, a_card: Callable[..., Card], outline_of: OutlineOf
) -> None:
    cell = a_cell(
        HOSTILE, dataset=f"../../{HOSTILE}", model=HOSTILE, attack=HOSTILE, verdict_reason=HOSTILE, suite=HOSTILE,
        defense_args={HOSTILE: HOSTILE}, cohort={HOSTILE: HOSTILE},
    )  # fmt: skip
    card = a_card(
        cell, command=HOSTILE, reason=HOSTILE, environment={"versions": {"harness": HOSTILE}, "machine": HOSTILE},
        reported=Reported(source=HOSTILE, data=HOSTILE, resists="N"),
        statement=Statement(view=HOSTILE, epsilon=1.0, unit=HOSTILE, guarantee="none", notes=HOSTILE),
    )  # fmt: skip
    files = make_site([card], [HOSTILE])
    assert all(re.fullmatch(r"(index|rows/[0-9a-f]{20})\.html|cards/[0-9a-f]{20}\.json", name) for name in files)
    for name, content in files.items():
        if name.endswith(".html"):
            page = outline_of(content.decode())
            assert page.all("img") == [] and len(page.all("script")) == 1 and "\x1b" not in content.decode()
            assert all(not name.startswith("on") for _, given in page.elements for name in given)


def test_the_pages_load_nothing_and_are_the_same_every_time(cards: list[Card], outline_of: OutlineOf) -> None:
    files = make_site(cards)
    assert files == make_site(cards)
    for name, content in files.items():
        if name.endswith(".html"):
            page = outline_of(content.decode())
            assert "default-src &#39;none&#39;" in content.decode() and not page.all("link") and not page.all("iframe")
            links = {str(link["href"]) for link in page.all("a")}
            assert all(re.match(r"#|(\.\./)?(rows|cards)/[0-9a-f]{20}\.|\.\./index", link) for link in links)


def test_a_board_of_nothing_is_none() -> None:
    with pytest.raises(IndexError):
        make_site([])
