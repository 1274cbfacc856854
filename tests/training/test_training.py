"""A training run against plain FedAvg, and that chunks, kills and resuming change nothing."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from harness.base.errors import UsageError
from harness.models import RowModel, build_module
from harness.privacy import GaussianRelease, claimed_epsilon, compose, valid_epsilon
from harness.training import TrainDocument, TrainFolder, Training, TrainOptions, clients, train, train_settings
from harness.training.rounds import sample_clients

TINY: dict[str, Any] = {
    "dataset": "cancer", "model": "mlp2", "clients": 12, "clients_per_round": 5, "rounds": 3, "local_steps": 4,
    "batch_size": 3, "split": "iid",
}  # fmt: skip
OPTIONS = TrainOptions(chunk=5)


def run(folder: Path, options: TrainOptions = OPTIONS, **changes: Any) -> TrainDocument:
    return train(train_settings(**{**TINY, **changes}), folder, TrainFolder(folder), options)


def numbers(document: TrainDocument) -> list[dict[str, Any]]:
    return [record.model_dump(exclude={"seconds"}) for record in document.rounds]


def final_weights(folder: Path) -> torch.Tensor:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["weights"]


def test_it_is_federated_averaging(tmp_path: Path, train_plainly: Callable[..., None]) -> None:
    """An independent loop over clients and steps with a plain module and a plain optimizer."""
    settings = train_settings(**TINY)
    training = Training(settings, tmp_path)
    module = build_module("mlp2", training.train.image_shape, 2, seed=0)
    weights = training.model.layout.split(training.weights)
    for round_index in range(2):
        updates = []
        for client in sample_clients(settings, round_index):
            module.load_state_dict(weights)
            optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
            train_plainly(training, round_index, client, module, optimizer)
            updates.append({name: value - weights[name] for name, value in module.state_dict().items()})
        weights = {name: value + sum(update[name] for update in updates) / 5 for name, value in weights.items()}
        training.play_round(round_index, 5)
    torch.testing.assert_close(training.weights, training.model.layout.flatten(weights), rtol=1e-4, atol=1e-6)


def test_one_full_step_of_everybody_is_gradient_descent(tmp_path: Path) -> None:
    everybody = {"clients": 6, "clients_per_round": 6, "local_steps": 1, "batch_size": 20, "client_sampling": "all"}
    training = Training(train_settings(**{**TINY, **everybody}), tmp_path)
    before = training.weights.clone()
    module = training.model.plain(before)
    chosen = training.data.flatten()
    loss = functional.cross_entropy(module(training.train.images[chosen]), training.train.labels[chosen])
    gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(module.parameters()))])
    training.play_round(0, 3)
    torch.testing.assert_close(training.weights, before - 0.05 * gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("defense", "arguments"),
    [
        ("none", {}),
        pytest.param("fed_cdp", {"sigma": 0.5}, marks=pytest.mark.slow),
        pytest.param("fed_cdp", {"sigma": 0.5, "convention": "per_example"}, marks=pytest.mark.slow),
        ("noise", {"applies_to": "example", "amount": 0.1}),
        ("fed_acdp", {"policy": "linear"}),
        ("fed_sdp", {"noise_at": "client"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sampling", ["shuffle", "poisson"])
def test_chunks_change_nothing(tmp_path: Path, defense: str, arguments: dict[str, Any], sampling: str) -> None:
    made = {"defense": defense, "defense_args": arguments, "batch_sampling": sampling, "rounds": 2}
    whole = run(tmp_path / "whole", **made)
    parts = run(tmp_path / "parts", replace(OPTIONS, chunk=2), **made)
    assert numbers(whole) == numbers(parts)
    assert torch.equal(final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts"))


def test_poisson_batches_of_a_round_are_of_one_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another width rounds differently, and would tell which clients were trained together."""
    training, widths = Training(train_settings(**TINY | {"batch_sampling": "poisson"}), tmp_path), []
    whole = clients.batch_gradients

    def watched(model: Any, dataset: Any, data: Any, batches: Any, *rest: Any) -> Any:
        widths.append(batches.places.shape[-1])
        return whole(model, dataset, data, batches, *rest)

    monkeypatch.setattr(clients, "batch_gradients", watched)
    training.play_round(0, 2)
    assert len(widths) > 1 and len(set(widths)) == 1


SCAFFOLD = {
    "dataset": "logistic-5-5", "model": "logistic", "split": "natural", "clients": 10, "clients_per_round": 4,
    "local_steps": 3, "batch_size": 8, "examples": 40, "learning_rate": 0.5, "algorithm": "scaffold",
}  # fmt: skip
REMEMBERING: dict[str, dict[str, Any]] = {
    "nothing": {"defense": "fed_cdp"},
    "running statistics": {
        "dataset": "digits", "model": "resnet8", "clients": 6, "clients_per_round": 3, "local_steps": 2,
        "batch_size": 4, "learning_rate": 0.1,
    },
    "the server's momentum": {
        "clients": 5, "client_sampling": "all", "batch_sampling": "poisson", "server_momentum": 0.9,
        "defense": "secagg_ddp", "defense_args": {"protocol": "sum"},
    },
    "variates": SCAFFOLD, "variates under a defense": SCAFFOLD | {"defense": "fed_cdp"},
}  # fmt: skip


