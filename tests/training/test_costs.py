"""The training bench: its document, and baselines that do what they are said to do."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness.cli.app import run
from harness.training.costs import example_gradient_loop, interleaved_medians, plain_loop, repeats_for


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "train", "--clients", "1,2", "--repeats", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["clients"] for row in document["rows"]] == [1, 2] and document["model"] == "cnn"
    for row in document["rows"]:
        times = row["ms"]
        assert list(times) == ["non-private", "Fed-CDP", "Fed-αCDP", "plain loop", "torch.func"]
        assert min(times.values()) > 0
        assert row["Fed-CDP / non-private"] == pytest.approx(times["Fed-CDP"] / times["non-private"], abs=0.01)
    (check,) = document["checks"]
    assert check["ratio"] == "non-private / plain loop" and check["held"] == (check["measured"] <= 1.1)


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "train", "--clients", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_every_repeat_runs_every_step() -> None:
    calls: list[str] = []
    steps = {name: lambda name=name: calls.append(name) for name in "abc"}
    interleaved_medians(steps, 4, torch.device("cpu"))
    assert len(calls) == 18 and calls[:6] == list("abcbca")
    assert repeats_for(300, 1) == 300 and repeats_for(300, 100) == 45 and repeats_for(2, 100) == 2


def test_who_waits_is_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("harness.base.progress.FIRST", 0.0)
    interleaved_medians({"a": lambda: None, "b": lambda: None}, 1, torch.device("cpu"))
    assert capsys.readouterr().err.startswith("harness: timing: 1 of 6 iterations, about ")


def test_the_plain_loop_is_sgd() -> None:
    torch.manual_seed(0)
    module, images, labels = nn.Linear(3, 2), torch.rand(1, 4, 3), torch.tensor([[0, 1, 1, 0]])
    before = [parameter.detach().clone() for parameter in module.parameters()]
    gradients = torch.autograd.grad(functional.cross_entropy(module(images[0]), labels[0]), list(module.parameters()))
    plain_loop(module, images, labels, 0.5)
    for parameter, start, gradient in zip(module.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), start - 0.5 * gradient)
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    example_gradient_loop(module, images, labels, 0.5)
    assert all(torch.equal(parameter, start) for parameter, start in zip(module.parameters(), kept, strict=True))
