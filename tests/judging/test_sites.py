"""Which site sent an update, by the command that users type."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from sklearn.datasets import load_digits

from harness.base.errors import UsageError
from harness.capture import CaptureRecord, write_capture
from harness.cli import run
from harness.judging.capture import Capture, read_capture
from harness.judging.membership import judge_sites

PIXELS, LABELS = load_digits(return_X_y=True)
SITES, BATCH = ("Bern", "Graz", "Pisa"), 32


def written(folder: Path, seed: int, shift: float, rounds: int = 6, kind: str = "after") -> list[Path]:
    """Captures of three hospitals that train a linear model on 32 fresh digits in every round.

    ``shift``: how much more often each hospital has labels of its own.
    """
    random, found = np.random.default_rng(seed), []
    for number in range(rounds):
        weights = random.normal(0, 0.1, (64, 10))
        for place, site in enumerate(SITES):
            own = np.where(place == LABELS % 3, 1 + shift, 1.0)
            batch = random.choice(len(LABELS), BATCH, p=own / own.sum())
            images = PIXELS[batch] / 16
            wrong = softmax(images @ weights, axis=1) - np.eye(10)[LABELS[batch]]
            moved = -0.1 * images.T @ wrong / BATCH
            record = CaptureRecord(
                model="logistic",
                image_shape=(1, 8, 8),
                classes=10,
                learning_rate=0.1,
                batch_size=BATCH,
                client=site,
                round=number,
            )
            sent: Any = {kind: {"w": weights + moved if kind == "after" else moved}}
            found.append(write_capture(folder / f"{number}-{site}", record, {"w": weights}, **sent))
    return found


def p_of(folder: Path, seed: int, shift: float) -> float:
    captures = [read_capture(one) for one in written(folder, seed, shift)]
    return judge_sites(captures, permutations=199, seed=seed).told.p


@pytest.mark.slow
def test_p_values_of_sites_that_are_alike_are_uniform(tmp_path: Path) -> None:
    found = [p_of(tmp_path / str(seed), seed, 0.0) for seed in range(200)]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_labels_of_their_own_tell_sites(tmp_path: Path) -> None:
    found = [p_of(tmp_path / str(seed), seed, 3.0) for seed in range(20)]
    assert sum(p <= 0.01 for p in found) >= 18


@pytest.mark.parametrize("kind", ["after", "update", "gradient"])
def test_the_command_tells_sites_whatever_was_captured(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, 1, 3.0, kind=kind)
    assert run(["judge", str(tmp_path), "--sites", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["names"] == list(SITES) and found["told"]["updates"] == 18
    assert found["told"]["p"] <= 0.01 and found["told"]["right"] > 9
    assert run(["judge", str(tmp_path), "--sites"]) == 0
    said = capsys.readouterr().out
    # Updates of a round are told together or not at all, so that no interval of independent trials holds their share.
    assert "updates tell which site sent them" in said and "by chance 33%)" in said and "95%" not in said


def test_few_rounds_say_that_they_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, 0, 3.0, rounds=2)
    assert run(["judge", str(tmp_path), "--sites"]) == 0
    assert "cannot show more than p = 0.17" in capsys.readouterr().out


def edited(folder: Path, **changes: Any) -> None:
    facts = folder / "capture.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "rounds", "problem"),
    [
        ({"client": None}, 2, 'names no site; add "client"'),
        ({"client": "Bern"}, 2, "site 'Bern' has two captures of round 1; leave one of them out"),
        ({"round": 7}, 2, "round 1 has no capture of site 'Pisa'; leave that round or that site out"),
        ({"model": "mlp2"}, 2, "differ in model: 'logistic' in .* 'mlp2' in .*1-Pisa'; judge them separately"),
        ({"optimizer": "adam"}, 2, "differ in optimizer"),
        ({"defense": {"name": "fed_cdp", "settings": {"sigma": 0.06}}}, 2, "differ in defense"),
        ({"learning_rate": 0.2}, 2, "differ in learning_rate: 0.1 in .*1-Bern"),
        ({"before": 1.0}, 2, "1-Bern' and .*1-Pisa' of round 1 begin with different models; name captures of one job"),
        ({}, 1, "1 round.s. of 3 site.s. tell no site; name captures of two and more"),
    ],
)
def test_what_no_test_can_be_made_of(changes: dict[str, Any], rounds: int, problem: str, tmp_path: Path) -> None:
    folders = written(tmp_path, 0, 0.0, rounds)
    if "before" in changes:
        np.savez(folders[-1] / "before.npz", w=np.full((64, 10), changes["before"], np.float32))
    elif changes:
        edited(folders[-1], **changes)
    captures: list[Capture] = [read_capture(one) for one in folders]
    with pytest.raises(UsageError, match=problem):
        judge_sites(captures)


def test_what_rounds_may_differ_in(tmp_path: Path) -> None:
    """A rate that falls, and running statistics of a client's own."""
    folders = written(tmp_path, 0, 0.0, 2)
    for number, folder in enumerate(folders):
        edited(folder, learning_rate=0.1 if number < len(SITES) else 0.05)
        held = dict(np.load(folder / "before.npz"))
        np.savez(folder / "before.npz", **held, **{"1.running_mean": np.full(3, number)})
    assert judge_sites([read_capture(one) for one in folders]).rounds == (0, 1)


def test_it_makes_no_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, 0, 0.0, 2)
    assert run(["judge", str(tmp_path), "--sites", "--attack", "cpl"]) == 2
    said = capsys.readouterr().err
    assert "--sites makes no other attack" in said and "Traceback" not in said
    assert run(["judge", str(tmp_path), "--sites", "--weights", "final.pt"]) == 2
    assert "--weights, or --sites" in capsys.readouterr().err
    assert run(["judge", "--sites"]) == 2
    assert "name folders of captures" in capsys.readouterr().err
