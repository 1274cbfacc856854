"""The commands as functions: the same documents, the same checks."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness.base.errors import UsageError
from harness.evaluation import evaluate as evaluate_cells

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]


@pytest.mark.usefixtures("harness")
def test_training_and_its_attack() -> None:
    small = {"dataset": "digits", "model": "mlp", "clients": 2, "clients_per_round": 2, "batch_size": 2}
    trained = harness.train(defense="fed_cdp", local_steps=1, rounds=1, **small)
    assert [record.round for record in trained.rounds] == [1] and trained.settings["defense"] == "fed_cdp"
    document = harness.evaluate(
        defense=["none", "fed_cdp"], dataset="digits", model="mlp", victims=2, attack_args={"max_iterations": 1}
    )
    assert [cell.defense for cell in document.cells if cell.role == "cell"] == ["none", "fed_cdp"]


def test_an_account_is_the_commands_document(harness: Harness) -> None:
    from harness import account

    told = account(sigma=6, sampling_rate=0.01, steps=100, accountant=["rdp"])
    line = "account --sigma 6 --sampling-rate 0.01 --steps 100 --accountant rdp --json"
    assert json.loads(json.dumps(told)) == json.loads(harness(*line.split()).out)


MISTAKES = {
    "name": (lambda: harness.evaluate(defense="fed_cpd"), "did you mean 'fed_cdp'"),
    "chunk": (lambda: harness.evaluate(defense="none", chunk=0), "chunk must be at least 1"),
    "setting": (lambda: harness.evaluate(defense="none", victms=3), "victms"),
    "training": (lambda: harness.train(rounds=0), "rounds"),
    "account": (lambda: harness.account(sigma=6), "add steps"),
    "nothing for an option": (
        lambda: harness.evaluate(defense="none", attack="imprint", adversary="honest"),
        "use adversary tampering",
    ),
    "a round of no training": (
        lambda: harness.evaluate(defense="none", round=5),
        "with --training, or a file with weights",
    ),
    "a needed name": (lambda: harness.evaluate(defence="none"), "no setting 'defence'; did you mean 'defense'"),
    "a similar name": (lambda: harness.account(sigma=1, step=3), "no setting 'step' in Python; use 'steps'"),
    "of no function": (
        lambda: harness.judge("captures", budget="5m"),
        "no setting 'budget' in Python; .* leave it out",
    ),
    "no list": (lambda: harness.evaluate(defense="none", seeds=1), "seeds: give a list, got 1"),
    "an argument of a filter": (lambda: harness.claims("flower:LocalDpMod"), "add arg clipping_norm="),
    "nothing needed": (lambda: harness.load(), "folder is missing"),
    "no cell": (lambda: evaluate_cells([], None), "no cell to evaluate"),
    "none of many": (lambda: harness.evaluate(defense=[]), "no cell to evaluate"),
    "an option's name": (lambda: harness.evaluate(defense="none", surface=2), "'surface' in Python; use 'tap'"),
    "another": (lambda: harness.evaluate(defense="none", seed=1), "use 'seeds'"),
    "of the command alone": (lambda: harness.evaluate(defense="none", pictures=False), "leave it out"),
    "a run's folder": (lambda: harness.evaluate(defense="none", training="run"), "use 'weights'"),
    "a round to keep": (
        lambda: harness.train(dataset="digits", model="mlp", defense="none", rounds=1, keep=(2,)),
        "rounds 0 to 1; name",
    ),
    "of training": (lambda: harness.train(keep_rounds=[1]), "use 'keep'"),
    "not of training": (lambda: harness.train(surface=1), "leave it out"),
}


@pytest.mark.parametrize(("call", "fix"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_its_fix(call: Callable[[], Any], fix: str, harness: Harness) -> None:
    with pytest.raises(UsageError, match=fix):
        call()


WRONG_TYPES = {
    "defense": (lambda: harness.evaluate(defense=3), "defense: .*, got 3"),
    "no defense": (lambda: harness.evaluate(defense=None), "defense: .*, got None"),
    "attack_args": (lambda: harness.evaluate(defense="none", attack_args=3), "attack_args: "),
    "complex": (
        lambda: harness.evaluate(defense="fed_cdp", defense_args={"sigma": 1j}),
        "defense_args: .*1j",
    ),
    "complex to train": (lambda: harness.train(defense_args={"sigma": 1j}), "defense_args: .*1j"),
    "chunk": (lambda: harness.evaluate(defense="none", chunk="x"), "chunk: .*, got 'x'"),
    "out": (lambda: harness.evaluate(defense="none", out=3), "out: .*, got 3"),
    "folder": (lambda: harness.load(3), "folder: .*, got 3"),
    "data_root": (lambda: harness.evaluate(defense="none", data_root=3), "data_root: "),
    "resume": (lambda: harness.evaluate(defense="none", resume="yes"), "resume: .*, got 'yes'"),
    "train out": (lambda: harness.train(out=3), "out: "),
    "sigma": (lambda: harness.account(sigma="x", sampling_rate=0.1, steps=1), "sigma: "),
    "sigmas": (lambda: harness.account(sigma=[1], sampling_rate=0.1, steps=1), "sigma: "),
    "steps": (lambda: harness.account(sigma=1, sampling_rate=0.1, steps=1.5), "steps: .*, got 1.5"),
    "accountant": (lambda: harness.account(sigma=1, sampling_rate=0.1, steps=1, accountant=3), "accountant: "),
    "schedule": (lambda: harness.account(sigma_schedule=3, sampling_rate=0.1), "sigma_schedule: "),
    "long": (lambda: harness.account(sigma=list(range(1000))), r"sigma: .*, got \[0, 1.{0,60}$"),
}  # fmt: skip


# True would be 1, and False 0 or left out: numpy's too, in lists too, in every function.
FIXED = "flower:ServerSideFixedClipping"
WRONG_TYPES |= {
    f"Boolean {place}, {name}": (partial(function, **{**base, name: value}), f"(.*: )?{name}: a Boolean is no number")
    for place, (function, base, name, value) in enumerate((
        *((harness.account, {"sigma": 1, "steps": 1}, name, True)
          for name in ("sigma", "steps", "delta", "sampling_rate", "layers", "clients", "bits", "epsilon", "rounds")),
        (harness.account, {"sigma": 1, "sampling_rate": 1}, "steps", np.True_),
        *((harness.claims, {"sources": FIXED}, name, value)
          for name, value in (("rounds", False), ("scalars", True), ("delta", True), ("weights", (1.0, True)))),
        *((harness.evaluate, {"defense": "none"}, name, value)
          for name, value in (("chunk", True), ("victims", True), ("seeds", (True,)))),
        *((harness.train, {}, name, value)
          for name, value in (("seed", True), ("keep", (True,)), ("rounds", np.True_))),
        (harness.judge, {"captures": "no"}, "rounds_seen", True),
    ))
} | {
    "Boolean: of a defense": (
        lambda: harness.evaluate(defense="quantile", defense_args={"quantile": True}),
        "defense 'quantile': quantile: a Boolean is no number, got True",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_wrong_type_is_named(call: Callable[[], Any], words: str, harness: Harness, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{words}") as told:
        call()
    assert "\n" not in str(told.value) and not any(tmp_path.iterdir())


def test_a_number_in_words_is_one() -> None:
    whole, words = (
        harness.account(sigma=6, sampling_rate=0.1, steps=steps, accountant=("rdp",)) for steps in (10, "10")
    )
    assert whole == words


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="juge"):
        harness.juge()
