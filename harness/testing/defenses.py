"""Rules that every defense must keep. Each check takes a built defense and raises AssertionError where one is broken.

They play rounds of four clients with made-up images on a small network, under the settings that the defense was built
with; a check of other settings is a call with another instance.
"""

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from harness.base.vectors import Layout, group_sums
from harness.federation.context import Cohort, RoundContext
from harness.federation.declared_noise import law_p_value
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.knowledge import noise_at
from harness.federation.memory import RoundVariates
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.recorders import KeepTap, Recorder
from harness.federation.server_round import play_round
from harness.federation.taps import Tap
from harness.models import RowModel
from harness.models.example_gradients import MaterialisedGradients
from harness.observation import Clipping, Noise
from harness.privacy import GUARANTEES
from harness.privacy.views import VIEWS

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
    """Assert that a client's row does not depend on the clients that are played beside it, however long it is.

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
    """Return what the server applies in rounds 3 and 4 of so many, what it remembers then, and what clients send
    beside."""
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


# --------------------------------------------------------------------------------------
# Measures how a defense clips and how much noise it adds, and holds both against its operations.


# The noise of a defense, declared and measured: rounds whose gradients do not depend on the weights, with and
# without.
#
# So noise adds up over the local steps and does nothing else. Half of the examples are longer than the usual bound.

ROUNDS, TOGETHER, EXAMPLES_OF_A_CLIENT = 5, 8, 4
LAYOUT = Layout(("weight", "bias"), ((384,), (128,)))
SURE = 5.0
"""Standard errors that no right figure is off."""
LEVEL = 1e-6
"""How often noise of the right law may be taken for another."""


def assert_declares_noise(defense: Defense, steps: int = 1, batch: int = EXAMPLES_OF_A_CLIENT) -> None:
    """Assert that the settings tell of noise at exactly the taps that show some, and its law, and that no deviation is
    off.

    Where a tap is known to be sparse, coordinates that were left out do not count. A level that is declared to follow
    the gradient of a batch of one is held against each row's, and each tensor's.
    """
    noisy, quiet = (shown(defense, steps, scale, batch) for scale in (1.0, 0.0))
    for tap, values in noisy.items():
        declared = noise_at(defense, tap, public_context(steps, batch), steps)
        added = values - quiet[tap]
        if not added.any():
            open_ = declared is not None and declared.law == "unknown" and declared.deviation is None
            assert declared is None or open_, f"{tap} shows no noise, the operations state some"
            continue
        assert declared is not None, f"{tap} shows noise of which the operations say nothing (adds=...)"
        there = values != 0 if defense.sparse_at(tap) else torch.ones_like(values, dtype=torch.bool)
        if declared.level is not None and batch == steps == 1:
            _assert_follows(tap, added, declared.level.deviations(quiet[tap].view(len(added), -1), LAYOUT.sizes))
        if declared.deviation is not None:
            off = excess(added, declared, there)
            assert abs(off) < SURE, f"the noise at {tap} is not of the stated size, by {off:.3g} standard errors"
        chance = law_p_value(added, declared, there, LAYOUT)
        assert chance is None or chance > LEVEL, f"the noise at {tap} is not {declared.law}, as it is said to be"


def _assert_follows(tap: Tap, added: Tensor, level: Tensor) -> None:
    """Noise (N, P) in each tensor of each row against its level (N, M)."""
    sizes = torch.tensor(LAYOUT.sizes)
    ratios = group_sums(added.view(len(level), -1).square(), LAYOUT.sizes) / (sizes * level.square())
    off = (ratios - 1) * (sizes / 2).sqrt()
    assert off.abs().max() < SURE + 1, (
        f"the noise at {tap} does not follow the gradient as it is said to, by {float(off.abs().max()):.3g} standard "
        "errors in one row's tensor"
    )


def excess(added: Tensor, declared: Noise, there: Tensor | None = None) -> float:
    """Return how many standard errors the mean square of noise lies above what was declared of it."""
    assert declared.deviation is not None
    squares = (added / declared.deviation).square()
    squares = squares.flatten() if there is None else squares[there]
    return float((squares.mean() - 1) / (squares.std() / squares.numel() ** 0.5))


def public_context(steps: int, batch: int = EXAMPLES_OF_A_CLIENT) -> RoundContext:
    """Return what an adversary knows of the round's context: not which client a row is."""
    context = _noise_context(steps, 1.0, batch)
    return replace(context, keys=context.keys[:1], clients=())


