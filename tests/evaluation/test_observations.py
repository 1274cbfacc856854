"""An adversary who sees the same record several times: the noise falls as it must, and nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from harness.evaluation.observe import Stage
from harness.evaluation.reading import average
from harness.experiment import cell_settings
from harness.observation import Observation
from harness.reports.success_curves import save_curves

LEVEL = 1e-6

NOISY: list[dict[str, Any]] = [
    {"defense": "fed_cdp", "tap": "T2.step"},
    {"defense": "fed_cdp", "tap": "T2.examples", "defense_args": {"convention": "per_example"}, "batch_size": 2},
    {"defense": "fed_acdp", "tap": "T1.out"},
    {"defense": "fed_sdp", "tap": "T0.in", "defense_args": {"noise_at": "client"}},
    {"defense": "fed_sdp", "tap": "T0.post", "defense_args": {"noise_at": "receive"}},
]


def seen(chunk: int = 64, **values: Any) -> Observation:
    settings = cell_settings(**{"dataset": "digits", "victims": 4, **values})
    return Stage(Path("no data root"), chunk).set(settings).observation


def noise(case: dict[str, Any], observations: int) -> Tensor:
    quiet = seen(**case, noise_scale=0.0).target
    return (seen(**case, observations=observations).target - quiet).double()


def looks_like(sample: Tensor, variance: float) -> bool:
    """Whether normal noise of this variance is believable for a sample, by the chi-square test of its spread."""
    statistic, freedom = float(sample.square().sum()) / variance, sample.numel()
    return chi2.ppf(LEVEL, freedom) < statistic < chi2.isf(LEVEL, freedom)


@pytest.mark.parametrize("case", NOISY, ids=lambda case: case["tap"])
def test_the_variance_of_the_noise_falls_as_one_over_the_looks(case: dict[str, Any]) -> None:
    variance = float(noise(case, 1).square().mean())
    for looks in (4, 9):
        sample = noise(case, looks)
        assert looks_like(sample, variance / looks)
        assert not looks_like(sample, variance)
        assert not looks_like(sample, variance / looks * 1.1)
        assert not looks_like(sample, variance / (looks + 1))
        assert not looks_like(sample, variance / looks**2)


@pytest.mark.parametrize("looks", [1, 4])
@pytest.mark.parametrize("case", NOISY, ids=lambda case: case["tap"])
def test_an_attacker_who_knows_the_defense_is_handed_the_noise_that_is_there(case: dict[str, Any], looks: int) -> None:
    assert seen(**case, noise_scale=0.0).noise is None
    known = seen(**case, observations=looks).noise
    assert known is not None and known.law == "gaussian"
    if known.estimated:
        assert case["defense"] == "fed_acdp"
        return
    sample = noise(case, looks)
    assert looks_like(sample, known.deviation**2)
    for wrong in (0.9, 1.1):
        assert not looks_like(sample, (wrong * known.deviation) ** 2)


def test_looks_are_independent_and_the_first_is_that_of_a_single_one() -> None:
    case = NOISY[0]
    first, second = noise(case, 1), 2 * noise(case, 2) - noise(case, 1)
    correlation = float((first * second).sum() / (first.norm() * second.norm()))
    assert abs(correlation) < 5 / first.numel() ** 0.5
    assert looks_like(second, float(first.square().mean()))


@pytest.mark.parametrize("case", [{"tap": "T2.raw"}, {"tap": "T0.in"}, {"defense": "fed_sdp", "tap": "T1.out"}])
def test_without_noise_many_looks_are_the_same_observation(case: dict[str, Any]) -> None:
    assert seen(**case, observations=5).fingerprint() == seen(**case).fingerprint()


def test_many_looks_show_the_same_at_every_surface() -> None:
    prints = {seen(defense="fed_cdp", tap=tap, observations=16).fingerprint() for tap in ("T2.step", "T1.out", "T0.in")}
    assert len(prints) == 1


@pytest.mark.parametrize("chunk", [1, 3])
def test_the_chunk_changes_no_bit(chunk: int) -> None:
    case = {**NOISY[2], "observations": 3, "batch_size": 2}
    assert seen(chunk, **case).fingerprint() == seen(**case).fingerprint()


def test_only_one_look_is_in_memory_and_its_precision_is_kept() -> None:
    alive = 0

    def looks() -> Any:
        nonlocal alive
        for value in (1.0, 2.0, 6.0):
            alive += 1
            yield torch.full((2,), value)
            assert alive == 1
            alive -= 1

    mean = average(looks())
    assert mean.dtype == torch.float32
    assert mean.tolist() == [3.0, 3.0]


def test_what_is_left_out_does_not_count_where_that_is_known() -> None:
    looks = torch.tensor([[0.0, 4.0, 0.0], [2.0, 6.0, 0.0], [0.0, 0.0, 0.0]])
    assert average(looks, sparse=True).tolist() == [2.0, 5.0, 0.0]
    assert average(looks).tolist() == pytest.approx([2 / 3, 10 / 3, 0.0])


def test_a_document_says_how_often_and_what_that_costs(small: Any, tmp_path: Path) -> None:
    noisy = {"defense": "fed_sdp", "defense_args": {"noise_at": "client"}, "tap": "T1.out"}
    document = small.play([small.cell(**noisy, observations=looks) for looks in (1, 4)], tmp_path)
    once, often = (made for made in document.cells if made.role == "cell")
    assert (once.observations, often.observations) == (1, 4)
    assert once.observation_id != often.observation_id
    for before, after in zip(once.privacy, often.privacy, strict=True):
        assert after.epsilon == before.epsilon
        assert ("4 compositions" in after.notes) == (after.epsilon is not None)
        assert "compositions" not in before.notes
    high_noise = [made for made in document.cells if made.control == "noise_x100"]
    assert [made.defense_args["noise_scale"] for made in high_noise] == [100, 200]
    assert len([made for made in document.cells if made.control == "positive"]) == 1
    again = small.play([small.cell(**noisy, observations=looks) for looks in (1, 4)], tmp_path, resume=True)
    assert small.numbers(again) == small.numbers(document)


@pytest.mark.parametrize(("looks", "drawn"), [((1,), False), ((1, 4), True)])
def test_a_picture_shows_several_numbers_of_looks(small: Any, tmp_path: Path, looks: tuple[int], drawn: bool) -> None:
    cells = [small.cell(observations=count, victims=2) for count in looks]
    save_curves(tmp_path, small.play(cells, tmp_path).cells)
    assert (tmp_path / "observations.png").exists() == drawn
