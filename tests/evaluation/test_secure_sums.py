"""Behind a secure sum a victim is a whole round of clients: what is observed, what is scored, and by which controls."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.evaluation import played_round
from harness.evaluation.controls import noiseless_control, without_noise
from harness.evaluation.observe import Scene, Stage
from harness.federation.taps import Tap

CLIENTS = 4
SECURE: dict[str, Any] = {
    "defense": "secagg_ddp", "tap": "T0.in", "clients_per_round": CLIENTS, "victims": 3, "model": "lenet",
}  # fmt: skip


@pytest.fixture
def scene(small: Any) -> Any:
    def of(chunk: int = 64, **settings: Any) -> Scene:
        return Stage(Path("no data root"), chunk).set(small.cell(**{**SECURE, **settings}))

    return of


def test_the_server_sees_one_mean_of_all_the_clients_images(scene: Any) -> None:
    made = scene(batch_size=2, defense_args={"sigma": 0.0, "clip": 1000.0})
    seen, truth = made.observation, made.truth
    assert (seen.rows, seen.examples) == (3, 2 * CLIENTS)
    assert tuple(truth.labels.shape) == (3, 2 * CLIENTS) and len(truth.indices.unique()) == 3 * 2 * CLIENTS
    whole = seen.model.gradient(seen.weights, truth.images, truth.labels)
    torch.testing.assert_close(seen.target, whole, rtol=1e-3, atol=2e-5)
    assert seen.labels is None


def test_clients_share_their_rounds_model_and_no_noise(scene: Any) -> None:
    """The mean of K clients has 1/sqrt(K) of the noise of one, of which each adds 1/sqrt(K) again."""
    deviations = {}
    for tap in ("T0.in", "T1.out"):
        loud, quiet = (scene(tap=tap, noise_scale=scale, defense_args={"sigma": 3.0}) for scale in (1.0, 0.0))
        deviations[tap] = float((loud.observation.target - quiet.observation.target).std())
        assert loud.observation.noise.law == "skellam" and quiet.observation.noise is None
        assert loud.observation.noise.deviation == pytest.approx(deviations[tap], rel=0.03)
    assert deviations["T1.out"] == pytest.approx(3.0 * 4.0 / CLIENTS**0.5, rel=0.03)
    assert deviations["T0.in"] == pytest.approx(3.0 * 4.0 / CLIENTS, rel=0.03)


@pytest.mark.parametrize("settings", [{}, {"mode": "paper", "mechanism": "gaussian"}])
def test_chunks_and_the_protocol_change_no_bit(scene: Any, settings: dict[str, Any]) -> None:
    prints = {
        scene(chunk, defense_args={"protocol": protocol, **settings}).observation.fingerprint()
        for chunk, protocol in ((64, "real"), (1, "real"), (64, "sum"))
    }
    assert len(prints) == 1


def test_labels_are_distinct_within_each_client(scene: Any) -> None:
    labels = scene(batch_size=5, distinct_labels=True).truth.labels.reshape(3, CLIENTS, 5)
    assert all(len(set(own)) == 5 for victim in labels.tolist() for own in victim)


def test_the_control_without_noise_reads_one_message(small: Any) -> None:
    settings = small.cell(**SECURE)
    assert (noiseless_control(settings).tap, without_noise(settings).tap) == ("T1.out", "T0.in")
    assert noiseless_control(settings.model_copy(update={"tap": Tap.STEP})).tap == "T2.step"
    assert noiseless_control(small.cell(defense="fed_sdp", tap="T0.in")).tap == "T0.in"


def test_a_cell_runs_with_its_controls(small: Any, tmp_path: Path) -> None:
    document = small.play([small.cell(**SECURE, defense_args={"sigma": 0.01})], tmp_path)
    (made,) = (one for one in document.cells if one.role == "cell")
    assert made.not_applicable_reason is None
    assert {check.name for check in made.controls} == {"positive", "positive_sigma0", "noise_x100", "swap"}
    assert {one.view for one in made.privacy} == {"third party", "server", "client", "message"}
    assert len(small.victims(tmp_path)) == sum(
        one.victims * (CLIENTS if one.tap == "T0.in" and one.defense == "secagg_ddp" else 1) for one in document.cells
    )


@pytest.mark.parametrize(
    ("settings", "fix"), [({"clients_per_round": 1}, "raise clients_per_round"), ({"victims": 500}, "ask for fewer")]
)
def test_impossible_rounds_are_refused(scene: Any, settings: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        scene(**settings)


def test_a_scene_is_set_once_for_all_attacks(small: Any) -> None:
    stage, first = Stage(Path("no data root"), 64), small.cell(**SECURE)
    scene = stage.set(first)
    assert stage.set(first.model_copy(update={"attack": "dlg"})) is scene
    assert stage.set(first.model_copy(update={"victims": 2})) is not scene


@pytest.mark.parametrize(("tap", "clients"), [("T0.in", [0, 1, 2, 3] * 3), ("T1.out", [0, 1, 2])])
def test_a_victim_stands_for_the_right_client(
    scene: Any, monkeypatch: pytest.MonkeyPatch, tap: str, clients: list[int]
) -> None:
    """Of a whole round each client is itself; a victim on its own is the client of its number."""
    seen: list[int] = []
    whole = played_round.play_round

    def watched(*given: Any, **named: Any) -> None:
        seen.extend(given[3].clients)
        whole(*given, **named)

    monkeypatch.setattr(played_round, "play_round", watched)
    scene(tap=tap, observations=2)
    assert seen == clients * 2
