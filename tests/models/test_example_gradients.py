"""Gradients kept as factors are the per-example gradients of a loop."""

import pytest
import torch
from torch import Tensor

from harness.models import RowModel
from harness.models.example_gradients import MaterialisedGradients
from harness.models.rows import Way

ROWS, BATCH, SHAPE, CLASSES, EXPECTED = 3, 4, (1, 12, 12), 5, 4.5
NETWORKS = ["lenet", "cnn", "mlp2", "unit_logistic", "tempered_cnn", "pca_mlp", "frozen_linear"]
PRESENT = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])


def scene(name: str, rows: int = ROWS) -> tuple[RowModel, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    shape = (1, 16, 16) if name == "tempered_cnn" else SHAPE
    data = torch.rand(80, *shape, generator=torch.Generator().manual_seed(2))
    model = RowModel(name, shape, CLASSES, data).to(torch.device("cpu"), torch.float64)
    weights = model.initial_weights([(0, row) for row in range(rows)]).double()
    images = torch.rand(rows, BATCH, *shape, generator=random, dtype=torch.float64)
    return model, weights, images, torch.randint(CLASSES, (rows, BATCH), generator=random)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "sampled"])
@pytest.mark.parametrize("factored", [True, False], ids=["factored", "materialised"])
@pytest.mark.parametrize("name", NETWORKS)
def test_everything_a_defense_asks_for(name: str, factored: bool, present: Tensor | None, rows: int) -> None:
    model, weights, images, labels = scene(name, rows)
    if not factored:
        model.evaluate_by(Way(None, other_layers=True))
    given = None if present is None else present[:rows].double()
    made = model.example_gradients(weights, images, labels, given, EXPECTED)
    assert isinstance(made, MaterialisedGradients) != factored
    truth = model.per_example_gradients(weights, images, labels)
    truth = truth if given is None else truth * given[..., None]
    norms = torch.stack([piece.norm(dim=-1) for piece in truth.split(model.layout.sizes, -1)], -1)
    factors = torch.rand(norms.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spread = torch.cat(
        [factors[..., [group]].expand(-1, -1, size) for group, size in enumerate(model.layout.sizes)], -1
    )
    exact = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(made.materialise(), truth, **exact)
    torch.testing.assert_close(made.norms(), norms, **exact)
    torch.testing.assert_close(made.weighted_sum(factors), (truth * spread).sum(1), **exact)
    torch.testing.assert_close(made.mean(), truth.sum(1) / EXPECTED, **exact)
    assert made.sizes == model.layout.sizes and truth[0].abs().max() > 1e-4


@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str) -> None:
    model, weights, images, labels = scene(name)
    model.to(torch.device("cpu"), torch.float32)
    weights, images = weights.float(), images.float()
    together = model.example_gradients(weights, images, labels, None, EXPECTED)
    pair = model.example_gradients(weights[1:], images[1:], labels[1:], None, EXPECTED)
    factors = torch.full((ROWS, BATCH, len(model.layout.sizes)), 0.3)
    assert torch.equal(together.norms()[1:], pair.norms())
    assert torch.equal(together.mean()[1:], pair.mean())
    assert torch.equal(together.weighted_sum(factors)[1:], pair.weighted_sum(factors[1:]))