def shown(defense: Defense, steps: int, scale: float, batch: int = EXAMPLES_OF_A_CLIENT) -> dict[Tap, Tensor]:
    """Return what every tap shows of several rounds' clients, in units of the gradient that is matched there, as
    float64."""
    made, variates = _gradients(steps, batch)
    keep = [KeepTap(tap) for tap in Tap]
    play_round(
        lambda step, _: MaterialisedGradients(made[step], LAYOUT.sizes), made.new_zeros(made.shape[1], LAYOUT.total),
        defense, _noise_context(steps, scale, batch), steps, keep, together=TOGETHER, variates=variates,
    )  # fmt: skip
    moved = {tap: -LEARNING_RATE * steps if tap.of_update and tap is not Tap.DELTA_C else 1.0 for tap in Tap}
    return {tap: one.shown.double() / moved[tap] for tap, one in zip(Tap, keep, strict=True) if one.shown is not None}


def _noise_context(steps: int, scale: float, batch: int) -> RoundContext:
    """A round in which all clients take part."""
    cohort = Cohort(TOGETHER, TOGETHER, rounds=10, steps_per_round=steps, batch_size=batch)
    keys = tuple((0, number, "client", client) for number in range(ROUNDS) for client in range(TOGETHER))
    return RoundContext(2, 0, LEARNING_RATE, cohort, LAYOUT, keys, scale, clients=tuple(range(TOGETHER)) * ROUNDS)


@cache
def _gradients(steps: int, batch: int) -> tuple[Tensor, RoundVariates]:
    """Example gradients (L, N, B, P) of many lengths, which differ between clients too, and SCAFFOLD's variates."""
    random, clients = torch.Generator().manual_seed(3), ROUNDS * TOGETHER
    directions = torch.randn(steps, clients, batch, LAYOUT.total, generator=random)
    lengths = torch.empty(steps, clients, batch, 1).uniform_(0.2, 8, generator=random)
    own = torch.empty(clients, 1, 1).uniform_(0.1, 1, generator=random)
    made = directions / directions.norm(dim=-1, keepdim=True) * lengths * own
    server = torch.randn(LAYOUT.total, generator=random)
    return made, RoundVariates(server, torch.zeros(clients, LAYOUT.total))


# The clipping of a defense, declared and measured: quiet rounds whose gradients are longer than any bound.

LONG, TIMES = 1e8, 10.0
_PARALLEL, _ABOUT = 0.9999, 1.01


def assert_declares_clipping(defense: Defense) -> None:
    """Assert that the settings tell at every tap that lengths are cut there, and to what.

    Of a client with one example every tap shows its gradient, cut or not: told by its direction, and by a length that
    does not grow with that of the gradient. Where coordinates are left out, the others count. An update's bound is
    declared in units of a gradient, that is, divided by the learning rate.
    """
    gradient, shown = _shown(defense, LONG)
    longer = _shown(defense, LONG * TIMES)[1]
    for tap, values in shown.items():
        declared = defense.clipping_at(tap, LEARNING_RATE, {})
        cut = float(longer[tap].norm() / values.norm()) < TIMES / 2 and _is_part_of(gradient, values)
        assert declared is not None or not cut, (
            f"{tap} shows gradients cut to a length of {float(values.norm(dim=-1).max()):.4g}, of which no operation "
            "says anything; an attacker who does not know takes a cut gradient for a hidden one"
        )
        if declared is not None and declared.bound is not None and math.isfinite(declared.bound):
            # Another part of a stack may cut to less.
            _assert_lengths(tap, values, declared, exact=cut and len(defense.chain()) == 1)


def assert_declares_cuts(defense: Defense) -> None:
    """Assert that the settings tell at which magnitude coordinates are cut: at that of all that large updates show."""
    for tap, values in _shown(defense, LONG)[1].items():
        sizes, declared = values[values != 0].abs(), defense.cut_at(tap)
        if not len(sizes) or (defense.codes(tap) and defense.coding_at(tap)):  # rounded away, or written in so few bits
            continue
        largest = float(sizes.max()) * LEARNING_RATE
        assert declared is not None or sizes.min() < sizes.max() / _ABOUT or not tap.of_update, (
            f"all coordinates that {tap} shows have the magnitude {largest:.4g}, of which cuts_at= says nothing; an "
            "attacker who does not know takes cut coordinates for true ones"
        )
        assert declared is None or largest <= declared * _ABOUT, (
            f"{tap} shows magnitudes of up to {largest:.4g}, an operation says that they are cut at {declared:.4g}"
        )


def assert_declares_what_is_sent(defense: Defense) -> None:
    """Assert that the settings tell how many coordinates of a group are sent, and whether they are its largest."""
    _, shown = _shown(defense, LONG)
    updates = shown[Tap.UPDATE]
    for tap, values in shown.items():
        chosen = defense.chosen_at(tap, LAYOUT) if defense.sparse_at(tap) and not tap.of_round else None
        if chosen is None:
            continue
        groups = LAYOUT.groups(chosen.grouping)
        parts = zip(values.split(groups, -1), updates.split(groups, -1), chosen.counts, strict=True)
        for part, own, most in parts:
            sent, sizes = part != 0, own.abs()
            count = int(sent.sum(-1).max())
            assert count <= most, f"{tap} shows {count} coordinates of a {chosen.grouping}, an operation says {most}"
            least, left = sizes.where(sent, torch.inf).amin(-1), sizes.where(~sent, 0.0).amax(-1)
            assert chosen.choice != "largest" or bool((least >= left).all()), (
                f"{tap} leaves out larger coordinates than it sends, an operation says that the largest are sent"
            )


