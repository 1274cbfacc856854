"""Canary clients of a Flower job, planted by one mod, with stand-ins for its messages."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from harness.audit.planted import (
    Planted,
    audit_lower_bound,
    audit_released,
    canary_mod,
    cannot_refute,
    direction,
)
from harness.base.errors import UsageError
from harness.capture import CaptureRecord, write_capture
from harness.cli import run

CANARIES, PARAMETERS, ROUNDS, CLIP, DELTA = 100, 600, 5, 0.5, 1e-5


class Array:
    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def numpy(self) -> np.ndarray:
        return self.values


def message(model: dict[str, np.ndarray], kind: str = "train", error: bool = False) -> Any:
    return SimpleNamespace(
        content=SimpleNamespace(array_records={"arrays": {name: Array(one.copy()) for name, one in model.items()}}),
        metadata=SimpleNamespace(message_type=kind), has_error=lambda: error,
    )  # fmt: skip


def answered(mod: Any, model: dict[str, np.ndarray], number: int, trained: dict[str, np.ndarray]) -> Any:
    """What leaves a client whose app answers with ``trained``."""
    context = SimpleNamespace(node_config={"partition-id": number})
    made = mod(message(model), context, lambda *_: message(trained))
    return {name: one.numpy() for name, one in made.content.array_records["arrays"].items()}


def job(seed: int, multiplier: float, clients: int = CANARIES + 20) -> dict[int, dict[str, np.ndarray]]:
    """The models of a federation that clips every update to ``CLIP`` and adds Gaussian noise to their sum."""
    random, mod = np.random.default_rng(seed + 10_000), canary_mod(seed, CANARIES, CLIP)
    model = {"w": np.zeros((PARAMETERS // 2, 1)), "b": np.zeros(PARAMETERS - PARAMETERS // 2)}
    models = {1: model}
    for number in range(ROUNDS):
        trained = {name: one + random.normal(0, 0.1, one.shape) for name, one in model.items()}
        total = {name: np.zeros(one.shape) for name, one in model.items()}
        for client in range(clients):
            sent = answered(mod, model, client, trained)
            moved = {name: sent[name] - model[name] for name in model}
            length = math.sqrt(sum(float((one**2).sum()) for one in moved.values()))
            for name, one in moved.items():
                total[name] += one * min(1.0, CLIP / length)  # as Flower's clips do
        noise = {name: random.normal(0, multiplier * CLIP, one.shape) for name, one in model.items()}
        model = {name: one + (total[name] + noise[name]) / clients for name, one in model.items()}
        models[number + 2] = model
    return models


def proven(multiplier: float) -> float:
    """Epsilon of Gaussian noise on ``ROUNDS`` sums in which a client always takes part (Balle and Wang 2018)."""
    mu = math.sqrt(ROUNDS) / multiplier

    def beyond(epsilon: float) -> float:
        lost = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - lost) - DELTA

    return float(brentq(beyond, 0, 100))


@pytest.mark.slow
def test_lower_bounds_lie_below_what_is_proven() -> None:
    epsilon = proven(4.0)
    found = [audit_released(job(seed, 4.0), seed, CANARIES, delta=DELTA, epsilon=epsilon) for seed in range(40)]
    assert sum(one.lower_bound < epsilon for one in found) == 40 and not any(one.refuted for one in found)


def test_without_noise_the_bound_is_above_one() -> None:
    found = [audit_released(job(seed, 0.0), seed, CANARIES, delta=DELTA, epsilon=1.0) for seed in range(11)]
    assert np.median([one.lower_bound for one in found]) > 1
    assert sum(one.refuted for one in found) > 5


def test_who_does_not_know_the_coins_finds_nothing() -> None:
    models = job(0, 0.0)
    assert max(audit_released(models, seed, CANARIES).lower_bound for seed in range(1, 9)) < 1


def test_a_canary_moves_along_its_direction_or_hardly_at_all() -> None:
    model = {"w": np.ones((3, 2), dtype=np.float32), "b": np.zeros(4, dtype=np.float32)}
    trained = {name: one + 9 for name, one in model.items()}
    mod = canary_mod(7, 40, 2.0)
    lengths = []
    for number in range(40):
        sent = answered(mod, model, number, trained)
        moved = np.concatenate([(sent[name] - model[name]).ravel() for name in sorted(model)])
        lengths.append(float(np.linalg.norm(moved)))
        assert sent["w"].dtype == np.float32
        np.testing.assert_allclose(moved, lengths[-1] * direction(7, number, 10).numpy(), atol=1e-6)
    assert {round(one, 4) for one in lengths} == {0.002, 2.0}
    assert answered(mod, model, 40, trained)["w"].tolist() == trained["w"].tolist()


def test_what_is_no_training_passes() -> None:
    mod, answer = canary_mod(0, 20, 1.0), message({"w": np.ones(2)})
    context = SimpleNamespace(node_config={"partition-id": 0})
    asked = message({"w": np.zeros(2)}, kind="evaluate")
    assert mod(asked, context, lambda *_: answer) is answer
    assert answer.content.array_records["arrays"]["w"].numpy().tolist() == [1, 1]


def test_a_client_without_a_number_says_so() -> None:
    mod = canary_mod(0, 20, 1.0)
    with pytest.raises(UsageError, match="no partition-id in its node_config"):
        mod(message({"w": np.ones(2)}), SimpleNamespace(node_config={}), lambda *_: message({"w": np.ones(2)}))


@pytest.mark.parametrize(
    ("models", "canaries", "guesses", "problem"),
    [
        ({1: {"w": np.ones(3)}}, 100, None, r"1 model\(s\) show no round"),
        ({1: {"w": np.ones(3)}, 2: {"w": np.ones(4)}}, 100, None, "not of the same arrays"),
        ({1: {"w": np.ones(3)}, 2: {"w": np.full(3, np.nan)}}, 100, None, "not finite"),
        ({1: {"w": np.ones(3)}, 2: {"w": np.ones(3)}}, 5, None, "5 canaries can prove nothing"),
        ({1: {"w": np.ones(3)}, 2: {"w": np.ones(3)}}, 100, 200, "even number from 2 to the 100 canaries"),
        ({1: {"w": np.ones(3)}, 2: {"w": np.ones(3)}}, 100, 21, "even number from 2 to the 100 canaries, got 21"),
    ],
)
def test_what_no_audit_can_be_made_of(models: Any, canaries: int, guesses: int | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        audit_released(models, 0, canaries, guesses)


@pytest.mark.parametrize("values", [(-1, 20, 1.0), (0, 19, 1.0), (0, 20, 0.0), (0, 20, math.inf)])
def test_a_mod_of_impossible_canaries_is_refused(values: tuple[int, int, float]) -> None:
    with pytest.raises(UsageError, match="canary_mod takes"):
        canary_mod(*values)


def captured(folder: Path, models: dict[int, dict[str, np.ndarray]]) -> None:
    for number, model in models.items():
        record = CaptureRecord(
            model="logistic",
            image_shape=(1, 8, 8),
            classes=10,
            learning_rate=0.1,
            batch_size=1,
            client="3",
            round=number,
        )
        write_capture(folder / f"round-{number}", record, model, after=model)


def test_the_command_reads_captures_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captured(tmp_path, job(3, 0.0))
    asked = ["audit", "--planted", str(tmp_path), "--seed", "3", "--canaries", "100"]
    assert run([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rounds"] == ROUNDS and document["lower_bound"] > 1
    assert run([*asked, "--claimed-epsilon", "0.5"]) == 0
    assert "stated: epsilon 0.5, refuted" in capsys.readouterr().out
    assert run([*asked[:3], "--canaries", "100"]) == 2
    assert "needs the seed of canary_mod; add --seed" in capsys.readouterr().err
    assert run([*asked, "--defense", "fed_cdp"]) == 2
    assert "drop --defense" in capsys.readouterr().err


def test_canaries_that_cannot_be_judged_are_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They send another thing than they trained, which their captures say."""
    captured(tmp_path, job(3, 0.0))
    for facts in tmp_path.glob("*/capture.json"):
        known = {"not_captured": "its network was not seen at work", "round": json.loads(facts.read_text())["round"]}
        facts.write_text(json.dumps(known))
    asked = ["audit", "--planted", str(tmp_path), "--seed", "3", "--canaries", "100"]
    assert run([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lower_bound"] > 1
    (tmp_path / "round-1" / "before.npz").unlink()
    assert run(asked) == 2
    assert "has no before.npz: its round did not end; leave it out" in capsys.readouterr().err


def test_clients_that_begin_with_different_models_are_of_no_one_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captured(tmp_path / "one", {1: {"w": np.ones(3)}})
    captured(tmp_path / "two", {1: {"w": np.zeros(3)}})
    assert run(["audit", "--planted", str(tmp_path / "one" / "round-1"), "--planted", str(tmp_path / "two" / "round-1"),
                "--seed", "0"]) == 2  # fmt: skip
    assert "begin with different models" in capsys.readouterr().err


def test_words_of_a_bound() -> None:
    found = Planted(4, 100, 20, 12, 0.1, 1e-5, 0.95, 1.5)
    assert found.lines()[-1] == "stated: epsilon 1.5, consistent with it"
    weak = replace(found, epsilon=3.0).lines()
    assert weak[-2] == "stated: epsilon 3, consistent with it"
    assert weak[-1] == (
        "20 right guesses would prove 1.81, so that 3 cannot be refuted; take at least --guesses 62, or more --canaries"
    )


@pytest.mark.parametrize("guesses", range(10, 100, 10))
def test_a_bound_in_words_is_proven_too(guesses: int) -> None:
    bound = audit_lower_bound(100, guesses // 2, guesses // 2, guesses, 1e-5)
    line = Planted(4, 100, guesses, guesses, bound, 1e-5, 0.95, None).lines()[1]
    said = float(line.partition("at least ")[2].partition(" ")[0])
    refuted = cannot_refute(9.0, 100, guesses, 1e-5, 0.95)
    assert bound - 0.01 < said <= bound and refuted and f"would prove {said:.2f}, so" in refuted


@pytest.mark.parametrize("stated", [0.5, 1.8, 1.9, 3.0, 3.4, 3.6, math.inf])
def test_guesses_that_can_refute_nothing_are_told(stated: float) -> None:
    """The advice is the least even number of guesses that, all right, prove more than what is stated."""
    most = {count: audit_lower_bound(100, count // 2, count // 2, count, 1e-5) for count in range(2, 101, 2)}
    said = cannot_refute(stated, 100, 20, 1e-5, 0.95)
    if most[20] > stated or math.isinf(stated):
        assert said is None
        return
    enough = [count for count, bound in most.items() if bound > stated]
    advice = f"at least --guesses {enough[0]}, or more --canaries" if enough else "more --canaries"
    assert said is not None and said.endswith(f"cannot be refuted; take {advice}")
