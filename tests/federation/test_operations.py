"""A defense is its list of operations: what order means, what is refused, and three papers' ideas sketched in a list.

The sketches are throwaway: they show that the points of a round, state and side values carry what papers need.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import (
    DEFENSES,
    ClipExamples,
    ClipUpdate,
    Cohort,
    Custom,
    Defense,
    GaussianNoise,
    KeepLargest,
    LaplaceNoise,
    Operation,
    Point,
    PrivacyFacts,
    Quantise,
    Remembered,
    RoundContext,
    validated_defense,
)
from harness.federation.client_round import train_locally
from harness.federation.coding import RoundByChance
from harness.federation.examples import NetworkBatch, NetworkGradients
from harness.federation.knowledge import limit_at
from harness.federation.taps import Tap
from harness.models import RowModel
from harness.models.example_gradients import MaterialisedGradients
from harness.privacy import GaussianLimit, NoLimit
from harness.training import Training, train_settings

P, CLIENTS = 20_000, 4
CONTEXT = RoundContext(
    0, 0, 0.05, Cohort(clients=20, clients_per_round=CLIENTS, batch_size=2), Layout(("w",), ((P,),)),
    tuple((0, client) for client in range(CLIENTS)), clients=tuple(range(CLIENTS)),
)  # fmt: skip
FACTS = PrivacyFacts(Cohort(20, CLIENTS, 3, 1, 2), tensors=1, rate=0.1)


def made(*operations: Operation) -> Defense:
    """A defense of these."""

    @validated_defense
    class Made(Defense):
        def operations(self, cohort: Cohort) -> list[Operation]:
            return list(operations)

    return Made()


def same(values: Tensor, context: RoundContext) -> Tensor:
    return values


@dataclass(frozen=True)
class Bent(Operation):
    """Somebody's own operation that forgets a row."""

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return rows[1:]


CLIP, EACH = ClipUpdate(0.5, "whole"), ClipExamples(0.5, "whole")
NOISE, STEP_NOISE = GaussianNoise(2.0, of=CLIP), GaussianNoise(2.0, of=EACH)
RESEARCH = Custom(same)

# What is listed, whose guarantee survives, what limits a message or a step, and words of the first statement.
ORDERS: dict[str, tuple[list[Operation], list[str], bool, str]] = {
    "a mechanism": ([CLIP, NOISE], ["client-DP central", "client-LDP", "client-DP central"], True, ""),
    "by a deviation": ([CLIP, GaussianNoise(1.0)], ["client-DP central", "client-LDP", "client-DP central"], True, ""),
    "of examples": ([EACH, STEP_NOISE], ["sample-DP", "sample-DP local view", "sample-DP"], True, ""),
    "at the server": ([CLIP, GaussianNoise(2.0, of=CLIP, at=Point.AGGREGATE)], [
        "client-DP central", "none", "client-DP central"], False, ""),
    "something before it": (
        [KeepLargest(0.5), CLIP, NOISE], ["client-DP central", "client-LDP", "client-DP central"], True,
        "KeepLargest before GaussianNoise: part of its input",
    ),
    "something after it": (
        [CLIP, NOISE, RESEARCH], ["client-DP central", "client-LDP", "client-DP central"], True,
        "same after GaussianNoise: post-processing",
    ),
    "something between": ([CLIP, RESEARCH, NOISE], ["none"] * 3, False, "same may act between the clipping and the"),
    "chosen between": ([CLIP, KeepLargest(0.5), NOISE], ["none"] * 3, False, "KeepLargest may act between"),
    "noise before its clip": ([NOISE, CLIP], ["none"], False, "the noise comes before the clip that scales it"),
    "told in clear before": (
        [Custom(same, beside=("norms",)), CLIP, NOISE], ["none"] * 3, False, "same may send what it saw before",
    ),
    "examples mixed before": (
        [Custom(same, at=Point.INPUTS), EACH, STEP_NOISE], ["none"] * 3, False, "same may mix examples before each",
    ),
    "somebody's operation, then noise": ([CLIP, Bent(), GaussianNoise(1.0)], ["none"], False, "nothing is clipped"),
    "noise of another law": ([CLIP, LaplaceNoise(1.0, of=CLIP)], ["none"], False, "no theorem here covers noise of"),
    "research code alone": ([RESEARCH], ["none"], False, "no theorem here covers same"),
    "a clip alone": ([CLIP], ["none"], False, "clipping without noise"),
    "noise alone": ([GaussianNoise(1.0)], ["none"], False, "noise without clipping"),
    "a tighter clip after": ([CLIP, NOISE, ClipUpdate(0.01, "whole")], [
        "client-DP central", "client-LDP", "client-DP central"], True, ""),
}  # fmt: skip


