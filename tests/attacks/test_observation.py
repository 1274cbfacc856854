"""An observation's fingerprint names exactly what an attack can see."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.models import RowModel
from harness.observation import Clipping, Observation

Victims = Callable[..., Observation]
Change = Callable[[Observation], Observation]


def nudged(observation: Observation, name: str) -> Observation:
    tensor = getattr(observation, name).clone()
    tensor[-1, -1] += 1e-3 if tensor.is_floating_point() else 1
    return replace(observation, **{name: tensor})


def other(**facts: Any) -> Change:
    return lambda observation: replace(observation, **facts)


VISIBLE: dict[str, Change] = {
    "target": lambda seen: nudged(seen, "target"),
    "weights": lambda seen: nudged(seen, "weights"),
    "labels": lambda seen: nudged(seen, "labels"),
    "no labels": other(labels=None),
    "examples": other(examples=4),
    "keys": other(keys=((1, 0), (1, 1))),
    "learning rate": other(learning_rate=0.1),
    "local steps": other(local_steps=2),
    "update model": other(update_model="avg"),
    "clipping": other(clipping=Clipping(4.0, "layer", "example")),
    "clipping bound": other(clipping=Clipping(2.0, "layer", "example")),
    "clipping groups": other(clipping=Clipping(4.0, "whole", "example")),
    "clipping unit": other(clipping=Clipping(4.0, "layer", "update")),
    "network": lambda seen: replace(seen, model=RowModel("mlp", (1, 8, 8), 10)),
    "classes": lambda seen: replace(seen, model=RowModel("lenet", (1, 8, 8), 11)),
    "image shape": lambda seen: replace(seen, model=RowModel("lenet", (1, 7, 8), 10)),
    "order of rows": lambda seen: seen.take(torch.tensor([1, 0])),
    "fewer rows": lambda seen: seen.take(torch.tensor([0])),
}


@pytest.fixture
def observation(victims: Victims) -> Observation:
    return replace(victims(2, 2), labels=torch.tensor([[0, 1], [2, 3]]))


def test_everything_visible_changes_the_fingerprint(observation: Observation) -> None:
    prints = {name: change(observation).fingerprint() for name, change in VISIBLE.items()}
    prints["unchanged"] = observation.fingerprint()
    assert len(set(prints.values())) == len(prints)


def test_nothing_else_does(observation: Observation, victims: Victims) -> None:
    again = replace(victims(2, 2), labels=torch.tensor([[0, 1], [2, 3]]))
    assert again.target is not observation.target
    expected = observation.fingerprint()
    assert again.fingerprint() == expected
    assert observation.take(torch.tensor([0, 1])).fingerprint() == expected
    strided = torch.stack([observation.target, observation.target], dim=-1)[..., 0]
    assert replace(observation, target=strided).fingerprint() == expected
    observation.model.plain(observation.weights[0] + 1.0)  # the reference engine's copy of weights
    assert observation.fingerprint() == expected


def test_take_selects_every_row_fact_in_the_order_given(observation: Observation) -> None:
    taken = observation.take(torch.tensor([1, 0, 1]))
    assert taken.rows == 3
    assert torch.equal(taken.target, observation.target[[1, 0, 1]])
    assert torch.equal(taken.weights, observation.weights[[1, 0, 1]])
    assert taken.labels is not None and taken.labels.tolist() == [[2, 3], [0, 1], [2, 3]]
    assert taken.keys == ((0, 1), (0, 0), (0, 1))
    assert (taken.examples, taken.model) == (observation.examples, observation.model)


@pytest.mark.parametrize(
    ("clipping", "groups"),
    [(None, 1), (Clipping(1.0, "whole", "example"), 1), (Clipping(1.0, "layer", "update"), 10)],
)
def test_clipping_groups(clipping: Clipping | None, groups: int, observation: Observation) -> None:
    sizes = replace(observation, clipping=clipping).clipping_groups
    assert len(sizes) == groups and sum(sizes) == observation.target.shape[1]
