"""Bayesian accounting of training runs: norms by an independent reading, levels, files, and what stops it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.defenses.global_dp import GlobalDP
from harness.federation.defense import FixedNoise
from harness.privacy.bayesian import Samples, bayesian_epsilon
from harness.training import TrainDocument, TrainFolder, Training, TrainOptions, TrainSettings, train, train_settings
from harness.training.bayesian import Notes, bayesian_of_run
from harness.training.norms import NormsFolder, RoundNorms
from harness.training.rounds import sample_batches, sample_clients

pytestmark = pytest.mark.usefixtures("coarse_losses")

TINY: dict[str, Any] = {
    "dataset": "digits", "model": "mlp2", "clients": 8, "clients_per_round": 4, "rounds": 3, "local_steps": 2,
    "batch_size": 4, "split": "iid", "client_sampling": "poisson", "batch_sampling": "poisson",
}  # fmt: skip
CLIENTS = {"defense": "global_dp", "defense_args": {"sigma": 2.0, "clip": 0.05}}
EXAMPLES = {"defense": "fed_cdp", "defense_args": {"sigma": 2.0, "clip": 0.5, "clipping": "whole"}}
ONE_STEP = EXAMPLES | {"local_steps": 1, "examples": 8}
OPTIONS = TrainOptions(chunk=4, notes=Notes)


def settings(**changes: Any) -> TrainSettings:
    return train_settings(**{**TINY, **changes})


def run(folder: Path, options: TrainOptions = OPTIONS, **changes: Any) -> TrainDocument:
    return train(settings(**changes), folder, TrainFolder(folder), options)


def norms_of(folder: Path, rounds: int, **changes: Any) -> tuple[list[RoundNorms], FixedNoise]:
    return NormsFolder(folder, settings(**changes)).read(rounds)


def epsilons(document: TrainDocument) -> dict[tuple[str, str], float]:
    return {(row["level"], row["direction"]): row["epsilon"] for row in document.bayesian}


def test_norms_of_examples_and_of_their_clipped_sum(tmp_path: Path) -> None:
    """By plain autograd, one example at a time."""
    run(tmp_path, **ONE_STEP)
    (first, *_), noise = norms_of(tmp_path, 3, **ONE_STEP)
    training = Training(settings(**ONE_STEP), tmp_path)
    clients = sample_clients(training.settings, 0)
    batches = sample_batches(training.settings, 0, clients)
    assert noise == FixedNoise("step", 1.0, 0.5) and len(first.examples) == len(clients) > 1
    for row, client in enumerate(clients):
        places = batches.places[row, 0][batches.present[row, 0]]
        gradients = [_gradient(training, training.data[client][place]) for place in places]
        clipped = [gradient * min(1.0, 0.5 / float(gradient.norm())) for gradient in gradients]
        found = first.examples[row, 0]
        assert found[np.isfinite(found)] == pytest.approx([float(each.norm()) for each in clipped], rel=1e-4)
        assert first.steps[row, 0] == pytest.approx(float(sum(clipped).norm()) / 4, rel=1e-4)


def _gradient(training: Training, place: torch.Tensor) -> torch.Tensor:
    module = training.model.plain(training.weights)
    logits = module(training.train.images[place][None])
    loss = torch.nn.functional.cross_entropy(logits, training.train.labels[place][None])
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(module.parameters()))])


def test_client_level_by_hand(tmp_path: Path) -> None:
    chosen = CLIENTS | {"seed": 3}  # every round has two clients and more
    document = run(tmp_path, **chosen)
    norms, noise = norms_of(tmp_path, 3, **chosen)
    assert noise == FixedNoise("server", 0.1, 0.05)
    assert [len(one.messages) for one in norms] == [record.participants for record in document.rounds]
    assert max(one.messages.max() for one in norms) == pytest.approx(0.05)  # clipped
    rounds = [[Samples(one.messages / 4, 0.1 / 4, 0.5)] for one in norms]
    direct = bayesian_epsilon(rounds, "client", 1e-5, bound=0.05 / 4)
    (row, *_) = document.bayesian
    assert row["epsilon"] == pytest.approx(direct.epsilon) and len(row["by_round"]) == 3
    assert row["moments_epsilon"] == pytest.approx(document.privacy[0].claimed_epsilon, rel=0.01)
    assert row["guarantee"] == "BDP" and row["moments_guarantee"] == "DP"


def test_leaving_a_client_out_of_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fixed number of clients; the messages are those that the server adds up."""
    fixed, sums = CLIENTS | {"client_sampling": "fixed"}, []
    aggregate = GlobalDP.server_receive
    monkeypatch.setattr(
        GlobalDP, "server_receive", lambda *given: sums.append(aggregate(*given)) or sums[-1], raising=True
    )
    document = run(tmp_path, **fixed)
    assert [row["level"] for row in document.bayesian] == ["client", "client", "client mean", "client mean"]
    (first, *_), _ = norms_of(tmp_path, 3, **fixed)
    messages = sums[0].numpy()
    moved = [np.linalg.norm(messages.mean(0) - np.delete(messages, one, axis=0).mean(0)) for one in range(4)]
    assert first.apart / 3 == pytest.approx(moved, rel=1e-5)
    mean = {row["direction"]: row for row in document.bayesian if row["level"] == "client mean"}["L"]
    apart = [[Samples(one.apart / 3, 0.1 / 4, 0.5)] for one in norms_of(tmp_path, 3, **fixed)[0]]
    direct = bayesian_epsilon(apart, "client mean", 1e-5, bound=2 * 0.05 / 4, direction="L")
    assert mean["epsilon"] == pytest.approx(direct.epsilon) and mean["moments_guarantee"] == "nominal"
    everybody = run(tmp_path / "all", **(CLIENTS | {"client_sampling": "all", "clients": 4}))
    words = {row["level"]: row["moments_guarantee"] for row in everybody.bayesian}
    assert words == {"client": "DP", "client mean": "nominal"}  # the server never divides by one less


