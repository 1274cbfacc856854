"""Cards: a true one is made again byte by byte; what is no card, or was changed, is told in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.attacks import SUITES
from harness.board import collect, compare
from harness.board.comparing import Workspace, rebuild
from harness.board.making import _statement, reported_for
from harness.board.reading import cells_of
from harness.experiment import cell_settings
from harness.privacy.views import REPEATABLE
from harness.results import RunFolder, Statement, cell_key
from harness.results.card import Card

Harness = Callable[..., Any]
Planted = Callable[[dict[str, Any]], None]


def test_a_true_card_is_made_again_byte_by_byte(card: Card, again: tuple[Card, Path]) -> None:
    assert again[0].content() == card.content() and again[0].hash == card.hash == card.digest()
    assert compare(card, again[0]).differences == [] and compare(card, again[0]).exact


@pytest.mark.parametrize(("before", "now", "differ"), [("4.0%", "4.1%", 0), ("5.0%", "5%", 0), ("4.1%", "4.0%", 1)])
def test_a_card_holds_that_was_made_when_shares_were_rounded_to_the_nearest(
    card: Card, before: str, now: str, differ: int
) -> None:
    said = card.model_dump_json()
    one, other = (
        Card.model_validate_json(said.replace(card.row.verdict_reason, f"at most {share} (95% confidence)")).sealed()
        for share in (before, now)
    )
    found = compare(one, other)
    assert len(found.differences) == differ and bool(found.notes) != bool(differ)


@pytest.mark.parametrize(("covers", "shown"), [(True, 0.5), (None, 0.5), (False, None)])
def test_an_epsilon_that_several_looks_exceed_is_on_no_card(covers: bool | None, shown: float | None) -> None:
    what: dict[str, Any] = {
        "view": "server",
        "epsilon": 0.5,
        "guarantee": "sample-DP local view",
        "notes": "n",
        "covers": covers,
    }
    stated = Statement(**what)
    found = _statement([stated], cell_settings(attack="cpl", defense="fed_cdp", tap="T1.out"))
    assert (found and found.epsilon) == shown


def test_on_a_gpu_a_card_is_compared_statistically(card: Card) -> None:
    """Its sums are added in another order each time, so that an honest card would not be made again to the bit."""
    made = card.model_copy(update={"environment": card.environment | {"device": "Some GPU"}}).sealed()
    found = compare(made, made)
    assert not found.exact and found.differences == [] and "a GPU adds up in another order" in found.notes[0]


@pytest.mark.slow
def test_who_is_told_the_labels_is_on_the_card_and_missed_where_it_is_not(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where labels are guesses a suite runs the same attack again with labels known."""
    monkeypatch.setitem(SUITES, "tiny-2", {"slope": {}, "analytic": {}})
    asked = "evaluate --defense fed_cdp --defense-arg sigma=60 --attack tiny --surface 0 --victims 12 --dataset digits"
    assert harness(*f"{asked} --model logistic --no-pictures --out run".split()).code == 0
    (card,) = collect([Path("run")]).cards
    assert [(one.result.attack, one.settings["labels"]) for one in card.cells] == [
        ("slope", "inferred"), ("slope", "known"), ("analytic", "inferred"),
    ]  # fmt: skip
    again = rebuild(card, Workspace(tmp_path / "none", tmp_path / "made"))
    assert again.content() == card.content()
    document = json.loads(Path("run/results.json").read_text())
    inferred, known, other = document["summary"][0]["attacks"]
    document["summary"][0]["attacks"] = [known, inferred, other]  # as a run that went on computes them
    Path("run/results.json").write_text(json.dumps(document))
    assert [one.content() for one in collect([Path("run")]).cards] == [card.content()]
    without = card.model_copy(update={"cells": [card.cells[0], card.cells[2]]}).sealed()
    resumed = rebuild(without, Workspace(tmp_path / "none", tmp_path / "made", resume=True))
    assert compare(without, resumed).differences and compare(without, resumed, statistically=True).differences


