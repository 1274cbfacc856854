"""The noise of a defense, declared and measured: rounds whose gradients do not depend on the weights, with and without.

So noise adds up over the local steps and does nothing else. Half of the examples are longer than the usual bound.
"""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from harness.base.layout import Layout, group_sums
from harness.evaluation.noise_law import law_p_value
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.known_noise import noise_at
from harness.federation.recorders import KeepTap
from harness.federation.taps import Tap
from harness.federation.variates import RoundVariates
from harness.federation.whole_round import play_round
from harness.models.example_gradients import MaterialisedGradients
from harness.observation import Noise

ROUNDS, TOGETHER, BATCH, LEARNING_RATE = 5, 8, 4, 0.05
LAYOUT = Layout(("weight", "bias"), ((384,), (128,)))
SURE = 5.0
"""Standard errors that no right figure is off."""
LEVEL = 1e-6
"""How often noise of the right law may be taken for another."""


def assert_declares_noise(defense: Defense, steps: int = 1, batch: int = BATCH) -> None:
    """Who knows the settings knows of noise at exactly the taps that show some, its law, and no deviation is off.

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
    """How many standard errors the mean square of noise lies above what was declared of it."""
    assert declared.deviation is not None
    squares = (added / declared.deviation).square()
    squares = squares.flatten() if there is None else squares[there]
    return float((squares.mean() - 1) / (squares.std() / squares.numel() ** 0.5))


def public_context(steps: int, batch: int = BATCH) -> RoundContext:
    """What an adversary knows of the round's context: not which client a row is."""
    context = _context(steps, 1.0, batch)
    return replace(context, keys=context.keys[:1], clients=())


def shown(defense: Defense, steps: int, scale: float, batch: int = BATCH) -> dict[Tap, Tensor]:
    """What every tap shows of several rounds' clients, in units of the gradient that is matched there, as float64."""
    made, variates = _gradients(steps, batch)
    keep = [KeepTap(tap) for tap in Tap]
    play_round(
        lambda step, _: MaterialisedGradients(made[step], LAYOUT.sizes), made.new_zeros(made.shape[1], LAYOUT.total),
        defense, _context(steps, scale, batch), steps, keep, together=TOGETHER, variates=variates,
    )  # fmt: skip
    moved = {tap: -LEARNING_RATE * steps if tap.of_update and tap is not Tap.DELTA_C else 1.0 for tap in Tap}
    return {tap: one.shown.double() / moved[tap] for tap, one in zip(Tap, keep, strict=True) if one.shown is not None}


def _context(steps: int, scale: float, batch: int) -> RoundContext:
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
