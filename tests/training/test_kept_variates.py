"""Control variates are kept beside the model; attacks on a SCAFFOLD client read either half of what it sends."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks.candidates import dummy_gradient
from harness.base.errors import UsageError
from harness.cli import run as run_command
from harness.cli.evaluate import cells_from, merge
from harness.defenses import PrivacyFacts
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings
from harness.federation.memory import RoundVariates, read_variates, write_variates
from harness.privacy import example_views
from harness.training import TrainFolder, TrainOptions, read_training, train, train_settings

RATE = 0.5
TINY: dict[str, Any] = {
    "dataset": "digits", "model": "logistic", "clients": 6, "clients_per_round": 3, "rounds": 4, "local_steps": 3,
    "batch_size": 4, "split": "shards", "learning_rate": RATE,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for algorithm in ("scaffold", "scaffold-warm", "fedavg"):
        settings = train_settings(**TINY, algorithm=algorithm)
        train(settings, folder, TrainFolder(folder / algorithm), TrainOptions(keep=(0, 3)))
    return folder


def cells(folder: Path | None, tap: str, **options: Any) -> CellSettings:
    names = {"weights", "server_state", "variates", "surface"}
    given = dict.fromkeys(names) | {"training": folder, "tap": [tap], "victims": 4, "round": ["3"]} | options
    (merged,) = merge(given, None, None)
    (cell,) = cells_from(merged, "cpu")
    return cell.model_copy(update={"dtype": "float64"})


def scene(folder: Path, tap: str, **options: Any) -> Scene:
    return Stage(folder, 128).set(cells(folder, tap, **options))


def kept(folder: Path) -> RoundVariates:
    return read_variates(folder / "models" / "round_00003.variates.pt", "logistic", 650)


def test_the_variates_that_were_kept_are_those_of_the_run(trained: Path) -> None:
    found = kept(trained / "scaffold")
    assert found.clients.shape == (6, 650) and found.server.abs().max() > 0 and found.moving
    torch.testing.assert_close(found.server, found.clients.mean(0), rtol=1e-5, atol=1e-7)
    start = read_variates(trained / "scaffold" / "models" / "round_00000.variates.pt", "logistic", 650)
    assert not start.server.any() and not start.clients.any()


@pytest.mark.parametrize("steps", [1, 3])
def test_each_half_says_what_it_says(trained: Path, steps: int) -> None:
    """Against plain local steps y <- y - eta (gradient + c - c_i) and c_i+ = c_i - c + (x - y) / (K eta)."""
    folder = trained / "scaffold"
    more = {"local_steps": steps, "update_model": "avg", "batch_size": ["2"]}
    seen = {tap: scene(folder, tap, **more).observation for tap in ("T1.delta_y", "T1.delta_c", "T1.out", "T0.in")}
    truth, variates = scene(folder, "T1.out", **more).truth, kept(folder).to(torch.zeros(1, dtype=torch.float64))
    model, start = seen["T1.out"].model, seen["T1.out"].weights
    for victim in range(4):
        own, place = variates.clients[victim], start[victim].clone()
        gradients = []
        for step in range(steps):
            part = slice(2 * step, 2 * step + 2)
            images, labels = truth.images[victim, part].double(), truth.labels[victim, part]
            gradients.append(model.gradient(place[None], images[None], labels[None])[0])
            place = place - RATE * (gradients[-1] + variates.server - own)
        renewed = own - variates.server + (start[victim] - place) / (steps * RATE)
        close = {"rtol": 1e-6, "atol": 1e-9}
        torch.testing.assert_close(seen["T1.delta_y"].target[victim] * -RATE * steps, place - start[victim], **close)
        torch.testing.assert_close(seen["T1.delta_c"].target[victim], renewed - own, **close)
        torch.testing.assert_close(seen["T1.out"].target[victim], sum(gradients) / steps, **close)
    assert seen["T1.out"].fingerprint() == seen["T0.in"].fingerprint()
    assert len({one.fingerprint() for one in seen.values()}) == 3


def test_simulated_steps_need_the_correction(trained: Path) -> None:
    made = scene(trained / "scaffold", "T1.out", local_steps=3, update_model="unroll")
    seen, images, labels = made.observation, made.truth.images.double(), made.truth.labels
    assert seen.correction is not None and seen.take(torch.tensor([2])).correction.shape == (1, 650)
    torch.testing.assert_close(dummy_gradient(seen, images, labels, False), seen.target, rtol=1e-6, atol=1e-9)
    seen.correction.zero_()
    assert not torch.allclose(dummy_gradient(seen, images, labels, False), seen.target, rtol=1e-3)
    alone = scene(trained / "scaffold", "T1.delta_y", local_steps=3, update_model="unroll")
    assert alone.observation.correction is None


def test_other_algorithms_and_local_taps_have_none(trained: Path) -> None:
    assert cells(trained / "fedavg", "T1.out").variates is None
    step = scene(trained / "scaffold", "T2.step").observation
    out = scene(trained / "scaffold", "T1.out").observation
    assert step.fingerprint() == out.fingerprint()  # one plain step: the same gradient


def test_a_round_that_warms_up_sends_a_variate_only(trained: Path) -> None:
    folder = trained / "scaffold-warm"
    assert not kept(folder).moving
    with pytest.raises(UsageError, match=r"warms up.*read T1.delta_c"):
        scene(folder, "T1.delta_y")
    with pytest.raises(UsageError, match="use --update-model avg"):
        scene(folder, "T1.out", local_steps=2, update_model="unroll")
    assert scene(folder, "T1.delta_c").observation.target.any()


def test_rounds_that_warm_up_are_charged(tmp_path: Path) -> None:
    made = {"defense": "dp_local", "defense_args": {"sigma": 2.0}, "batch_sampling": "poisson"}
    statements = {}
    for algorithm in ("scaffold", "scaffold-warm"):
        train(train_settings(**TINY, **made, algorithm=algorithm), tmp_path, TrainFolder(tmp_path), TrainOptions())
        statements[algorithm] = read_training(tmp_path).privacy
    assert statements["scaffold"] == statements["scaffold-warm"]
    assert {"third party", "server"} <= {one.view for one in statements["scaffold"]}


def test_only_its_own_noise_hides_a_client_with_a_variate() -> None:
    """With one local step the sum of all clients' noise counts, but not where gradients depend on a variate."""
    one_step = train_settings(**TINY | {"local_steps": 1, "examples": 12}).cohort()
    events = {
        own: {
            view.name: view
            for view in example_views(PrivacyFacts(one_step, 2, "none", own_state=own).examples(1.0, "whole"))
        }
        for own in (False, True)
    }
    assert events[False]["third party"].event != events[False]["server"].event
    assert events[True]["third party"].event == events[True]["server"].event == events[False]["server"].event
    assert "control variates" in events[True]["third party"].note


