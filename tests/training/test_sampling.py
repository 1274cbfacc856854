"""Participants and batches: how often each is drawn, and that a resumed run draws the same."""

import pytest
import torch

from harness.base.vectors import Layout
from harness.training import TrainSettings, train_settings
from harness.training.rounds import sample_batches, sample_clients


def settings(**changes: object) -> TrainSettings:
    return train_settings(**{"clients": 40, "clients_per_round": 10, "local_steps": 6, "batch_size": 4, **changes})


@pytest.mark.parametrize("kind", ["fixed", "poisson"])
def test_clients_take_part_at_their_rate(kind: str) -> None:
    rounds = [sample_clients(settings(client_sampling=kind), now) for now in range(400)]
    assert rounds == [sample_clients(settings(client_sampling=kind), now) for now in range(400)]
    counts = torch.bincount(torch.tensor([client for one in rounds for client in one]), minlength=40)
    # 400 rounds at rate 1/4: mean 100, standard deviation sqrt(75); five of them either way for 40 clients.
    assert abs(counts.double().mean() - 100) < 2 and (counts - 100).abs().max() < 5 * 75**0.5
    assert ({len(one) for one in rounds} == {10}) == (kind == "fixed")


def test_everybody_takes_part() -> None:
    assert sample_clients(settings(clients_per_round=40, client_sampling="all"), 3) == list(range(40))


@pytest.mark.parametrize("kind", ["shuffle", "partition"])
def test_a_pass_shows_every_example_once(kind: str) -> None:
    made = [sample_batches(settings(batch_sampling=kind), now, [3, 5]).places for now in (0, 1)]
    assert made[0].shape == (2, 6, 4)
    assert all(row.flatten().sort().values.tolist() == list(range(24)) for row in made[0])
    assert torch.equal(made[0], made[1]) == (kind == "partition")
    longer = sample_batches(settings(batch_sampling=kind, local_steps=12, examples=24), 0, [3]).places[0]
    assert longer[6:].flatten().sort().values.tolist() == list(range(24))


@pytest.mark.parametrize("kind", ["shuffle", "partition"])
@pytest.mark.parametrize(
    ("examples", "batch", "steps"), [(24, 4, 6), (24, 4, 7), (5, 2, 3), (7, 4, 2), (9, 5, 4), (9, 5, 1), (30, 30, 3)]
)
def test_no_example_is_met_more_often_than_accounted(kind: str, examples: int, batch: int, steps: int) -> None:
    """Also where batches do not divide a client's examples, some of which each pass then leaves out."""
    made = settings(batch_sampling=kind, examples=examples, batch_size=batch, local_steps=steps)
    rounds = [sample_batches(made, now, list(range(40))).places.flatten(1) for now in range(10)]
    met = max(int(torch.bincount(row, minlength=examples).max()) for one in rounds for row in one)
    assert met == made.facts(Layout(("a",), ((1,),)), 1).steps_of_a_record(steps)


def test_draws_without_replacement_are_distinct_within_a_step() -> None:
    places = sample_batches(settings(batch_sampling="without-replacement", local_steps=500, examples=24), 0, [0]).places
    assert all(len(step.unique()) == 4 for step in places[0])
    counts = torch.bincount(places.flatten(), minlength=24)
    assert (counts - 500 / 6).abs().max() < 5 * (500 * 5 / 36) ** 0.5


def test_poisson_batches_vary_around_their_rate() -> None:
    batches = sample_batches(settings(batch_sampling="poisson", local_steps=2000, examples=24), 0, [0, 1])
    assert batches.present is not None
    sizes = batches.present.sum(-1).double()
    assert abs(sizes.mean() - 4) < 5 * (4 * 5 / 6 / 4000) ** 0.5
    assert abs(sizes.var() - 4 * 5 / 6) < 0.4  # a fixed batch would have none
    for places, present in zip(batches.places[0], batches.present[0], strict=True):
        assert len(places[present].unique()) == int(present.sum())


def test_a_client_draws_the_same_whoever_is_beside_it() -> None:
    for kind in ("shuffle", "poisson"):
        alone = sample_batches(settings(batch_sampling=kind), 2, [7])
        among = sample_batches(settings(batch_sampling=kind), 2, [1, 7, 9])
        width = alone.places.shape[-1]
        mask = slice(None) if alone.present is None else alone.present[0]
        assert torch.equal(alone.places[0][mask], among.places[1][..., :width][mask])
