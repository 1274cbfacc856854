"""The batched L-BFGS against ``torch.optim.LBFGS``, row by row."""

from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from harness.attacks.lbfgs import LBFGS

Losses = Callable[[Tensor], Tensor]
"""Losses (R,) of positions (R, n); rows are independent."""

SIZE = 8


def quadratics(rows: int) -> Losses:
    random = torch.Generator().manual_seed(1)
    factors = torch.randn(rows, SIZE, SIZE, generator=random, dtype=torch.float64)
    matrices = factors @ factors.mT / SIZE + 0.05 * torch.eye(SIZE, dtype=torch.float64)
    centres = torch.randn(rows, SIZE, generator=random, dtype=torch.float64)

    def losses(position: Tensor) -> Tensor:
        away = position - centres
        return (away[:, None] @ matrices @ away[:, :, None]).flatten()

    return losses


def rosenbrock(scales: list[float]) -> Losses:
    """Curved valleys; small scales make rows stop early by the tolerance on the change of the loss."""
    factor = torch.tensor(scales, dtype=torch.float64)

    def losses(position: Tensor) -> Tensor:
        x, y = position[:, 0::2], position[:, 1::2]
        return factor * ((1 - x) ** 2 + 5 * (y - x**2) ** 2).sum(1)

    return losses


def evaluation(losses: Losses) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def evaluate(position: Tensor) -> tuple[Tensor, Tensor]:
        leaf = position.detach().requires_grad_(True)
        values = losses(leaf)
        (gradient,) = torch.autograd.grad(values.sum(), leaf)
        return values.detach(), gradient

    return evaluate


def start(rows: int) -> Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


class RowByRow:
    """One ``torch.optim.LBFGS`` per row."""

    def __init__(self, settings: LBFGS, position: Tensor, losses: Losses) -> None:
        self.losses = losses
        self.position = position.clone()
        self.rows = [torch.nn.Parameter(row.clone()) for row in position]
        self.optimizers = [
            torch.optim.LBFGS(
                [row], lr=settings.learning_rate, max_iter=settings.inner_iterations, history_size=settings.history,
                tolerance_grad=settings.tolerance_gradient, tolerance_change=settings.tolerance_change,
            )
            for row in self.rows
        ]  # fmt: skip

    def step(self) -> Tensor:
        """One outer iteration of every row; returns the evaluations each row used so far."""
        for number, (row, optimizer) in enumerate(zip(self.rows, self.optimizers, strict=True)):

            def closure(number: int = number, row: Tensor = row) -> Tensor:
                everything = self.position.clone()
                everything[number] = row
                loss = self.losses(everything)[number]
                (row.grad,) = torch.autograd.grad(loss, row)
                return loss

            optimizer.step(closure)
        return torch.tensor([optimizer.state[row]["func_evals"] for row, optimizer in zip(self.rows, self.optimizers,
                                                                                        strict=True)])  # fmt: skip


def test_defaults_are_those_of_torch() -> None:
    (group,) = torch.optim.LBFGS([torch.zeros(1)]).param_groups
    names = {"learning_rate": "lr", "inner_iterations": "max_iter", "history": "history_size",
             "tolerance_gradient": "tolerance_grad", "tolerance_change": "tolerance_change"}  # fmt: skip
    assert {names[name]: value for name, value in asdict(LBFGS()).items() if name != "descend"} == {
        name: group[name] for name in names.values()
    }


@pytest.mark.parametrize(
    ("losses", "rows", "settings"),
    [
        pytest.param(quadratics(6), 6, LBFGS(), id="quadratics"),
        pytest.param(quadratics(6), 6, LBFGS(learning_rate=0.5, history=3), id="short-history"),
        pytest.param(rosenbrock([0.1, 0.03, 0.01, 1e-3, 1e-4]), 5, LBFGS(), id="rosenbrock"),
        pytest.param(rosenbrock([0.1, 10**-3.5, 10**-4.5]), 3, LBFGS(history=10), id="rows-that-pause"),
    ],
)
def test_follows_torch_row_by_row(losses: Losses, rows: int, settings: LBFGS) -> None:
    state = settings.start(start(rows))
    expected = RowByRow(settings, start(rows), losses)
    evaluations = torch.zeros(rows, dtype=torch.float64)
    for _ in range(12):
        evaluations += state.step(evaluation(losses))
        assert torch.equal(evaluations, expected.step().double())
        assert (state.position - torch.stack(list(expected.rows))).abs().max() < 1e-8
    assert (losses(state.position) < 1e-2 * losses(start(rows))).all()


