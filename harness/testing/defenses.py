"""What every defense must keep. Each check takes a built defense and raises AssertionError where it is broken.

They play rounds of four clients with made-up images on a small network, under the settings that the defense was built
with; a check of other settings is a call with another instance.
"""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from harness.base.vectors import Layout
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.memory import RoundVariates
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.recorders import KeepTap, Recorder
from harness.federation.server_round import play_round
from harness.federation.taps import Tap
from harness.models import RowModel
from harness.models.example_gradients import MaterialisedGradients
from harness.privacy import GUARANTEES
from harness.privacy.views import VIEWS
from harness.testing.clipping_and_noise import (
    LONG,
    assert_bounds_examples,
    assert_declares_clipping,
    assert_declares_cuts,
    assert_declares_noise,
    assert_declares_what_is_sent,
)

# A client's round on made-up batches, read at every tap.


class _KeepAll(Recorder):
    """Keeps what every tap shows."""

    def __init__(self) -> None:
        self.taps: dict[Tap, Tensor] = {}

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        for tap in Tap:
            one = KeepTap(tap)
            one.step(examples, made, context)
            if one.shown is not None:
                self.taps[tap] = one.shown

    def read(self, tap: Tap, values: Tensor) -> None:
        self.taps[tap] = values


def play_taps(
    model: RowModel,
    weights: Tensor,
    images: Tensor,
    labels: Tensor,
    defense: Defense,
    context: RoundContext,
    steps: int = 1,
    together: int | None = 1,
    variates: RoundVariates | None = None,
    times: float = 1.0,
) -> dict[Tap, Tensor]:
    """Return the observation of every tap in one round; a tap the defense does not have is left out.

    Args:
        model: the network.
        weights: (N, P), what each client starts from.
        images: (N, L*B, C, H, W); local step l uses examples l*B to (l+1)*B. labels: (N, L*B).
        defense, context, together, variates: see :func:`harness.federation.server_round.play_round`.
        steps: L.
        times: what all gradients are multiplied by.
    """
    batch, keep = images.shape[1] // steps, _KeepAll()

    def gradients(step: int, now: Tensor) -> ExampleGradients:
        part = slice(step * batch, (step + 1) * batch)
        made = model.per_example_gradients(now, images[:, part], labels[:, part])
        return MaterialisedGradients(made * times, model.layout.sizes)

    play_round(gradients, weights, defense, context, steps, [keep], together=together, variates=variates)
    return keep.taps


CLIENTS, BATCH, LEARNING_RATE = 4, 3, 0.05
AGGREGATE = "T0.agg"
"""What the server applies, beside the taps."""

FACTS = PrivacyFacts(Cohort(clients_per_round=CLIENTS, rounds=3, steps_per_round=10), tensors=4, rate=0.1)
"""The run that statements are checked for."""

_PER_EXAMPLE = (Tap.RAW, Tap.CLIP, Tap.EXAMPLES)
_ALWAYS = {Tap.RAW, Tap.STEP, Tap.UPDATE, Tap.SENT, Tap.ARRIVED, Tap.RECEIVED}
_SMALL = Layout(("a", "b"), ((3,), (5,)))
Shown = dict[Tap | str, Tensor]


def assert_defense_contract(defense: Defense) -> None:
    """All checks of this module, and those of clipping and noise."""
    assert_shapes(defense)
    assert_keyed(defense)
    assert_rows_apart(defense)
    assert_empty_places_change_nothing(defense)
    assert_statements(defense)
    assert_declares_memory_and_plans(defense)
    assert_declares_clipping(defense)
    assert_bounds_examples(defense)
    assert_declares_cuts(defense)
    assert_declares_what_is_sent(defense)
    assert_declares_noise(defense)
    assert_declares_noise(defense, batch=1)


