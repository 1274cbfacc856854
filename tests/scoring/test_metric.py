"""Every metric, a line each: what a perfect copy has, and which way leads there."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.base.columns import Columns, Group
from harness.base.words import images_of
from harness.results import VictimRecord
from harness.scoring import METRICS, Metric, Pairs, TableScale, TextScale, measured
from harness.scoring.metrics import register

PERFECT = {
    "rmse": 0, "rmse_raw": 0, "rmse_seed": 0, "l2dist": 0, "mse": 0, "psnr": 100, "ssim": 1, "lpips": 0,
    "continuous_rmse": 0, "continuous_within": 1, "categorical_accuracy": 1, "categories_all_right": 1,
    "text_exact": 1, "tokens_right": 1, "rouge1": 1, "rouge2": 1,
}  # fmt: skip
IMAGES = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
ROWS = torch.tensor([[0.1, 1.0, 0.0], [0.9, 0.0, 1.0], [0.4, 1.0, 0.0]])[:, None, None]
SCALE = TableScale.of(Columns(("a",), (Group("g", ("x", "y")),)), ROWS)
TEXTS = images_of(torch.tensor([[5, 6, 7], [8, 9, 0], [5, 0, 0]]))
OF: dict[str, tuple[torch.Tensor, Any]] = {"tables": (ROWS, SCALE), "texts": (TEXTS, TextScale())}
# In place of AlexNet, whose weights are not everywhere.
LPIPS: Any = SimpleNamespace(score=lambda truth, made: (truth - made).abs().double().mean((1, 2, 3)).numpy())


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_copy_is_the_best_there_is(name: str) -> None:
    metric = METRICS[name]
    truth, scale = OF.get(metric.of, (IMAGES, None))
    copy, wrong = (metric.measure(Pairs(truth, made, scale, LPIPS)) for made in (truth, 1 - truth))
    np.testing.assert_allclose(copy, PERFECT[name], atol=1e-9)
    assert (copy < wrong).all() if metric.low_leaks else (copy > wrong).all()
    low, high = metric.limits
    assert not metric.title or name == "psnr" or ((low <= copy) & (copy <= high)).all()


def test_what_does_not_apply_is_missing_with_a_reason_or_not_named_at_all() -> None:
    of_images, absent = measured(Pairs(IMAGES, IMAGES))
    assert set(of_images) | set(absent) == {name for name in METRICS if METRICS[name].of not in OF}
    of_rows, absent = measured(Pairs(ROWS, ROWS, SCALE))
    assert set(of_rows) | set(absent) == {name for name in METRICS if METRICS[name].of != "texts"}
    assert set(absent) == {"psnr", "ssim", "lpips"} and all(absent.values())
    of_texts, absent = measured(Pairs(TEXTS, TEXTS, TextScale()))
    assert set(of_texts) | set(absent) == {name for name in METRICS if METRICS[name].of != "tables"}


def test_a_new_metric_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.scoring.metrics.METRICS", METRICS | {})
    register(Metric(name="worst", measure=lambda pairs: pairs.squared.sqrt().amax(1).numpy(), in_victims=True))
    made, _ = measured(Pairs(IMAGES, IMAGES + 0.25 * (IMAGES < 0.5)))
    assert list(made)[-1] == "worst" and made["worst"] == pytest.approx([0.25] * 3)
    who = {"cell": "ab", "dataset": "d", "defense": "none", "attack": "dlg", "tap": "T0.in", "seed": 0, "victim": 0}
    line = VictimRecord(**who, outcome="failure", worst=made["worst"][0]).model_dump_json()
    assert VictimRecord.model_validate_json(line).model_extra == {"worst": pytest.approx(0.25)}
    with pytest.raises(ValueError, match="worst"):
        VictimRecord(**who, outcome="failure", worst="<b>")
    with pytest.raises(ValueError, match="registered twice"):
        register(METRICS["rmse"])
