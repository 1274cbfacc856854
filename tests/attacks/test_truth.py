"""The truth never reaches an attack: neither through what it is handed, nor back from those who know it."""

import inspect
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from harness.attacks import Attack, run_attack, run_reference
from harness.attacks.cpl import CPL
from harness.observation import Observation
from harness.tampering import Sender

Victims = Callable[..., Observation]

ENGINES = [run_attack, run_reference]


def test_an_observation_holds_these_facts_and_no_others() -> None:
    assert {field.name for field in fields(Observation)} == {
        "model", "weights", "target", "examples", "keys", "learning_rate", "local_steps", "update_model", "clipping",
        "sparse",
        "optimizer", "reading", "certainty",  # how clients step, and what of a step can be read at all
        "client",  # how many rounds are of one client, and how many examples it holds: not which it used
        "places",  # which examples are the same, where a client passes over its own several times
        "labels",  # only when the adversary is declared to know them
        "correction",  # only when the adversary knows a SCAFFOLD client's variate from earlier rounds
        "noise", "carrying", "cut", "coding", "disguises", "trained",  # to who knows a defense's settings
        "prior",  # public data
        "simulation",  # the round for public examples, where victims share weights
        "columns",  # which features of a table's row make a column
        "batches",  # running statistics that travel, where the network normalises batches
    }  # fmt: skip
    assert Observation.__dataclass_params__.frozen
    assert next(field for field in fields(Observation) if field.name == "labels").default is None


def test_an_observation_of_undefended_victims_contains_no_image_and_no_label(
    victims: Victims, digits: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    observation = victims(3)
    assert observation.labels is None
    tensors = [getattr(observation, field.name) for field in fields(Observation)]
    sizes = {tensor.shape[1] for tensor in tensors if isinstance(tensor, Tensor)}
    assert sizes == {observation.model.layout.total}  # weights and target, nothing of the size of an image


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_takes_an_attack_and_an_observation_and_nothing_that_could_be_the_truth(engine: Callable) -> None:
    parameters = inspect.signature(engine).parameters
    assert list(parameters)[:2] == ["attack", "observation"]
    assert set(parameters) <= {"attack", "observation", "chunk", "observer", "progress"}
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())


def test_no_method_of_an_attack_is_handed_the_truth() -> None:
    handed = {
        name
        for _, method in inspect.getmembers(Attack, inspect.isfunction)
        if not method.__name__.startswith("_")
        for name in inspect.signature(method).parameters
    }
    # The three facts of an iterate, the observation, what the engine derives from them, and the images it made itself;
    # before the round, how many clients and examples there will be.
    assert handed == {
        "self", "observation", "keys", "position", "labels", "dummy", "candidate", "victims", "iteration",
        "images", "clients", "examples",
    }  # fmt: skip


def test_a_sender_is_handed_public_data_alone() -> None:
    assert list(inspect.signature(Sender.__call__).parameters) == ["self", "model", "weights", "public", "client"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_observer_cannot_change_the_attack(engine: Callable, victims: Victims) -> None:
    """It overwrites everything it is handed and returns something; the result stays the same to the bit."""
    calls = 0

    def meddle(rows: Tensor, restarts: Tensor, iteration: int, images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        images.zero_()
        rows.zero_()
        restarts.fill_(99)
        return torch.ones_like(images)

    attack, observation = CPL(max_iterations=2, restarts=2, loss_stop=0), victims(2, model="mlp")
    alone, watched = engine(attack, observation), engine(attack, observation, observer=meddle)
    assert calls >= 2
    for field in fields(alone):
        assert torch.equal(getattr(alone, field.name), getattr(watched, field.name)), field.name