def assert_shapes(defense: Defense) -> set[Tap]:
    """Every tap has its shape, its precision and finite values; gives the taps that the defense has beyond the plain.

    Per-example gradients are (N, B, P), steps and updates (N, P), what the server has of a secure sum (1, P), and the
    aggregate is (P,). Inside a client numbers are float32; updates, and what is made of them, float64.
    """
    shown = _play(defense, together=CLIENTS)
    total = _model().layout.total
    assert set(shown) >= {*_ALWAYS, AGGREGATE}, f"has no {_ALWAYS - set(shown)}"
    for tap, values in shown.items():
        rows = (1,) if defense.sums_securely and tap in (Tap.ARRIVED, Tap.RECEIVED) else (CLIENTS,)
        shape = (total,) if tap == AGGREGATE else (*rows, *((BATCH,) if tap in _PER_EXAMPLE else ()), total)
        assert tuple(values.shape) == shape, f"{tap} has shape {tuple(values.shape)} instead of {shape}"
        assert values.isfinite().all(), f"{tap} has values that are not finite"
        precision = torch.float32 if tap.startswith("T2") else torch.float64
        assert values.dtype == precision, f"{tap} is {values.dtype} instead of {precision}"
    return {Tap(tap) for tap in set(shown) - _ALWAYS - {AGGREGATE}}


def assert_keyed(defense: Defense) -> bool:
    """A round played again is the same to the bit, since all noise is keyed; says whether another key changes it."""
    first, again, other = _play(defense), _play(defense), _play(defense, seed=1)
    _assert_same(first, again, "differs when the round is played again; draw noise from the context alone")
    return any(not torch.equal(first[tap], other[tap]) for tap in first)


def assert_rows_apart(defense: Defense) -> None:
    """What a client's row shows does not depend on the clients that are played beside it, however long it is.

    A bound that cuts nothing hides what it is computed from: gradients that every bound cuts show it.
    """
    for times in (1.0, LONG):
        together = _play(defense, times=times)
        together.pop(AGGREGATE, None)
        halves = [_play(defense, rows, times=times) for rows in (slice(0, 2), slice(2, CLIENTS))]
        joined: Shown = {tap: torch.cat([half[tap] for half in halves]) for tap in together}
        _assert_same(together, joined, "depends on the other clients; facts about them come from context.cohort")
        alone = _play(defense, slice(CLIENTS - 1, CLIENTS), times=times)
        for tap, values in together.items():
            # A single row takes other kernels.
            near = 1e-5 * float(values.abs().max())
            torch.testing.assert_close(alone[tap], values[CLIENTS - 1 :], rtol=1e-4, atol=max(1e-6, near))


def assert_empty_places_change_nothing(defense: Defense) -> None:
    """However many places of a batch hold no example, a step and what is remembered of it are the same.

    How many there are depends on the other clients played beside, and nothing says that they count. Of the examples
    that are there one has a gradient of zero, and counts. Whoever states noise on a step adds it to an empty batch too.
    """
    for examples in (0, BATCH):
        made = [_step(defense, examples, empty) for empty in (1, 2, 7)]
        for other in made[1:]:
            torch.testing.assert_close(made[0], other, msg=lambda why: f"empty places of a batch count: {why}")


def assert_statements(defense: Defense) -> None:
    """``units`` is one line; every privacy statement is whole: it has an epsilon exactly where it has a guarantee."""
    units = defense.units()
    assert units and "\n" not in units, "units() is one line"
    statements = defense.statements(FACTS)
    assert statements, "a defense states what it promises, if only that it promises nothing"
    for statement in statements:
        assert statement.guarantee in GUARANTEES, f"there is no guarantee {statement.guarantee!r}"
        assert statement.view in VIEWS, f"there is no view {statement.view!r}"
        assert statement.notes, f"the statement against the {statement.view} says nothing of why"
        nothing = statement.guarantee == "none"
        assert (statement.epsilon is None) == nothing, f"{statement.guarantee} with epsilon {statement.epsilon}"
        assert (statement.adjacency is None) == nothing, f"{statement.guarantee} with adjacency {statement.adjacency}"


def assert_declares_memory_and_plans(defense: Defense) -> None:
    """Training goes on beyond its planned rounds, and keeps the server's memory, by what a defense says of both."""
    (few, remembered, sent), (many, _, _) = _two_rounds(defense, 10), _two_rounds(defense, 1000)
    alike = all(torch.equal(one, other) for one, other in zip(few, many, strict=True))
    assert alike == (defense.needs_planned_rounds() is None), "needs_planned_rounds() says otherwise than its rounds"
    known = list(defense.server_remembers())
    assert remembered == known, f"the server remembers {remembered}, its operations name {known}"
    assert sent == defense.sends_beside(), f"clients send {sent} beside their updates, their operations name others"