@pytest.mark.parametrize("history", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_a_row_does_not_depend_on_its_companions(history: int) -> None:
    """Rows that pause (their loss changes too little) beside rows that go on, with a history that overflows."""
    scales = [10**-4.5, 1.0, 10**-3.5, 0.1, 10**-2.5]
    together = LBFGS(history=history).start(start(5))
    alone = [LBFGS(history=history).start(start(5)[[row, row]]) for row in range(5)]
    used = []
    for _ in range(30):
        used.append(together.step(evaluation(rosenbrock(scales))))
        for row, state in enumerate(alone):
            assert state.step(evaluation(rosenbrock([scales[row]] * 2)))[0] == used[-1][row]
            assert torch.equal(state.position[0], together.position[row])
    counts = torch.stack(used)
    assert ((counts.min(1).values < 20) & (counts.max(1).values == 20)).any()  # some paused while others went on


def test_a_row_at_its_minimum_stays_and_costs_one_evaluation() -> None:
    position = start(3)
    position[1] = 1.0  # the minimum of Rosenbrock's function
    losses = rosenbrock([0.1, 0.1, 0.1])
    state = LBFGS().start(position)
    assert state.step(evaluation(losses)).tolist() == [20, 1, 20]
    assert torch.equal(state.position[1], position[1])
    assert not torch.equal(state.position[0], position[0])


def test_a_row_that_is_not_a_number_does_not_disturb_the_others() -> None:
    losses = rosenbrock([0.1] * 4)

    def spoiled(position: Tensor) -> tuple[Tensor, Tensor]:
        values, gradient = evaluation(losses)(position)
        values[2], gradient[2] = torch.nan, torch.nan
        return values, gradient

    clean, dirty = LBFGS().start(start(4)), LBFGS().start(start(4))
    for _ in range(4):
        clean.step(evaluation(losses))
        dirty.step(spoiled)
    others = [0, 1, 3]
    assert torch.equal(dirty.position[others], clean.position[others])


def test_take_keeps_each_rows_history() -> None:
    full, part = quadratics(5), LBFGS(inner_iterations=4).start(start(5))
    whole = LBFGS(inner_iterations=4).start(start(5))
    for state in (part, whole):
        for _ in range(2):
            state.step(evaluation(full))
    kept = torch.tensor([3, 0])
    part.take(kept)
    position = whole.position.clone()

    def partial(rows: Tensor) -> tuple[Tensor, Tensor]:
        everything = position.clone().index_copy(0, kept, rows)
        values, gradient = evaluation(full)(everything)
        return values[kept], gradient[kept]

    for _ in range(2):
        part.step(partial)
        whole.step(evaluation(full))
    assert torch.equal(part.position, whole.position[kept])


def flattening(rows: int) -> Losses:
    """Far from the minimum they are nearly straight, which sends full steps of second order ever farther away."""
    scales = torch.logspace(-1, 1, SIZE, dtype=torch.float64) * torch.arange(1, rows + 1)[:, None]
    return lambda position: (1 + (scales * position) ** 4).log1p().sum(1)


def test_it_descends_where_a_full_step_climbs() -> None:
    losses, courses = flattening(3), []
    for descend in (False, True):
        state = LBFGS(descend=descend).start(3 * start(3))
        course = [losses(state.position)]
        for _ in range(8):
            state.step(evaluation(losses))
            course.append(losses(state.position))
        courses.append(torch.stack(course))
    climbs, descends = ((course[1:] > course[:-1]).any() for course in courses)
    assert climbs and not descends
    assert (courses[1][-1] < courses[1][0]).all()


def test_a_row_descends_as_it_does_among_others() -> None:
    losses = flattening(3)
    many, one = LBFGS(descend=True).start(3 * start(3)), LBFGS(descend=True).start(3 * start(3)[1:2])
    for _ in range(3):
        many.step(evaluation(losses))
        one.step(evaluation(lambda position: losses(position.expand(3, -1))[1:2]))
    assert torch.allclose(many.position[1:2], one.position, rtol=1e-12)


@pytest.mark.parametrize("descend", [False, True])
def test_who_never_looks_at_masks_finds_the_same_bits(monkeypatch: pytest.MonkeyPatch, descend: bool) -> None:
    """As on a GPU, where to look means to wait: what no row needs is computed, and thrown away."""
    matrices = torch.randn(6, 12, 12, generator=torch.Generator().manual_seed(0))

    def evaluate(position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = position.detach().requires_grad_(True)
        loss = torch.tanh((matrices @ leaf[..., None])[..., 0]).square().sum(1) + leaf.pow(4).sum(1)
        return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]

    found = []
    for looks in (True, False):
        if not looks:
            monkeypatch.setattr("harness.attacks.lbfgs._may_hold", lambda rows: True)
        state = LBFGS(descend=descend, history=30).start(torch.randn(6, 12, generator=torch.Generator().manual_seed(1)))
        used = [state.step(evaluate) for _ in range(12)]
        found.append((state.position, torch.stack(used)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert found[0][1].sum(0).unique().numel() > 1, "all rows stop together, so nothing was masked"
