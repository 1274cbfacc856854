"""What a client's loss counts is read from the gradient at its network's output; no other loss is taken for it."""

import logging
import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from harness.base.errors import UsageError
from harness.capture import captured
from harness.capture.losses import kind_of, share_of
from harness.judging.capture import read_capture
from harness.judging.checks import NAME
from harness.judging.declared import groups_of
from harness.judging.explained import explained
from harness.judging.federation import federations
from harness.judging.judgement import checks_without_truth
from harness.testing import digits

Loss = Callable[[Tensor, Tensor], Tensor]
CLASSES, COUNT = 10, 8


def cross_entropy(**how: Any) -> Loss:
    return partial(functional.cross_entropy, **how)


def times(factor: float) -> Loss:
    return lambda made, labels: factor * functional.cross_entropy(made, labels)


def of_logarithms(made: Tensor, labels: Tensor) -> Tensor:
    return functional.nll_loss(made.log_softmax(1), labels)


def by_two(made: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(made, labels, reduction="sum") / 2


def binary(made: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(made, functional.one_hot(labels, CLASSES).float())


def squares(made: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(made, functional.one_hot(labels, CLASSES).float())


def warm(made: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(made / 2, labels)


def drawn(sure: float = 1.0, count: int = COUNT) -> tuple[Tensor, Tensor]:
    """Logits of a network, which is the surer of the labels the more, and labels."""
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES, (count,), generator=random)
    return torch.randn(count, CLASSES, generator=random) + sure * functional.one_hot(labels, CLASSES), labels


def seen(loss: Loss, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    output = output.detach().requires_grad_()
    loss(output, labels).backward()
    assert output.grad is not None
    return output.detach(), output.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("sure", [0.0, 3.0, 12.0, 40.0])
@pytest.mark.parametrize(
    ("loss", "share"),
    [(cross_entropy(), 1.0), (cross_entropy(reduction="sum"), COUNT), (times(0.25), 0.25), (of_logarithms, 1.0)],
)
def test_a_multiple_of_the_mean_is_found(loss: Loss, share: float, sure: float, dtype: torch.dtype) -> None:
    """However sure a network is; where it is so sure that rounding is all there is, nothing is told."""
    logits, labels = drawn(sure)
    found = float(share_of(*seen(loss, logits.to(dtype), labels)))
    near = max(1e-3, 4 * torch.finfo(dtype).eps)
    assert found == 0 if sure == 40 else (sure == 12 and found == 0) or abs(found / share - 1) <= near


@pytest.mark.parametrize("sure", [0.0, 4.0])
@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (cross_entropy(label_smoothing=0.1), "cross-entropy with label smoothing 0.1"),
        (cross_entropy(label_smoothing=0.02, reduction="sum"), "cross-entropy with label smoothing 0.02"),
        (cross_entropy(weight=torch.arange(1.0, 11.0)), "cross-entropy with class weights, or of a part of"),
        (cross_entropy(ignore_index=7), "cross-entropy with class weights, or of a part of"),
        (binary, "no cross-entropy"), (squares, "no cross-entropy"), (warm, "no cross-entropy"),
    ],
)  # fmt: skip
def test_no_other_loss_is_taken_for_it(loss: Loss, kind: str, sure: float) -> None:
    logits, labels = drawn(sure)
    given = seen(loss, logits, torch.cat([labels[:-1], torch.tensor([7])]))
    assert bool(share_of(*given).isnan()) and kind_of(*given).startswith(kind)


def small(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, classes))


def trained(
    folder: Path, loss: Loss, each: int = 1, size: int = 2, parts: tuple[int, ...] = (),
    network: Callable[..., nn.Module] = small, by_hand: Any = None, **facts: Any,
) -> nn.Module:  # fmt: skip
    """Two clients on four examples each, in batches of ``size`` or these ``parts``, ``each`` of which make a step.

    Args:
        by_hand: all facts, where nothing is to be read.
    """
    images, labels = (one.flatten(0, 1) for one in digits(2, 4))
    module = nn.Module()
    for client in range(2):
        torch.manual_seed(0)
        module = network((1, 8, 8), CLASSES)
        optimizer = SGD(module.parameters(), 0.1, momentum=0.9)
        how: dict[str, Any] = {"model": f"{__name__}:{network.__name__}", "image_shape": (1, 8, 8), "classes": CLASSES}
        how |= by_hand or {"optimizer": optimizer}
        own, said = images[4 * client :][:4], labels[4 * client :][:4]
        with captured(module, folder / str(client), **how, **facts) as capture:
            batches = list(zip(own.split(parts or size), said.split(parts or size), strict=True))
            for number, (batch, truth) in enumerate(batches, 1):
                capture.batch(batch, truth)
                loss(module(batch), truth).backward()
                if number % each == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    return module


READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sum": ({"loss": cross_entropy(reduction="sum")}, {"loss_scale": 2.0}),
    "a sum of batches of one example": ({"loss": cross_entropy(reduction="sum"), "size": 1}, {}),
    "a mean divided by steps": ({"loss": times(1 / 8)}, {"loss_scale": 0.125}),
    "accumulated sums": ({"loss": cross_entropy(reduction="sum"), "each": 2},
                         {"accumulate": 2, "accumulate_sum": True, "loss_scale": 2.0}),
    "accumulated means of sums": ({"loss": by_two, "each": 2, "size": 1},
                                  {"accumulate": 2}),
    "accumulated and divided once too often": ({"loss": times(1 / 4), "each": 2},
                                               {"accumulate": 2, "accumulate_sum": True, "loss_scale": 0.25}),
    "of logarithms": ({"loss": of_logarithms}, {}),
    "given beside what is read": ({"loss": cross_entropy(reduction="sum"), "learning_rate": 0.1, "batch_size": 2,
                                   "local_steps": 2, "loss_scale": 2}, {"loss_scale": 2.0}),
}  # fmt: skip