@pytest.mark.parametrize(
    ("place", "first", "whole"),
    [
        ("--attack tiny --dataset digits --model logistic", "analytic", ""),
        ("--attack tiny --dataset digits --model logistic", "analytic", "--all-members"),
        ("--attack mixed --dataset digits --model vit", "patches", ""),
        ("--attack mixed --dataset notes --model text_transformer_64", "token_rows", ""),
    ],
)
def test_a_card_skips_again_what_it_skipped_and_makes_what_it_made(
    harness: Harness, tmp_path: Path, place: str, first: str, whole: str
) -> None:
    """Members of its suite that make no such data are none of its members."""
    asked = f"evaluate --defense none {place} --surface 2 --victims 24 {whole}"
    assert harness(*f"{asked} --no-pictures --out run".split()).code == 0
    (card,) = collect([Path("run")]).cards
    skipped = [one.result.settled_by for one in card.cells]
    assert skipped == [None, None if whole else first] and card.row.verdict == "leaks"
    assert len(cells_of(card)) == 2
    again = rebuild(card, Workspace(tmp_path / "none", tmp_path / "made"))
    assert again.content() == card.content() and compare(card, again).exact
    assert compare(card, again, statistically=True).differences == []


def test_a_card_says_what_was_evaluated(card: Card) -> None:
    assert (card.status, card.row.suite, card.row.tap) == ("evaluated", "tiny-2", "T0.in")
    assert [one.result.attack for one in card.cells] == ["analytic", "identify"]
    assert all(len(one.victims.names) == 24 and one.result.seconds is None for one in card.cells)
    assert card.training and card.training.accuracy is not None
    assert card.statement and (card.statement.epsilon, card.statement.unit) == (
        next(one.epsilon for one in card.training.privacy if one.view == "server"), "example",
    )  # fmt: skip
    assert "--attack tiny-2 " in card.command and "attack-arg" not in card.command
    assert REPEATABLE in card.statement.notes


def test_without_its_training_a_card_has_no_accuracy(runs: list[Path]) -> None:
    (alone,) = collect(runs[:1]).cards
    assert alone.training is None and alone.statement and REPEATABLE in alone.statement.notes


def test_a_training_under_a_secret_key_is_left_out(runs: list[Path], tmp_path: Path) -> None:
    """Nobody could make the card again; without the training it can."""
    document = json.loads((runs[1] / "training.json").read_text())
    assert document["secret"] is False
    (tmp_path / "training.json").write_text(json.dumps(document | {"secret": True}))
    found = collect([runs[0], tmp_path])
    (line,) = found.left_out
    assert found.cards[0].training is None and line.endswith("nobody can make it again; train it with --seed 0")


def test_the_true_card_is_confirmed(harness: Harness, file: Path, made: Path) -> None:
    finished = harness("verify", str(file), "--out", str(made), "--resume")
    assert (finished.code, finished.err) == (0, "") and "\nconfirmed, byte by byte: " in finished.out
    assert finished.out.startswith("what lay in ")
    told = harness("verify", str(file), "--out", str(made), "--resume", "--json", "--statistically")
    assert told.code == 0 and json.loads(told.out)["confirmed"] and not json.loads(told.out)["exact"]


def test_what_lies_in_the_folder_is_only_believed_where_that_was_asked_for(
    harness: Harness, file: Path, made: Path, tmp_path: Path
) -> None:
    """A folder of the card's maker confirms what its maker likes, if victims do not contradict it."""
    for path in (made / "cells").glob("*.json"):
        written = json.loads(path.read_text())
        lineup = written["cell"]["lineup"]
        lineup["p_value"] = lineup["p_value"] and 0.9 * lineup["p_value"]
        path.write_text(json.dumps(written))
    assert harness("verify", str(file), "--out", str(made), "--resume").code == 1
    assert harness("verify", str(file), "--out", str(made)).code == 0
    assert harness("verify", str(file), "--resume").code == 2


