"""Whether the truth explains updates that are no sums of gradients: rounding is let pass, and nothing else."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.capture import CaptureRecord, captured, write_capture
from harness.judging import judgement
from harness.judging.capture import read_capture
from harness.judging.declared import groups_of
from harness.judging.evidence import Check
from harness.judging.explained import SINGLE, explained, moved_by_rounding
from harness.judging.federation import federations
from harness.testing import digits

CLIENTS, EXAMPLES, BATCH = 2, 4, 2
Optimizers = Callable[[Any], torch.optim.Optimizer]
MADE: dict[str, Optimizers] = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-2),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=1e-3),
}


def small(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, classes))


def convolutions(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """With biases that BatchNorm takes away again: their gradients are nothing but rounding."""
    layers = [nn.Conv2d(image_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, classes))


def checked(
    folder: Path, made: Optimizers, network: Callable[..., nn.Module] = small, epochs: int = 1, batch: int = BATCH,
    truth: int = 0, half: bool = False, **facts: Any,
) -> Check:  # fmt: skip
    """The check of clients of this optimizer.

    Args:
        truth: how many examples on the truth begins that is said to be theirs.
        half: whether they compute in bfloat16. facts: what is said otherwise than it was.
    """
    images, labels = digits(3, CLIENTS * EXAMPLES)
    images, labels = images.flatten(0, 1), labels.flatten()
    for client in range(CLIENTS):
        torch.manual_seed(0)
        module, first = network((1, 8, 8), 10), client * EXAMPLES
        optimizer = made(module.parameters())
        how: dict[str, Any] = {
            "model": f"{__name__}:{network.__name__}",
            "image_shape": (1, 8, 8),
            "classes": 10,
            "examples": EXAMPLES,
        }
        with captured(module, folder / str(client), optimizer, **how, batch_size=batch, epochs=epochs) as capture:
            for place in [place for _ in range(epochs) for place in range(first, first + EXAMPLES, batch)]:
                own, said = (slice(place + on, place + on + batch) for on in (0, truth))
                capture.batch(images[said], labels[said])
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    loss = nn.functional.cross_entropy(module(images[own]), labels[own])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if facts:
            path = folder / str(client) / "capture.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    (clients,) = federations([read_capture(folder / str(client)) for client in range(CLIENTS)])
    return explained(clients, groups_of([clients], "t", ["cpl"], "none", "cpu")[0].cell, folder)


HONEST: dict[str, dict[str, Any]] = {
    "one step": {"made": MADE["adam"], "batch": EXAMPLES},
    "several": {"made": MADE["rmsprop"], "epochs": 3},
    "biases before BatchNorm": {"made": MADE["adamw"], "network": convolutions, "epochs": 2},
}


def slow_but(cases: dict[str, dict[str, Any]], *quick: str) -> list[Any]:
    """The cases, of which all but these are slow."""
    return [
        pytest.param(how, id=name, marks=() if name in quick else pytest.mark.slow) for name, how in cases.items()
    ]  # fmt: skip


@pytest.mark.parametrize("how", slow_but(HONEST, *HONEST))
def test_rounding_accuses_nobody(how: dict[str, Any], tmp_path: Path) -> None:
    found = checked(tmp_path, **how)
    assert found.outcome == "holds" and not found.undecided, found


HALF: dict[str, dict[str, Any]] = {
    "adam": {"made": MADE["adam"], "batch": EXAMPLES},
    "many steps of momentum": {"made": lambda one: torch.optim.SGD(one, lr=0.05, momentum=0.9), "epochs": 5,
                               "network": convolutions},
}  # fmt: skip


@pytest.mark.parametrize("how", slow_but(HALF, "adam"))
def test_nor_does_computing_in_half_precision_but_nobody_is_resilient_then(how: dict[str, Any], tmp_path: Path) -> None:
    found = checked(tmp_path, half=True, **how)
    assert found.outcome != "violated" and found.undecided == (found.outcome == "cannot tell")
    assert found.outcome == "holds" or "half precision" in found.detail


OTHERS: dict[str, dict[str, Any]] = {
    "other images": {"truth": 12}, "other images of one step": {"truth": 12, "batch": EXAMPLES},
    "five times the rate": {"optimizer": "adam:lr=0.005", "learning_rate": 0.005},
    "another class": {"optimizer": "rmsprop"}, "other betas": {"optimizer": "adam:betas=0.1/0.2"},
    "decay that was not there": {"optimizer": "adamw:weight_decay=1"},
    "other images of a clipped gradient": {"truth": 12, "made": lambda one: torch.optim.SGD(one, lr=0.1),
                                           "clip_grad_norm": 100.0},
    "other images, BatchNorm": {"truth": 12, "network": convolutions},
}  # fmt: skip


@pytest.mark.parametrize("how", slow_but(OTHERS, "other images", "five times the rate", "decay that was not there"))
def test_other_facts_are_named(how: dict[str, Any], tmp_path: Path) -> None:
    found = checked(tmp_path, **{"made": MADE["adam"], "epochs": 2} | how)
    assert found.outcome == "violated", found


def _sgd(**how: Any) -> dict[str, Any]:
    return {"made": lambda one: torch.optim.SGD(one, lr=0.1, **how)}


def _two_rates(weights: Any) -> torch.optim.Optimizer:
    first, more, *rest = weights
    return torch.optim.SGD([{"params": [first, more]}, {"params": rest, "lr": 0.5}], lr=0.1)


CLIPPED = {"name": "fed_cdp", "settings": {"clip": 0.1, "sigma": 0.0, "clipping": "whole"}}
SLIPS: dict[str, Any] = {
    "momentum": (_sgd(momentum=0.9) | {"optimizer": "sgd"}, "fits with optimizer sgd:momentum=0.9:"),
    "Nesterov": (_sgd(momentum=0.9, nesterov=True) | {"optimizer": "sgd:momentum=0.9"}, "nesterov=true:"),
    "no momentum": (_sgd() | {"optimizer": "sgd:momentum=0.9"}, "fits with optimizer sgd:"),
    "decay beside Adam": ({"made": lambda one: torch.optim.AdamW(one, lr=1e-3, weight_decay=9.0),
                           "optimizer": "adam:weight_decay=9"}, "fits with optimizer adamw:weight_decay=9.0:"),
    "a tenth of the rate": (_sgd() | {"learning_rate": 0.01}, "fits with learning_rate 0.1, or loss_scale 10:"),
    "larger batches": (_sgd() | {"epochs": 1, "batch_size": 4, "local_steps": 1}, "with batch_size 2, local_steps 2,"),
    "a clip that is off": (_sgd() | {"defense": CLIPPED}, "fits with defense fed_cdp off:"),
    "a constant rate": (_sgd() | {"epochs": 1, "batch": 1, "schedule": [0.1, 0.05, 0.02, 0.01]},
                        "fits with optimizer sgd:"),
    "rates of layers": ({"made": _two_rates, "epochs": 1, "batch": 4, "groups": []}, "to 5 times of 3."),
}  # fmt: skip


@pytest.mark.parametrize("slip", slow_but(SLIPS, "momentum", "larger batches", "a clip that is off", "rates of layers"))
def test_a_usual_slip_is_named(slip: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    how, said = slip
    found = checked(tmp_path, **{"epochs": 2} | how)
    assert found.outcome == "violated" and said in found.detail, found


Both = tuple[Tensor, Tensor]
# What clients trained on, and how their truth says it.
MISREAD: dict[str, tuple[Callable[[Tensor, Tensor], Both], Callable[[Tensor, Tensor], Both], str]] = {
    "labels from 1": (lambda x, y: (x, y % 9), lambda x, y: (x, y % 9 + 1), "labels are counted from 1"),
    "a class before the first": (lambda x, y: (x, y % 9 + 1), lambda x, y: (x, y % 9), "the network counts from 1"),
    "gaps": (lambda x, y: (x, y % 3), lambda x, y: (x, y % 3 * 3), "labels have gaps"),
    "the order of words": (lambda x, y: (x, y % 2 + 2), lambda x, y: (x, y % 2 + 10), "in the order of words"),
    "bytes": (lambda x, y: (x * 255, y), lambda x, y: (x, y), r"[+]normalised\(0[|]0.003921569\)"),
    "scaled": (lambda x, y: (2 * x - 1, y), lambda x, y: (x, y), r"[+]normalised\(0.5[|]0.5\)"),
    "darker": (lambda x, y: (x, y), lambda x, y: (x / 16, y), "divided by their largest number"),
    "some mirrored": (lambda x, y: (torch.cat([x[:4], x[4:].flip(-1)]), y), lambda x, y: (x, y),
                      r"images are mirrored: .* \(1 of 2 clients, such as client 2\)"),
    "turned": (lambda x, y: (x.mT, y), lambda x, y: (x, y), "rows and columns exchanged"),
}  # fmt: skip


def by_hand(
    folder: Path,
    trained: Both,
    told: Both,
    adam: bool = False,
    orders: Any = (None,),
    size: int = EXAMPLES,
    clip: float | None = None,
    pull: float = 0.0,
    skipped: int = 0,
    **facts: Any,
) -> Check:
    """The check of clients that train on these examples in these orders, and of whom a file holds others.

    ``pull``: mu of FedProx. ``skipped``: how many first steps are not taken, as by a gradient scaler.
    """
    optimizer: dict[str, Any] = {"name": "Adam", "lr": 1e-3} if adam else {"name": "SGD", "lr": 0.1}
    for client in range(CLIENTS):
        part = slice(client * EXAMPLES, (client + 1) * EXAMPLES)
        torch.manual_seed(0)
        module, (images, labels) = small((1, 8, 8), 12), (one[part] for one in trained)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        steps = MADE["adam"](module.parameters()) if adam else torch.optim.SGD(module.parameters(), 0.1)
        for order in orders:
            for number, batch in enumerate(torch.tensor(order or range(EXAMPLES)).split(size)):
                steps.zero_grad()
                far = sum((one - before[name]).square().sum() for name, one in module.named_parameters())
                (nn.functional.cross_entropy(module(images[batch]), labels[batch]) + pull / 2 * far).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                if number >= skipped:
                    steps.step()
        record = CaptureRecord(
            model=f"{__name__}:small", image_shape=(1, 8, 8), classes=12, optimizer=optimizer, batch_size=size,
            learning_rate=optimizer["lr"], local_steps=len(orders) * -(-EXAMPLES // size), **facts,
        )  # fmt: skip
        shown = {"images": told[0][part], "labels": told[1][part]}
        write_capture(folder / str(client), record, before, after=module.state_dict(), **shown)
    (clients,) = federations([read_capture(folder / str(client)) for client in range(CLIENTS)])
    return explained(clients, groups_of([clients], "t", ["cpl"], "none", "cpu")[0].cell, folder)


@pytest.mark.parametrize(
    ("how", "said"),
    [({"skipped": 1}, "schedule=0.0/0.1/0.1/0.1:"), ({"pull": 0.5, "fedprox": 1.0}, "optimizer sgd:fedprox=0.5:")],
)  # fmt: skip
def test_a_slip_of_a_loop_by_hand_is_named(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Its first step was skipped by a gradient scaler; or the term of FedProx is declared without its half."""
    found = by_hand(tmp_path, examples(), examples(), size=1, **how)
    assert found.outcome == "violated" and said in found.detail, found