@pytest.mark.parametrize(("operations", "tags", "bounded", "words"), ORDERS.values(), ids=ORDERS)
def test_what_order_means(operations: list[Operation], tags: list[str], bounded: bool, words: str) -> None:
    defense = made(*operations)
    statements = defense.statements(FACTS)
    assert [one.guarantee for one in statements] == tags
    assert words in statements[0].notes
    assert all((one.epsilon is None) == (one.guarantee == "none") for one in statements)
    limit = limit_at(defense, Tap.SENT, CONTEXT)
    # Whatever follows, who sees the message knows one mechanism of sigma 2.
    assert limit == GaussianLimit(pytest.approx(0.5)) if bounded else isinstance(limit, NoLimit)


@pytest.mark.parametrize(
    ("contradicting", "words"),
    [
        (lambda: GaussianNoise(1.0, of=CLIP, at=Point.STEP), "goes by a clip of each update; give it one of examples"),
        (lambda: GaussianNoise(-1.0), "level -1.0: give it a finite number of at least 0"),
        (lambda: GaussianNoise(1.0, of=ClipUpdate(math.inf)), "an infinite clip leaves GaussianNoise without a scale"),
        (lambda: ClipUpdate(0.0), "ClipUpdate to 0.0: a bound is greater than 0"),
        (lambda: ClipUpdate(1.0, "layers"), "ClipUpdate has grouping='layers'; write 'layer' or 'whole'"),
        (lambda: ClipExamples(1.0, "coordinate"), "ClipExamples has grouping='coordinate'; write 'layer' or 'whole'"),
        (lambda: KeepLargest(0.5, "tensor"), "KeepLargest has grouping='tensor'; write 'layer' or 'whole'"),
        (lambda: Custom(same, cuts=(1.0, "flat")), "same has cuts='flat'; write 'layer' or 'whole'"),
        (lambda: KeepLargest(90), "KeepLargest loses a share of 90; give a number from 0 to 1"),
        (lambda: KeepLargest(math.nan), "loses a share of nan; give a number from 0 to 1"),
        (lambda: Quantise("int4"), "Quantise has kind='int4'; write 'float16' or"),
        (lambda: Quantise(bits=1), "Quantise has bits=1; give 2 to 24"),
        (lambda: RoundByChance(0), "RoundByChance has steps=0; give at least 1"),
        (lambda: ClipUpdate(1.0, at="messages"), "ClipUpdate cannot act at messages; let it act at Point.MESSAGE or"),
        (lambda: GaussianNoise(1.0, at=Point.APPLIED), "cannot act at applied; let it act at Point.MESSAGE or"),
        (lambda: ClipExamples(1.0, at=Point.MESSAGE), "cannot act at message; let it act at Point.EXAMPLES"),
        (lambda: GaussianNoise(1.0, at=Point.AGGREGATE, shared=True), "not at aggregate; leave shared out"),
        (lambda: made(NOISE).flow(), "goes by a ClipUpdate that is not in the list; put that before it"),
        (lambda: made(*[Custom(same, at=Point.SUM)] * 2).flow(), "same and same would both sum a round's messages"),
    ],
)
def test_what_contradicts_itself_is_told_in_a_line(contradicting: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        contradicting()
    assert "\n" not in str(caught.value)


def test_a_point_is_known_by_its_name_too() -> None:
    assert ClipUpdate(1.0, at="arrival").at is Point.ARRIVAL  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "operations", [[CLIP, RESEARCH, GaussianNoise(1.0)], [EACH, GaussianNoise(1.0, at=Point.STEP)], [CLIP]]
)
def test_a_unit_is_a_client_or_an_example(operations: list[Operation]) -> None:
    assert {one.unit for one in made(*operations).statements(FACTS)} <= {"client", "example", None}


