"""The report and the board in a real browser: sorting, dark and light, narrow screens, accessibility, time."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.reports.html import make_page, read_runs
from harness.reports.html.page import printed
from harness.reports.html.site import make_site, make_view
from harness.reports.html.table import Head, Table, Value
from harness.results.card import Card

pytestmark = pytest.mark.browser

SECONDS = 3.0


@pytest.fixture(scope="module")
def report(grid: list[Path], judged: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(make_page(read_runs([*grid, judged])))
    return file.as_uri()


@pytest.fixture(scope="module")
def nights(grid: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the same run on two nights."""
    folder = tmp_path_factory.mktemp("nights")
    runs = [Path(shutil.copytree(grid[0], folder / name)) for name in ("monday-the-sixteenth", "tuesday")]
    (folder / "report.html").write_text(make_page(read_runs(runs)))
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def board(cards: list[Card], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("board")
    for name, content in make_site(cards).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return (folder / "index.html").as_uri()


@pytest.fixture
def visit(browser, report: str) -> Iterator[Callable]:
    """Opens the report; whatever the console or the network says in the meantime is an error."""
    pages, said = [], []

    def open_page(width: int = 1280, height: int = 900, address: str = report, **options: object):
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if _leaves(request.url) else None)
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []


def _leaves(url: str) -> bool:
    return not url.startswith(("file:", "data:"))


def column(page, table: str, title: str) -> list[str]:
    """The entries of a column in rows that are shown."""
    return page.evaluate(
        """([table, title]) => {
            const heads = [...document.querySelectorAll(`#${table} thead th`)].map(head => head.innerText);
            const place = heads.findIndex(head => head.trim().startsWith(title));
            return [...document.querySelectorAll(`#${table} tbody tr`)].filter(row => !row.hidden)
                .map(row => row.cells[place].innerText);
        }""",
        [table, title],
    )


def test_a_click_and_the_keyboard_sort(visit: Callable) -> None:
    page = visit()
    page.locator("#cells summary").click()
    head = page.locator("#cells thead th button", has_text="tau")
    head.click()
    assert column(page, "cells", "tau") == sorted(column(page, "cells", "tau"), key=float)
    head.focus()
    page.keyboard.press("Enter")
    found = [float(value) for value in column(page, "cells", "tau")]
    assert found == sorted(found, reverse=True) and found[0] > found[-1]
    assert page.locator("#cells thead th[aria-sort=descending]").count() == 1


def test_filters_leave_the_rows_that_fit(visit: Callable) -> None:
    page = visit()
    page.locator("#cells summary").click()
    page.locator("#cells .tools select").nth(0).select_option("fed_sdp")
    assert set(column(page, "cells", "defense")) == {"fed_sdp"}
    page.locator("#cells input[type=search]").fill("undecided DLG")
    assert len(column(page, "cells", "defense")) == 1
    assert page.locator("#cells output").inner_text() == "1 of 8 rows"
    page.locator("#cells input[type=search]").fill("")
    page.locator("#cells .tools select").nth(0).select_option("")
    assert len(column(page, "cells", "defense")) == 8


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_and_the_button(visit: Callable) -> None:
    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    assert background(light) == "rgb(255, 255, 255)" != background(dark)
    night = background(dark)
    light.get_by_role("button", name="Dark").click()
    assert background(light) == night
    light.reload()
    assert background(light) == night
    light.get_by_role("button", name="Light").click()
    assert background(light) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [320, *(pytest.param(width, marks=pytest.mark.slow) for width in (390, 768, 1280))])