def test_a_clip_of_batches_is_none_of_examples(tmp_path: Path) -> None:
    found = by_hand(tmp_path, examples(), examples(), clip=0.1, defense=CLIPPED)
    assert found.outcome == "violated" and "each batch clipped to 0.1, and no example's" in found.detail, found


def examples(first: int = 0) -> Both:
    images, labels = digits(1, first + CLIENTS * EXAMPLES)
    return images[0][first:], labels[0][first:]


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(("trained", "told", "said"), MISREAD.values(), ids=MISREAD)
def test_a_truth_that_is_read_otherwise_accuses_nobody(
    trained: Any, told: Any, said: str, adam: bool, tmp_path: Path
) -> None:
    """It is one line with the fix, whatever the optimizer."""
    with pytest.raises(UsageError, match=said):
        by_hand(tmp_path, trained(*examples()), told(*examples()), adam)


SEARCHED: dict[str, tuple[Callable[[Tensor, Tensor], Both], str]] = {
    "each second one mirrored": (lambda x, y: (torch.stack([x[::2], x[1::2].flip(-1)], 1).flatten(0, 1), y),
                                 "some images are mirrored"),
    "scaled by numbers of their own": (lambda x, y: ((x - 0.305) / 0.376, y), r"[+]normalised\(0.305[|]0.376\)"),
    "larger": (lambda x, y: (x * 16, y), r"[+]normalised\(0[|]0.0625\)"),
    "each scaled by itself": (lambda x, y: ((x - x.mean((1, 2, 3), True)) / x.std((1, 2, 3), keepdim=True), y),
                              "each scaled by their own mean"),
}  # fmt: skip