@pytest.mark.parametrize("remembered", [
    pytest.param(one, marks=pytest.mark.slow if one == "the server's momentum" else ()) for one in REMEMBERING
])  # fmt: skip
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path: Path, killed_after: Callable, remembered: str) -> None:
    def made(folder: str, **options: Any) -> TrainDocument:
        return run(tmp_path / folder, replace(OPTIONS, keep=(3,), **options), **REMEMBERING[remembered])

    whole = made("whole")
    with killed_after(2) as kill:
        made("again", on_round=kill, chunk=2)
    assert numbers(whole) == numbers(made("again", resume=True, chunk=3))
    assert torch.equal(final_weights(tmp_path / "whole"), final_weights(tmp_path / "again"))
    kept, again = (
        torch.load(tmp_path / folder / "models/round_00003.pt", weights_only=True) for folder in ("whole", "again")
    )
    assert kept.keys() == again.keys() and all(torch.equal(value, again[name]) for name, value in kept.items())
    assert all(value.any() for name, value in kept.items() if "running" in name)


def test_going_on_with_other_threads_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run(tmp_path, replace(OPTIONS, resume=True), rounds=4)
    finally:
        torch.set_num_threads(threads)
    assert f"checkpoint is of {threads} threads per process, this goes on with {threads + 1}" in caplog.text


def test_noise_reaches_the_model_at_its_scale(tmp_path: Path) -> None:
    """With a large sigma a round's update is noise: eta * sigma * C / B * sqrt(L / K) per coordinate."""
    training = Training(train_settings(**{**TINY, "defense": "fed_cdp", "defense_args": {"sigma": 100.0}}), tmp_path)
    before = training.weights.clone()
    training.play_round(0, 5)
    expected = 0.05 * 100 * 4 / 3 * (4 / 5) ** 0.5
    found = float((training.weights - before).std())
    assert found == pytest.approx(expected, rel=0.02) and found != pytest.approx(1.1 * expected, rel=0.02)


def test_a_budget_stops_before_the_round_that_exceeds_it(tmp_path: Path) -> None:
    made = {"defense": "fed_cdp", "batch_sampling": "poisson", "rounds": 4, "budget": "claimed"}
    free = run(tmp_path / "free", **made)
    spent = [record.claimed_epsilon for record in free.rounds]
    assert all(earlier < later for earlier, later in itertools.pairwise(spent))
    stopped = run(tmp_path / "stopped", target_epsilon=(spent[2] + spent[3]) / 2, **made)
    assert len(stopped.rounds) == 3 and "round 4 would exceed" in stopped.stopped
    with pytest.raises(UsageError, match="first round alone"):
        run(tmp_path / "none", target_epsilon=spent[0] / 2, **made)
    with pytest.raises(UsageError, match="no claimed epsilon"):
        run(tmp_path / "none", target_epsilon=1.0, budget="claimed")


@pytest.mark.parametrize("ended_by", ["defense", "fewer rounds"])
def test_accuracy_is_that_of_the_rounds_whose_privacy_is_told(
    tmp_path: Path, killed_after: Callable, ended_by: str
) -> None:
    made = {"defense": "global_dp", "defense_args": {"epsilon": 2.0}, "rounds": 40}
    every = run(tmp_path / "every", **made)
    last = len(every.rounds)
    assert "would spend epsilon" in every.stopped and last % 3 and every.rounds[-1].accuracy == every.accuracy
    rare, folder = replace(OPTIONS, evaluate_every=3, resume=True), tmp_path / "rare"
    if ended_by == "fewer rounds":
        with killed_after(last) as kill:
            run(folder, replace(rare, on_round=kill), **made)
        made["rounds"] = last
    document = run(folder, rare, **made)
    assert numbers(document)[-1] == numbers(every)[-1] and document.accuracy == every.accuracy
    assert numbers(run(folder, rare, **made)) == numbers(document)


@pytest.mark.parametrize("budget", [{"epsilon": 1e-4}, {"epsilon": 1e-4, "max_delta": 1e-6}])
def test_a_defense_whose_budget_one_round_exceeds_is_refused(tmp_path: Path, budget: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"before anything is learned: round 1 would .* raise epsilon or sigma"):
        run(tmp_path, defense="global_dp", defense_args=budget)
    assert not (tmp_path / "training.json").exists()


