"""A defense that adds other noise than it declares is named, before its attackers fail for that."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.base.vectors import Layout, spread
from harness.defenses import DEFENSES, Cohort, Custom, Defense, Operation, Point, RoundContext, validated_defense
from harness.evaluation import run
from harness.federation.declared_noise import WrongDeclaration, require_declared
from harness.observation import Noise, NoiseLevel, Observation
from harness.testing import digits, undefended

QUIET = undefended(*digits(4))
LEVELS = torch.cat([torch.zeros(100), torch.full((QUIET.target.shape[1] - 100,), 0.02)])


FOLLOWS = NoiseLevel(0.5, "largest")
EACH = NoiseLevel(0.5, "each")


def noisy(deviation: float | torch.Tensor, declared: Noise | None, **facts: Any) -> Observation:
    added = deviation * torch.randn(QUIET.target.shape, generator=torch.Generator().manual_seed(0))
    return replace(QUIET, target=QUIET.target + added, noise=declared, **facts)


def following(times: float) -> Observation:
    """Noise of a level that follows the gradient, by so many times what is declared."""
    level = FOLLOWS.deviations(QUIET.target, QUIET.model.layout.sizes)[:, :1].float()
    return noisy(times * level, Noise("gaussian", None, level=FOLLOWS))


def of_level(level: torch.Tensor, declared: NoiseLevel) -> Observation:
    """Noise of deviations (R, P), scaled so that they are right in the mean over all rows and tensors."""
    sizes = QUIET.model.layout.sizes
    told = spread(declared.deviations(QUIET.target, sizes), sizes).float()
    return noisy(level / (level / told).square().mean().sqrt(), Noise("gaussian", None, level=declared))


def uniform(deviation: float, declared: Noise) -> Observation:
    random = torch.rand(QUIET.target.shape, generator=torch.Generator().manual_seed(0))
    return replace(QUIET, target=QUIET.target + deviation * 12**0.5 * (random - 0.5), noise=declared)


def on_grid(variance: float) -> Observation:
    """Differences of two Poisson numbers of that variance together, scaled: nearly all are 0."""
    rate, random = torch.full(QUIET.target.shape, variance / 2), torch.Generator().manual_seed(0)
    drawn = (torch.poisson(rate, random) - torch.poisson(rate, random)) * (0.02 / variance**0.5)
    return replace(QUIET, target=QUIET.target + drawn, noise=Noise("skellam", 0.02))


def of_signs(deviation: float) -> torch.Tensor:
    random = torch.rand(QUIET.target.shape, generator=torch.Generator().manual_seed(0))
    return QUIET.target + torch.where(random < 0.5, -deviation, deviation)


def swapped(level: torch.Tensor) -> torch.Tensor:
    """Every row with the level of another one."""
    return level.roll(1, 0)


SIZES = QUIET.model.layout.sizes
OF_EACH, OF_LARGEST = (spread(one.deviations(QUIET.target, SIZES), SIZES).float() for one in (EACH, FOLLOWS))


def uneven(share: float) -> Observation:
    """Noise of 24 rows whose deviations differ by that share, and are declared as one."""
    seen = undefended(*digits(24))
    random = torch.Generator().manual_seed(1)
    level = 0.02 * (1 + share * torch.linspace(-(3**0.5), 3**0.5, 24)[torch.randperm(24, generator=random)])
    added = level[:, None] * torch.randn(seen.target.shape, generator=random)
    return replace(seen, target=seen.target + added, noise=Noise("gaussian", 0.02))


HONEST = {
    "none": noisy(0.0, None),
    "what it says": noisy(0.02, Noise("gaussian", 0.02)),
    "off by less than a tenth": noisy(0.021, Noise("gaussian", 0.02)),
    "a level of each coordinate": noisy(LEVELS, Noise("gaussian", LEVELS)),
    "a level that nobody publishes": noisy(0.02, Noise("unknown", None)),
    "a level that follows the gradient": following(1.0),
    "a law that nobody knows": uniform(0.02, Noise("unknown", 0.02)),
    "bounded": uniform(0.02, Noise("uniform", 0.02)),
    "on a coarse grid": on_grid(0.01),
    "hardly ever": on_grid(0.001),
    "a level of each tensor": of_level(OF_EACH, EACH),
    "of the size of rounding": noisy(0.0, Noise("gaussian", 1e-9)),
}
WRONG = {
    "declares nothing": (noisy(0.02, None), "adds noise of which it declares nothing there"),
    "too little": (noisy(0.01, Noise("gaussian", 0.02)), "adds 0.5 times the noise that it declares"),
    "too much": (noisy(0.02, Noise("laplace", 0.01)), "adds 2 times the noise that it declares"),
    "no level": (noisy(0.02, Noise("gaussian", 0.0)), "adds noise where it declares a deviation of zero"),
    "beside its level": (noisy(0.02, Noise("gaussian", LEVELS)), "adds noise where it declares a deviation of zero"),
    "a level that follows otherwise": (following(2.0), "adds 2 times the noise that it declares"),
    "a level of the wrong kind": (of_level(OF_EACH, FOLLOWS), r"adds [\d.]+ times the noise .* in tensor '.*'"),
    "another row's level": (of_level(swapped(OF_LARGEST), FOLLOWS), r"adds [\d.]+ times the noise .* in row \d of 4"),
    "another law": (uniform(0.02, Noise("gaussian", 0.02)), "adds noise that is not gaussian, as it declares"),
    "a law of two values": (
        replace(QUIET, target=of_signs(5.0), noise=Noise("gaussian", 5.0)),
        "adds noise that is not gaussian, as it declares",
    ),
    "none at all": (noisy(0.0, Noise("gaussian", 0.02)), "adds none of the noise that it declares there"),
}


@pytest.mark.parametrize("seen", HONEST.values(), ids=HONEST)
def test_honest(seen: Observation) -> None:
    require_declared("mine", "T2.step", QUIET, seen)


@pytest.mark.parametrize(("seen", "told"), WRONG.values(), ids=WRONG)
def test_wrong(seen: Observation, told: str) -> None:
    with pytest.raises(WrongDeclaration, match=f"'mine' {told} .T2.step.; let the operation"):
        require_declared("mine", "T2.step", QUIET, seen)


def test_unknown_noise_that_is_none_is_told() -> None:
    """A hundred times of it would hide nothing, and a control would make the run invalid."""
    with pytest.raises(WrongDeclaration, match=r"'mine' adds no noise .T1.out., and .* \(Custom: adds=None\)"):
        require_declared("mine", "T1.out", QUIET, noisy(0.0, Noise("unknown", None)))


def test_a_level_that_differs_from_row_to_row() -> None:
    """By 5%: no row is off by more than a tenth, and all together tell."""
    quiet = undefended(*digits(24))
    require_declared("mine", "T2.step", quiet, uneven(0.0))
    with pytest.raises(WrongDeclaration, match=r"varies by [3-7]% among rows and tensors otherwise than it declares"):
        require_declared("mine", "T2.step", quiet, uneven(0.05))


def test_a_level_that_follows_the_gradient_a_little() -> None:
    """By 0.8%, which is hardly more than chance in a row, and told by how long the gradients are."""
    random = torch.Generator().manual_seed(1)
    model, scale = SimpleNamespace(layout=Layout(("a", "b"), ((10_000,), (10_000,)))), torch.linspace(1, 3, 24)
    quiet: Any = SimpleNamespace(target=scale[:, None] * 0.01 * torch.randn(24, 20_000, generator=random), model=model)
    drawn = torch.randn(24, 20_000, generator=random)

    def seen(share: float) -> Any:
        level = 1 + share * (scale - scale.mean()) / scale.std()
        noise = Noise("gaussian", 1.0)
        return SimpleNamespace(
            target=quiet.target + level[:, None] * drawn, noise=noise, level=None, sparse=False, model=model
        )

    require_declared("mine", "T2.step", quiet, seen(0.0))
    with pytest.raises(WrongDeclaration, match=r"follows the length of the gradient, by 0\.[5-9]%, otherwise"):
        require_declared("mine", "T2.step", quiet, seen(0.008))


@pytest.mark.parametrize("law", [
    "gaussian", "laplace", *(pytest.param(law, marks=pytest.mark.slow) for law in ("skellam", "uniform")),
])  # fmt: skip
@pytest.mark.parametrize("rows", [2, pytest.param(24, marks=pytest.mark.slow)])
def test_chance_refuses_nobody(law: Any, rows: int) -> None:
    """A hundred honest draws over thirty tensors of forty numbers, each of which is held against its level."""
    model, random = SimpleNamespace(layout=Layout(tuple("abcdefghij" * 3), ((40,),) * 30)), torch.Generator()
    random.manual_seed(1)
    quiet: Any = SimpleNamespace(target=torch.full((rows, 1200), 1e-3), model=model)
    for _ in range(100):
        exponential = torch.empty(2, rows, 1200).exponential_(generator=random)
        normal, rate = torch.randn(rows, 1200, generator=random), torch.full((rows, 1200), 0.05)
        drawn = {
            "gaussian": normal, "laplace": (exponential[0] - exponential[1]) / 2**0.5,
            "uniform": 12**0.5 * (torch.rand(rows, 1200, generator=random) - 0.5),
            "skellam": (torch.poisson(rate, random) - torch.poisson(rate, random)) / 0.1**0.5,
        }[law]  # fmt: skip
        noisy: Any = SimpleNamespace(
            target=quiet.target + drawn, noise=Noise(law, 1.0), level=None, sparse=False, model=model
        )
        require_declared("mine", "T2.step", quiet, noisy)


def test_what_is_no_number_is_told_as_such() -> None:
    with pytest.raises(UsageError, match="'mine' makes numbers that are not finite"):
        require_declared("mine", "T2.step", QUIET, noisy(torch.nan, None))


@pytest.fixture
def research(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defense ``own`` of research code that adds noise to gradients, and says ``said`` times as much."""

    def noisy(mean: torch.Tensor, context: RoundContext) -> torch.Tensor:
        return mean + 0.1 * context.gaussian("client_step", mean)

    @validated_defense
    class Own(Defense):
        said: float = 1.0
        elsewhere: bool = False

        def operations(self, cohort: Cohort) -> list[Operation]:
            declared = Noise("gaussian", 0.1 * self.said)
            if self.elsewhere:
                noise = Custom(noisy, at=Point.STEP, adds=None)
                return [noise, Custom(lambda update, _: update, adds=declared)]
            return [Custom(noisy, at=Point.STEP, adds=declared)]

    DEFENSES.aliases("none")  # what is installed is looked for before this is added
    monkeypatch.setitem(DEFENSES._entries, "own", Own)