@pytest.mark.parametrize("hook", ["client_message", "noise_of", "clipping_at", "units", "statements", "fixed_noise"])
def test_a_class_with_a_hook_of_earlier_versions_is_refused(hook: str) -> None:
    with pytest.raises(UsageError, match=rf"Old.{hook}\(\) is no method of a defense any more; .*adding-a-defense"):
        type("Old", (Defense,), {hook: lambda self, *given: None})


def test_two_noises_at_a_point_are_independent() -> None:
    sent = made(GaussianNoise(1.0), GaussianNoise(1.0)).client_message(torch.zeros(CLIENTS, P), CONTEXT)
    assert sent.std().item() == pytest.approx(math.sqrt(2), rel=0.01)  # the same twice would be 2


POINTS = {
    Point.BROADCAST: (P,), Point.NETWORK: (CLIENTS, P), Point.MESSAGE: (CLIENTS, P), Point.ARRIVAL: (CLIENTS, P),
    Point.STEP: (CLIENTS, P), Point.EXAMPLES: (CLIENTS, 2, P), Point.AGGREGATE: (P,), Point.APPLIED: (P,),
}  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_function_is_handed_what_its_point_says(point: Point) -> None:
    seen: list[tuple[int, ...]] = []

    def watch(values: Tensor, context: RoundContext) -> Tensor:
        seen.append(tuple(values.shape))
        return 2 * values

    defense, rows, total = made(Custom(watch, at=point)), torch.ones(CLIENTS, P), torch.ones(P)
    step = MaterialisedGradients(torch.ones(CLIENTS, 2, P), (P,))
    given = {
        Point.BROADCAST: lambda: defense.broadcast(total, CONTEXT),
        Point.NETWORK: lambda: defense.received(rows, CONTEXT),
        Point.MESSAGE: lambda: defense.client_message(rows, CONTEXT),
        Point.ARRIVAL: lambda: defense.server_receive(rows, CONTEXT),
        Point.AGGREGATE: lambda: defense.aggregate(total, CONTEXT) * CLIENTS,
        Point.APPLIED: lambda: defense.applied(total, CONTEXT),
    }.get(point, lambda: defense.client_step(step, CONTEXT).step)  # fmt: skip
    assert bool((given() == 2).all()) and seen == [POINTS[point]]


def test_operations_on_examples_see_what_those_before_them_made() -> None:
    gradients, far = torch.full((CLIENTS, 2, P), 3.0 / P**0.5), replace(CONTEXT, noise_scale=0.0)
    louder = Custom(lambda values, _: 100 * values, at=Point.EXAMPLES)
    for operations, length in (
        ([louder, ClipExamples(0.5, "whole")], 0.5),
        ([ClipExamples(0.5, "whole"), louder], 50.0),
        ([ClipExamples(0.5, "whole"), GaussianNoise(1.0, at=Point.EXAMPLES), ClipExamples(0.1, "whole")], 0.1),
        ([ClipExamples(0.5, "whole"), ClipExamples(0.1, "whole")], 0.1),
    ):
        step = made(*operations).client_step(MaterialisedGradients(gradients, (P,)), far).step
        assert step.norm(dim=1).tolist() == pytest.approx([length] * CLIENTS, rel=1e-4)
    noise_first = made(GaussianNoise(1.0, at=Point.EXAMPLES), louder)
    with pytest.raises(UsageError, match="belongs to none of them"):  # three places where two are expected
        noise_first.client_step(MaterialisedGradients(torch.zeros(CLIENTS, 3, P), (P,)), CONTEXT)


def test_an_operation_from_elsewhere_is_watched_too() -> None:
    with pytest.raises(
        UsageError, match=r"Bent at message returns a tensor \(3, 20000\) .* let it return a tensor \(4,"
    ):
        made(Bent()).client_message(torch.zeros(CLIENTS, P), CONTEXT)


MODEL = RowModel("mlp", (1, 8, 8), 10)


def network_gradients(images: Tensor, labels: Tensor) -> NetworkGradients:
    """Of the same examples (N, B, 1, 8, 8) in every step."""

    def gradients(batch: NetworkBatch) -> MaterialisedGradients:
        made = MODEL.per_example_gradients(batch.weights, batch.inputs, batch.labels)
        return MaterialisedGradients(made, MODEL.layout.sizes)

    return NetworkGradients(lambda _, weights: NetworkBatch(MODEL, weights, images, labels), gradients)


