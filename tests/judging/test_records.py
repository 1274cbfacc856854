"""What a capture says of clients as people run them: read in one form, and contradictions told in one line."""

from typing import Any

import pytest
from pydantic import ValidationError

from harness.base.building import one_line
from harness.capture import CaptureRecord

USUAL: dict[str, Any] = {"model": "mlp", "image_shape": (1, 8, 8), "classes": 10, "batch_size": 2}
SGD, ADAM = {"name": "SGD", "lr": 0.1, "momentum": 0.9}, {"name": "Adam", "lr": 0.1, "betas": [0.9, 0.99]}


def record(**facts: Any) -> CaptureRecord:
    return CaptureRecord(**USUAL | facts)


@pytest.mark.parametrize(
    ("facts", "text", "rate"),
    [
        ({"learning_rate": 0.1}, "sgd", 0.1),
        ({"learning_rate": 0.1, "fedprox": 0.01}, "sgd:fedprox=0.01", 0.1),
        ({"optimizer": SGD, "clip_grad_norm": 1}, "sgd:clip_grad_norm=1.0,momentum=0.9", 0.1),
        ({"optimizer": ADAM, "accumulate": 3}, "adam:accumulate=3,betas=0.9/0.99", 0.1),
        ({"optimizer": ADAM, "accumulate": 3, "accumulate_sum": True},
         "adam:accumulate=3,accumulate_sum=true,betas=0.9/0.99", 0.1),
        ({"optimizer": "adam", "schedule": [0.2, 0.1], "local_steps": 2}, "adam:schedule=0.2/0.1", 0.2),
        ({"optimizer": "sgd:fedprox=0.5", "learning_rate": 0.1, "fedprox": 0.5}, "sgd:fedprox=0.5", 0.1),
        ({"learning_rate": 0.1, "dtype": "float16", "order": "same", "state": "carried", "drop_last": True}, "sgd", .1),
    ],
)  # fmt: skip
def test_keys_beside_the_optimizer_are_part_of_it(facts: dict[str, Any], text: str, rate: float) -> None:
    made = record(**facts)
    assert (made.optimizer, made.learning_rate) == (text, rate)
    assert CaptureRecord.model_validate_json(made.model_dump_json()) == made
    optimizer = made.local_optimizer
    assert optimizer and (optimizer.fedprox, optimizer.accumulate) == (made.fedprox, made.accumulate)
    assert (optimizer.schedule, optimizer.clip_grad_norm) == (made.schedule, made.clip_grad_norm)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"optimizer": SGD, "schedule": [0.1, 0.1], "local_steps": 3}, "has 2 rates and there are 3 local_steps"),
        ({"optimizer": SGD, "schedule": [0.2, 0.1], "local_steps": 2}, "begins with 0.2, its lr is 0.1; give one"),
        ({"learning_rate": 0.3, "schedule": [0.2]}, "schedule begins with 0.2, learning_rate 0.3; give one"),
        ({"optimizer": SGD, "state": "carried"}, "make a new optimizer for the captured round"),
        ({"optimizer": ADAM, "clip_grad_norm": -1}, "greater than 0"),
        ({"optimizer": "sgd:lr=0.1,fedprox=0.5", "fedprox": 0.1}, "fedprox is 0.1 and in the optimizer 0.5; give one"),
        ({"optimizer": "momentum", "learning_rate": 0.1, "fedprox": 0.1}, "needs the optimizer's arguments"),
        ({"optimizer": SGD, "accumulate_sum": True}, "give their number as accumulate"),
        ({"optimizer": SGD, "batch_size": 4, "accumulate": 2, "expected_batch_size": 8}, "give batch_size 8"),
        ({"optimizer": SGD, "epochs": 2, "examples": 7, "local_steps": 8, "drop_last": True}, "are 6 local_steps"),
        ({"optimizer": SGD, "epochs": 2, "examples": 7, "local_steps": 6, "drop_last": False}, "are 8 local_steps"),
        ({"optimizer": SGD, "epochs": 2, "examples": 8, "local_steps": 8, "accumulate": 2},
         "are 8 batches, 2 of which make a step, and 8 local_steps are declared"),
        # With 9 steps, noise of each is less in the update than with 12.
        ({"learning_rate": 0.1, "epochs": 3, "examples": 7}, "are 12 (or 9 with drop_last) local_steps, and 1 are"),
        ({"optimizer": SGD, "epochs": 2, "examples": 7, "local_steps": 4, "accumulate": 2}, "with drop_last"),
        ({"learning_rate": 0.1, "client": ""}, "at least 1 character"),
        ({"optimizer": SGD, "dtype": "float8"}, "'float16' or 'bfloat16'"),
    ],
)  # fmt: skip
def test_contradictions_are_one_line(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as problem:
        record(**facts)
    line = one_line(problem.value)
    assert said in line and "\n" not in line


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"client": 3}, {"client": "3"}), ({"dtype": "float32"}, {}), ({"optimizer": None}, {}),
        *(({"epochs": 3, "examples": 7} | more, {"epochs": 3, "examples": 7, "local_steps": steps} | more)
          for more, steps in (
              ({"drop_last": False}, 12), ({"drop_last": True}, 9), ({"drop_last": True, "accumulate": 3}, 3)
          )),
    ],
)  # fmt: skip
def test_what_can_only_mean_one_thing_is_taken_for_it(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert record(learning_rate=0.1, **given) == record(learning_rate=0.1, **meant)


def test_steps_of_several_batches_have_the_examples_of_all() -> None:
    made = record(optimizer=SGD, epochs=2, examples=8, local_steps=4, accumulate=2)
    assert (made.step_size, made.step_sizes(), made.truths, len(made.slots())) == (4, (4,) * 4, 16, 16)
    drawn = record(learning_rate=0.1, expected_batch_size=4, schedule=[0.1, 0.2], local_steps=2)
    assert drawn.local_optimizer and drawn.local_optimizer.schedule == (0.05, 0.1) and drawn.rate == 0.05