@pytest.mark.parametrize(("trained", "said"), SEARCHED.values(), ids=SEARCHED)
def test_readings_of_a_truth_are_searched(trained: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        by_hand(tmp_path, trained(*examples()), examples())


@pytest.mark.parametrize(("steps", "outcome"), [(4, "cannot tell"), (1, "holds")])
def test_weights_that_stay_at_the_client_accuse_nobody_of_what_later_steps_are(
    steps: int, outcome: str, tmp_path: Path
) -> None:
    """As of clients with a head of their own (FedPer), or with layers of BatchNorm that stay (FedBN)."""
    images, labels = examples()
    by_hand(tmp_path, (images, labels), (images, labels), size=EXAMPLES // steps)
    for client in range(CLIENTS):
        path = tmp_path / str(client) / "after.npz"
        with np.load(path) as sent:
            left = {name: value for name, value in sent.items() if not name.startswith("3.")}
        np.savez(path, allow_pickle=False, **left)
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(CLIENTS)])
    found = explained(clients, groups_of([clients], "t", ["cpl"], "none", "cpu")[0].cell, tmp_path)
    assert found.outcome == outcome and ("did not leave" in found.detail) == (outcome == "cannot tell"), found


@pytest.mark.parametrize("made", MADE)
def test_a_first_step_that_is_larger_than_declared_is_one_line(made: str, tmp_path: Path) -> None:
    """What is read of it has no size any more, and the truth explained it."""
    rates = {"adam": 1e-3, "adamw": 1e-2, "rmsprop": 1e-3}
    declared = {"optimizer": f"{made}:lr={rates[made] / 3}", "learning_rate": rates[made] / 3}
    with pytest.raises(UsageError, match=f"its step is up to 3.* times as large as {made}"):
        checked(tmp_path, MADE[made], batch=EXAMPLES, **declared)


