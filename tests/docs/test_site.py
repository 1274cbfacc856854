"""The documentation: it builds without a warning, its links and anchors lead somewhere, and everybody can read it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from harness.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page links to, and the anchors it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [found[name] or "" for name in ("href", "src") if name in found]
        self.anchors.add(found.get("id") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as .ci/run builds it, which says where it did; a warning is an error."""
    if "BUILT_DOCS" in os.environ:
        return Path(os.environ["BUILT_DOCS"])
    pytest.importorskip("sphinx", reason="sphinx is not installed; pip install '.[dev]'")
    out = tmp_path_factory.mktemp("docs")
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-d",
        str(out / "doctrees"),
        "-c",
        "docs",
        ".",
        str(out / "site"),
    ]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / "site"


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    pages = {file.resolve(): Page(file) for file in site.rglob("*.html") if "_static" not in file.parts}
    inside = [
        (file, urldefrag(link)) for file, page in pages.items() for link in page.links
        if "://" not in link and not link.startswith(("data:", "mailto:"))
    ]  # fmt: skip
    assert len(pages) > 15 and len(inside) > 500
    for file, (path, anchor) in inside:
        target = (file.parent / unquote(path.partition("?")[0])).resolve() if path else file
        assert target.exists(), (file.name, path)
        assert not anchor or target.suffix != ".html" or unquote(anchor) in pages[target].anchors, (file.name, anchor)


def test_every_command_is_in_the_reference(site: Path) -> None:
    assert {f"harness-{name}" for name in COMMANDS} <= Page(site / "docs" / "commands.html").anchors


# All pages, the longest among them, are slow.
QUICK = [("docs/concepts.html", 1280, "light"), ("docs/index.html", 390, "dark")]


@pytest.fixture
def seen(request: pytest.FixtureRequest, browser: Any, site: Path) -> Iterator[Any]:
    """A page of the site as a reader's browser shows it; nothing is fetched from anywhere else."""
    name, width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / name).as_uri())
    yield page
    page.close()
    assert asked and all(url.startswith(("file:", "data:")) for url in asked), asked


def _findings(page: Any) -> list[tuple[str, str]]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    return [(one["id"], one["nodes"][0]["html"]) for one in axe.Axe().run(page).response["violations"]]


@pytest.mark.browser
@pytest.mark.parametrize("seen", QUICK, indirect=True, ids=lambda case: case[0])
def test_axe_finds_nothing(seen: Any) -> None:
    assert _findings(seen) == []
    assert seen.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (1280, "dark"), (390, "dark")])
def test_axe_finds_nothing_on_any_page(browser: Any, site: Path, width: int, scheme: str) -> None:
    for file in [page for page in site.rglob("*.html") if "_static" not in page.parts and page != site / "index.html"]:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(file.as_uri())
        assert _findings(page) == [], file.name
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), file.name
        page.close()