def assert_bounds_examples(defense: Defense) -> None:
    """Assert that no example of a batch changes the batch's sum by more than the bound, where examples are declared to
    be clipped."""
    declared = defense.clipping_at(Tap.STEP, LEARNING_RATE, {})
    if declared is None or declared.unit != "example" or declared.bound is None:
        return
    lengths = torch.tensor([LONG, LONG**0.5, 10.0, 0.01])
    made = torch.randn(1, len(lengths), LAYOUT.total, generator=torch.Generator().manual_seed(4))
    made = made / made.norm(dim=-1, keepdim=True) * lengths[:, None]
    everyone = torch.ones(1, len(lengths), dtype=torch.bool)
    whole = _sum(defense, made, everyone)
    for place in range(len(lengths)):
        others = everyone.clone()
        others[:, place] = False
        moved = whole - _sum(defense, made * others[..., None], others)
        most = _lengths(moved, declared).max()
        assert most <= declared.bound * _ABOUT, (
            f"an example changes the sum of its batch by {float(most):.4g}, an operation says by at most "
            f"{declared.bound:.4g}; each example has to be clipped by itself"
        )


def _assert_lengths(tap: Tap, values: Tensor, declared: Clipping, exact: bool) -> None:
    lengths, bound = _lengths(values, declared), float(declared.bound or 0)
    longest, shortest = float(lengths.max()), float(lengths.min())
    right = longest <= bound * _ABOUT and (not exact or shortest >= bound / _ABOUT)
    assert right, (
        f"{tap} shows lengths of {shortest:.4g} to {longest:.4g} per {declared.grouping}, an operation says that they "
        f"are cut to {bound:.4g}; it is asked in units of a gradient (an update's bound divided by the learning rate), "
        "of what is sent: a change after the cut, such as rounding, counts"
    )


def _lengths(values: Tensor, declared: Clipping) -> Tensor:
    """Return the length of each group of coordinates that is cut by itself: (..., M)."""
    return group_sums(values.double().square(), LAYOUT.groups(declared.grouping)).sqrt()


def _is_part_of(gradient: Tensor, values: Tensor) -> bool:
    """Return whether each tensor of every row (N, P) is a multiple of the gradient's (P,), apart from what is left
    out."""
    kept = gradient * (values != 0)
    cosines = [
        torch.nn.functional.cosine_similarity(part, own, dim=-1)
        for part, own in zip(values.split(LAYOUT.sizes, -1), kept.split(LAYOUT.sizes, -1), strict=True)
    ]
    return bool((torch.stack(cosines) > _PARALLEL).all())


def _shown(defense: Defense, length: float) -> tuple[Tensor, dict[Tap, Tensor]]:
    """A gradient (P,) that all clients of a round have, and what each tap shows of them (N, P), as float64.

    All have the same, so that a secure sum shows it too.
    """
    gradient = torch.randn(LAYOUT.total, generator=torch.Generator().manual_seed(7))
    gradient = gradient / gradient.norm() * length
    made, keep = gradient.expand(TOGETHER, 1, -1).contiguous(), [KeepTap(tap) for tap in Tap]
    play_round(
        lambda _, __: MaterialisedGradients(made, LAYOUT.sizes), made.new_zeros(TOGETHER, LAYOUT.total), defense,
        _clipping_context(1, TOGETHER), 1, keep, together=TOGETHER,
    )  # fmt: skip
    shown = {tap: one.shown.double() for tap, one in zip(Tap, keep, strict=True) if one.shown is not None}
    return gradient.double(), {
        tap: (values / -LEARNING_RATE if tap.of_update else values).reshape(-1, LAYOUT.total)
        for tap, values in shown.items()
    }


def _sum(defense: Defense, made: Tensor, present: Tensor) -> Tensor:
    """Return what a local step makes of a batch, as a sum over its examples: (N, P)."""
    handle = MaterialisedGradients(made, LAYOUT.sizes, present, made.shape[1])
    return defense.client_step(handle, _clipping_context(made.shape[1], 1)).step * made.shape[1]


def _clipping_context(batch: int, clients: int) -> RoundContext:
    """A round without noise in which all clients take part, the first of a defense that remembers."""
    cohort = Cohort(TOGETHER, TOGETHER, rounds=10, steps_per_round=1, batch_size=batch)
    numbers = tuple(range(clients))
    keys = tuple((0, "client", client) for client in numbers)
    return RoundContext(2, 0, LEARNING_RATE, cohort, LAYOUT, keys, 0.0, clients=numbers)
