"""dp_local: twice the noise of add/remove, the released code's median clipping, and what may be claimed."""

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, MaterialisedGradients, PrivacyFacts, RoundContext

LAYOUT = Layout(("a", "b"), ((3000,), (1000,)))


def step(gradients: Tensor, settings: dict[str, object]) -> Tensor:
    cohort = Cohort(batch_size=gradients.shape[1])
    context = RoundContext(0, 0, 0.05, cohort, LAYOUT, tuple((0, row) for row in range(len(gradients))))
    return (
        build(DEFENSES, "dp_local", settings).client_step(MaterialisedGradients(gradients, LAYOUT.sizes), context).step
    )


def test_without_noise_it_clips_whole_gradients() -> None:
    random = torch.Generator().manual_seed(0)
    gradients = torch.randn(2, 3, 4000, generator=random, dtype=torch.float64)
    lengths = gradients.norm(dim=2, keepdim=True)
    torch.testing.assert_close(step(gradients, {"sigma": 0, "clip": 1.0}), (gradients / lengths).mean(1))


def test_median_clipping_follows_the_batch() -> None:
    gradients = torch.zeros(2, 3, 4000, dtype=torch.float64)
    gradients[:, :, 0] = torch.tensor([1.0, 2.0, 10.0])
    gradients[:, :, 3000] = torch.tensor([5.0, 3.0, 4.0])
    clipped = step(gradients, {"sigma": 0, "clipping": "median_per_tensor"})
    assert clipped[:, 0].tolist() == pytest.approx([5 / 3] * 2) and clipped[:, 3000].tolist() == pytest.approx(
        [11 / 3] * 2
    )
    noisy = step(gradients, {"sigma": 2.0, "clipping": "median_per_tensor"})
    assert float(noisy[:, 1:3000].std()) == pytest.approx(2 * 2 * 2 / 3, rel=0.05)
    assert float(noisy[:, 3001:].std()) == pytest.approx(2 * 2 * 4 / 3, rel=0.05)


@pytest.mark.parametrize(("sampler", "factor"), [("poisson", 2.0), ("without-replacement", 1.0)])
def test_the_epsilon_counts_the_adjacency_that_ran(sampler: str, factor: float) -> None:
    """One step over everything: a Gaussian of multiplier 2 sigma under add/remove, sigma under replacing one."""
    facts = PrivacyFacts(Cohort(1, 1, 1, 1), 2, "none", sampler, rate=1.0)
    server = build(DEFENSES, "dp_local", {"sigma": 3.0}).statements(facts)[1]
    plain = PrivacyFacts(Cohort(1, 1, 1, 1), 2, "none", "none", rate=1.0)
    other = build(DEFENSES, "fed_cdp", {"sigma": 3.0 * factor, "clipping": "whole"}).statements(plain)[1]
    assert server.epsilon == pytest.approx(other.epsilon, rel=1e-3)
    assert server.adjacency == ("add/remove" if sampler == "poisson" else "replace")


@pytest.mark.parametrize("settings", [{"sigma": 0}, {"clipping": "median_per_tensor"}])
def test_nothing_is_claimed_where_nothing_holds(settings: dict[str, object]) -> None:
    made = build(DEFENSES, "dp_local", settings).statements(PrivacyFacts(Cohort(), 2))
    assert [one.guarantee for one in made] == ["none"]
