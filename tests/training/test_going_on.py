"""A finished training goes on to more rounds with the numbers of a straight run, where their number matters not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.cli import run as harness
from harness.defenses import Cohort, RoundContext
from harness.training import TrainDocument, TrainFolder, TrainOptions, train, train_settings

TINY: dict[str, Any] = {
    "dataset": "cancer", "model": "mlp2", "clients": 12, "clients_per_round": 5, "local_steps": 4, "batch_size": 3,
    "split": "iid",
}  # fmt: skip
OPTIONS = TrainOptions(chunk=5)
AGAIN = replace(OPTIONS, resume=True)


def run(folder: Path, rounds: int, options: TrainOptions = OPTIONS, **changes: Any) -> TrainDocument:
    return train(train_settings(**TINY | changes, rounds=rounds), folder, TrainFolder(folder), options)


def numbers(document: TrainDocument) -> list[dict[str, Any]]:
    return [record.model_dump(exclude={"seconds"}) for record in document.rounds]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"defense": "quantile"},
        pytest.param({"defense": "fed_acdp"}, marks=pytest.mark.slow),
        {"defense": "global_dp", "defense_args": {"bound": "median"}},
        {"defense": "fed_cdp", "algorithm": "scaffold-warm", "clients_per_round": 12},
        {"defense": "pruning", "defense_args": {"error_feedback": True}},
    ],
    ids=str,
)
def test_more_rounds_are_those_of_a_straight_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    straight = run(tmp_path / "straight", 5, **changes)
    assert len(run(tmp_path / "parts", 2, **changes).rounds) == 2
    gone_on = run(tmp_path / "parts", 5, AGAIN, **changes)
    assert numbers(gone_on) == numbers(straight) and gone_on.privacy == straight.privacy
    weights = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("straight", "parts")]
    assert torch.equal(weights[0]["weights"], weights[1]["weights"])
    assert gone_on.settings == straight.settings


def test_a_run_that_was_stopped_early_may_end_sooner_too(tmp_path: Path, killed_after: Callable) -> None:
    with killed_after(2) as kill:
        run(tmp_path, 9, replace(OPTIONS, on_round=kill))
    assert len(run(tmp_path, 3, AGAIN).rounds) == 3


@pytest.mark.parametrize(
    ("changes", "rounds", "fix"),
    [
        (
            {"defense": "fed_acdp", "defense_args": {"policy": "linear"}},
            5,
            r"the decay of sigma \(policy=linear\) goes",
        ),
        (
            {"defense": "pruning+fed_acdp", "defense_args": {"fed_acdp.policy": "cyclic"}},
            5,
            "cyclic.* of fed_acdp goes",
        ),
        ({}, 1, "rounds 2 there, 1 here, and 2 are done"),
    ],
)
def test_where_the_planned_rounds_matter_it_does_not_go_on(
    tmp_path: Path, changes: dict[str, Any], rounds: int, fix: str
) -> None:
    run(tmp_path, 2, **changes)
    with pytest.raises(UsageError, match=fix) as caught:
        run(tmp_path, rounds, AGAIN, **changes)
    assert "choose another --out, or leave out --resume" in str(caught.value) and "\n" not in str(caught.value)


def test_another_setting_is_still_refused_beside_more_rounds(tmp_path: Path) -> None:
    run(tmp_path, 2)
    with pytest.raises(UsageError, match=r"learning_rate 0\.05 there, 0\.1 here\)"):
        run(tmp_path, 5, AGAIN, learning_rate=0.1)


def test_a_model_of_another_run_in_the_folder_is_not_kept_by_this_one(tmp_path: Path) -> None:
    assert list(run(tmp_path, 2, replace(OPTIONS, keep=(0, 1, 2))).weights) == [0, 1, 2]
    assert list(run(tmp_path, 1, replace(OPTIONS, keep=(1,)), seed=1).weights) == [1]
    assert list(run(tmp_path, 4, replace(AGAIN, keep=(2, 4)), seed=1).weights) == [1, 2, 4]


def test_a_number_of_a_command_line_is_no_other_setting(tmp_path: Path, killed_after: Callable) -> None:
    changes = {"defense": "fed_cdp", "defense_args": {"sigma": 0.5}}
    with killed_after(1) as kill:
        run(tmp_path, 3, replace(OPTIONS, on_round=kill), **changes)
    with pytest.raises(UsageError, match="defense_args"):
        run(tmp_path, 3, AGAIN, **changes | {"defense_args": {"sigma": "0.6"}})
    assert len(run(tmp_path, 3, AGAIN, **changes | {"defense_args": {"sigma": "0.5"}}).rounds) == 3


def test_a_secret_key_lies_in_its_own_file_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without --seed: two runs differ, --resume draws on, and nothing that is shown or stored names the key."""
    small = ["--split", "iid", "--clients", "4", "--clients-per-round", "2", "--local-steps", "2", "--batch-size", "2"]

    def run(folder: str, rounds: int, *more: str) -> int:
        made = ["train", "--defense", "fed_cdp", "--rounds", str(rounds), *small, *more]
        return harness([*made, "--evaluate-every", "9", "--out", str(tmp_path / folder)])

    def weights(folder: str) -> torch.Tensor:
        return torch.load(tmp_path / folder / "checkpoint.pt", weights_only=True)["weights"]

    def refused(folder: str, *more: str) -> str:
        capfd.readouterr()
        assert run(folder, 3, "--resume", *more) == 2
        lines = capfd.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0]

    assert [run("one", 2), run("two", 2), run("public", 2, "--seed", "0"), run("again", 2, "--seed", "0")] == [0] * 4
    assert not torch.equal(weights("one"), weights("two")) and torch.equal(weights("public"), weights("again"))
    secret, said = tmp_path / "one" / "noise.key", capfd.readouterr()
    key = secret.read_text()
    assert secret.stat().st_mode & 0o777 == 0o600 and len(key) == 64 and not (tmp_path / "public/noise.key").exists()
    assert run("one", 3, "--resume") == 0
    assert secret.read_text() == key
    said = said.out + said.err + "".join(capfd.readouterr())
    assert "add --seed 0" in refused("public") and "leave out --seed" in refused("one", "--seed", "0")
    secret.rename(tmp_path / "aside")
    said += (missing := refused("one"))
    assert "noise.key" in missing
    secret.write_text((tmp_path / "two" / "noise.key").read_text())
    said += (other := refused("one"))
    assert "another noise.key" in other
    stored = b"".join(path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file())
    for form in (key.encode(), bytes.fromhex(key), str(int(key, 16)).encode()):
        assert form not in stored and form not in said.encode()
    notes = {name: (tmp_path / name / "training.json").read_text() for name in ("one", "public")}
    assert "repeatable" not in notes["one"] and "known to whoever knows the seed" in notes["public"]
    assert [json.loads(notes[name])["secret"] for name in notes] == [True, False]


def test_no_text_shows_the_keys_of_a_context() -> None:
    """A defense of the user's own may put its context into the line of its error."""
    shown = RoundContext(0, 0, 0.1, Cohort(), Layout(("w",), ((2,),)), (("secret" * 9, 3),))
    assert "secret" not in f"{shown} {shown.part('noise')!r} {shown.quiet()}"