def test_no_screen_is_too_narrow(visit: Callable, width: int) -> None:
    page = visit(width)
    page.evaluate("document.querySelectorAll('select').forEach(box => box.add(new Option('long '.repeat(20))))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    first = page.locator(".matrix td").first.bounding_box()
    assert first["width"] > 40 and first["x"] + first["width"] <= width


def test_everything_is_there_without_scripts(visit: Callable) -> None:
    page = visit(java_script_enabled=False)
    assert page.locator(".matrix td").first.is_visible() and page.locator("#cells tbody tr").count() == 8
    assert not page.locator("#theme").is_visible()


def test_the_keyboard_reaches_the_report_and_every_scrolling_part(visit: Callable) -> None:
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(part => part.tabIndex === 0)")


def test_what_goes_on_to_the_side_is_hinted_at_until_its_end(visit: Callable) -> None:
    page = visit(390)
    page.locator("#cells summary").click()
    hint = page.locator("#cells .scroll.more")
    hint.wait_for()
    hint.evaluate("part => part.scrollLeft = part.scrollWidth")
    page.wait_for_selector("#cells .scroll:not(.more)")


def test_white_pictures_are_toned_in_the_dark_and_on_paper_as_they_are(visit: Callable) -> None:
    page = visit(color_scheme="dark")
    tone = "getComputedStyle(document.querySelector('.picture img')).filter"
    assert page.evaluate(tone) == "brightness(0.78)"
    page.emulate_media(media="print")
    assert page.evaluate(tone) == "none"


def test_the_matrix_leads_to_its_picture(visit: Callable) -> None:
    page = visit()
    page.locator(".matrix td a").first.click()
    assert page.locator(".picture:target").is_visible()


@pytest.mark.parametrize(("width", "scheme"), [
    (1280, "light"),
    *(pytest.param(*screen, marks=pytest.mark.slow) for screen in ((390, "dark"), (390, "light"), (1280, "dark"))),
])  # fmt: skip
def test_axe_finds_nothing(visit: Callable, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(width, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    # In the dark only colours are others.
    of_colours = {"runOnly": ["color-contrast"]} if scheme == "dark" and width == 390 else None
    found = axe.Axe().run(page, options=of_colours).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


@pytest.mark.parametrize(("width", "scheme"), [
    (390, "dark"), *(pytest.param(*screen, marks=pytest.mark.slow) for screen in ((1280, "light"), (390, "light"))),
])  # fmt: skip
def test_trends_fit_every_screen(visit: Callable, nights: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(width, address=nights, color_scheme=scheme)
    page.locator("nav a", has_text="Trend").click()
    boxes = [panel.bounding_box() for panel in page.locator(".panel svg").all()]
    assert len(boxes) == 12 and all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    assert all(box["width"] > 250 and box["height"] > 120 for box in boxes)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#trend summary").click()
    page.locator("#trend .tools select").select_option("success")
    assert set(column(page, "trend", "moved")) == {"0 points"}
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


def test_it_prints_with_everything_unfolded(visit: Callable) -> None:
    page = visit()
    assert page.pdf().startswith(b"%PDF")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_it_opens_quickly(visit: Callable) -> None:
    page = visit()
    began = time.perf_counter()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_the_board_and_a_rows_page_fit_every_screen(visit: Callable, board: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(width, address=board, color_scheme=scheme)
    for _ in ("the board", "the page of its first row"):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert axe.Axe().run(page).response["violations"] == []
        page.locator("a[href^=rows], a[href^='../index']").first.click()
        page.wait_for_selector("html[data-ready]")
    assert page.locator("#board").is_visible()


def test_the_board_sorts_and_filters_and_needs_no_script(visit: Callable, board: str) -> None:
    page = visit(address=board)
    page.locator("#board thead th button", has_text="accuracy").click()
    assert column(page, "board", "accuracy")[0] == "90.6%"
    page.locator("#board .tools select").nth(1).select_option("✔ resilient")
    assert [name.split()[0] for name in column(page, "board", "defense")] == ["fed_cdp"]
    plain = visit(address=board, java_script_enabled=False)
    assert plain.locator("#board tbody tr").count() == 9 and plain.locator("#board tbody tr").last.is_visible()
    plain.locator("#board tbody a").first.click()
    assert plain.locator("#again pre").is_visible() and plain.locator("a[href^='../cards/']").is_visible()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"), (390, "dark"),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in ((1280, "dark"), (390, "light"))),
    ],
)  # fmt: skip
def test_axe_finds_nothing_on_other_pages(
    visit: Callable, grid: list[Path], tmp_path: Path, scheme: str, width: int
) -> None:
    """The page of all runs, and that of a printed table."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    table = Table("t", "", (Head("who"), Head("how much", number=True)), ((Value("a"), Value("1", 1.0)),))
    pages = {
        "view.html": make_view(read_runs(grid[:1]))["index.html"],
        "printed.html": printed("harness account", ["a line", table, table], ".html")[0],
    }
    for name, content in pages.items():
        (tmp_path / name).write_bytes(content)
        page = visit(width, address=(tmp_path / name).as_uri(), color_scheme=scheme)
        assert axe.Axe().run(page).response["violations"] == [], name