# What is in a gradient that was kept: of a clip and of weight decay; what is declared; whether it is explained.
TAKEN: dict[str, tuple[float | None, float, dict[str, Any], bool]] = {
    "a clip": (0.2, 0, {"clip_grad_norm": 0.2}, True), "no clip": (None, 0, {"clip_grad_norm": 0.2}, True),
    "a clip of a sum": (0.8, 0, {"clip_grad_norm": 0.8, "loss_scale": 4}, True),
    "weight decay": (None, 0.05, {"weight_decay": 0.05}, True),
    "no weight decay": (None, 0, {"weight_decay": 0.05}, True),
    "both": (0.2, 0.05, {"clip_grad_norm": 0.2, "weight_decay": 0.05}, True),
    "a clip beside weight decay that is not": (0.2, 0, {"clip_grad_norm": 0.2, "weight_decay": 0.05}, True),
    "a smaller clip": (0.1, 0, {"clip_grad_norm": 0.2}, False),
    "more weight decay": (None, 0.5, {"weight_decay": 0.05}, False),
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("clip", "decay", "facts", "honest"), TAKEN.values(), ids=TAKEN)
def test_gradients_may_be_kept_behind_a_clip_and_with_weight_decay(
    clip: float | None, decay: float, facts: dict[str, Any], honest: bool, known: bool, tmp_path: Path, capfd: Any
) -> None:
    """As ``clip_grad_norm_`` and a penalty in the loss leave them; other gradients are what they were."""
    images, labels = examples()
    declared = {"name": "SGD", "lr": 0.1, "weight_decay": facts.get("weight_decay", 0)}
    more = {name: value for name, value in facts.items() if name != "weight_decay"}
    for client, part in enumerate((slice(0, 4), slice(4, 8))):
        torch.manual_seed(0)
        module = small((1, 8, 8), 12)
        loss = nn.functional.cross_entropy(module(images[part]), labels[part]) * more.get("loss_scale", 1)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        sent = {
            name: one.grad + decay * one.detach() for name, one in module.named_parameters() if one.grad is not None
        }
        record = CaptureRecord(model=f"{__name__}:small", image_shape=(1, 8, 8), classes=12, learning_rate=0.1,
                               batch_size=EXAMPLES, **{"optimizer": declared, **more})  # fmt: skip
        truth = {"images": images[part], "labels": labels[part]} if known else {}
        write_capture(tmp_path / str(client), record, module.state_dict(), gradient=sent, **truth)
    (clients,) = judgement.as_taken(federations([read_capture(tmp_path / str(one)) for one in range(2)]), tmp_path)
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    found = judgement.checks_without_truth(group) + ([explained(clients, group.cell, tmp_path)] if known else [])
    # Without the truth the size of a gradient is nobody's to tell.
    assert all(one.outcome == "holds" for one in found) == (honest or (clip is not None and not known)), found
    assert ("taken to be those behind" in capfd.readouterr().err) == (honest and bool(clip or decay)) or not honest