@pytest.mark.usefixtures("research")
def test_noise_that_is_declared_at_another_tap_ends_the_run(small: Any, tmp_path: Path) -> None:
    cell = small.cell(defense="own", defense_args={"elsewhere": True})
    with pytest.raises(WrongDeclaration, match="declares nothing there"):
        small.play([cell], tmp_path)


def test_what_follows_from_a_list_is_not_measured(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of ours cannot say other noise than they add: runs spare themselves the comparison."""
    monkeypatch.setattr(run, "require_declared", None)
    cell = small.cell(defense="noise", defense_args={"applies_to": "gradient", "amount": 0.1})
    assert small.play([cell], tmp_path).cells[0].not_applicable_reason is None


def test_looks_that_leave_out_other_coordinates_are_no_noise(small: Any, tmp_path: Path) -> None:
    """The mean of looks without noise is over those that sent a coordinate: with noise nobody sees which did."""
    cell = small.cell(
        defense="dssgd+noise", defense_args={"noise.amount": 1e-4}, tap="T1.out", observations=4,
        attack_args={"max_iterations": 3},
    )  # fmt: skip
    assert small.play([cell], tmp_path).cells[0].not_applicable_reason is None


@pytest.mark.usefixtures("research")
def test_noise_of_several_steps_is_held_against_that_of_one(small: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "defense": "own", "tap": "T1.out", "local_steps": 2, "update_model": "avg",
        "attack_args": {"max_iterations": 3},
    }  # fmt: skip
    small.play([small.cell(**settings)], tmp_path / "honest")
    with pytest.raises(WrongDeclaration, match=r"adds 2 times the noise that it declares \(T1.out\)"):
        small.play([small.cell(**settings, defense_args={"said": 0.5})], tmp_path / "half")


@pytest.mark.parametrize("code", ["turns", "adds"])
def test_attackers_who_cannot_play_research_code_are_no_attackers_who_know_it(
    code: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixed order of coordinates hides nothing from who knows it, and everything from all attackers here."""

    def turned(rows: torch.Tensor, _: RoundContext) -> torch.Tensor:
        return rows.flip(-1)

    def noisy(rows: torch.Tensor, context: RoundContext) -> torch.Tensor:
        return rows + 10.0 * context.gaussian("client_message", rows)

    @validated_defense
    class Own(Defense):
        def operations(self, cohort: Cohort) -> list[Operation]:
            if code == "turns":
                return [Custom(turned, adds=None)]
            return [Custom(noisy, adds=Noise("gaussian", 10.0))]

    DEFENSES.aliases("none")
    monkeypatch.setitem(DEFENSES._entries, "own", Own)
    cells = [
        small.cell(defense="own", tap="T1.out", attack=name, attack_args={}, prior="auto")
        for name in ("analytic", "identify")
    ]
    plain, informed = (one for one in small.play(cells, tmp_path).cells if one.role == "cell")
    told = [flag for flag in informed.flags if "research code" in flag]
    assert (len(told), plain.flags) == (code == "turns", [])
