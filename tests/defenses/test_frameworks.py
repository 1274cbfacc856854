"""Defenses by the frameworks' names: what they do to given numbers, and that their statement is that of the command."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout, group_sums
from harness.claims.answers import Facts
from harness.claims.filters import FILTERS
from harness.defenses import DEFENSES, Cohort, Defense, MaterialisedGradients, RoundContext
from harness.defenses.nvflare import next_passes, up_to_pass
from harness.federation.client_round import train_locally
from harness.federation.examples import NetworkBatch, NetworkGradients
from harness.federation.knowledge import coding_at, limit_at, noise_at
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Tap
from harness.models import RowModel
from harness.privacy import NoLimit

LAYOUT = Layout(("weight", "counter"), ((10, 20), ()))  # 200 numbers and an array without a dimension
PLAIN = Layout(("weight",), ((200,),))
FRAMEWORKS = [name for name in DEFENSES if ":" in name]


def context(layout: Layout = LAYOUT, rows: int = 3, scale: float = 0.0, **changes: Any) -> RoundContext:
    keys = tuple((0, row) for row in range(rows))
    return replace(RoundContext(0, 0, 0.1, Cohort(clients_per_round=rows), layout, keys, scale), **changes)


def updates(layout: Layout = LAYOUT, rows: int = 3) -> Tensor:
    return torch.randn(rows, layout.total, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def defense(name: str, **settings: Any) -> Defense:
    return build(DEFENSES, name, settings)


def test_flowers_clip_passes_arrays_without_a_dimension_and_counts_them() -> None:
    rows = updates()
    rows[0, -1] = 7.0
    sent = defense("flower:LocalDpMod", clipping_norm=2).client_message(rows, context())
    torch.testing.assert_close(sent[:, -1], rows[:, -1])
    torch.testing.assert_close(sent[:, :-1], rows[:, :-1] * 2 / rows.norm(dim=1, keepdim=True))
    noisy = defense("flower:LocalDpMod").client_message(rows, context(scale=1.0))
    torch.testing.assert_close(noisy[:, -1], rows[:, -1])


@pytest.mark.parametrize(("layout", "limited"), [(LAYOUT, False), (PLAIN, True)])
def test_what_passes_without_noise_takes_the_limit_and_the_statement(layout: Layout, limited: bool) -> None:
    local, seen = defense("flower:LocalDpMod"), context(layout, 1, scale=1.0)
    assert isinstance(limit_at(local, Tap.SENT, seen), NoLimit) != limited
    noise = noise_at(local, Tap.SENT, seen)
    assert noise is not None and noise.leaves_some_bare != limited
    stated = local.statements(PrivacyFacts(Cohort(rounds=1), 2, scalars=len(layout.scalars)))
    assert [one.epsilon is not None for one in stated] == [limited] * len(stated)
    assert limited or "1 0-d arrays leave without clip, and in messages without noise" in stated[0].notes


def test_flowers_bound_runs_away_and_noise_goes_by_the_next_one() -> None:
    """All are cut, so the bound falls by exp(-0.1) a round; the corrected one rises."""
    bounds = []
    for corrected in (False, True):
        server: dict[str, Tensor] = {}
        own = defense("flower:ClientSideAdaptiveClipping", corrected=corrected, initial_clipping_norm=0.5)
        for now in range(3):
            here = context(round=now, server=server, sent={})
            own.client_message(updates(), here)
            total = here.sent["bits"].sum(0)
            own.aggregate(torch.zeros(LAYOUT.total, dtype=torch.float64), replace(here, sent={"bits": total}))
        bounds.append(float(server["bound"]))
    assert bounds == pytest.approx([0.5 * math.exp(-0.3), 0.5 * math.exp(0.3)])
    own = defense("flower:ServerSideAdaptiveClipping", num_sampled_clients=50, noise_multiplier=1, clip_norm_lr=5)
    here = context(Layout(("w",), ((50_000,),)), scale=1.0, sent={"bits": torch.tensor(3.0, dtype=torch.float64)})
    made = own.aggregate(torch.zeros(50_000, dtype=torch.float64), here)
    of_vectors = (1 - 5.0**-2) ** -0.5
    assert float(made.std()) == pytest.approx(of_vectors * float(here.server["bound"]) / 50, rel=0.02)


@pytest.mark.parametrize(("typed", "deviation"), [(20, 0.2 * 10 / 20), (None, 0.2 * 10 / 4)])
def test_flowers_noise_goes_by_the_number_that_was_typed(typed: int | None, deviation: float) -> None:
    layout = Layout(("w",), ((50_000,),))
    own = defense("flower:ServerSideFixedClipping", num_sampled_clients=typed)
    made = own.aggregate(torch.zeros(50_000, dtype=torch.float64), context(layout, 4, 1.0))
    assert float(made.std()) == pytest.approx(deviation, rel=0.02)


def test_percentile_of_the_specification() -> None:
    """11 values: the cutoff is .002, .001 is zeroed and .02 cut to .01."""
    values = torch.tensor([[0.001 * one for one in range(1, 11)] + [0.02]], dtype=torch.float64)
    sent = defense("nvflare:PercentilePrivacy").client_message(values, context(Layout(("w",), ((11,),)), 1))
    expected = [0.0, *(0.001 * one for one in range(2, 11)), 0.01]
    assert sent[0].tolist() == pytest.approx(expected)
    for settings in ({"gamma": 0}, {"percentile": 101}):
        open_ = defense("nvflare:PercentilePrivacy", **settings)
        assert torch.equal(open_.client_message(updates(), context()), updates())


@pytest.mark.parametrize(("replacing", "sent"), [(True, 0.0906), (False, 0.1)])
def test_sparse_vector_sends_so_many_with_laplace_noise(replacing: bool, sent: float) -> None:
    layout = Layout(("w",), ((20_000,),))
    values = torch.full((2, 20_000), 5.0, dtype=torch.float64)
    own = defense("nvflare:SVTPrivacy", gamma=1.0, replace=replacing)
    made = own.client_message(values, context(layout, 2, 1.0))
    there = made != 0
    assert float(there.double().mean()) == pytest.approx(sent, rel=0.03)
    noise = made[there] - 1.0
    assert float(noise.abs().mean()) == pytest.approx(20.0, rel=0.05)
    early = defense("nvflare:SVTPrivacy", gamma=1.0, version="2.7.2").client_message(values, context(layout, 2, 1.0))
    assert float(early.abs().max()) == 1.0


def test_passes_that_are_drawn_at_once_have_the_law_of_those_that_are_made() -> None:
    """Of 3 values that pass with a chance of 0.3, 0.1 and 0.02 each time: which are accepted once there are 2."""
    chances, count, generator = torch.tensor([0.3, 0.1, 0.02], dtype=torch.float64), 40_000, torch.Generator()
    generator.manual_seed(4)
    above = -(2 * chances).log()
    uniform = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    at_once = up_to_pass(next_passes(above.expand(count, 3), uniform), 2)
    made = torch.zeros(count, 3, dtype=torch.bool)
    while (lacking := made.sum(1) < 2).any():
        made |= lacking[:, None] & (torch.rand(count, 3, generator=generator, dtype=torch.float64) < chances)
    for which in ((1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)):
        found = [float((one == torch.tensor(which).bool()).all(1).double().mean()) for one in (at_once, made)]
        assert found[0] == pytest.approx(found[1], abs=4 * math.sqrt(2 * max(found) / count)), which
    far = next_passes(torch.full((1, 4), 1e6, dtype=torch.float64), uniform[:1, :1].expand(1, 4) * torch.arange(4) / 4)
    assert up_to_pass(far, 2)[0].tolist() == [True, True, False, False]


def test_what_hardly_passes_is_still_chosen_by_chance() -> None:
    """A threshold of 1,000 times the noise: the package would run for ever, and would not take the largest."""
    values = torch.linspace(0, 1, 400, dtype=torch.float64).expand(2, 400)
    own = defense("nvflare:SVTPrivacy", gamma=1.0, epsilon=100.0, tau=1000.0, noise_var=1e6, replace=False)
    there = own.client_message(values, context(Layout(("w",), ((400,),)), 2, 1.0)) != 0
    assert there.sum(1).tolist() == [40, 40] and not torch.equal(there[0], there[1])
    assert 100 < float(there.double().matmul(torch.arange(400.0).double()).mean() / 40) < 300


@pytest.mark.parametrize("names", ["^b", ("bias", "missing")])
def test_excluded_tensors_are_not_sent(names: Any) -> None:
    layout = Layout(("weight", "bias"), ((8,), (3,)))
    own = defense("nvflare:ExcludeVars", exclude_vars=names)
    sent = own.client_message(updates(layout), context(layout))
    assert torch.equal(sent[:, :8], updates(layout)[:, :8]) and not sent[:, 8:].any()
    assert own.chosen_at(Tap.SENT, layout).counts == (8, 0)


# What papers change of a local step, on a network of random weights.


def stepped(name: str, model: str = "mlp", **settings: Any) -> tuple[Tensor, Tensor, RowModel, NetworkBatch]:
    """The direction (2, P) of a first step with two examples for each of two clients, and that without a defense."""
    network = RowModel(model, (1, 8, 8), 4)
    random = torch.Generator().manual_seed(3)
    images, labels = torch.rand(2, 2, 1, 8, 8, generator=random), torch.tensor([[0, 1], [2, 3]])
    weights, found = network.initial_weights([(0, 0), (0, 1)]), []
    for own in (defense(name, **settings), defense("none")):
        made: list[NetworkBatch] = []

        def batch(step: int, at: Tensor, made: list[NetworkBatch] = made) -> NetworkBatch:
            made.append(NetworkBatch(network, at, images, labels))
            return made[-1]

        def gradients(of: NetworkBatch) -> MaterialisedGradients:
            return MaterialisedGradients(
                network.per_example_gradients(of.weights, of.inputs, of.labels), network.layout.sizes
            )

        here = context(network.layout, 2, 1.0, cohort=Cohort(clients_per_round=2, batch_size=2))
        found.append((train_locally(NetworkGradients(batch, gradients), weights, own, here, 1).mean_step, made[0]))
    return found[0][0], found[1][0], network, found[0][1]


def test_outpost_prunes_and_adds_noise_by_the_variance_of_weights() -> None:
    made, plain, network, batch = stepped("paper:Outpost", beta=0, phi=100, prune_base=100)
    for part, own in zip(
        made.split(network.layout.sizes, 1), batch.weights.split(network.layout.sizes, 1), strict=True
    ):
        noise = float(part.abs().median()) / 0.6745
        assert own.shape[1] < 500 or noise == pytest.approx(0.8 * float(own.var()), rel=0.1)
    pruned, _, _, _ = stepped("paper:Outpost", beta=0, noise_base=0)
    assert 0.19 < float((pruned != 0).double().mean()) < 0.21
    assert torch.equal(stepped("paper:Outpost", beta=1e9)[0], plain)


def test_censor_sends_vectors_as_long_that_lower_the_loss_or_the_gradient() -> None:
    """What is truly orthogonal to a gradient lowers no loss, so that the gradient itself is sent."""
    made, plain, network, batch = stepped("paper:CENSOR")
    sizes = network.layout.sizes
    lengths = [group_sums(one.square(), sizes).sqrt() for one in (made, plain)]
    torch.testing.assert_close(*lengths)
    along = (group_sums(made * plain, sizes) / lengths[0] / lengths[1]).abs()
    assert 0 < float(along.max()) < 0.6
    torch.testing.assert_close(stepped("paper:CENSOR", corrected=True)[0], plain)
    loss = [
        cross_entropy(
            network.logits(batch.weights - 1e-2 * way.float(), batch.inputs).flatten(0, 1), batch.labels.flatten()
        )
        for way in (made, torch.zeros_like(made))
    ]
    assert float(loss[0]) < float(loss[1])


def test_ats_makes_one_of_sixteen_forms_of_each_image() -> None:
    own = defense("paper:ATS")
    images = torch.rand(40, 2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    here = context(rows=40, scale=1.0)
    batch = NetworkBatch(
        RowModel("mlp", (1, 8, 8), 4), torch.zeros(40, 1), images, torch.zeros(40, 2, dtype=torch.long)
    )
    made = own.inputs(batch, here).inputs
    forms = torch.stack([way(images) for way in own.disguises])
    alike = (forms - made).flatten(3).abs().amax(-1) == 0
    assert len(forms) == 16 and bool(alike.any(0).all()) and int(alike.any(2).any(1).sum()) > 12
    noise = noise_at(own, Tap.SENT, here)
    assert noise is not None and noise.unread


def test_adapters_leave_what_their_rank_spans() -> None:
    made, plain, network, _ = stepped("paper:LoRA", rank=5, alpha=10.0)
    coding = coding_at(defense("paper:LoRA", rank=5, alpha=10.0), Tap.SENT, context(network.layout), 1)
    assert coding is not None
    torch.testing.assert_close(coding.of(plain, network.layout.sizes), made)
    parts = network.layout.split(made)
    assert all(not part.any() for part in parts.values() if part.dim() == 2)
    assert int(torch.linalg.matrix_rank(next(iter(parts.values()))[0].double(), rtol=1e-5)) <= 4


def test_precode_draws_a_sample_and_keeps_it() -> None:
    made, plain, network, batch = stepped("paper:PRECODE", "mlp+precode")
    sample = network.layout.split(batch.weights)["5.0.precode_sample"]
    assert 0.85 < float(sample.std()) < 1.15
    assert not network.layout.split(made)["5.0.precode_sample"].any() and bool((made != plain).any())
    # The gradient of one example shows the sample.
    seen = network.gradient(batch.weights, batch.inputs[:, :1], batch.labels[:, :1])
    received = network.layout.split(batch.weights.clone())
    received["5.0.precode_sample"].zero_()
    told = defense("paper:PRECODE").trained(
        torch.cat([one.flatten(1) for one in received.values()], 1), seen, network.layout
    )
    assert told is not None
    torch.testing.assert_close(told, batch.weights, rtol=1e-3, atol=1e-3)
    with pytest.raises(UsageError, match="add \\+precode"):
        stepped("paper:PRECODE")


# What is said of a filter has one source.

TOLD: dict[str, tuple[dict[str, Any], Facts, Callable[[Any], bool]]] = {
    "flower:LocalDpMod": ({}, Facts(scalars=0), lambda line: True),
    "flip:local_dp": ({}, Facts(scalars=0), lambda line: True),
    "flower:ServerSideFixedClipping": (
        {}, Facts(per_round=10, weights="equal", scalars=0), lambda line: line.epsilon is not None
    ),
    "flower:ClientSideAdaptiveClipping": (
        {"clipped_count_stddev": 1.0}, Facts(per_round=10, weights="equal", scalars=0, clients_clip=True),
        lambda line: line.epsilon is not None,
    ),
    "nvflare:SVTPrivacy": ({}, Facts(numbers=61706, scalars=0), lambda line: line.judged),
    "opacus:PrivacyEngine": (
        {}, Facts(examples=1000, batch_size=1, local_steps=100), lambda line: line.unit == "example"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_statement_is_that_of_harness_claims(name: str) -> None:
    settings, facts, counts = TOLD[name]
    one, own = FILTERS[name], defense(name, **settings)
    told = {key: value for key, value in own.parameters().items() if key in one.settings}
    if "num_sampled_clients" in one.settings:
        told["num_sampled_clients"] = 10
    line = next(line for line in one.asked(one.arguments(told), facts).lines if line.judged and counts(line))
    run = PrivacyFacts(Cohort(rounds=1), 1, rate=0.001, parameters=61706, scalars=0)
    stated = next(one for one in own.statements(run) if one.epsilon is not None)
    assert (stated.epsilon, stated.claimed_epsilon, stated.unit) == (line.epsilon, line.claimed, line.unit)


def test_what_holds_for_other_samples_only_says_so() -> None:
    """7.05 needs independent coins; of a draw without replacement 91.8 is proven, and 7.05 stands behind its "if"."""
    facts = {"rate": 0.1, "parameters": 5, "scalars": 0}
    for sampler, epsilon in (("without-replacement", 91.8173), ("poisson", 7.0466)):
        cohort = Cohort(clients=1000, clients_per_round=100, rounds=100)
        stated = defense("tff:gaussian_fixed").statements(PrivacyFacts(cohort, 1, client_sampler=sampler, **facts))
        first = next(one for one in stated if one.view == "third party")
        assert first.epsilon == pytest.approx(epsilon, rel=1e-4)
        assert ("7.047 (if every client joins" in first.notes) == (sampler == "without-replacement")


def test_bounds_of_opacus_are_one_for_each_tensor() -> None:
    """Noise goes by the bounds that are given: with two for four tensors it would be too weak."""
    own = defense("opacus:PrivacyEngine", clipping="per_layer", max_grad_norm=(1.0, 1.0))
    stated = own.statements(PrivacyFacts(Cohort(), 4, parameters=5, scalars=0))
    assert [one.epsilon for one in stated] == [None] and "2 bounds for 4 tensors" in stated[0].notes
    with pytest.raises(UsageError, match="2 bounds for 1 tensors"):
        own.client_step(MaterialisedGradients(updates(PLAIN)[None], PLAIN.sizes), context(PLAIN, 1))


def test_every_defense_of_a_framework_is_known_to_the_command() -> None:
    assert not set(FRAMEWORKS) - set(FILTERS)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("flower:ServerSideAdaptiveClipping", {"num_sampled_clients": 10, "noise_multiplier": 1}, "as Flower demands"),
        ("opacus:PrivacyEngine", {"clipping": "per_layer"}, "a list of one equal bound"),
        ("opacus:PrivacyEngine", {"max_grad_norm": "inf"}, "leaves the noise without a scale"),
        ("nvflare:ExcludeVars", {"exclude_vars": "("}, "no regular expression"),
        ("nvflare:SVTPrivacy", {"version": "new"}, "version"),
        ("flower:LocalDpMod", {"epsilon": 0}, "epsilon"),
        ("paper:ATS", {"policy": "2-50"}, "no list of transforms"),
        ("pfl:AdaptiveClippingGaussianMechanism", {"clipping_indicator_noise_stddev": 0.5}, "must be above"),
    ],
)
def test_bad_settings_are_one_line(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        defense(name, **settings)
    assert "\n" not in str(caught.value)