def test_statements_know_the_sampler_that_ran(tmp_path: Path) -> None:
    by_view = {}
    for sampling in ("poisson", "shuffle"):
        document = run(tmp_path / sampling, dataset="digits", defense="fed_cdp", batch_sampling=sampling, clients=30)
        by_view[sampling] = {one.view: one for one in document.privacy}
    assert by_view["poisson"]["server"].epsilon < by_view["shuffle"]["server"].epsilon
    assert by_view["poisson"]["server"].claimed_epsilon == by_view["shuffle"]["server"].claimed_epsilon
    disjoint = {one.view: one for one in run(tmp_path / "few", dataset="digits", defense="fed_cdp").privacy}
    assert disjoint["third party"].guarantee == "sample-DP" and disjoint["third party"].notes.count("hold") == 0


def test_an_example_that_several_clients_hold_is_counted_for_each(tmp_path: Path) -> None:
    # 150 clients of 12 examples out of 1,347: some are held twice, none more than twice.
    document = run(tmp_path, dataset="digits", defense="fed_cdp", clients=150)
    assert document.holders == 2 and document.copies == 1
    layout = RowModel("mlp2", (1, 8, 8), 10).layout
    settings = train_settings(**(TINY | {"dataset": "digits", "defense": "fed_cdp", "clients": 150}))
    facts = settings.facts(layout, len(document.rounds))
    steps = 2 * len(document.rounds) * facts.steps_of_a_record(settings.local_steps)
    twice = GaussianRelease(6 / len(layout.sizes) ** 0.5, 1.0, "none", count=steps)
    for statement in document.privacy:
        assert statement.epsilon == pytest.approx(valid_epsilon(compose([twice]))[0])
        assert "an example that 2 clients hold" in statement.notes


def test_more_clients_than_usual_may_hold_an_example(tmp_path: Path) -> None:
    """A round of sampled clients has no largest number."""
    made = {"dataset": "digits", "defense": "fed_cdp", "clients": 150, "clients_per_round": 1}
    few = run(tmp_path / "fixed", **made)
    any_number = run(tmp_path / "poisson", **made, client_sampling="poisson")
    assert few.privacy[1].view == "server" and few.privacy[1].epsilon < 0.9 * any_number.privacy[1].epsilon


def test_a_decaying_schedule_is_accounted_for_as_far_as_it_ran(tmp_path: Path) -> None:
    arguments = {"policy": "linear", "schedule": "sigma", "sigma_end": 1.0}
    document = run(tmp_path, defense="fed_acdp", defense_args=arguments, batch_sampling="poisson", rounds=4)
    settings = train_settings(**(TINY | {"defense": "fed_acdp", "defense_args": arguments, "rounds": 4}))
    schedule = settings.build_defense().operations(settings.cohort())[-1].decay
    steps = settings.local_steps
    rate = settings.batch_size / settings.client_examples
    for record in document.rounds:
        sigmas = [schedule.sigma(number, step) for number in range(record.round) for step in range(steps)]
        ran = compose([GaussianRelease(sigma, rate, "poisson") for sigma in sigmas])
        assert record.claimed_epsilon == pytest.approx(claimed_epsilon(ran))


def test_kept_models_are_those_of_their_rounds(tmp_path: Path) -> None:
    document = run(tmp_path, replace(OPTIONS, keep=(0, 2)))
    assert document.weights == {0: "models/round_00000.pt", 2: "models/round_00002.pt"}
    training = Training(train_settings(**TINY), tmp_path)
    start = training.model.load_weights(tmp_path / "models" / "round_00000.pt")
    assert torch.equal(start, training.weights)
    for round_index in range(2):
        training.play_round(round_index, 5)
    assert torch.equal(training.model.load_weights(tmp_path / "models" / "round_00002.pt"), training.weights)


def _damage(folder: Path) -> None:
    content = (folder / "checkpoint.pt").read_bytes()
    (folder / "checkpoint.pt").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("prepare", "changes", "fix"),
    [
        (lambda folder: None, {"learning_rate": 0.1}, "learning_rate 0.05 there, 0.1 here"),
        (_damage, {}, "cut off; delete it"),
    ],
)
def test_checkpoints_that_do_not_fit(
    tmp_path: Path, prepare: Callable[[Path], None], changes: dict[str, Any], fix: str
) -> None:
    run(tmp_path, rounds=2)
    prepare(tmp_path)
    with pytest.raises(UsageError, match=fix):
        run(tmp_path, replace(OPTIONS, resume=True), rounds=2, **changes)


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"clients_per_round": 13}, "lower clients_per_round"),
        ({"split": "rings"}, "choose iid"),
        ({"split": "dirichlet", "level": 0}, "level 0"),
        ({"batch_size": 50, "examples": 20}, "lower batch_size"),
        ({"delta": 1.0}, "delta"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"client_sampling": "all"}, "clients_per_round equal"),
        ({"defense": "fed_cdp", "defense_args": {"sigma": -1}}, "sigma"),
        ({"target_epsilon": 0}, "target_epsilon"),
    ],
)
def test_mistakes(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        train_settings(**{**TINY, **changes})
