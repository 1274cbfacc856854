"""A client's round against plain PyTorch, without a defense and with its taps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.defenses.fed_cdp import FedCDP
from harness.federation.operations import Operation
from harness.federation.recorders import KeepTap
from harness.federation.taps import Tap
from harness.models import RowModel, cross_entropy
from harness.testing import play_taps

N, ETA = 3, 0.05
ALL = {"T2.raw", "T2.step", "T1.raw", "T1.out", "T0.in", "T0.post", "T0.agg"}


def small_model(dtype: torch.dtype = torch.float32) -> RowModel:
    return RowModel("lenet", (1, 12, 12), 4).to(torch.device("cpu"), dtype)


def data(batch: int, steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(7)
    images = torch.rand(N, batch * steps, 1, 12, 12, generator=random).to(dtype)
    return images, torch.randint(0, 4, (N, batch * steps), generator=random)


def play(
    model: RowModel, batch: int, steps: int, name: str = "none", settings: dict[str, Any] | None = None
) -> dict[Tap, Tensor]:
    dtype = next(model.plain_module.parameters()).dtype
    images, labels = data(batch, steps, dtype)
    keys = tuple((0, client) for client in range(N))
    context = RoundContext(0, 0, ETA, Cohort(batch_size=batch), model.layout, keys)
    weights = model.initial_weights(list(keys)).to(dtype)
    return play_taps(model, weights, images, labels, build(DEFENSES, name, settings or {}), context, steps)


@pytest.mark.parametrize("tap", ["T1.raw", "T1.out", "T0.in", "T0.post"])
@pytest.mark.parametrize("batch", [1, 4])
def test_one_step_gives_back_the_gradient_to_the_bit(batch: int, tap: str) -> None:
    model = small_model()
    taps = play(model, batch, steps=1)
    images, labels = data(batch, 1, torch.float32)
    weights = model.initial_weights([(0, client) for client in range(N)])
    gradient = model.per_example_gradients(weights, images, labels).mean(1)
    assert taps[tap].dtype == torch.float64
    assert torch.equal((taps[tap] / -ETA).float(), gradient)
    if batch == 1:
        assert torch.equal(gradient, model.gradient(weights, images, labels))


@pytest.mark.parametrize("batch", [1, 4])
def test_one_step_is_autograd_of_the_plain_network(batch: int) -> None:
    model = small_model(torch.float64)
    update = play(model, batch, steps=1)["T1.out"]
    images, labels = data(batch, 1, torch.float64)
    for client in range(N):
        module = model.plain(model.initial_weights([(0, client)])[0].double())
        gradients = torch.autograd.grad(cross_entropy(module, images[client], labels[client]), module.parameters())
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch.testing.assert_close(update[client] / -ETA, flat, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(("batch", "steps"), [(1, 3), (2, 3)])
def test_local_steps_are_plain_stochastic_gradient_descent(batch: int, steps: int) -> None:
    model = small_model(torch.float64)
    update = play(model, batch, steps)["T1.raw"]
    images, labels = data(batch, steps, torch.float64)
    for client in range(N):
        start = model.initial_weights([(0, client)])[0].double()
        module = model.plain(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=ETA)
        for step in range(steps):
            part = slice(step * batch, (step + 1) * batch)
            optimizer.zero_grad()
            cross_entropy(module, images[client, part], labels[client, part]).backward()
            optimizer.step()
        end = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
        torch.testing.assert_close(update[client], end - start, rtol=1e-8, atol=1e-12)


def test_the_mean_of_example_gradients_is_the_batch_gradient() -> None:
    model = small_model(torch.float64)
    taps = play(model, batch=4, steps=1)
    images, labels = data(4, 1, torch.float64)
    weights = model.initial_weights([(0, client) for client in range(N)]).double()
    torch.testing.assert_close(taps["T2.raw"].mean(1), model.gradient(weights, images, labels), rtol=1e-9, atol=1e-13)
    assert torch.equal(taps["T2.step"], taps["T2.raw"].mean(1))


def test_operations_are_planned_once_a_round_and_for_each_defense(monkeypatch: pytest.MonkeyPatch) -> None:
    """One context serves a defense of no noise and then one of much: none takes the other's plan."""
    made: list[float] = []
    plan = FedCDP.operations

    def counted(self: FedCDP, cohort: Cohort) -> list[Operation]:
        made.append(self.sigma)
        return plan(self, cohort)

    model = small_model()
    images, labels = data(2, 5, torch.float32)
    keys = tuple((0, client) for client in range(N))
    context = RoundContext(0, 0, ETA, Cohort(batch_size=2), model.layout, keys)
    weights = model.initial_weights(list(keys))

    def steps(sigma: float, count: int) -> tuple[Tensor, int]:
        made.clear()
        examples = (images[:, : 2 * count], labels[:, : 2 * count])
        update = play_taps(model, weights, *examples, FedCDP(sigma=sigma), context, count)[Tap.UPDATE]
        assert set(made) == {sigma}
        return update, len(made)

    monkeypatch.setattr(FedCDP, "operations", counted)
    (quiet, few), (loud, many) = steps(0.0, 2), steps(6.0, 5)
    assert few == many
    assert not torch.equal(quiet, loud)
    assert torch.equal(steps(0.0, 2)[0], quiet)