def _other_model(path: Path) -> None:
    write_variates(path, RoundVariates(torch.zeros(5), torch.zeros(3, 5)), "mlp")


def _not_numbers(path: Path) -> None:
    write_variates(path, RoundVariates(torch.zeros(650), torch.full((3, 650), torch.nan)), "logistic")


def _cut_off(path: Path) -> None:
    _other_model(path)
    path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize(
    ("prepare", "fix"),
    [
        (_other_model, "of model 'mlp' with 5 parameters, not of 'logistic' with 650"),
        (_not_numbers, "holds NaN"),
        (_cut_off, "cut off"),
    ],
)
def test_files_that_do_not_fit(trained: Path, tmp_path: Path, prepare: Any, fix: str) -> None:
    prepare(tmp_path / "variates.pt")
    named = {
        "weights": trained / "scaffold" / "models" / "round_00003.pt", "variates": tmp_path / "variates.pt",
        "dataset": ["digits"], "model": ["logistic"], "defense": ["none"],
    }  # fmt: skip
    with pytest.raises(UsageError, match=fix):
        Stage(tmp_path, 128).set(cells(None, "T1.delta_c", **named))


def test_mistakes(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="is of SCAFFOLD; name a run of it with --training"):
        cells(trained / "fedavg", "T1.delta_c")
    with pytest.raises(UsageError, match="use a defense of the local step"):
        cells(trained / "scaffold", "T1.out", defense=["fed_sdp"])
    with pytest.raises(UsageError, match="both --training and --variates"):
        cells(trained / "scaffold", "T1.out", variates="x.pt")
    (tmp_path / "training.json").write_bytes((trained / "scaffold" / "training.json").read_bytes())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "round_00003.pt").write_bytes(
        (trained / "scaffold" / "models" / "round_00003.pt").read_bytes()
    )
    with pytest.raises(UsageError, match="kept no control variates of round 3; train it again"):
        cells(tmp_path, "T1.out")
    assert run_command(["evaluate", "--defense", "none", "--tap", "T1.delta_y"]) == 2
    assert "is of SCAFFOLD" in capsys.readouterr().err
