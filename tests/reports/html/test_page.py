"""The page: its structure, that it loads nothing, and that whatever a result says stays text."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from harness.base.words import MARKS, PAD, Words
from harness.reports.html import make_page, read_runs
from harness.reports.pictures import save_figure
from harness.reports.text_picture import save_texts
from harness.results import RunFolder

Outline = Any  # an outline of conftest
OutlineOf = Callable[[str], Outline]


@pytest.fixture(scope="module")
def page(grid: list[Path]) -> str:
    return make_page(read_runs(grid))


@pytest.fixture(scope="module")
def outline(page: str, outline_of: OutlineOf) -> Outline:
    return outline_of(page)


def test_sections_stand_in_the_order_of_a_reader(page: str) -> None:
    places = [page.index(f'id="{name}"') for name in ("verdict", "matrix", "gallery", "figures", "tables", "again")]
    assert places == sorted(places)


def test_the_verdict_says_which_defense_leaks_where(outline: Outline) -> None:
    assert "fed_sdp leaks inside the client and on the way: it fell to attackers who need not know" in outline.text
    assert "fed_cdp withstood only attackers who do not know the noise (2 attacks)." in outline.text
    assert "2 attacks tried (cpl and dlg): none of the attackers knows the defense and its noise." in outline.text


def test_every_verdict_has_a_word_and_a_symbol_beside_its_colour(page: str) -> None:
    entries = [
        entry
        for table in re.findall(r'<table class="matrix">.*?</table>|id="cells".*?</table>', page, re.DOTALL)
        for entry in re.findall(r'<td class="(leaks|resilient|inconclusive)"[^>]*>(.*?)</td>', table, re.DOTALL)
    ]
    words = {"leaks": "✖ LEAKS", "resilient": "✔ resilient", "inconclusive": "? undecided"}
    # Surfaces that show the same are one row, of the matrix and of the cells.
    assert len(entries) == 4 + 8
    assert all(words[kind] in entry for kind, entry in entries)


def test_nothing_is_loaded_and_only_our_script_may_run(page: str, outline: Outline) -> None:
    for tag, attributes in outline.elements:
        for name in ("src", "href", "data", "action", "srcset"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("data:image/", "#")), (tag, name, value[:80])
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
    assert not {"iframe", "object", "embed", "link", "form", "base"} & {tag for tag, _ in outline.elements}
    [policy] = [entry["content"] for entry in outline.all("meta") if entry.get("http-equiv")]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("style", "script"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in policy


def test_pictures_and_figures_can_be_read_aloud_and_links_lead_somewhere(outline: Outline) -> None:
    assert all(image.get("alt") for image in outline.all("img"))
    names = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for drawn in outline.all("svg"):
        assert drawn["role"] == "img" and set(drawn["aria-labelledby"].split()) <= set(names)
    targets = {link["href"] for tag in ("a", "use") for link in outline.all(tag)}
    assert {target.lstrip("#") for target in targets} <= set(names)


def test_every_group_of_figures_names_its_command(page: str) -> None:
    [utility] = re.findall(r'id="figures".*?<figure class="figure">(.*?)</figure>', page, re.DOTALL)
    groups = re.findall(r'<details class="group">(.*?)<details class="again">(.*?)</details>', page, re.DOTALL)
    assert [drawn.count('<figure class="figure">') for drawn, _ in groups] == [3, 3]
    assert all("<pre" in one and "harness " in one for one in (utility, *(command for _, command in groups)))


def test_promises_stand_beside_what_holds(outline: Outline) -> None:
    assert "0.820" in outline.text and "2.310" in outline.text
    assert "protected before it leaves the client" in outline.text
    assert "private" not in outline.text.replace("private images", "").replace("private data", "")


NASTY = [
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "{{ 1234567*7 }}",
    "{% raw %}", "../../etc/passwd", "$\\frac{", "&lt;b&gt;", "javascript:alert(1)", "a\x00\x1b[31mb", "'; rm -rf /",
    "]]>", "<!--", "--out", "数\U0001f600", "\u202egnp.exe",
]  # fmt: skip


def hostile_page(folder: Path, a_cell: Callable, a_run: Callable, a_training: Callable, name: str) -> str:
    statement = {"view": name, "guarantee": name, "notes": name, "schedule": name}
    facts = {
        "dataset": name, "model": name, "attack": name, "units": name, "verdict_reason": name, "privacy": [statement],
        "defense_args": {name: name, "sigma": name}, "controls": [{"name": name, "held": False, "detail": name}],
    }  # fmt: skip
    cells = [a_cell(name, surface, **facts) for surface in (2, 0)]
    a_run(folder / "eval", cells, pictures=False)
    a_training(folder / "train", name, dataset=name, model=name)
    return make_page(read_runs([folder / "eval", folder / "train"]))


def check_tame(outline: Outline) -> None:
    assert len(outline.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in outline.elements for name in attributes)
    assert {tag for tag, _ in outline.elements} <= {
        "html", "head", "meta", "title", "style", "body", "a", "header", "h1", "h2", "h3", "nav", "button", "main",
        "section", "p", "ul", "li", "span", "strong", "small", "div", "table", "caption", "thead", "tbody", "tr", "th",
        "td", "dl", "dt", "dd", "b", "details", "summary", "figure", "figcaption", "img", "pre", "code", "footer",
        "script", "svg", "desc", "g", "path", "defs", "clippath", "rect", "use", "text", "br",
        "bdi", "mark",
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    *NASTY[::7], *(pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(NASTY) if place % 7),
])  # fmt: skip
def test_hostile_names_render_as_text(
    tmp_path: Path, a_cell: Callable, a_run: Callable, a_training: Callable, outline_of: OutlineOf, name: str
) -> None:
    outline = outline_of(hostile_page(tmp_path, a_cell, a_run, a_training, name))
    check_tame(outline)
    shown = "".join(mark if mark.isprintable() else "?" for mark in name)
    assert shown[:30] in outline.text
    assert str(1234567 * 7) not in outline.text


def test_hostile_texts_are_shown_as_they_are(
    tmp_path: Path, a_cell: Callable, a_run: Callable, outline_of: OutlineOf
) -> None:
    """Also of a file that somebody else wrote; one that holds something else, or too much, is a picture like others."""
    texts = {"text_exact": {"mean": 1.0}, "tokens_right": {"mean": 1.0}}
    cells = [a_cell("none", surface, key=f"{surface}" * 8, metrics=texts) for surface in (2, 1, 0)]
    folder = RunFolder(a_run(tmp_path / "eval", cells))
    words = Words((*MARKS, *NASTY))
    truth = [[*range(2, len(words.vocabulary)), PAD], [3, PAD, PAD, *[PAD] * (len(NASTY) - 2)]]
    made = [truth[0], [4, *truth[1][1:]]]
    save_texts(folder.picture("2" * 8), truth, made, words, ["100% of tokens", NASTY[0]], "title")
    forged = [{"caption": "\x1b", "truth": None, "made": [["\u202e\x00" + "a" * 900, True]]}]
    for key, beside in (("1" * 8, json.dumps(forged)), ("0" * 8, json.dumps(forged * 65))):
        save_figure(Figure(), folder.picture(key), texts=beside)
    page = make_page(read_runs([folder.path]))
    outline = outline_of(page)
    check_tame(outline)
    assert len(outline.all("img")) == 1 and "\x1b" not in page and "\u202e" not in page
    for shown in (NASTY[0], NASTY[1], "{{ 1234567*7 }}", "\\u202egnp.exe", "\\u0000" + "a" * 60 + "\u2026"):
        assert shown[:60] in outline.text
    assert str(1234567 * 7) not in outline.text


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60))
def test_any_name_renders_as_text(
    tmp_path_factory: pytest.TempPathFactory, a_cell: Callable, a_run: Callable, a_training: Callable,
    outline_of: OutlineOf, name: str,
) -> None:  # fmt: skip
    check_tame(outline_of(hostile_page(tmp_path_factory.mktemp("fuzz"), a_cell, a_run, a_training, name)))


@pytest.mark.parametrize("state", ["invalid", "unfinished", "without a document"])
def test_an_invalid_run_says_so_above_its_verdicts(
    tmp_path: Path, a_cell: Callable, a_run: Callable, outline_of: OutlineOf, state: str
) -> None:
    a_run(tmp_path / "eval", [a_cell()], pictures=False)
    file = tmp_path / "eval" / "results.json"
    document = json.loads(file.read_text()) | {"valid": False, "complete": state == "invalid"}
    file.write_text(json.dumps(document))
    if state == "without a document":
        file.unlink()
        RunFolder(tmp_path / "eval").write_cell("0" * 20, {}, a_cell(), [])
    word = "invalid" if state == "invalid" else "unfinished"
    text = outline_of(make_page(read_runs([tmp_path / "eval"]))).text
    where = text.index(f"Run eval is {word.upper()} and its verdicts must not be used")
    assert where < text.index(f"Without a defense, no verdict, as the run is {word}.")
