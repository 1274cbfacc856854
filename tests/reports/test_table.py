"""The terminal's table: readable at every width, and deaf to whatever the document's names try to say."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.base.errors import safe
from harness.reports import columns
from harness.reports.table import print_results
from harness.reports.text import epsilon as epsilon_words
from harness.reports.training import print_training
from harness.results import (
    AttackStanding,
    Bound,
    Ceiling,
    CellResult,
    Identified,
    LabelInference,
    Lineup,
    Outcomes,
    Rate,
    ResultDocument,
    Statement,
    Summary,
    SummaryRow,
)
from harness.results.training import RoundRecord, TrainDocument

WIDTHS = (60, 80, 100, 120, 160, 240)


def a_cell(**changes: object) -> CellResult:
    facts = {
        "dataset": "mnist-sample",
        "model": "lenet",
        "defense": "fed_cdp",
        "defense_args": {"clipping": "layer", "clip": 3.0, "sigma": 6.0, "convention": "per_example"},
        "attack": "inverting_gradients",
        "surface": 2,
        "tap": "T2.step",
        "seeds": [0],
        "victims": 64,
        "metrics": {"rmse": Summary(mean=0.4321, median=0.25), "tau": Summary(mean=217.0)},
        "asr": {"strict": Rate(rate=0.125, successes=8, n=64, ci95=(0.0556, 0.2315))},
        "lineup": Lineup(rate=0.2, mean_rank=4.0, p_value=0.0001),
        "label": LabelInference(accuracy=0.75, chance=0.1),
        "confirmed": 8,
        "verdict": "leaks",
        "verdict_reason": "8 reconstructions are accurate",
        "outcomes": Outcomes(success=8, failure=50, hopeless=6),
        "privacy": [
            Statement(view="server", epsilon=9.8, claimed_epsilon=0.82, guarantee="none", notes=""),
        ],
    }
    return CellResult(**(facts | changes))


def printed(*cells: CellResult, width: int = 160, valid: bool = True, reason: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_results(ResultDocument(environment={}, valid=valid, valid_reason=reason, cells=list(cells)), console)
    return console.file.getvalue()


def test_a_leak_without_images_says_what_leaks() -> None:
    """Beside a success of 0% that is a riddle; beside images that come back it goes without saying."""
    nearer = "reconstructions are nearer to their own truth than to look-alikes (p = 0.0001)"
    faint = a_cell(confirmed=0, asr={"strict": Rate(rate=0, successes=0, n=64)}, verdict_reason=nearer)
    assert f"leaks: {nearer} (fed_cdp / inverting_gradients / 2)" in words(printed(a_cell(), faint))
    assert "reconstructions are" not in printed(a_cell())


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_too_long_and_the_chief_facts_are_whole(width: int) -> None:
    text = printed(a_cell(), a_cell(role="control", control="positive_sigma0"), width=width)
    assert max(map(len, text.splitlines())) <= width
    for fact in ("fed_cdp", "inverting_gradients", "leaks", "12.5% [5.6-23.2]", "0.250", "<0.001", "positive_sigma0"):
        assert fact in text
    assert {"clip=3", "convention=per_example", "9.8", "(claimed", "0.82)"} <= set(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(width: int) -> None:
    assert "…" not in printed(a_cell(outcomes=Outcomes(not_applicable=64)), width=width)


def test_wide_terminals_get_columns_and_narrow_ones_blocks() -> None:
    assert "guarantee" in printed(a_cell(), width=120) and "outcomes" not in printed(a_cell(), width=120)
    assert "outcomes" in printed(a_cell(), width=160)
    narrow = printed(a_cell(), width=60)
    assert "guarantee" not in narrow and "leaks  fed_cdp / inverting_gradients (plain) / surface 2" in narrow
    assert "8 success, 50 failure, 6 hopeless" in words(narrow)


def test_80_columns_have_a_table_for_each_defense_with_its_guarantees_below() -> None:
    three = [a_cell(surface=surface, tap=tap) for surface, tap in ((2, "T2.step"), (1, "T1.out"))]
    apart = a_cell(surface=0, tap="T0.in", lineup=Lineup(rate=0.2, mean_rank=4.0, p_value=0.5))
    unrun = a_cell(attack="spear", metrics={}, asr={}, verdict="inconclusive", not_applicable_reason="no ReLU")
    text = printed(*three, apart, unrun, a_cell(defense="noise", defense_args={}, labels="known"), width=80)
    lines = [line.rstrip() for line in text.splitlines()]
    head = next(at for at, line in enumerate(lines) if line.startswith("attack "))
    assert lines[head - 1] == "fed_cdp clip=3 convention=per_example"
    assert lines[head + 2].split() == [
        "inverting_gradients",
        "plain",
        "2,",
        "1",
        "leaks",
        "12.5%",
        "[5.6-23.2]",
        "<0.001",
    ]
    assert lines[head + 3].split() == ["RMSE", "0.250"] and lines[head + 4].split()[2] == "0"
    assert "  guarantee: none, epsilon 9.8 (claimed 0.82) (surface 2, 1, 0)" in lines
    assert "noise" in lines and any(line.startswith("labels known") for line in lines)
    assert not any(line.startswith("spear") for line in lines) and "not run: no ReLU (fed_cdp / spear / 2)" in lines


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_are_printed_as_they_are(width: int) -> None:
    hostile = {"dataset": "[red]d", "defense": "[b]x[/b]", "attack": "<script>", "tap": "../../x", "surface": None}
    text = printed(a_cell(**hostile, defense_args={"policy": "[bold]=[/]"}), width=width)
    for name in ("[red]d", "[b]x[/b]", "<script>", "../../x", "[bold]=[/]"):
        assert name in text


def test_control_codes_do_not_reach_the_terminal() -> None:
    codes = "\x1b[2J\x1b]0;title\x07\r\u202e"
    cell = a_cell(defense=f"a{codes}", verdict="inconclusive", verdict_reason=codes, dataset=codes)
    text = printed(cell, valid=False, reason=codes)
    assert not set(codes[0:1] + "\x07\r\u202e") & set(text)
    assert "a?[2J" in text


def test_verdicts_have_their_colours() -> None:
    console = Console(file=io.StringIO(), width=160, color_system="standard", force_terminal=True)
    cells = [a_cell(verdict=verdict) for verdict in ("leaks", "resilient", "inconclusive")]
    print_results(ResultDocument(environment={}, cells=cells), console)
    text = console.file.getvalue()
    for code, verdict in (("1;31", "leaks"), ("32", "resilient"), ("33", "inconclusive")):
        assert f"\x1b[{code}m{verdict}" in text


def test_a_reason_is_given_once_for_all_cells_it_stands_for() -> None:
    unsure = {"verdict": "inconclusive", "verdict_reason": "no positive control was run"}
    text = words(printed(a_cell(**unsure), a_cell(**unsure, surface=0, tap="T0.in")))
    assert text.count("no positive control was run") == 1
    assert "(fed_cdp / inverting_gradients / 2, 0)" in text


def test_a_sentence_that_is_reason_flag_and_warning_is_given_once() -> None:
    said = "the level of the noise follows private data"
    for verdict in ("inconclusive", "leaks"):
        text = words(printed(a_cell(verdict=verdict, verdict_reason=said, flags=[said], warnings=[said, "other"])))
        assert text.count(said) == 1 and "warning: other" in text


def test_a_text_that_was_read_has_no_error_of_pixels_beside_one_that_was_skipped() -> None:
    text = a_cell(metrics={"text_exact": Summary(mean=1.0), "rmse": Summary(mean=0.0, median=0.0)})
    skipped = a_cell(metrics={}, asr={}, privacy=[], not_applicable_reason="skipped: settled by x", attack="span")
    assert not any("RMSE" in printed(text, skipped, width=width) for width in WIDTHS)


def test_a_tap_below_a_narrow_table_is_called_a_tap() -> None:
    said = words(printed(a_cell(), a_cell(surface=None, tap="T0.agg"), width=80))
    assert "(surface 2, tap T0.agg)" in said


def test_a_cell_that_was_not_run_says_why() -> None:
    cell = a_cell(metrics={}, asr={}, privacy=[], not_applicable_reason="no clip there", verdict="inconclusive")
    for width in WIDTHS:
        text = words(printed(cell, width=width))
        assert text.count("not run") == 2 and "not run: no clip there" in text


def test_an_invalid_run_says_so_and_a_valid_one_too() -> None:
    assert "THE RUN IS INVALID" in printed(a_cell(), valid=False, reason="swap leaked")
    assert "swap leaked" in printed(a_cell(), valid=False, reason="swap leaked")
    assert "The run is valid" in printed(a_cell())
    console = Console(file=io.StringIO(), width=120)
    print_results(ResultDocument(environment={}, valid=False, valid_reason="1 of 2", complete=False, cells=[]), console)
    assert "THE RUN IS UNFINISHED" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_claim_that_agrees_with_the_recomputed_epsilon_is_not_repeated() -> None:
    agreed = Statement(view="server", epsilon=0.823, claimed_epsilon=0.82, guarantee="sample-DP", notes="")
    assert "(claimed" not in printed(a_cell(privacy=[agreed]))
    unknown = Statement(view="server", epsilon=None, claimed_epsilon=0.82, guarantee="none", notes="")
    assert "none (claimed 0.82)" in words(printed(a_cell(privacy=[unknown]), width=80))


def test_a_document_without_cells_is_printed() -> None:
    assert "no cells" in printed()


@pytest.mark.parametrize("width", WIDTHS)
def test_repeated_looks_are_told_and_single_ones_are_not(width: int) -> None:
    text = words(printed(a_cell(observations=16), a_cell(), width=width))
    assert "16x" in text and "for R, compose it R times" in text
    assert "seen" not in printed(a_cell(), width=width)


TABLE_ROWS = {
    "rmse": Summary(mean=0.4321, median=0.25),
    "psnr": Summary(reason="a table row is none"),
    "continuous_rmse": Summary(mean=0.7, median=0.612),
    "categorical_accuracy": Summary(mean=0.875),
}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_is_judged_by_its_columns(width: int) -> None:
    text = printed(a_cell(metrics=TABLE_ROWS), width=width)
    assert "RMSE/std" in text and "0.612" in text and "categories" in text and "87.5%" in text
    assert "PSNR" not in text and "RMSE/std" not in printed(a_cell(), width=width)
    assert max(map(len, text.splitlines())) <= width
    lacking = Summary(reason="the table has no categorical columns")
    assert "categories" not in printed(a_cell(metrics=TABLE_ROWS | {"categorical_accuracy": lacking}), width=width)


def test_who_tells_rows_apart_calls_them_rows() -> None:
    """Such cells measure no columns, and beside others their examples are of the same kind."""
    rows, told = a_cell(metrics=TABLE_ROWS), a_cell(identified=Identified(rate=1.0, chance=0.1, n=64))
    assert columns.kinds_of([rows, told]).many == "table rows" and columns.kinds_of([told]).many == "images"


def test_no_column_shows_several_numbers_at_once() -> None:
    """A file of the table has numbers where an entry is one number."""
    cell = a_cell(metrics={"rmse": Summary(mean=0.5, median=0.25)})
    shown = {one.title: str(one.render(cell)) for one in columns.WIDE if one.concerns(cell)}
    assert (shown["RMSE"], shown["mean RMSE"]) == ("0.250", "0.500")
    assert not [title for title, entry in shown.items() if " / " in entry]


def a_row(*attacks: AttackStanding, **changes: object) -> SummaryRow:
    shared = a_cell().model_dump(include=set(SummaryRow.model_fields) & set(CellResult.model_fields))
    facts = {"verdict": "resilient", "verdict_reason": "no attack leaks", "strongest": "cpl", "attacks": list(attacks)}
    return SummaryRow(**(shared | facts | changes))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_strongest_of_several_attacks_decides(width: int) -> None:
    works = AttackStanding(attack="cpl", verdict="resilient", informative=True)
    idle = AttackStanding(attack="dlg", verdict="inconclusive", informative=False, reason="it does not leak")
    console = Console(file=io.StringIO(), width=width, color_system=None)
    rows = [a_row(works, idle), a_row(idle, surface=1, tap="T1.out", strongest=None, verdict="inconclusive")]
    print_results(ResultDocument(environment={}, cells=[a_cell()], summary=rows), console)
    text = console.file.getvalue()
    block = text[text.index("the strongest attack decides") :]
    assert max(map(len, text.splitlines())) <= width
    assert all(fact in words(block) for fact in ("resilient", "cpl", "no attack leaks", "uninformative", "dlg"))
    assert "no attack works" not in block  # one attack alone says it all in its cell
    if width <= 80:  # a reason that goes on does so below itself
        reason = block.partition("    cpl (plain)")[2].partition("\n\n")[0].splitlines()[1:]
        assert all(line.startswith("    ") for line in reason)


@pytest.mark.parametrize("width", [160, 60])
def test_rounds_of_training_are_rows_of_one_table(width: int) -> None:
    text = words(printed(*(a_cell(round=number) for number in (0, 10, 20)), width=width))
    assert text.count("mnist-sample | lenet") == 1
    assert ("round" in text) and ("/ round 20" in text) == (width == 60)
    assert "round" not in words(printed(a_cell(), width=width))


def test_the_footer_names_the_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "results.json").touch()
    console = Console(file=io.StringIO(), width=240, color_system=None)
    print_results(ResultDocument(environment={}, valid=True, cells=[a_cell()]), console, tmp_path)
    assert "(results.json)" in console.file.getvalue()
    (tmp_path / "pictures").mkdir()
    print_results(ResultDocument(environment={}, valid=True, cells=[a_cell()]), console, tmp_path)
    assert "(results.json, pictures)" in console.file.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_what_only_identifies_has_words_of_its_own(width: int) -> None:
    told = Identified(rate=0.5, n=64, ci95=(0.37, 0.63), chance=0.01, p_value=0.0002, identifies=True)
    facts = {"attack": "identify", "tier": "informed", "identified": told, "metrics": {}, "asr": {}, "label": {}}
    outcomes = Outcomes(identified=32, failure=32)
    warned = ["what was read carries about 0.5 times the noise that the defense declares"]
    cell = a_cell(**facts, lineup=Lineup(), verdict="inconclusive", outcomes=outcomes, warnings=warned)
    text = printed(cell, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert all(
        fact in words(text) for fact in ("identifies", "informed", "50% [37-63]", "<0.001", f"warning: {warned[0]}")
    )
    assert "RMSE" not in text


def bound(reason: str | None = None, ceiling: float | None = 0.0167) -> Bound:
    first = Ceiling(
        event="first in its lineup", measured=Rate(rate=0.25, successes=16, n=64, ci95=(0.15, 0.374)), kappa=0.005,
        ceiling=None if reason else ceiling, says_little=ceiling is not None and ceiling > 0.5,
    )  # fmt: skip
    return Bound(theorem=None if reason else "Gaussian noise, mu = 0.4", reason=reason, events=[first])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (bound(), ("at most", "1.7%")),
        (bound(ceiling=0.9), ("90%", "little)")),
        (bound("noise without clipping"), ("bound", "exists:", "without", "clipping")),
    ],
)
def test_the_theorem_stands_beside_what_was_measured(made: Bound, said: tuple[str, ...], width: int) -> None:
    text = printed(a_cell(bound=made), width=width)
    shown = {word.strip(";") for word in text.split()}
    assert {"25%", "[15-37.4]", "0.5%"} <= shown and {word for words in said for word in words.split()} <= shown
    assert max(map(len, text.splitlines())) <= width


def test_older_documents_have_no_theorem() -> None:
    assert "theorem" not in printed(a_cell()).split("The run is valid")[0]


@pytest.mark.parametrize("width", range(100, 190, 3))
def test_no_number_falls_off_the_edge(width: int) -> None:
    for made in (None, bound()):
        text = printed(a_cell(bound=made, outcomes=Outcomes(success=57, failure=391)), width=width)
        assert "391" in text or "outcomes" not in text


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({}, "resilient"), ({"batch_size": 4}, "inconclusive"), ({"examples": 10}, "inconclusive"),
        ({"local_steps": 4, "update_model": "avg"}, "inconclusive"), ({"flags": ["stalled"]}, "inconclusive"),
    ],
)  # fmt: skip
def test_a_cell_alone_is_green_only_where_it_may_claim_resilience(facts: dict[str, Any], shown: str) -> None:
    cell = a_cell(verdict="resilient", **facts)
    assert columns.verdict(cell).plain == cell.verdict_alone == shown


@pytest.mark.parametrize("verdict", ["resilient", "inconclusive"])
def test_the_strongest_cell_has_the_verdict_of_its_place(verdict: str) -> None:
    unfit, told = (a_cell(key=key, attack="cpl", verdict="resilient") for key in ("unfit", "told"))
    cells = {"unfit": unfit.model_copy(update={"flags": ["idle"]}), "told": told}
    standings = [AttackStanding(attack="cpl", verdict="resilient", informative=True, cell=key) for key in cells]
    row = a_row(*standings, verdict=verdict)
    assert columns.strongest(row, cells) is cells["told" if verdict == "resilient" else "unfit"]


def test_no_defense_does_not_read_as_no_leak() -> None:
    assert "  leaks      none (no defense), surface 2: " in said_first(of("leaks", defense="none", defense_args={}))


@pytest.mark.parametrize(("epsilon", "words"), [(8540.0, "8.54e+03, too large to promise anything"), (9.9, "9.9")])
def test_a_large_epsilon_is_no_good_news(epsilon: float, words: str) -> None:
    assert epsilon_words(epsilon) == words


def test_a_skipped_row_says_who_settled_its_place() -> None:
    facts = {"attack": "cpl", "verdict": "inconclusive", "asr": {}, "confirmed": 0}
    skipped = a_cell(**facts, not_applicable_reason="skipped: settled by patches")
    said = words(printed(a_cell(attack="patches"), skipped))
    assert "skipped: settled by patches (fed_cdp / cpl / 2)" in said and "skipped: skipped" not in said


def said_first(*rows: SummaryRow, valid: bool = True, width: int = 80, colours: bool = False) -> str:
    system = {"color_system": "standard", "force_terminal": True} if colours else {"color_system": None}
    console = Console(file=io.StringIO(), width=width, **system)
    cells = [a_cell(key="c", attack="cpl"), a_cell(key="d", attack="cpl", surface=1, tap="T1.out")]
    print_results(
        ResultDocument(environment={}, cells=cells, summary=list(rows), valid=valid, valid_reason="x"), console
    )
    return console.file.getvalue()


def of(verdict: str, cell: str = "c", **changes: object) -> SummaryRow:
    standing = AttackStanding(attack="cpl", verdict=verdict, informative=True, cell=cell)
    return a_row(standing, verdict=verdict, **({"surface": 1, "tap": "T1.out"} if cell == "d" else {}), **changes)


def test_the_verdict_stands_first_and_beside_it_what_it_is_not() -> None:
    lines = said_first(of("leaks"), of("leaks", "d"), of("inconclusive", defense="noise", defense_args={})).splitlines()
    assert lines[0] == "Leaks at 2 of 3 places; undecided at 1 of 3 places."
    assert lines[1] == "An observation, not a promise: another attack may succeed."
    place = "leaks fed_cdp clip=3 convention=per_example, surface 2, 1: 12.5% [5.6-23.2] by cpl"
    assert words(" ".join(lines[2:4])) == place
    assert "  undecided  noise, surface 2: 12.5% [5.6-23.2] by cpl" in lines
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"headline": "tells who took part: 9 of 9, p = 2e-5"}, "tells who took part: 9 of 9, p = 2e-5"),
        ({"verdict_reason": "no attack that reconstructs was tried"}, "no attack that reconstructs was tried"),
        ({"attacks": []}, "no attack works"),
    ],
)  # fmt: skip
def test_an_attack_that_works_and_reconstructs_nothing_is_not_said_to_fail(found: dict[str, str], said: str) -> None:
    row = of("inconclusive").model_copy(update={"strongest": None, **found})
    assert f"surface 2: {said}" in words(said_first(row))


def test_rounds_of_training_are_printed_whole() -> None:
    rounds = [RoundRecord(round=number, accuracy=0.05, loss=54561.1, claimed_epsilon=1.2, noise=0.0, update_norm=9.32e4,
                          gradient_norm=1.71e4, participants=5, seconds=0.5) for number in range(1, 31)]  # fmt: skip
    settings = dict.fromkeys(("dataset", "defense", "algorithm", "clients", "clients_per_round", "client_sampling",
                              "local_steps", "batch_size", "batch_sampling", "split", "seed"), "x")  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    document = TrainDocument.model_construct(settings=settings, rounds=rounds, privacy=[], bayesian=[], secret=False,
                                             train_examples=1, test_examples=1, parameters=1, overlap=1.0,
                                             stopped=None, units="")  # fmt: skip
    print_training(document, console, Path("t"))
    said = words(console.file.getvalue())
    assert "30 │ 0.0500 │ 5.46e+04 │ 1.200 │ 0 │ 1.71e+04 │ 9.32e+04 │ 0.50" in said and "┃ step ┃" in said
    assert said.count("5.46e+04") == 25 and "5 of 30 rounds are not shown; training.json has all" in said


def test_only_what_withstood_everywhere_is_green() -> None:
    green = "\x1b[32m"
    assert f"{green}Withstood at 2 of 2 places." in said_first(of("resilient"), of("resilient", "d"), colours=True)
    for other in ("leaks", "inconclusive"):
        text = said_first(of("resilient"), of(other, "d"), colours=True)
        assert green not in text.splitlines()[0] and f"{green}The run" not in text
    assert green not in said_first(of("inconclusive"), colours=True)
    assert said_first(of("resilient"), valid=False).startswith("No verdict: the run is not valid")


def test_an_invalid_run_shows_no_verdict_but_those_of_its_controls() -> None:
    for verdict in ("resilient", "leaks", "inconclusive"):
        text = said_first(of(verdict), of(verdict, "d"), valid=False, colours=True)
        assert not any(word in text for word in ("\x1b[32m", "withst", "leaks at", "the strongest attack decides"))
        cell, control = a_cell(verdict=verdict), a_cell(role="control", control="noise_x100")
        table = printed(cell, control, valid=False, reason="swap leaked").split("leaks: the attack")[0]
        assert " invalid " in table and " leaks " in table and " resilient " not in table


def test_a_sentence_that_is_cut_ends_with_a_word() -> None:
    sentence = "withstood attackers who know the noise, of whom each reconstructs at most five of a hundred victims"
    for longest in range(60, len(sentence)):
        cut = safe(sentence, longest)
        assert cut.endswith("...") and len(cut) <= longest
        assert sentence.startswith(cut[:-3]) and sentence[len(cut) - 3] in " ,"
    assert safe("a" * 50, 20) == "a" * 17 + "..."