@pytest.mark.parametrize("name", ["none", "fed_cdp"])
def test_local_taps_are_of_the_first_step(name: str) -> None:
    model = small_model()
    one, three = play(model, 2, 1, name), play(model, 2, 3, name)
    # The batches of one step are the first of each client's three.
    images, labels = data(2, 3, torch.float32)
    keys = tuple((0, client) for client in range(N))
    context = RoundContext(0, 0, ETA, Cohort(batch_size=2), model.layout, keys)
    weights = model.initial_weights(list(keys))
    defense = build(DEFENSES, name, {})
    first = play_taps(model, weights, images[:, :2], labels[:, :2], defense, context, 1)
    local = {tap for tap in three if tap.startswith("T2")}
    assert local >= {"T2.raw", "T2.step"}
    assert all(torch.equal(three[tap], first[tap]) for tap in local)
    assert not torch.equal(three["T2.step"], one["T2.step"])
    assert not torch.equal(three["T1.raw"], first["T1.raw"])


def test_noise_is_drawn_anew_at_every_local_step() -> None:
    model = small_model(torch.float64)
    noisy, silent = (play(model, 1, 2, "fed_cdp", {"sigma": sigma, "clip": 1e3}) for sigma in (1e-3, 0))
    first = noisy["T2.step"] - silent["T2.step"]
    both = (noisy["T1.raw"] - silent["T1.raw"]) / -ETA
    # Independent draws add up to sqrt(2) of one, a repeated draw to twice one.
    assert (both.std() / first.std()).item() == pytest.approx(2**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "settings", "extra"),
    [
        ("none", {}, set()),
        ("fed_sdp", {}, set()),
        ("fed_cdp", {}, {"T2.clip"}),
        ("fed_cdp", {"convention": "mean"}, {"T2.clip"}),
        ("fed_cdp", {"convention": "per_example"}, {"T2.clip", "T2.examples"}),
        ("fed_acdp", {"convention": "per_example"}, {"T2.clip", "T2.examples"}),
    ],
)
def test_which_taps_there_are(name: str, settings: dict[str, str], extra: set[str]) -> None:
    played = play(small_model(), 2, 1, name, settings)
    assert set(played) == ALL | extra
    for tap in {"T2.clip", "T2.examples"} - extra:
        with pytest.raises(UsageError, match=f"{name}.*{tap}.*choose T2.step or T2.raw"):
            KeepTap(Tap(tap)).seen(name)


def test_noisy_examples_average_to_the_step() -> None:
    taps = play(small_model(), 2, 1, "fed_cdp", {"convention": "per_example"})
    torch.testing.assert_close(taps["T2.examples"].mean(1), taps["T2.step"])
    assert not torch.allclose(taps["T2.examples"], taps["T2.clip"])
