"""Whether the truth explains what a defense sent that draws more than noise of one known level."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.capture import CaptureRecord, write_capture
from harness.datasets.public import NONE
from harness.evaluation.controls import with_other_key
from harness.judging.capture import read_capture
from harness.judging.declared import groups_of
from harness.judging.evidence import Check
from harness.judging.explained import explained
from harness.judging.federation import federations
from harness.judging.plays import PLAYS, Drawn, check_of_draws
from harness.judging.stage import SimulatedStage
from harness.models.networks import build_module
from harness.testing import digits

COUNT = 3


def found(folder: Path, name: str, settings: dict[str, Any], wrong: bool, count: int = COUNT) -> Check:
    """The check of clients who play a defense on their truth, or on other images than are said to be theirs."""
    images, labels = digits(2 * count, 1)
    record = CaptureRecord(
        model="mlp", image_shape=(1, 8, 8), classes=10, learning_rate=0.1, batch_size=1, clients_per_round=10,
        defense={"name": name, "settings": settings},  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    before = build_module("mlp", (1, 8, 8), 10, seed=0).state_dict()
    for client in range(count):
        still = {one: torch.full_like(value, 0.01 * (client + 1)) for one, value in before.items()}
        own = {"images": images[client], "labels": labels[client]}
        write_capture(folder / str(client), record, before, **own, update=still)
    (clients,) = federations([read_capture(folder / str(client)) for client in range(count)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    played = with_other_key(group.cell.model_copy(update={"prior": NONE, "suite": None, "seeds": (99,)}))
    stage = SimulatedStage(folder, 64, clients, played, None, None)
    sent = replace(clients, target=stage.set(played).observation.target)
    said = replace(sent, images=images[count:], labels=labels[count:]) if wrong else sent
    return explained(said, group.cell, folder)


# A defense, and what is said where the truth is right, and where it is another client's.
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "coordinates": ("dssgd", {}, "holds", "violated"),
    "coordinates above a threshold": ("dssgd", {"threshold": 0.001}, "holds", "violated"),
    "coordinates, and noise that is cut": ("dssgd", {"epsilon": 8.0}, "undecided", "undecided"),
    "coordinates, and little noise": ("nvflare:SVTPrivacy", {"noise_var": 1e4, "gamma": 0.01}, "holds", "violated"),
    # Behind so much noise of a known law nobody can tell anything.
    "coordinates, high_noise": ("nvflare:SVTPrivacy", {}, "holds", "holds"),
    "levels of private data": ("fed_acdp", {"sigma": 0.05}, "holds", "undecided"),
    "rounding by chance": ("paper:QSGD", {}, "holds", "violated"),
    "transforms": ("paper:ATS", {}, "holds", "undecided"),
    "something else in its place": ("paper:CENSOR", {}, "undecided", "undecided"),
    "integers": ("secagg_ddp", {}, "holds", "holds"),
    # The level of noise alone does not tell.
    "noise": ("fed_cdp", {"sigma": 0.1}, "holds", "violated"),
}  # fmt: skip


QUICK = {("coordinates", False), ("coordinates", True), ("levels of private data", True), ("noise", True)}


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        pytest.param(case, wrong, id=f"{case}, {'another' if wrong else 'own'}",
                     marks=() if (case, wrong) in QUICK else pytest.mark.slow)
        for case in CASES for wrong in (False, True)
    ],
)  # fmt: skip
def test_another_truth_is_seen_or_nothing_is_resilient(case: str, wrong: bool, tmp_path: Path) -> None:
    name, settings, right, other = CASES[case]
    check, expected = found(tmp_path, name, settings, wrong), other if wrong else right
    assert ("undecided" if check.undecided else check.outcome) == expected, check
    assert check.undecided == (check.outcome == "cannot tell")


@pytest.mark.slow
def test_many_clients_tell_what_one_does_not(tmp_path: Path) -> None:
    """Each under noise that hides its own truth, but for all together: it was resilient."""
    few, many = (found(tmp_path / str(count), "fed_acdp", {"sigma": 0.15}, True, count) for count in (1, 60))
    assert few.outcome == "holds" and many.undecided and "less or more in its direction" in many.detail, (few, many)
    assert found(tmp_path / "right", "fed_acdp", {"sigma": 0.15}, False, 60).outcome == "holds"


@pytest.mark.parametrize(("true", "levels"), [((1.0, 0.02, 0.02, 0.01), 1), ((1.0, 0.05, 0.003, 0.002), 16)])
def test_of_few_numbers_one_may_be_rounded_as_in_no_play(true: tuple[float, ...], levels: int) -> None:
    """Once in a hundred to a thousand honest clients went 5 times as far as all plays."""
    exact, random = torch.tensor([true], dtype=torch.float64), torch.Generator().manual_seed(0)
    step = exact.norm() / levels
    for _ in range(2000 if levels > 1 else 200):
        draws = torch.rand(PLAYS + 1, 4, generator=random, dtype=torch.float64)
        own, *plays = ((exact / step + one).floor() * step for one in draws)
        drawn = Drawn(plays.__getitem__, leaves_out=False, middle=exact, separate=True)
        assert check_of_draws("truth", own, torch.zeros(1), drawn, noisy=False).outcome != "violated"


def test_a_client_that_sent_nothing_that_was_drawn_is_undecided(tmp_path: Path) -> None:
    settings = {"share": 0.001}
    check = found(tmp_path, "dssgd", settings, False)
    assert check.undecided and "no coordinate that was sent" in check.detail
