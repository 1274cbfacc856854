"""Limits in which every defense must become no defense, and the clipping norms in between."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import group_sums
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.models import RowModel
from harness.testing import play_taps

N, ETA = 3, 0.1
WITHOUT = {"sigma": 0.0, "clip": math.inf}
LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    *[("fed_sdp", {**WITHOUT, "noise_at": place}) for place in ("aggregate", "receive", "client")],
    ("fed_sdp", {**WITHOUT, "noise_at": "client", "noise_split": "share", "clipping": "whole"}),
    *[("fed_cdp", {**WITHOUT, "convention": convention}) for convention in ("sum", "per_example", "mean")],
    ("fed_cdp", {**WITHOUT, "clipping": "whole"}),
    *[("fed_acdp", {**WITHOUT, "s_mode": mode}) for mode in ("example_max", "batch_max", "example_mean")],
    ("fed_acdp", {"sigma": 0.0, "clip": 1e9, "convention": "per_example"}),
    *[("quantile", {**WITHOUT, "unit": unit}) for unit in ("client", "example")],
    *[("global_dp", {**WITHOUT, "bound": bound}) for bound in ("fixed", "median")],
    ("adaclip", {"sigma": 0.0, "clip": 1e9}),
    *[("noise", {"amount": 0, "applies_to": place}) for place in ("example", "gradient", "update")],
    *[("pruning", {"threshold": 0, "error_feedback": keep}) for keep in (True, False)],
    *[("dssgd", {"share": 1, "threshold": -1, "bound": "inf", "selection": how}) for how in ("random", "largest")],
]


@pytest.fixture(scope="module")
def model() -> RowModel:
    return RowModel("lenet", (1, 8, 8), 4).to(torch.device("cpu"), torch.float64)


def play(model: RowModel, name: str, settings: dict[str, Any], batch: int, steps: int) -> dict[str, Tensor]:
    """All taps of a float64 round, and the aggregate."""
    random = torch.Generator().manual_seed(5)
    images = torch.rand(N, batch * steps, 1, 8, 8, generator=random, dtype=torch.float64)
    labels = torch.randint(0, 4, (N, batch * steps), generator=random)
    keys = [(0, client) for client in range(N)]
    cohort = Cohort(clients_per_round=N, batch_size=batch)
    context = RoundContext(0, 0, ETA, cohort, model.layout, tuple(keys))
    defense = build(DEFENSES, name, settings)
    weights = model.initial_weights(keys).double()
    taps = play_taps(model, weights, images, labels, defense, context, steps)
    return taps | {"T0.agg": defense.aggregate(taps["T0.post"].sum(0), context)}


@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (3, 2)])
@pytest.mark.parametrize(("name", "settings"), LIMITS)
def test_without_noise_and_bound_it_is_federated_averaging(
    model: RowModel, name: str, settings: dict[str, Any], batch: int, steps: int
) -> None:
    expected = play(model, "none", {}, batch, steps)
    limit = play(model, name, settings, batch, steps)
    for tap, values in expected.items():
        torch.testing.assert_close(limit[tap], values, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["fed_cdp", "fed_acdp"])
def test_a_huge_bound_with_one_example_is_the_batch_gradient(model: RowModel, name: str) -> None:
    taps = play(model, name, {"sigma": 0.0, "clip": 1e30}, batch=1, steps=1)
    assert torch.equal(taps["T2.step"], taps["T2.raw"][:, 0])


@pytest.mark.parametrize("name", ["fed_cdp", "fed_acdp"])
@pytest.mark.parametrize("grouping", ["layer", "whole"])
def test_example_clipping_bounds_the_norms(model: RowModel, name: str, grouping: str) -> None:
    bound = 0.02
    clipped = play(model, name, {"clip": bound, "sigma": 0.0, "clipping": grouping}, batch=2, steps=1)["T2.clip"]
    check_norms(model, clipped, grouping, bound)


@pytest.mark.parametrize("grouping", ["layer", "whole"])
@pytest.mark.parametrize("place", ["client", "receive", "aggregate"])
def test_update_clipping_bounds_the_norms(model: RowModel, grouping: str, place: str) -> None:
    bound = 0.002
    settings = {"clip": bound, "sigma": 0.0, "clipping": grouping, "noise_at": place}
    taps = play(model, "fed_sdp", settings, batch=2, steps=2)
    check_norms(model, taps["T0.post"], grouping, bound)
    assert torch.equal(taps["T1.out"], taps["T1.raw"]) == (place != "client")


def check_norms(model: RowModel, clipped: Tensor, grouping: str, bound: float) -> None:
    """Every group at most at the bound, the largest at it; every group is clipped by its own factor."""
    layers = group_sums(clipped.square(), model.layout.sizes).sqrt()
    whole = clipped.square().sum(-1).sqrt()
    limit = bound * (1 + 1e-12)
    if grouping == "whole":
        assert whole.max() <= limit
        assert whole.max() == pytest.approx(bound, rel=1e-12)
        return
    assert layers.max() <= limit
    assert layers.max() == pytest.approx(bound, rel=1e-12)
    assert bound < whole.max() <= limit * math.sqrt(len(model.layout.sizes))


@pytest.mark.parametrize("name", ["fed_sdp", "fed_cdp", "quantile", "global_dp"])
def test_a_clip_that_leaves_nothing_but_rounding_is_refused(name: str) -> None:
    """An attack on a message of such a size fails, and its failure would be called resilience."""
    with pytest.raises(UsageError, match="lost to rounding; take 1e-10 or more"):
        build(DEFENSES, name, {"clip": 1e-12})
