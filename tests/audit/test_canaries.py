"""Canaries that are never written out count exactly as if they were."""

import numpy as np
import pytest
import torch

from harness.audit.planted import LARGE, ExamplesAndCanaries, coins, make_canaries
from harness.base.errors import UsageError
from harness.base.randomness import Stream, generator, poisson_sample
from harness.base.vectors import Layout
from harness.defenses import MaterialisedGradients

LAYOUT = Layout(("a", "b", "c"), ((6,), (2,), (5,)))


def test_orthogonal_canaries_share_no_coordinate() -> None:
    canaries = make_canaries(LAYOUT, 5, seed=3, orthogonal=True)
    assert canaries.tensors.tolist() == [0, 2]
    assert canaries.positions.unique().numel() == canaries.positions.numel() == 10
    assert (canaries.positions[:, 0] < 6).all()
    assert (canaries.positions[:, 1] >= 8).all()


def test_alone_they_use_every_tensor() -> None:
    canaries = make_canaries(LAYOUT, 50, seed=3, orthogonal=False)
    assert canaries.tensors.tolist() == [0, 1, 2]
    vectors = canaries.dense(slice(0, 50), torch.ones(50))
    assert [piece.norm(dim=1).tolist() for piece in vectors.split(LAYOUT.sizes, dim=1)] == [[LARGE] * 50] * 3


def test_too_many_for_the_model() -> None:
    with pytest.raises(UsageError, match=r"largest tensor has 6 numbers; lower --canaries"):
        make_canaries(LAYOUT, 7, seed=0, orthogonal=True)


@pytest.mark.parametrize("examples", [0, 3])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_they_equal_gradients_written_out(examples: int, orthogonal: bool) -> None:
    canaries = make_canaries(LAYOUT, 4, seed=1, orthogonal=orthogonal)
    real = torch.randn(2, examples, LAYOUT.total, generator=generator("real"))
    there, chosen = torch.tensor([[True, False], [True, True]]), torch.ones(2, examples, dtype=torch.bool)
    batch = ExamplesAndCanaries(
        real, chosen, canaries.positions.reshape(2, 2, -1), there, canaries.tensors, LAYOUT.sizes
    )
    written = torch.cat([real, canaries.dense(slice(0, 4), there.flatten()).reshape(2, 2, -1)], 1)
    reference = MaterialisedGradients(written, LAYOUT.sizes, torch.cat([chosen, there], 1))
    assert torch.equal(batch.present, reference.present)
    factors = torch.rand(2, examples + 2, 3, generator=generator("factors"))
    torch.testing.assert_close(batch.materialise(), written)
    torch.testing.assert_close(batch.norms(), reference.norms())
    torch.testing.assert_close(batch.weighted_sum(factors), reference.weighted_sum(factors))
    torch.testing.assert_close(batch.mean(), reference.mean())


def test_coins_are_fair_and_keyed() -> None:
    flips = coins(0, 10_000)
    assert abs(int(flips.sum()) - 5000) < 200
    assert torch.equal(flips, coins(0, 10_000))
    assert not torch.equal(flips, coins(1, 10_000))


def test_a_sample_takes_nobody_more_often_than_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(int(poisson_sample((10_000,), 0.2, Stream("sample")).sum()) - 2000) < 160
    assert poisson_sample((100,), 1.0, Stream("sample")).all()
    # The smallest thousand numbers that there are, each as probable as any other.
    monkeypatch.setattr(Stream, "words", lambda *_: np.arange(1000, dtype=np.uint64) << np.uint64(11))
    for rate in (1e-14, 24.04 / 2**53, 24 / 2**53):
        taken = int(poisson_sample((1000,), rate, Stream("sample")).sum())
        assert rate - 2**-53 < taken / 2**53 <= rate