def test_levels_of_local_noise(tmp_path: Path) -> None:
    found = epsilons(run(tmp_path / "one", **ONE_STEP))
    levels = ("instance sequential", "instance parallel", "joint")
    assert list(found) == [(level, direction) for level in levels for direction in ("max", "L")]
    assert all(found[level, "L"] <= found[level, "max"] for level in levels)
    several = run(tmp_path / "several", **EXAMPLES)
    assert {level for level, _ in epsilons(several)} == set(levels[:2])
    assert len(several.bayesian[0]["by_round"]) == 3 * 2  # a step counts like a round


def made_up(norms: list[float], bound: float, **changes: Any) -> dict[str, float]:
    """BDP epsilons, direction L, of one client and step with these norms in each of four rounds."""
    values = np.array(norms)[None, None]
    rounds = [RoundNorms(np.zeros(1), np.zeros(0), np.zeros(1), values, values.mean(axis=2))] * 4
    found = bayesian_of_run(
        settings(**(ONE_STEP | changes)), FixedNoise("step", 4.0, bound), rounds, 1.0, directions=("L",)
    )
    return {one.found.level: one.found.epsilon for one in found}


def test_typical_norms_cost_less_than_the_bound() -> None:
    rng = np.random.default_rng(0)
    small, large = rng.uniform(0.1, 0.2, 200).tolist(), [1.0] * 200
    near, far = made_up(small, 1.0), made_up(large, 1.0)
    assert near["instance parallel"] < 0.5 * far["instance parallel"]
    assert near["instance sequential"] < near["instance parallel"]  # one of all clients' examples is drawn more rarely


def test_few_samples_cost_no_more_than_the_bound() -> None:
    bound = made_up([1.0] * 200, 1.0)["instance parallel"]
    for few in ([0.1, 0.9], [0.1], [np.nan, np.nan]):
        assert made_up(few, 1.0)["instance parallel"] == pytest.approx(bound)


@pytest.mark.parametrize(
    ("changes", "level", "holds"),
    [
        ({}, "instance parallel", True),
        ({}, "instance sequential", False),
        ({}, "joint", False),
        ({"batch_sampling": "shuffle"}, "instance parallel", False),
    ],
)
def test_when_the_moments_accountants_number_is_dp(changes: dict, level: str, holds: bool) -> None:
    values = np.full((1, 1, 3), 0.5)
    rounds = [RoundNorms(np.zeros(1), np.zeros(0), np.zeros(1), values, values[..., 0])]
    for overlap, expected in ((1.0, holds), (2.0, holds and level == "joint")):
        made = bayesian_of_run(settings(**(ONE_STEP | changes)), FixedNoise("step", 4.0, 1.0), rounds, overlap)
        words = {one.found.level: one.moments_guarantee for one in made}
        assert words[level] == ("DP" if expected else "nominal")


@pytest.mark.parametrize("changes", [CLIENTS, EXAMPLES, ONE_STEP])
def test_chunks_and_resuming_change_nothing(tmp_path: Path, changes: dict) -> None:
    whole = run(tmp_path / "whole", **changes)
    run(tmp_path / "parts", TrainOptions(chunk=2, notes=Notes), **changes, rounds=2)
    parts = run(tmp_path / "parts", TrainOptions(chunk=3, notes=Notes, resume=True), **changes)
    assert epsilons(parts) == pytest.approx(epsilons(whole), rel=1e-9)
    unwatched = run(tmp_path / "unwatched", TrainOptions(chunk=4), **changes)
    assert unwatched.bayesian == []
    assert [one.accuracy for one in unwatched.rounds] == [one.accuracy for one in whole.rounds]
    assert [one.loss for one in unwatched.rounds] == [one.loss for one in whole.rounds]