@cache
def _model() -> RowModel:
    return RowModel("lenet", (1, 8, 8), 4)


def _made_up() -> tuple[Tensor, Tensor, Tensor]:
    """Weights (N, P), images (N, B, 1, 8, 8) and labels (N, B)."""
    random = torch.Generator().manual_seed(1)
    images = torch.rand(CLIENTS, BATCH, 1, 8, 8, generator=random)
    labels = torch.randint(0, 4, (CLIENTS, BATCH), generator=random)
    return _model().initial_weights([(0, client) for client in range(CLIENTS)]), images, labels


def _keys(seed: int = 0) -> tuple[tuple[int, int], ...]:
    return tuple((seed, client) for client in range(CLIENTS))


def _play(defense: Defense, rows: slice = slice(None), seed: int = 0, together: int = 1, times: float = 1.0) -> Shown:
    """All taps of some rows' round, and what the server applies of them where it gets their messages."""
    weights, images, labels = (part[rows] for part in _made_up())
    cohort = Cohort(clients_per_round=CLIENTS, batch_size=BATCH)
    context = RoundContext(2, 0, LEARNING_RATE, cohort, _model().layout, _keys(seed)[rows])
    reached = None if together == 1 and defense.sums_securely else together
    taps = play_taps(_model(), weights, images, labels, defense, context, together=reached, times=times)
    shown: Shown = {**taps}
    if Tap.RECEIVED in shown:
        context.sent.update({key: values.sum(0) for key, values in context.sent.items()})
        shown[AGGREGATE] = defense.aggregate(shown[Tap.RECEIVED].sum(0), context)
    return shown


def _assert_same(one: Shown, other: Shown, otherwise: str) -> None:
    assert set(one) == set(other), f"{set(one) ^ set(other)} {otherwise}"
    for tap in one:
        assert torch.equal(one[tap], other[tap]), f"{tap} {otherwise}"


def _step(defense: Defense, examples: int, empty: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The second local step of batches with so many examples and empty places, and what was remembered of both."""
    there = torch.randn(CLIENTS, examples, _SMALL.total, generator=torch.Generator().manual_seed(5))
    there[:, :1] = 0
    gradients = torch.cat([there, torch.zeros(CLIENTS, empty, _SMALL.total)], 1)
    present = torch.arange(examples + empty).expand(CLIENTS, -1) < examples
    cohort = Cohort(clients_per_round=CLIENTS, batch_size=BATCH, steps_per_round=2)
    first = RoundContext(1, 0, LEARNING_RATE, cohort, _SMALL, _keys())
    handle = MaterialisedGradients(gradients, _SMALL.sizes, present, BATCH)
    defense.client_step(handle, first)
    made = defense.client_step(handle, replace(first, local_step=1))
    noisy = made.noise is not None and bool((torch.as_tensor(made.noise) > 0).any())
    assert not noisy or not made.step.eq(0).all(), "a batch without examples gets no noise, which tells that it is one"
    return made.step, dict(first.local)


def _two_rounds(defense: Defense, planned: int) -> tuple[list[Tensor], list[str], list[str]]:
    """What the server applies in rounds 3 and 4 of so many, what it remembers then, and what clients send beside."""
    weights, images, labels = _made_up()
    cohort = Cohort(clients_per_round=CLIENTS, rounds=planned, batch_size=BATCH)
    server: dict[str, Tensor] = {}
    made, sent = [], list[str]()
    for now in (3, 4):
        context = RoundContext(now, 0, LEARNING_RATE, cohort, _model().layout, _keys(), server=server)
        shown = play_taps(_model(), weights, images, labels, defense, context, together=CLIENTS)
        context.sent.update({key: values.sum(0) for key, values in context.sent.items()})
        sent = list(context.sent)
        made.append(defense.aggregate(shown[Tap.RECEIVED].sum(0), context))
    return made, list(server), sent