def test_other_versions_are_compared_statistically_and_said_so(
    harness: Harness, card: Card, file: Path, made: Path
) -> None:
    content = json.loads(card.content())
    content["environment"]["versions"]["torch"] = "1.0"
    content["cells"][0]["victims"]["rmses"] = [one * 1.001 for one in content["cells"][0]["victims"]["rmses"]]
    file.write_bytes(Card.model_validate(content).sealed().content())
    finished = harness("verify", str(file), "--out", str(made), "--resume")
    assert finished.code == 0 and "confirmed, statistically" in finished.out
    assert "compared statistically, as harness check does: torch 1.0 there" in finished.out


@pytest.mark.parametrize("other", ["GenuineIntel 6 143, AVX512", None], ids=["another processor", "a card of before"])
def test_another_processor_may_round_otherwise(
    harness: Harness, card: Card, file: Path, made: Path, other: str | None
) -> None:
    content = json.loads(card.content())
    here = content["environment"].pop("processor")
    content["environment"] |= {} if other is None else {"processor": other}
    content["cells"][0]["victims"]["rmses"] = [one * 1.001 for one in content["cells"][0]["victims"]["rmses"]]
    file.write_bytes(Card.model_validate(content).sealed().content())
    finished = harness("verify", str(file), "--out", str(made), "--resume")
    assert finished.code == 0 and "confirmed, statistically" in finished.out
    assert f"processor {other} there, {here} here" in finished.out


def test_whether_it_is_slow_or_cut_short_a_card_is_of_its_settings(runs: list[Path], card: Card) -> None:
    """A stored cell's name is that of its settings, so that one under a forged name is none."""
    key = card.cells[0].result.key or ""
    stored = RunFolder(runs[0]).find_cell(key)
    assert stored and cell_key(stored.settings) == key and stored.cell.seconds is not None


def instead(was: bytes, said: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(was, said, 1)


EVALUATED = b'"status": "evaluated"'
UNRELIABLE = b'"status": "unreliable"'
BAD = {
    "a key twice": (instead(EVALUATED, UNRELIABLE + b", " + EVALUATED), "writes the same content otherwise"),
    "a number as a word": (instead(b'"victims": 24,', b'"victims": "24",'), "writes the same content otherwise"),
    "cut off": (lambda content: content[:-9], "not complete JSON"),
    "other schema": (instead(b'"schema_version": 1', b'"schema_version": 7'), "another schema"),
    "wrong hash": (instead(EVALUATED, UNRELIABLE), "its hash is not that of its content"),
    "unknown field": (instead(b"{", b'{"more": 1,'), "'more'"),
    "another document": (lambda content: b'{"schema_version": 1, "cells": []}', "is not a card"),
    "a list": (lambda content: b"[]", "is not a card"),
    "no text": (lambda content: b"\xff\x00", "not complete JSON"),
}


@pytest.mark.parametrize(("spoil", "said"), BAD.values(), ids=BAD)
def test_what_is_no_card_is_told_in_one_line(
    harness: Harness, file: Path, spoil: Callable[[bytes], bytes], said: str
) -> None:
    file.write_bytes(spoil(file.read_bytes()))
    finished = harness("verify", str(file))
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1) and said in finished.err


@pytest.mark.parametrize("name", [".", "absent.json"])
def test_a_card_that_is_not_there(harness: Harness, name: str) -> None:
    finished = harness("verify", name)
    assert (finished.code, finished.err.count("\n")) == (2, 1)


def test_what_a_paper_prints_stands_beside_its_own_place_only() -> None:
    client = {"noise_at": "client"}
    facts = {"dataset": "mnist-sample", "defense": "fed_sdp", "defense_args": client, "tap": "T1.out"}
    found = reported_for(cell_settings(**facts, model="lenet"))
    assert found and (found.data, found.resists) == ("mnist", "Y") and "Table III: Fed-SDP at client" in found.source
    others = (
        {"model": "logistic"},
        {"defense_args": client | {"sigma": 1.0}},
        {"dataset": "digits"},
        {"batch_size": 4},
    )
    assert all(reported_for(cell_settings(**facts | {"model": "lenet"} | other)) is None for other in others)