@pytest.mark.slow
def test_a_round_without_clients(tmp_path: Path) -> None:
    rare = {"clients": 30, "clients_per_round": 1, "rounds": 4, "examples": 8}
    document = run(tmp_path, **(CLIENTS | rare))
    assert 0 in [record.participants for record in document.rounds]
    assert all(np.isfinite(row["epsilon"]) for row in document.bayesian)
    run(tmp_path / "examples", **(ONE_STEP | rare))


def test_rounds_without_notes(tmp_path: Path) -> None:
    run(tmp_path, TrainOptions(chunk=4), **CLIENTS, rounds=2)
    with pytest.raises(UsageError, match="round 1 was trained without --bayesian"):
        run(tmp_path, TrainOptions(chunk=4, notes=Notes, resume=True), **CLIENTS)
    run(tmp_path, **CLIENTS)
    run(tmp_path, TrainOptions(chunk=4), **CLIENTS, seed=1)
    with pytest.raises(UsageError, match="other settings"):
        norms_of(tmp_path, 3, **CLIENTS, seed=1)
    (tmp_path / "norms" / "round_00002.npz").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="damaged"):
        norms_of(tmp_path, 3, **CLIENTS)
    with pytest.raises(UsageError, match="nothing to account for"):
        norms_of(tmp_path, 0, **CLIENTS)


@pytest.mark.parametrize(
    ("defense", "arguments"),
    [
        ("none", {}), ("fed_acdp", {}), ("fed_cdp", {"sigma": 0}), ("fed_sdp", {"noise_at": "receive"}),
        ("global_dp", {"bound": "median"}), ("dp_local", {"clipping": "median_per_tensor"}), ("noise", {}),
    ],
)  # fmt: skip
def test_noise_that_is_not_fixed(tmp_path: Path, defense: str, arguments: dict) -> None:
    with pytest.raises(UsageError, match="take global_dp, fed_sdp"):
        run(tmp_path, defense=defense, defense_args=arguments)


@pytest.mark.parametrize(
    ("defense", "arguments", "deviation", "bound"),
    [
        ("fed_sdp", {"clip": 2.0, "sigma": 3.0}, 6.0, 2 * 6**0.5), ("dp_local", {"clip": 2.0, "sigma": 3.0}, 12.0, 2.0),
        ("fed_cdp", {"clip": 2.0, "sigma": 3.0, "convention": "mean", "clipping": "whole"}, 24.0, 2.0),
        ("fed_cdp", {"clip": 2.0, "sigma": 3.0, "convention": "per_example"}, 12.0, 2 * 6**0.5),
    ],
)  # fmt: skip
def test_fixed_noise(tmp_path: Path, defense: str, arguments: dict, deviation: float, bound: float) -> None:
    """On the sum: mlp2 has six tensors, a batch four examples."""
    training = Training(settings(defense=defense, defense_args=arguments), tmp_path)
    noise = training.defense.fixed_noise(training.settings.facts(training.model.layout, 3))
    assert noise is not None
    assert (noise.deviation, noise.bound) == (pytest.approx(deviation), pytest.approx(bound))


def test_noise_on_whole_messages(tmp_path: Path) -> None:
    """An example moves a clipped update by no more than its share of the gradient; leaving out is redone in full."""
    own = {"noise_at": "client", "clipping": "whole", "clip": 0.05, "sigma": 3.0}
    changes = {
        "defense": "fed_sdp", "defense_args": own, "local_steps": 1, "examples": 8, "batch_size": 8,
        "batch_sampling": "shuffle",
    }  # fmt: skip
    document = run(tmp_path, **changes)
    (first, *_), noise = norms_of(tmp_path, 3, **changes)
    assert noise == FixedNoise("message", pytest.approx(0.15), 0.05)
    training = Training(settings(**changes), tmp_path)
    client = sample_clients(training.settings, 0)[0]
    gradients = torch.stack([_gradient(training, place) for place in training.data[client]])
    update = -0.05 * gradients.mean(0)
    assert first.updates[0] == pytest.approx(float(update.norm()), rel=1e-4)
    moved = [float((_clip(update) - _clip(update + 0.05 * each / 8)).norm()) for each in gradients]
    allowed = sorted(0.05 * np.sort(first.examples[0, 0]) / 8)
    assert all(one <= most * (1 + 1e-5) + 1e-9 for one, most in zip(sorted(moved), allowed, strict=True))
    rows = {row["level"]: row for row in document.bayesian if row["direction"] == "L"}
    assert list(rows) == ["instance sequential", "instance parallel", "joint"]
    assert rows["instance parallel"]["epsilon"] < rows["instance parallel"]["moments_epsilon"]  # 2 C apart at worst
    assert rows["instance parallel"]["moments_guarantee"] == "DP"  # all a client holds is in its batch
    with pytest.raises(UsageError, match="one plain local step"):
        run(tmp_path / "more", **(changes | {"local_steps": 2}))


def _clip(vector: torch.Tensor) -> torch.Tensor:
    return vector * min(1.0, 0.05 / float(vector.norm()))
