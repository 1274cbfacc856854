"""The bench of one network: three do the same iterations; arithmetic alone is that of a gradient match, no more."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import harness.bench.engines as bench
from harness.bench.engines import arithmetic, products_of
from harness.cli import run
from harness.models import build_module

CONTESTANTS = ("ours", "plain autograd loop", "arithmetic alone")


@pytest.mark.parametrize(
    ("model", "batch_size", "attack"),
    [("lenet", 1, "inverting_gradients"), pytest.param("resnet8", 4, "gradinversion", marks=pytest.mark.slow)],
)
def test_figures_of_a_network(
    model: str, batch_size: int, attack: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_PASSES", 1)
    asked = ["--model", model, "--dataset", "digits", "--victims", "2", "--iterations", "1", "--json"]
    asked += [] if attack == "inverting_gradients" else ["--attack", attack]
    assert run(["bench", "attack", *asked]) == 0
    (figures,) = json.loads(capsys.readouterr().out)
    assert figures["model"] == model and figures["batch size"] == batch_size and figures["attack"] == attack
    for unit in ("s", "CPU s"):
        ours, *others = (figures[f"{name}: {unit}"] for name in CONTESTANTS)
        assert 0 < ours < 60
        for name, seconds in zip(CONTESTANTS[1:], others, strict=True):
            assert figures[f"ours / {name}: {unit}"] == pytest.approx(ours / seconds, rel=0.02, abs=0.01)


def test_a_figure_is_given_as_soon_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> tuple[float, float]:
        raise AssertionError("timed before the settings were said")

    monkeypatch.setattr(bench, "_timed", never)
    figures = bench.bench_network("digits", "lenet", "inverting_gradients", 1, None, 1, 128, "cpu", tmp_path, 1)
    assert next(figures) == ("dataset", "digits")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--batch-size", "2"], "name one with --model"),
        (["--model", "resnet99", "--dataset", "digits"], "unknown model 'resnet99'"),
        (["--model", "lenet", "--dataset", "digits", "--attack", "identify"], "--attack cpl or another"),
    ],
)
def test_refused(asked: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "attack", *asked]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        values = self.tokens(images).flatten(2).mT
        attended = (values @ values.mT) @ values
        return self.head(attended.mean(1))


def test_products_are_those_of_the_network_with_seven_passes_or_nine() -> None:
    products = products_of(Attending(), torch.rand(2, 3, 8, 8))
    shapes = [(tuple(one.left.shape), tuple(one.right.shape), one.trained) for one in products]
    assert shapes == [
        ((2, 3, 8, 8), (6, 3, 4, 4), True),
        ((2, 4, 6), (2, 6, 4), False),
        ((2, 4, 4), (2, 4, 6), False),
        ((2, 6), (6, 5), True),
    ]
    assert [len(one.passes()) for one in products] == [7, 9, 9, 7]
    made = [one() for one in products[3].passes()]
    assert [tuple(one.shape) for one in made if isinstance(one, Tensor)] == 3 * [(2, 5)] + 3 * [(2, 6)] + [(6, 5)]
    arithmetic(products)()


def test_a_second_backward_pass_has_no_other_products() -> None:
    """Counted in what plain autograd does on a network of linear layers, whose first needs none by the images."""
    module, images = build_module("mlp", (1, 8, 8), 5, seed=0), torch.rand(2, 1, 8, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        leaf = images.clone().requires_grad_()
        loss = nn.functional.cross_entropy(module(leaf), torch.tensor([0, 1]))
        gradients = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        torch.autograd.grad(torch.stack([one.square().sum() for one in gradients]).sum(), leaf)
    counted = sum(one.count for one in profiled.key_averages() if one.key in ("aten::mm", "aten::addmm"))
    # Nothing before the first layer needs its derivative in the first pass, nor in the second what follows from it.
    assert counted == sum(len(one.passes()) for one in products_of(module, images)) - 2
