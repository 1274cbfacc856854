"""The optimizers of the frameworks' examples: how they are found, and that the list says what captures hold."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "frameworks_optimizers.py"))
TORCH, GROUPS = SCRIPT["TORCH"], "arguments of each group of parameters"

# Lines of code, and what they construct: class, arguments, family, what is missing, and whether it is plain SGD.
CODE: dict[str, tuple[str, list[tuple[str, str, str, str, bool]]]] = {
    "plain": ("import torch\ntorch.optim.SGD(net.parameters(), lr=lr)", [("SGD", "lr=lr", TORCH, "", True)]),
    "momentum": (
        "from torch import optim\noptim.SGD(n.parameters(), 0.1, momentum=0.9)",
        [("SGD", "lr=0.1; momentum=0.9", TORCH, "", False)],
    ),
    "an alias": ("import torch.optim as o\no.Adam(n.parameters())", [("Adam", "", TORCH, "", False)]),
    "transformers": ("from transformers import AdamW\nAdamW(n.parameters(), lr=5e-5)",
                     [("AdamW", "lr=5e-05", TORCH, "", False)]),
    "groups": ("from torch.optim import AdamW\nAdamW(param_groups)", [("AdamW", "", TORCH, GROUPS, False)]),
    "groups of rates": (
        "from torch.optim import AdamW\nown_groups = [{'params': a, 'lr': 0.1}, {'params': b}]\nAdamW(own_groups)",
        [("AdamW", "", TORCH, "", False)],
    ),
    "groups of more": ("from torch.optim import AdamW\nown_groups = [{'params': a, 'eps': 0.1}]\nAdamW(own_groups)",
                       [("AdamW", "", TORCH, GROUPS, False)]),
    "unknown": (
        "from torch.optim import Adagrad\nAdagrad(n.parameters())",
        [("Adagrad", "", TORCH, "optimizer 'Adagrad' is none whose steps are known here (sgd, adam, adamw, rmsprop)",
          False)],
    ),
    "a flag": ("from torch.optim import Adam\nAdam(n.parameters(), amsgrad=True)",
               [("Adam", "amsgrad=True", TORCH, "Adam with amsgrad=True cannot be judged", False)]),
    "keras": (
        "import tensorflow as tf\ntf.keras.optimizers.SGD(learning_rate=0.1)\nm.compile(optimizer='sgd')",
        [("SGD", "learning_rate=0.1", "Keras", "", False), ("sgd", "", "Keras", "", False)],
    ),
    "jax": ("import optax\noptax.sgd(0.1)\noptax.softmax_cross_entropy(a, b)", [("sgd", "0.1", "JAX", "", False)]),
    "others": (
        "import xgboost as xgb\nfrom sklearn.linear_model import SGDClassifier\nSGDClassifier()\nxgb.train(1)",
        [("SGDClassifier", "", "scikit-learn", "", False), ("train", "", "XGBoost", "", False)],
    ),
    "none": ("from torch.optim.lr_scheduler import StepLR\nStepLR(o)\nclass SGD: pass\nSGD()", []),
}  # fmt: skip


@pytest.mark.parametrize(("source", "built"), CODE.values(), ids=CODE)
def test_optimizers_are_found(source: str, built: list[tuple[str, str, str, str, bool]]) -> None:
    found = SCRIPT["built_in"](source)
    assert [(one.name, one.arguments, one.family, one.missing, one.is_plain) for one in found] == built


def test_the_list_says_what_captures_hold() -> None:
    """Every row is made again from its class and arguments: what is missing is named, and nothing else is."""
    rows = SCRIPT["stored"]()
    assert {one.repository for one in rows} == {"adap/flower", "NVIDIA/NVFlare"}
    assert all(len(one.commit) == 40 and one.line for one in rows)
    for one in (row for row in rows if row.family == TORCH):
        given = "".join(f", {part}" for part in one.arguments.split("; ") if part)
        (again,) = SCRIPT["built_in"](f"from torch.optim import {one.name}\n{one.name}(n.parameters(){given})")
        assert again.missing == one.missing, one
    of_torch = [one for one in rows if one.family == TORCH]
    assert not any(one.missing for one in of_torch) and sum(one.is_plain for one in of_torch) == 4