@pytest.mark.parametrize(("how", "expected"), READ.values(), ids=READ)
def test_what_a_loss_counts_is_kept_and_played(how: Any, expected: Any, tmp_path: Path) -> None:
    """The truth explains what was sent to the last digits, as it does not where the loss is taken for the mean."""
    trained(tmp_path, **how)
    captures = [read_capture(tmp_path / str(client)) for client in range(2)]
    usual = {"accumulate": 1, "accumulate_sum": False, "loss_scale": 1.0}
    assert {name: getattr(captures[0].record, name) for name in usual} == usual | expected
    (clients,) = federations(captures)
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    found = explained(clients, group.cell, tmp_path)
    assert found.outcome == "holds" and not found.undecided and "e-0" in found.detail, found


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "smoothed": ({"loss": cross_entropy(label_smoothing=0.1)}, "its loss is .* label smoothing 0.1, .*;"),
    "weights": ({"loss": cross_entropy(weight=torch.arange(1.0, 11.0))}, "its loss is .* class weights.*; capture a"),
    "binary": ({"loss": binary}, "its loss is no cross-entropy, .*; capture a round with the mean .* give loss_scale"),
    "sums of a smaller last batch": (
        {"loss": cross_entropy(reduction="sum"), "parts": (3, 1), "batch_size": 3, "examples": 4, "epochs": 1},
        "its losses are from 1 to 3 times the mean .*; capture a round with reduction='mean'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("how", "said"), REFUSED.values(), ids=REFUSED)
def test_a_loss_that_no_attack_plays_is_told_once_and_changes_nothing(
    how: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = trained(tmp_path / "seen", **how)
    assert len(caplog.records) == 2 and all("\n" not in one.getMessage() for one in caplog.records)
    with pytest.raises(UsageError, match=said):
        read_capture(tmp_path / "seen" / "0")
    with pytest.raises(UsageError, match=said):
        trained(tmp_path / "strict", **how, strict=True)
    # All given: nothing is watched.
    steps = {"learning_rate": 0.1, "batch_size": 2, "local_steps": 2, "examples": None, "epochs": None}
    other = trained(tmp_path / "blind", **how | steps)
    both = zip(module.state_dict().values(), other.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in both)


def test_what_is_given_counts_and_the_difference_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, cross_entropy(label_smoothing=0.1), loss_scale=1.0)
    assert read_capture(tmp_path / "0").record.loss_scale == 1
    assert caplog.messages[0] == (
        "harness: loss_scale is given as 1.0, and its loss is cross-entropy with label smoothing 0.1, which no attack "
        "plays"
    )


class Silent(nn.Module):
    """Answers with a tensor that tells no classes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small((1, 8, 8), CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)[:, None]


@pytest.mark.parametrize("facts", [{}, {"loss_scale": 2.0}])
def test_a_loss_that_is_not_seen_is_told_unless_it_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, facts: dict[str, Any]
) -> None:
    module, (images, labels) = Silent(), digits(1, 2)
    with (
        caplog.at_level(logging.WARNING),
        captured(module, tmp_path, SGD(module.parameters(), 0.1), model="m:make", classes=CLASSES, **facts),
    ):
        optimizer = SGD(module.parameters(), 0.1)
        functional.cross_entropy(module(images[0])[:, 0], labels[0], reduction="sum").backward()
        optimizer.step()
    assert read_capture(tmp_path).record.loss_scale == facts.get("loss_scale", 1.0)
    told = "its loss was not seen: taken as the mean cross-entropy of each batch; give loss_scale if it is not so"
    assert caplog.messages == ([] if facts else [f"harness: {told}"])


@pytest.mark.parametrize(("size", "times"), [(2, "2"), (4, "4")])
def test_a_factor_that_nobody_declared_is_named(size: int, times: str, tmp_path: Path) -> None:
    facts = {"learning_rate": 0.1, "batch_size": size, "local_steps": 4 // size, "optimizer": "sgd:momentum=0.9"}
    trained(tmp_path, cross_entropy(reduction="sum"), size=size, by_hand=facts)
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(2)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    check = explained(clients, group.cell, tmp_path)
    # Of several steps the factor is no factor: the second one began elsewhere.
    said = f"it is {times} times what the truth gives" if size == 4 else "fits with learning_rate 0.2, or loss_scale 2:"
    assert check.outcome == "violated" and said in check.detail
    assert ("check learning_rate, schedule, loss_scale, accumulate," in check.detail) == (size == 4)


@pytest.mark.parametrize(
    ("loss", "times", "said"),
    [
        (by_two, 1.0, "it is -2 times what the truth gives: an update is after less before"),
        (cross_entropy(), 10.0, "it is -10 times what the truth gives: call it gradient.npz"),
    ],
)
def test_an_update_with_the_other_sign_is_named(loss: Loss, times: float, said: str, tmp_path: Path) -> None:
    trained(tmp_path, loss, size=4, by_hand={"learning_rate": 0.1, "batch_size": 4, "local_steps": 1})
    for client in ("0", "1"):
        before, after = (np.load(tmp_path / client / f"{stem}.npz") for stem in ("before", "after"))
        np.savez(tmp_path / client / "update.npz", **{name: times * (before[name] - after[name]) for name in before})
        (tmp_path / client / "after.npz").unlink()
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(2)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    detail = explained(clients, group.cell, tmp_path).detail
    assert said in detail


def test_a_gradient_that_was_scaled_down_may_be_clipped(tmp_path: Path) -> None:
    facts = {"learning_rate": 0.1, "batch_size": 4, "local_steps": 1}
    trained(tmp_path, by_two, size=4, by_hand=facts | {"loss_scale": 4.0})
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(2)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    detail = explained(clients, group.cell, tmp_path).detail
    assert "it is 0.5 times what the truth gives: a loss that is summed or divided (loss_scale), clip_grad_" in detail


def test_a_gradient_whose_values_were_cut_is_no_multiple(tmp_path: Path) -> None:
    """However little is left of it, and so of its difference from a multiple."""
    trained(tmp_path, by_two, size=4, by_hand={"learning_rate": 0.1, "batch_size": 4, "local_steps": 1})
    for client in ("0", "1"):
        before, after = (dict(np.load(tmp_path / client / f"{stem}.npz")) for stem in ("before", "after"))
        steps = {name: np.clip(after[name] - before[name], -1e-5, 1e-5) for name in before}
        np.savez(tmp_path / client / "update.npz", **steps)
        (tmp_path / client / "after.npz").unlink()
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(2)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    check = explained(clients, group.cell, tmp_path)
    assert check.outcome == "violated" and "times what the truth gives" not in check.detail


def of_one_number(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return small(image_shape, 1)


def headless(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(small(image_shape, classes), nn.Tanh())


def downhill(output: Tensor, labels: Tensor) -> Tensor:
    return -functional.cross_entropy(output, labels)


BY_HAND: dict[str, tuple[dict[str, Any], str]] = {
    "mean": ({"loss": cross_entropy()}, "holds: the entries of 3.bias are as the declared"),
    "sum": ({"loss": cross_entropy(reduction="sum"), "size": 4}, "violated: .* times as large .*: give loss_scale"),
    "declared sum": ({"loss": cross_entropy(reduction="sum"), "size": 4, "loss_scale": 4.0}, "holds"),
    "smoothed": ({"loss": cross_entropy(label_smoothing=0.1)}, "holds"),
    "squares": ({"loss": squares}, "violated: the entries of 3.bias add up to .*, those of cross-entropy to 0: anoth"),
    "binary": ({"loss": binary}, "violated: the entries of 3.bias add up to .*, those of cross-entropy to 0: anoth"),
    "the other sign": ({"loss": downhill}, "violated: more entries of 3.bias are below 0 than 4 examples would h"),
    "the other sign of a sum": ({"loss": lambda made, labels: 10 * downhill(made, labels)}, "violated: more entries"),
    "no logits": ({"loss": lambda made, labels: (made[:, 0] - labels).square().mean(), "network": of_one_number}, ""),
    "another output": ({"loss": cross_entropy(reduction="sum"), "network": headless}, ""),
    "a defense": ({"loss": squares, "defense": {"name": "flower:ClientSideFixedClipping",
                                               "settings": {"clipping_norm": 5.0, "noise_multiplier": 0.0}}}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("how", "said"), BY_HAND.values(), ids=BY_HAND)
def test_without_truth_the_last_bias_tells_another_loss(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Where all is given and nothing was watched."""
    size = how.get("size", 2)
    facts = {"learning_rate": 0.1, "batch_size": size, "local_steps": 4 // size, "optimizer": "sgd:momentum=0.9"}
    trained(tmp_path, **how, by_hand=facts)
    (clients,) = federations([read_capture(tmp_path / str(client)) for client in range(2)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    (found,) = [one for one in checks_without_truth(group) if one.name == NAME] or [None]
    assert (found is None) == (not said) and (found is None or re.match(said, f"{found.outcome}: {found.detail}"))


def proximal(module: nn.Module, start: list[Tensor], squared: bool = True) -> Tensor:
    """The distance to the weights before the round; without the square it is no FedProx."""
    apart = [(one - was).norm() for one, was in zip(module.parameters(), start, strict=True)]
    return 0.5 * torch.stack([one.square() if squared else one for one in apart]).sum()


def looped(folder: Path, backward: Callable[[nn.Module, list[Tensor], Tensor], None], **facts: Any) -> None:
    """Two steps, whose gradients are made by ``backward`` of the network, its weights before, and the loss."""
    torch.manual_seed(0)
    module, (images, labels) = small((1, 8, 8), CLASSES), digits(1, 4)
    optimizer, start = SGD(module.parameters(), 0.1), [one.detach().clone() for one in module.parameters()]
    given: dict[str, Any] = {"model": f"{__name__}:small", **facts}
    with captured(module, folder, optimizer, **given) as capture:
        for batch, truth in zip(images[0].split(2), labels[0].split(2), strict=True):
            capture.batch(batch, truth)
            optimizer.zero_grad()
            backward(module, start, functional.cross_entropy(module(batch), truth))
            optimizer.step()


BESIDE: dict[str, Callable[[nn.Module, list[Tensor]], Tensor]] = {
    "FedProx": proximal,
    "a distance": partial(proximal, squared=False),
    "a penalty": lambda module, _: 0.1 * torch.stack([one.abs().sum() for one in module.parameters()]).sum(),
    "one weight": lambda module, _: next(module.parameters()).square().sum(),
}


def together(module: nn.Module, start: list[Tensor], loss: Tensor, term: Callable[..., Tensor]) -> None:
    (loss + term(module, start)).backward()


def by_itself(module: nn.Module, start: list[Tensor], loss: Tensor, term: Callable[..., Tensor]) -> None:
    loss.backward()
    term(module, start).backward()


def by_torch(module: nn.Module, start: list[Tensor], loss: Tensor, term: Callable[..., Tensor]) -> None:
    torch.autograd.backward([loss + term(module, start)])


def by_weights(module: nn.Module, start: list[Tensor], loss: Tensor, term: Callable[..., Tensor]) -> None:
    weights = list(module.parameters())
    made = torch.autograd.grad(loss + term(module, start), weights, allow_unused=True)
    for one, gradient in zip(weights, made, strict=True):
        one.grad = gradient


@pytest.mark.parametrize("how", [together, by_itself, by_torch, by_weights])
@pytest.mark.parametrize("term", BESIDE.values(), ids=BESIDE)
def test_a_term_of_the_weights_in_the_loss_is_seen(
    term: Callable[..., Tensor], how: Callable[..., None], tmp_path: Path
) -> None:
    """Its gradient does not pass the network's output, and nothing else of the training shows it."""
    looped(tmp_path, partial(how, term=term))
    with pytest.raises(UsageError, match=r"its loss counts the weights themselves, as FedProx .*, or give fedprox"):
        read_capture(tmp_path)


def test_fedprox_that_is_given_is_played(tmp_path: Path) -> None:
    looped(tmp_path, lambda module, start, loss: (loss + proximal(module, start)).backward(), fedprox=1.0)
    (clients,) = federations([read_capture(tmp_path)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    assert explained(clients, group.cell, tmp_path).outcome == "holds"


def twice(_module: nn.Module, _start: list[Tensor], loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def asked_before(module: nn.Module, _start: list[Tensor], loss: Tensor) -> None:
    """As where the norm of a gradient is logged."""
    torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    loss.backward()


def of_other_losses(module: nn.Module, start: list[Tensor], loss: Tensor) -> None:
    """Of the weights, but not what is trained on: its gradient is dropped."""
    with torch.enable_grad():
        proximal(module, start).backward()
    module.zero_grad()
    loss.backward()


@pytest.mark.parametrize(
    ("backward", "scale"), [(twice, 2.0), (asked_before, 1.0), (of_other_losses, 1.0)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)  # fmt: skip
def test_gradients_that_add_up_are_counted(backward: Any, scale: float, tmp_path: Path) -> None:
    looped(tmp_path, backward)
    assert read_capture(tmp_path).record.loss_scale == scale
    (clients,) = federations([read_capture(tmp_path)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    assert explained(clients, group.cell, tmp_path).outcome == "holds"


def test_a_multiple_with_few_digits_is_one_number_for_all_clients(tmp_path: Path) -> None:
    """What is measured differs in the seventh digit, and captures of one job are judged together."""
    trained(tmp_path, times(0.3))
    captures = [read_capture(tmp_path / client) for client in ("0", "1")]
    assert [one.record.loss_scale for one in captures] == [0.3, 0.3]
    assert len(federations(captures)) == 1


class Unused(nn.Module):
    """Has a layer that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.extra = small((1, 8, 8), CLASSES), nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


def unused(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return Unused()


def test_what_no_gradient_reaches_does_not_decay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, (images, labels) = Unused(), digits(1, 2)
    optimizer = SGD(module.parameters(), 0.1, weight_decay=0.1)
    with captured(module, tmp_path, optimizer, model=f"{__name__}:unused") as capture:
        capture.batch(images[0], labels[0])
        functional.cross_entropy(module(images[0]), labels[0]).backward()
        optimizer.step()
    capture_ = read_capture(tmp_path)
    assert capture_.record.frozen == ("extra.weight", "extra.bias")
    (clients,) = federations([capture_])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    assert explained(clients, group.cell, tmp_path).outcome == "holds"


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning", "ignore:.torch.jit:DeprecationWarning")
def test_a_network_is_scripted_and_traced_while_it_is_watched(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, (images, labels) = small((1, 8, 8), CLASSES), digits(1, 2)
    optimizer = SGD(module.parameters(), 0.1)
    with captured(module, tmp_path, optimizer, model=f"{__name__}:small"):
        made = [torch.jit.script(module), torch.jit.script(deepcopy(module)), torch.jit.trace(module, images[0])]
        functional.cross_entropy(module(images[0]), labels[0]).backward()
        optimizer.step()
    assert read_capture(tmp_path).record.batch_size == 2
    assert all(one(images[0]).shape == (2, CLASSES) for one in made)


def test_lists_without_names_have_frozen_layers_too(tmp_path: Path) -> None:
    """As Flower's NumPyClient sends them."""
    torch.manual_seed(0)
    module, (images, labels) = small((1, 8, 8), CLASSES), digits(1, 2)
    module[1].requires_grad_(False)  # type: ignore[index]
    optimizer = SGD([one for one in module.parameters() if one.requires_grad], 0.1)
    with captured(module, tmp_path, optimizer, model=f"{__name__}:small") as capture:
        capture.batch(images[0], labels[0])
        functional.cross_entropy(module(images[0]), labels[0]).backward()
        optimizer.step()
    for stem in ("before", "after"):
        np.savez(tmp_path / f"{stem}.npz", *np.load(tmp_path / f"{stem}.npz").values())
    (clients,) = federations([read_capture(tmp_path)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    assert explained(clients, group.cell, tmp_path).outcome == "holds"
