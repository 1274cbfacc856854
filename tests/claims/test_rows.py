"""The statement of a defense of a framework's name, as ``evaluate`` and ``frontier`` print it, follows the command."""

import html
import math
from pathlib import Path
from typing import Any

import pytest

from harness.base.building import build
from harness.defenses import DEFENSES, Cohort, PrivacyFacts
from harness.reports.text import claimed_and_proven
from harness.results import read_results
from harness.results.frontier import FrontierDocument

FLOWER = {"noise_multiplier": 1.0, "num_sampled_clients": 4}
FIXED = {"noise_multiplier": 1.0, "poisson_sampling": False}
JOB = {"num_iterations": 40, "min_separation": 4, "epsilon": 4.0, "corrected": True}
#: defense, arguments, what differs of the run, mu of the number (None: nothing is proven), words of the notes
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], float | None, str]] = {
    "a mean": ("flower:ServerSideFixedClipping", FLOWER, {}, 2 * math.sqrt(3), "on the mean of clipped updates"),
    "fixed batches": ("opacus:PrivacyEngine", FIXED, {"example_sampler": "none", "rate": 0.5}, math.sqrt(3 * 5),
                      "each example once in every epoch"),
    "whole batches": ("opacus:PrivacyEngine", FIXED, {"example_sampler": "none", "rate": 1.0}, math.sqrt(3 * 10),
                      "each example once in every epoch"),
    "turns that do not fit": ("jax_privacy:BandedToeplitz", {"min_separation": 8}, {}, None,
                              "3 participations do not fit in 3 rounds with min_separation 8"),
    "more rounds than a matrix has": ("pfl:BandedMatrixFactorization", {**JOB, "num_iterations": 2}, {}, None,
                                      "--rounds 3 is above num_iterations 2"),
    "turns in every round": ("pfl:BandedMatrixFactorization", JOB, {"rounds": 40}, None, "10 times are counted"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_statement_says_what_the_command_says(row: str, second: Any) -> None:
    name, arguments, run, mu, said = ROWS[row]
    cohort = Cohort(clients=4, clients_per_round=4, rounds=run.get("rounds", 3), steps_per_round=10)
    run = {name: value for name, value in run.items() if name != "rounds"}
    facts = PrivacyFacts(cohort, 4, **{"client_sampler": "none", "scalars": 0, "parameters": 9, **run})
    stated = next(
        one for one in build(DEFENSES, name, arguments).statements(facts) if one.view == "third party" or mu is None
    )
    assert said in (stated.notes or "")
    assert (stated.epsilon is None) == (mu is None)
    assert mu is None or stated.epsilon == pytest.approx(second.gaussian(mu), rel=1e-4)


def test_a_number_that_holds_goes_before_one_that_holds_if() -> None:
    """One round of a job whose cohorts nobody draws as its accountant counts."""
    facts = PrivacyFacts(Cohort(clients=4, clients_per_round=4, rounds=1), 4, client_sampler="none", scalars=0)
    stated = next(one for one in build(DEFENSES, "pfl:BandedMatrixFactorization", JOB).statements(facts)
                  if one.view == "third party")  # fmt: skip
    assert stated.sampler == "none" and "zero-out at delta" in stated.notes and "Poisson samples of 4" in stated.notes


def plain(text: str) -> str:
    return " ".join(text.split())


def test_evaluate_frontier_and_page_say_the_same_sentence(harness: Any, tmp_path: Path) -> None:
    own = "--dataset digits --defense opacus:PrivacyEngine --attack analytic --victims 4 --model logistic"
    federation = "--clients 4 --clients-per-round 4 --rounds 2 --local-steps 2 --batch-size 4 --sigma 1"
    evaluated, frontier = (
        harness(*f"{command} {own} {more} --out {tmp_path}/{folder}".split())
        for command, more, folder in (
            ("evaluate", "--surface 2 --no-pictures", "run"), ("frontier", federation, "frontier")
        )
    )  # fmt: skip
    assert (evaluated.code, frontier.code) == (0, 0), evaluated.err + frontier.err
    (points,) = [FrontierDocument.model_validate_json((tmp_path / "frontier" / "frontier.json").read_bytes()).points]
    stated = {
        "run": [one for cell in read_results(tmp_path / "run").cells if cell.role == "cell" for one in cell.privacy],
        "frontier": [point.stated for point in points if point.stated],
    }
    assert [point.stated is not None for point in points] == [False, True]
    for folder, printed in (("run", evaluated.out), ("frontier", frontier.out)):
        said = claimed_and_proven(stated[folder])
        assert said and all(plain(line) in plain(printed) for line in said)
        assert harness("report", str(tmp_path / folder), "--out", str(tmp_path / "page.html")).code == 0
        page = html.unescape((tmp_path / "page.html").read_text())
        assert all(f"{line}." in page for line in claimed_and_proven(
            one for cell in read_results(tmp_path / folder).cells if cell.role == "cell" for one in cell.privacy
        ))  # fmt: skip
        for line in said:
            assert line.startswith("harness claims opacus:PrivacyEngine (") and "claimed epsilon " in line
            assert "proven epsilon " in line and "Poisson samples over all steps" in line
