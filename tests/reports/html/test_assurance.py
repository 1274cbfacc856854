"""The assurance report: every statement comes from a field, the worst is said first, and bad input gives no page."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from harness.base.presence import told_apart
from harness.base.version import __version__
from harness.cli import run
from harness.evaluation.derived import by_victims
from harness.reports.html.facts import threat_model
from harness.results import CellResult, Control, Lineup, Outcomes, ResultDocument, RunFolder, Statement, VictimRecord
from harness.results.record import PublicData
from harness.scoring.harms import first_in_lineup, reconstructed
from harness.scoring.summarise import summarise
from harness.scoring.verdict import fault_of

MakeCell = Callable[..., CellResult]
WriteRun = Callable[..., Path]
OutlineOf = Callable[[str], Any]


def victim(
    number: int, hit: bool, image: int = 0, seed: int = 0, index: int | None = None, cell: CellResult | None = None
) -> VictimRecord:
    """A victim whose image came back and was told apart, or neither."""
    where = {name: getattr(cell, name, "one") for name in ("dataset", "defense", "attack", "tap")}
    return VictimRecord(
        cell=(cell and cell.key) or "one", seed=seed, victim=number, image=image, **where,
        outcome="success" if hit else "failure", rmse=0.01 if hit else 0.6, dataset_index=index,
        lineup_rank=1 if hit else 5, lineup_size=10,
    )  # fmt: skip


def assure(tmp_path: Path, *arguments: object) -> str:
    """The page of a command that succeeds."""
    out = tmp_path / "assurance.html"
    assert run(["assure", *map(str, arguments), "--out", str(out)]) == 0
    return out.read_text()


def resolve(source: str, runs: list[Path], claims: object) -> object:
    """The value that a source names; raises where there is none."""
    file, pointer = source.split("#", 1)
    if file.startswith("registry/"):
        return file
    if file.endswith("victims.jsonl"):
        lines = (runs[int(file[3]) - 1] / "victims.jsonl").read_text().splitlines()
        return next(line for line in lines if json.loads(line)["cell"] == pointer)
    value: Any = (
        claims if file == "claims.json" else json.loads((runs[int(file[3]) - 1] / file.split("/", 1)[1]).read_text())
    )
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


CLAIM = {
    "defense": "fed_cdp", "unit": "client", "adjacency": "replace", "view": "server", "rounds": 1,
    "claimed_epsilon": 8.0, "claimed_delta": 1e-5, "epsilon": 7.9, "delta": 1e-5, "mu": 1.65, "holds": True,
    "sampler": "none", "notes": "exact",
    "conditions": {"fails": ["nobody knows the seed"], "unknown": ["the model has no counters"]},
    "warnings": ["one warning"], "remarks": ["whoever knows numpy's random seed knows the noise"],
}  # fmt: skip
ENVIRONMENT = {
    "versions": {"harness": __version__}, "git": "abc", "machine": "x86_64", "processor": "p", "device": "cpu",
}  # fmt: skip
_SPAN = re.compile(r'<span data-from="([^"]*)"[^>]*>([^<]*)</span>')


def judged(a_cell: MakeCell, surface: int, verdict: str) -> CellResult:
    """A cell of this verdict; it is inconclusive as its attack does not work without the defense."""
    works = Control(name="positive", held=verdict != "inconclusive", detail="the attack does not leak even undefended")
    cohort = {"clients": 100, "clients_per_round": 10, "rounds": 100}
    return a_cell("fed_cdp", surface, verdict=verdict, cohort=cohort, defense_args={"{brace}": 1.0}, controls=[works])


def victims_of(cell: CellResult) -> list[VictimRecord]:
    found = [victim(number, cell.verdict == "leaks" and number < 57, cell=cell) for number in range(cell.victims)]
    return [VictimRecord.model_validate(one.model_dump()) for one in found]


def borne_out(cell: CellResult) -> CellResult:
    """The cell with the numbers of its victims."""
    return cell if cell.not_applicable_reason else by_victims(cell, victims_of(cell))


@pytest.fixture
def a_run() -> WriteRun:
    """A run whose verdicts are those of its victims, one image each."""

    def write(folder: Path, cells: list[CellResult]) -> Path:
        cells = [borne_out(cell) for cell in cells]
        fault = fault_of(cells)
        document = ResultDocument(
            environment=ENVIRONMENT, cells=cells, summary=summarise(cells),
            valid=fault is None, valid_reason=fault,
        )  # fmt: skip
        RunFolder(folder).write_results(document, [one for cell in cells for one in victims_of(cell)])
        return folder

    return write


@pytest.mark.parametrize("verdict", ["leaks", "resilient", "inconclusive"])
def test_every_statement_comes_from_a_field_that_exists(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, verdict: str
) -> None:
    cells = [judged(a_cell, surface, verdict) for surface in (2, 1)]
    refused = {
        "attack": "dlg",
        "not_applicable_reason": "too large",
        "verdict": "inconclusive",
        "asr": {},
        "metrics": {},
        "confirmed": 0,
        "lineup": Lineup(),
        "bound": None,
        "privacy": [],
        "verdict_reason": "not applicable",
        "victims": 0,
    }
    cells.append(cells[0].model_copy(update=refused | {"outcomes": Outcomes(), "controls": []}))
    folder = a_run(tmp_path / "run", cells)
    (tmp_path / "claims.json").write_text(json.dumps({"rows": [CLAIM]}))
    page = assure(tmp_path, folder, "--claims", tmp_path / "claims.json", "--by", "me")
    spans = _SPAN.findall(page)
    assert len(spans) > 40
    for sources, words in spans:
        for source in sources.split(" "):
            assert source.startswith("option:") or resolve(source, [folder], {"rows": [CLAIM]}) is not ..., words
    # What stands outside of fields is the same for every run; commands and the glossary explain, and state nothing.
    rest = re.sub(
        r"<meta[^>]*>|<(style|script|pre)>?.*?</\1>|<section id=\"glossary\".*",
        "",
        _SPAN.sub("", page),
        flags=re.DOTALL,
    )
    for own in ("fed_cdp", "mnist-sample", "lenet", "cpl", "{brace}", "60", "36", "12 "):
        assert own not in rest


@pytest.mark.parametrize(
    ("verdicts", "opening"),
    [
        (("leaks", "leaks"), "An attack succeeded: training records were reconstructed and"),
        (("resilient", "leaks"), "An attack succeeded: training records were reconstructed and"),
        (("inconclusive", "leaks"), "An attack succeeded: training records were reconstructed and"),
        (
            ("resilient", "resilient"),
            "No attack that was tried succeeded at the 2 places tested, but not every",
        ),
        (
            ("resilient", "inconclusive"),
            "The tests leave the question open at 1 of the 2 places tested: count it as untested.",
        ),
        (
            ("inconclusive", "inconclusive"),
            "The tests leave the question open at all 2 places tested: count them as untested.",
        ),
    ],
)
def test_the_worst_is_said_first(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf, verdicts: tuple[str, str], opening: str
) -> None:
    cells = [judged(a_cell, surface, verdict) for surface, verdict in enumerate(verdicts)]
    page = assure(tmp_path, a_run(tmp_path / "run", cells))
    first = next(words for _, words in _SPAN.findall(page))
    assert first.startswith(opening)
    said = outline_of(page).text
    assert ("inconclusive" in verdicts) == ("The reason: " in said)
    assert ("inconclusive" in verdicts) == ("So no bound holds, with any confidence." in said)
    assert not re.search(r"\b(safe|private)\b", said)
    assert "No attack was asked for that tests this." in said


def test_captures_are_told_from_simulations_and_what_they_do_not_declare_is_not_made_up(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf
) -> None:
    folder = a_run(tmp_path / "run", [judged(a_cell, 1, "leaks")])
    check = {"outcome": "cannot tell", "detail": "no noise is declared"}
    document = {
        "valid": True, "captures": 60, "images_each": 1, "estimates": [], "prior": "digits",
        "record": {"model": "lenet", "framework": "flower", "defense": {"name": "none"}, "clients": None},
        "checks": [{"name": "norms", "outcome": "holds", "detail": "all"}, {"name": "noise is Gaussian"} | check,
                   {"name": "noise is on every tensor"} | check],
    }  # fmt: skip
    (folder / "judged.json").write_text(json.dumps(document))
    page = assure(tmp_path, folder)
    said = outline_of(page).text
    assert "60 clients, 1 example each, training lenet, captured in flower; no defense is declared" in said
    assert "its clients and rounds are not declared with the captures" in said and "100 clients" not in said
    assert "No check could tell of 'noise is Gaussian' and 'noise is on every tensor': no noise is declared." in said
    assert "The command judges the same captures again." in said and "harness verify" not in page
    assert "Simulated" not in said
    for sources, words in _SPAN.findall(page):
        for source in sources.split(" "):
            assert source.startswith("option:") or resolve(source, [folder], {}) is not ..., words
    document["record"] |= {"clients": 60, "rounds": 3}
    (folder / "judged.json").write_text(json.dumps(document))
    assert "60 clients, an unknown number of in each of 3 rounds" not in (
        said := outline_of(assure(tmp_path, folder)).text
    )
    assert "60 clients, of whom an unknown number in each of 3 rounds" in said


def test_what_is_proven_is_said_in_one_line_before_the_table(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf
) -> None:
    def lead(name: str, *statements: Statement) -> str:
        page = assure(tmp_path, a_run(tmp_path / name, [a_cell("fed_cdp", 1, privacy=list(statements))]))
        found = re.search(r'<p class="lead"><span[^>]*>([^<]*)</span>', page)
        return found[1] if found else ""

    shared: dict[str, Any] = {"delta": 1e-5, "unit": "example", "adjacency": "add or remove", "notes": "why"}
    server = Statement(view="server", epsilon=4.5, guarantee="sample-DP local view", covers=True, **shared)
    other = Statement(view="third party", epsilon=0.5, guarantee="sample-DP", covers=False, **shared)
    nothing = Statement(view="server", epsilon=None, claimed_epsilon=0.8, guarantee="none", notes="why")
    assert lead("covered", other, server) == "About what can be read at the attacked place, epsilon 4.5 is proven."
    assert (
        lead("not", other) == lead("none", nothing) == "Nothing is proven about what can be read at the attacked place."
    )
    assert lead("older", replace(server, covers=None)) == ""


def test_what_was_left_out_is_listed(tmp_path: Path, a_cell: MakeCell, a_run: WriteRun) -> None:
    def listed(*attacks: str) -> str:
        cells = [a_cell("fed_cdp", attack=attack, verdict="resilient") for attack in attacks]
        page = assure(tmp_path, a_run(tmp_path / "-".join(attacks), cells))
        return page.split('id="not-tried"')[1].split("</section>")[0]

    assert re.search(r"\bdlg\b", listed("cpl")) and not re.search(r"\bdlg\b", listed("cpl", "dlg"))
    for words in ("Attackers that combine several rounds", "generative priors", "(tampering)", "published after"):
        assert words in listed("cpl", "dlg")


@pytest.mark.parametrize(
    ("victims", "counted"),
    [
        ([victim(one, False) for one in range(64)], (64, 0, 64, 0)),
        ([victim(one, one < 3) for one in range(8)], (8, 3, 8, 3)),
        ([victim(one, one == 0, image) for one in range(4) for image in range(2)], (8, 2, 4, 1)),
        ([victim(0, True, index=7), victim(0, True, seed=1, index=7)], (1, 1, 1, 1)),
        ([victim(0, True, index=7), victim(0, False, seed=1, index=8)], (2, 1, 2, 1)),
    ],
    ids=["none of 64", "three of eight", "a client's records are one trial", "one record twice", "two seeds"],
)
def test_records_of_one_client_are_one_trial(victims: list[VictimRecord], counted: tuple[int, ...]) -> None:
    for count in (reconstructed([victims]), first_in_lineup(victims)):
        assert (count.records, count.hit, count.clients, count.touched) == counted
        if count.touched == 0:
            assert count.at_most == pytest.approx(1 - 0.05 ** (1 / count.clients))
            assert count.at_least == 0
        if count.touched == count.clients:
            assert count.at_least == pytest.approx(0.05 ** (1 / count.clients))
            assert count.at_most == 1


@pytest.mark.parametrize(
    ("given", "chance"),
    [
        ({}, 1.0), ({"epsilon": 0.0}, 0.01), ({"epsilon": 1.0, "delta": 1e-5}, 0.0271928), ({"epsilon": 800.0}, 1.0),
        ({"epsilon": 5.0}, 0.9933295), ({"mu": 1.0}, norm.sf(norm.isf(0.01) - 1.0)), ({"mu": 0.0}, 0.01),
    ],
)  # fmt: skip
def test_presence_is_told_at_most_so_often(given: dict[str, float], chance: float) -> None:
    assert told_apart(0.01, **given) == pytest.approx(chance, rel=1e-4)


def test_what_the_operator_states_is_text_and_marked(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf
) -> None:
    folder = a_run(tmp_path / "run", [a_cell("fed_cdp")])
    page = assure(tmp_path, folder, "--system", "<b>A & B</b> {{ 7*7 }}", "--review-by", "2999-01-31")
    assert "<b>A" not in page
    said = outline_of(page).text
    assert "<b>A & B</b> {{ 7*7 }} stated by the operator" in said
    assert "2999-01-31 stated by the operator" in said and "Tested by not stated" in said


def test_the_file_that_the_command_for_claims_prints_is_taken(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "flower:LocalDpMod"
    line = f"claims {name} --arg clipping_norm=1 --arg sensitivity=1 --arg epsilon=8 --arg delta=1e-5 --json"
    run(line.split())
    (tmp_path / "claims.json").write_text(told := capsys.readouterr().out)
    page = assure(tmp_path, a_run(tmp_path / "run", [a_cell(name)]), "--claims", tmp_path / "claims.json")
    said = outline_of(page).text
    for row in json.loads(told)["rows"]:
        assert f"each {row['unit']} (neighbours: {row['adjacency']}; {name}, from the file of claims)" in said


BAD = {
    "an old form of claims": (["RUN", "--claims", "old.json"], 2, "is no output of harness claims"),
    "nothing there": (["NOWHERE"], 2, "NOWHERE"), "no runs": ([], 2, "Missing argument"),
    "a suffix that nobody knows": (["RUN", "--out", "x.doc"], 2, "ends in neither .html nor .pdf"),
    "a folder": (["RUN", "--out", "."], 2, "is a folder"),
    "no date": (["RUN", "--review-by", "soon"], 2, "write it as YYYY-MM-DD"),
    "a date that has passed": (["RUN", "--review-by", "2001-01-01"], 2, "name a date to come"),
    "too many words": (["RUN", "--by", "x" * 301], 2, "at most 300"),
    "claims of another defense": (["RUN", "--claims", "other.json"], 2, "give the claims of that defense"),
    "no claims": (["RUN", "--claims", "page.html"], 2, "harness claims NAME --json"),
    "two systems": (["RUN", "OTHER"], 2, "add --mixed"),
    "a page of somebody's": (["RUN", "--out", "page.html"], 2, "page.html"),
    "a PDF that is there": (["RUN", "--out", "there.pdf"], 2, "is there already"),
    "an edited run": (["EDITED"], 2, "run harness evaluate again"),
    "a failed negative control": (["BROKEN"], 3, "no report is written"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "says"), BAD.values(), ids=BAD)
def test_bad_input_gives_one_line_and_no_page(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    a_run(Path("RUN"), [a_cell("fed_cdp")])
    a_run(Path("OTHER"), [a_cell("fed_sdp")])
    swap = Control(name="swap", held=False, detail="another victim's truth comes back")
    a_run(Path("BROKEN"), [a_cell("fed_cdp", verdict="inconclusive", controls=[swap])])
    edited = a_run(Path("EDITED"), [a_cell("fed_cdp", verdict="resilient")]) / "results.json"
    edited.write_text(edited.read_text().replace('"resilient"', '"leaks"'))
    Path("page.html").write_text("<p>mine</p>")
    Path("there.pdf").write_text("mine")
    Path("other.json").write_text(json.dumps({"rows": [CLAIM | {"defense": "flower:LocalDpMod"}]}))
    Path("old.json").write_text(json.dumps({"rows": [{"defense": "fed_cdp", "proven": 1.0}]}))
    before = sorted(tmp_path.iterdir())
    assert run(["assure", *arguments]) == code
    said = capsys.readouterr().err.strip()
    assert says in " ".join(said.split())
    assert sorted(tmp_path.iterdir()) == before and Path("page.html").read_text() == "<p>mine</p>"


def test_several_systems_stand_side_by_side_where_it_is_asked_for(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf
) -> None:
    folders = [a_run(tmp_path / name, [a_cell(name)]) for name in ("fed_cdp", "fed_sdp")]
    said = outline_of(assure(tmp_path, *folders, "--mixed")).text
    assert "mnist-sample lenet fed_cdp" in said and "mnist-sample lenet fed_sdp" in said
    assert re.search("at every place: [0-9]+ of 60 reconstructed", said)
    apart = [a_run(tmp_path / "withstood", [a_cell("fed_sdp", verdict="resilient")]), folders[0]]
    said = outline_of(assure(tmp_path, *apart, "--mixed")).text
    assert "mnist-sample lenet fed_cdp, everywhere: 57 of 60" in said
    assert "mnist-sample lenet fed_sdp, everywhere: 0 of 60" in said


def test_a_learning_rate_that_was_asked_for_is_told(tmp_path: Path, outline_of: OutlineOf) -> None:
    folder = tmp_path / "run"
    asked = "--dataset digits --model logistic --defense fed_cdp --attack analytic --surface 2 --victims 2"
    assert run(f"evaluate {asked} --learning-rate 0.07 --no-pictures --out {folder}".split()) == 0
    page = assure(tmp_path, folder)
    assert "1 local step of 1 record, optimizer sgd, learning rate 0.07" in outline_of(page).text
    sources = [one for sources, _ in _SPAN.findall(page) for one in sources.split(" ") if "learning_rate" in one]
    assert {resolve(one, [folder], {}) for one in sources} == {0.07}


def test_places_of_other_settings_are_told_apart_and_one_is_no_plural(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf
) -> None:
    small, large = (a_cell("fed_cdp", victims=1, batch_size=size, verdict="inconclusive") for size in (1, 4))
    said = outline_of(assure(tmp_path, a_run(tmp_path / "two", [small, large]))).text
    assert "mnist-sample lenet fed_cdp (batch 4)" in said
    assert "1 local step of 1 record, optimizer sgd; 1 local step of 4 records, optimizer sgd" in said
    assert "1 client, random seed 0" in said and "Of 1 image, 0 were reconstructed." in said
    several = [a_cell(name, dataset=data) for name, data in (("fed_cdp", "digits"), ("fed_sdp", "mnist-sample"))]
    said = outline_of(assure(tmp_path, a_run(tmp_path / "several", several), "--mixed")).text
    assert "digits (images), lenet; mnist-sample (images), lenet" in said and "Of: digits lenet fed_cdp" in said


@pytest.mark.parametrize(
    ("surface", "said"),
    [(0, ["60 rounds of 10 clients each", "of more than", "% of rounds.", "only the sum of a round's clients"]),
     (1, ["60 clients, random", "% of clients."])],
)  # fmt: skip
def test_a_victim_of_a_sum_is_a_round(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf, surface: int, said: list[str]
) -> None:
    cohort = {"clients": 100, "clients_per_round": 10, "rounds": 100}
    cell = a_cell("secagg_ddp", surface, cohort=cohort, defense_args={})
    shown = outline_of(assure(tmp_path, a_run(tmp_path / "run", [cell]))).text
    assert all(words in shown for words in said) and ("% of clients." in shown) == (surface == 1)


def test_a_promise_stands_once_and_says_of_which_places_it_is(
    tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, outline_of: OutlineOf
) -> None:
    def cells(**last: Any) -> list[CellResult]:
        shared: dict[str, Any] = {
            "view": "message",
            "epsilon": 16.8,
            "guarantee": "sample-DP local view",
            "notes": "why",
        }
        own = [
            Statement(claimed_epsilon=4.0 + tiny, covers=surface == 1, **shared)
            for surface, tiny in ((1, 0), (0, 1e-15))
        ]
        cohort = {"clients": 100, "clients_per_round": 10} | last
        return [a_cell("fed_cdp", place, privacy=[one], cohort=cohort) for place, one in zip((1, 0), own, strict=True)]

    said = outline_of(assure(tmp_path, a_run(tmp_path / "run", cells(rounds=1)))).text
    assert said.count("epsilon 16.8, over 1 round (sample-DP local view), too large to promise anything") == 1
    assert "epsilon 16.8 (too large to promise anything) is proven at some of them" in said
    assert "It does not cover what was read at the server (surface 0)." in said
    assert "The runs state epsilon over a single round." in said
    said = outline_of(assure(tmp_path, a_run(tmp_path / "more", cells(rounds=7)))).text
    assert "the runs state it over all 7 rounds" in said


def test_without_a_browser_the_page_is_kept(
    tmp_path: Path,
    a_cell: MakeCell,
    a_run: WriteRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = a_run(tmp_path / "run", [a_cell("fed_cdp")])
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    assert run(["assure", str(folder), "--out", str(tmp_path / "a.pdf")]) == 2
    assert "a PDF needs Chromium" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "a.html").exists() and not (tmp_path / "a.pdf").exists()


@pytest.mark.browser
@pytest.mark.slow
def test_it_fits_screens_and_paper(tmp_path: Path, a_cell: MakeCell, a_run: WriteRun, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    assure(tmp_path, a_run(tmp_path / "run", [a_cell("fed_cdp", surface) for surface in (2, 1)]))
    looks = [(1280, "light", "screen"), (1280, "dark", "screen"), (390, "light", "screen"), (390, "dark", "screen")]
    for width, scheme, media in [*looks, (1280, "light", "print"), (1280, "dark", "print")]:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.emulate_media(media=media)
        page.goto((tmp_path / "assurance.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # A threat model is one letter; words need more room.
        cells = "[...document.querySelectorAll('.places td')].filter(one => one.innerText.trim().length > 1)"
        assert page.evaluate(f"Math.min(...{cells}.map(one => one.clientWidth))") > 80
        found = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        page.close()


@pytest.mark.parametrize(
    ("tier", "public", "statistics", "letter"),
    [
        ("plain", False, None, "C"), ("plain", True, None, "C"), ("informed", False, "hidden", "C"),
        ("informed", True, None, "D"), ("plain", False, "sent", "E"), ("tampering", False, None, "F"),
        ("tampering", True, "sent", "G"),
    ],
)  # fmt: skip
def test_threat_models_say_what_an_attack_knows(
    a_cell: MakeCell, tier: Any, public: bool, statistics: Any, letter: str
) -> None:
    """Carletti et al. (2025), table of threat models."""
    prior = PublicData.model_construct(name="digits") if public else None
    cell = a_cell("fed_cdp").model_copy(update={"tier": tier, "prior": prior, "batch_norm": statistics})
    assert threat_model(cell) == letter