ORDERS = [(2, 0, 3, 1), (1, 3, 2, 0)]


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("orders", "first", "outcome"), [((None, None), 0, "holds"), (ORDERS, 0, "cannot tell"), (ORDERS, 12, "violated")]
)
def test_a_truth_may_hold_each_example_once_and_in_any_order(
    orders: Any, first: int, outcome: str, size: int, adam: bool, tmp_path: Path
) -> None:
    """Of several passes. That the order of the training is not known accuses nobody, and clears nobody."""
    facts = {"epochs": 2, "examples": EXAMPLES}
    found = by_hand(tmp_path, examples(), examples(first), adam, orders, size, **facts)
    assert (found.outcome, found.undecided) == (outcome, outcome == "cannot tell"), found
    assert outcome != "cannot tell" or "other orders of its examples give as much" in found.detail


@pytest.mark.parametrize(("truth", "outcome"), [(0, "cannot tell"), (13, "violated")])
def test_a_small_change_of_weights_carries_their_rounding(truth: int, outcome: str, tmp_path: Path) -> None:
    """Though it is sent alone, with fine floats of its own."""
    checked(tmp_path, lambda weights: torch.optim.SGD(weights, lr=1e-6), batch=EXAMPLES, truth=truth)
    for client in range(CLIENTS):
        folder = tmp_path / str(client)
        with np.load(folder / "before.npz") as before, np.load(folder / "after.npz") as after:
            np.savez(folder / "update.npz", allow_pickle=False, **{name: after[name] - before[name] for name in after})
        (folder / "after.npz").unlink()
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(CLIENTS)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    found = explained(clients, group.cell, tmp_path)
    assert found.outcome == outcome and (truth or "rounding of the floats" in found.detail), found
    assert all(one.outcome == "holds" for one in judgement.checks_without_truth(group))


def test_a_part_of_what_was_trained_is_no_other_order(tmp_path: Path) -> None:
    """Clients that send an average of their weights: 0.9 of the way."""
    images, labels = examples()
    for client, part in enumerate((slice(0, 4), slice(4, 8))):
        torch.manual_seed(0)
        module = small((1, 8, 8), 12)
        before, steps = module.state_dict(), torch.optim.SGD(module.parameters(), 1.0)
        before = {name: value.clone() for name, value in before.items()}
        for image, label in zip(images[part], labels[part], strict=True):
            steps.zero_grad()
            nn.functional.cross_entropy(module(image[None]), label[None]).backward()
            steps.step()
        record = CaptureRecord(
            model=f"{__name__}:small", image_shape=(1, 8, 8), classes=12, learning_rate=1.0, batch_size=1,
            local_steps=EXAMPLES,
        )  # fmt: skip
        sent = {name: 0.9 * (value - before[name]) for name, value in module.state_dict().items()}
        write_capture(tmp_path / str(client), record, before, update=sent, images=images[part], labels=labels[part])
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(CLIENTS)])
    found = explained(clients, groups_of([clients], "t", ["cpl"], "none", "cpu")[0].cell, tmp_path)
    assert found.outcome == "violated" and "it is 0.9 times what the truth gives" in found.detail, found


@dataclass
class Began:
    before: Tensor


def test_rounding_moves_what_is_next_to_nothing() -> None:
    """As signs of a gradient do, where the weights cancel but for their rounding."""
    clients: Any = Began(torch.tensor([[1.0, 1.0, 3.0], [1.0, 1.0, 2.0]]))

    def play(these: Any) -> Tensor:
        return torch.stack([these.before[:, 0] - these.before[:, 1], these.before[:, 2]], 1).sign()

    assert moved_by_rounding(clients, play(clients), SINGLE, play).tolist() == [[2.0, 0.0], [2.0, 0.0]]


def test_what_may_be_another_client_is_not_resilient() -> None:
    kept = Check("the truth explains what was sent", "cannot tell", "why", undecided=True)
    said = judgement._unsure([kept, replace(kept, undecided=False)])
    assert said == "the truth could not be checked: why"
    assert judgement._unsure([replace(kept, undecided=False)]) is None
