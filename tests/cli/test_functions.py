"""The commands as functions: the same documents, the same checks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import harness
from harness.errors import UsageError
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
    "account": (lambda: harness.account(sigma=6), "add --steps"),
    "no cell": (lambda: evaluate_cells([], None), "no cell to evaluate"),
    "none of many": (lambda: harness.evaluate(defense=[]), "no cell to evaluate"),
}


@pytest.mark.parametrize(("call", "mend"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_its_mend(call: Callable[[], Any], mend: str, harness: Harness) -> None:
    with pytest.raises(UsageError, match=mend):
        call()


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="judge"):
        harness.judge()