def train(defense: Defense, steps: int = 2) -> tuple[Tensor, RoundContext]:
    """Updates (2, P) of two clients with an example each, and the context of their round."""
    random = torch.Generator().manual_seed(1)
    images, labels = torch.rand(2, 1, 1, 8, 8, generator=random), torch.tensor([[3], [7]])
    cohort = Cohort(clients_per_round=2, batch_size=1, steps_per_round=steps)
    context = RoundContext(0, 0, 0.05, cohort, MODEL.layout, ((0, 0), (0, 1)))
    weights = MODEL.initial_weights([(0, "global")]).expand(2, -1)
    return train_locally(network_gradients(images, labels), weights, defense, context, steps).update, context


def test_the_network_and_its_inputs_can_be_changed() -> None:
    plain, _ = train(made())
    assert torch.equal(train(made(Custom(same, at=Point.NETWORK), Custom(same, at=Point.INPUTS)))[0], plain)
    darker = Custom(lambda images, context: images * 0, at=Point.INPUTS)
    first = MODEL.layout.split(train(made(darker))[0])["1.weight"]
    assert not first.any() and MODEL.layout.split(plain)["1.weight"].any()  # black images move no first weight
    still = Custom(lambda weights, context: torch.zeros_like(weights), at=Point.NETWORK)
    assert not torch.equal(train(made(still))[0], plain)
    blind = MaterialisedGradients(torch.zeros(2, 1, MODEL.layout.total), MODEL.layout.sizes)
    with pytest.raises(UsageError, match="reads the network that clients train"):
        train_locally(lambda *_: blind, torch.zeros(2, MODEL.layout.total), made(darker), train(made())[1], 1)


def test_soteria_masks_features_of_the_last_layer() -> None:
    soteria = build(DEFENSES, "paper:Soteria", {"pruning_rate": 80})
    (update, _), (plain, _) = train(soteria, 1), train(made(), 1)
    weight, _ = MODEL.last_linear()
    sent, whole = (MODEL.layout.split(one)[weight] for one in (update, plain))
    hidden = ~sent.any(1)
    assert hidden.sum(1).tolist() == [80, 80]
    for client in range(2):
        assert whole[client][:, hidden[client]].any()
        assert torch.equal(sent[client][:, ~hidden[client]], whole[client][:, ~hidden[client]])
    # The layers below are as they were after one step: what is hidden is hidden, and nothing else.
    one, other = (MODEL.layout.split(moved)["1.weight"] for moved in (update, plain))
    assert torch.equal(one, other)
    assert torch.equal(train(build(DEFENSES, "paper:Soteria", {"pruning_rate": 0}), 1)[0], plain)


def flower_adaptive_clip(first: float, quantile: float, rate: float) -> Defense:
    """Flower's ``DifferentialPrivacyClientSideAdaptiveClipping`` without noise: clients' bits move its norm."""

    def clipped(update: Tensor, context: RoundContext) -> Tensor:
        bound, norms = context.server.get("norm", update.new_tensor(first)), update.norm(dim=1, keepdim=True)
        context.sent["bit"] = (norms[:, 0] <= bound).to(update)
        return update * (bound / norms).clamp(max=1.0)

    def moved(total: Tensor, context: RoundContext) -> Tensor:
        share = context.sent["bit"] / context.cohort.clients_per_round
        bound = context.server.get("norm", total.new_tensor(first))
        context.server["norm"] = bound * torch.exp(-rate * (share - quantile))
        return total

    return made(
        Custom(clipped, adds=None, beside=("bit",)),
        Custom(moved, at=Point.AGGREGATE, server={"norm": Remembered(least=0.0)}),
    )


def test_sketch_of_flowers_adaptive_clip() -> None:
    """Round for round the same as ``quantile`` of ours without noise, which is the same algorithm."""
    sketch = flower_adaptive_clip(0.1, 0.5, 0.4)
    ours = build(DEFENSES, "quantile", {"clip": 0.1, "sigma": 0, "rate": 0.4})
    assert sketch.sends_beside() == ["bit"] and list(sketch.server_remembers()) == ["norm"] and sketch.adapts()
    updates = torch.randn(CLIENTS, P, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    updates *= torch.tensor([0.5, 1.0, 2.0, 4.0])[:, None] / P**0.5
    servers: tuple[dict[str, Tensor], ...] = ({}, {})
    for now in range(30):
        totals = []
        for defense, server in zip((sketch, ours), servers, strict=True):
            context = replace(CONTEXT, round=now, server=server, sent={})
            total = defense.client_message(updates, context).sum(0)
            sums = {name: values.sum(0) for name, values in context.sent.items()}
            totals.append(defense.aggregate(total, replace(context, sent=sums)))
        torch.testing.assert_close(*totals, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(servers[0]["norm"], servers[1]["bound"], rtol=1e-9, atol=0)
    assert 0.9 < float(servers[0]["norm"]) < 2.2  # about the median of the norms, from below all of them


def tree_noise(deviation: float, rounds: int) -> Defense:
    """Kairouz et al. 2021 (DP-FTRL): the noise in the sum of the rounds so far is of few nodes of a binary tree."""
    levels = [f"level {one}" for one in range(rounds.bit_length())]

    def noisy(total: Tensor, context: RoundContext) -> Tensor:
        server, now = context.server, context.round + 1
        nodes = {name: server.get(name, torch.zeros_like(total)) for name in levels}
        before = sum(nodes.values())
        full = (now & -now).bit_length() - 1  # the node that this round completes; those below it end in it
        for name in levels[:full]:
            nodes[name] = torch.zeros_like(total)
        nodes[levels[full]] = deviation * context.server_gaussian(levels[full], total)
        server.update(nodes)
        return total + (sum(nodes.values()) - before)

    kept = {name: Remembered((None,)) for name in levels}
    return made(Custom(noisy, at=Point.AGGREGATE, server=kept))


def test_sketch_of_tree_noise_over_eight_rounds() -> None:
    """The noise of the sum after t rounds is that of as many nodes as t has ones in binary, and not of t draws."""

    def sums(server: dict[str, Tensor], rounds: range) -> list[Tensor]:
        defense, found = tree_noise(3.0, 8), []
        for now in rounds:
            applied = defense.aggregate(torch.zeros(P, dtype=torch.float64), replace(CONTEXT, round=now, server=server))
            found.append(applied * CLIENTS)
        return found

    server: dict[str, Tensor] = {}
    each = sums(server, range(8))
    for rounds in range(1, 9):
        spread = torch.stack(each[:rounds]).sum(0).std().item()
        assert spread == pytest.approx(3.0 * math.sqrt(rounds.bit_count()), rel=0.02)
    assert list(server) == list(tree_noise(3.0, 8).server_remembers())
    # What the server remembers is all that it takes to go on.
    kept: dict[str, Tensor] = {}
    sums(kept, range(5))
    again = sums({name: values.clone() for name, values in kept.items()}, range(5, 8))
    assert all(torch.equal(one, other) for one, other in zip(again, each[5:], strict=True))


def test_training_sends_what_is_broadcast_and_keeps_what_is_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A server that halves its weights after its optimizer, and sends none of them."""
    seen: list[Tensor] = []

    @validated_defense
    class Own(Defense):
        def operations(self, cohort: Cohort) -> list[Operation]:
            return [
                Custom(lambda weights, _: torch.zeros_like(weights), at=Point.BROADCAST),
                Custom(lambda weights, _: seen.append(weights) or weights, at=Point.NETWORK),
                Custom(lambda weights, _: weights / 2, at=Point.APPLIED),
            ]

    DEFENSES.aliases("none")  # what is installed is looked for before this is added
    monkeypatch.setitem(DEFENSES._entries, "own", Own)
    settings = {
        "dataset": "cancer", "clients": 4, "clients_per_round": 2, "local_steps": 1, "batch_size": 3, "split": "iid",
        "rounds": 1, "learning_rate": 1e-9,
    }  # fmt: skip
    training, plain = (Training(train_settings(**settings, defense=name), tmp_path) for name in ("own", "none"))
    for one in (training, plain):
        one.play_round(0, 8)
    assert not torch.cat(seen).any()
    torch.testing.assert_close(training.weights, plain.weights / 2, rtol=0, atol=1e-6)
