"""Captured clients that train BatchNorm in training mode: what they sent is explained, and what came back beside it."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from harness.attacks import ATTACKS
from harness.attacks.attack import Count, validated_attack
from harness.attacks.gradinversion import GradInversion
from harness.base.errors import UsageError
from harness.capture import CaptureRecord, write_capture
from harness.cli import run
from harness.judging.capture import read_capture
from harness.judging.checks import BUFFERS, checks_of
from harness.judging.declared import cells_of, groups_of
from harness.judging.explained import explained
from harness.judging.federation import gathered
from harness.judging.judgement import GivenAway, by_truth, checked, given_away, stated, without_covered
from harness.judging.stage import SimulatedStage
from harness.judging.without_truth import observed
from harness.models import build_module
from harness.testing import digits

BATCH, RATE = 4, 0.1


def own_network() -> nn.Module:
    """As it stands in a federation that knows nothing of this project: running statistics move."""
    network = build_module("resnet8", (1, 8, 8), 10, seed=0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats = True
    return network


def captures(
    folder: Path, steps: int = 1, kind: str = "after", sends: bool = True, passes: int = 0, **facts: Any
) -> list[Path]:
    images, labels = digits(3, BATCH * steps)
    record = CaptureRecord(
        model="resnet8", image_shape=(1, 8, 8), classes=10, learning_rate=RATE, batch_size=BATCH, local_steps=steps,
        **facts,
    )  # fmt: skip
    network = own_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for client in range(3):
        network.load_state_dict(before)
        for _ in range(passes):
            network(images[client - 1].split(BATCH)[0])
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
        for batch, truth in zip(images[client].split(BATCH), labels[client].split(BATCH), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch), truth).backward()
            optimizer.step()
        after = {name: value.clone() for name, value in network.state_dict().items()}
        if not sends:
            after |= {name: before[name] for name, _ in network.named_buffers()}
        sent = after if kind == "after" else {name: after[name] - before[name] for name in after}
        write_capture(
            folder / str(client), record, before, images=images[client], labels=labels[client], **{kind: sent}
        )
    return [folder / str(client) for client in range(3)]


def judged(folders: list[Path], root: Path) -> tuple[str, GivenAway | None, str | None]:
    clients = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(clients, "captures", ["gradinversion"], "none", "cpu")
    return explained(clients, cell, root).outcome, given_away(clients, cell, root), cell.batch_norm


@pytest.mark.parametrize(("steps", "kind"), [
    (1, "after"), (2, "update"), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, "update"), (2, "after"))),
])  # fmt: skip
def test_the_truth_explains_the_update_and_what_came_back(tmp_path: Path, steps: int, kind: str) -> None:
    outcome, found, hidden = judged(captures(tmp_path, steps, kind), tmp_path)
    assert outcome == "holds" and hidden is None and found is not None
    assert (found.layers, found.first) == (7, "norm")
    assert found.error < 1e-4 < 0.01 < found.apart
    if steps == 1:
        images, _ = digits(3, BATCH)
        inputs = own_network().convolution(images[1])
        torch.testing.assert_close(torch.tensor(found.means[1]), inputs.mean((0, 2, 3)), atol=1e-5, rtol=1e-3)
        biased = inputs.var((0, 2, 3), unbiased=False)
        torch.testing.assert_close(torch.tensor(found.variances[1]), biased, atol=1e-5, rtol=1e-3)
    assert str(found).startswith("running statistics that came back give away each batch's mean and variance of 16")


def test_clients_that_keep_their_statistics_give_none_away(tmp_path: Path) -> None:
    assert judged(captures(tmp_path, sends=False), tmp_path) == ("holds", None, "hidden")


def test_statistics_of_more_batches_than_the_steps_took_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pass in training mode that makes no gradient, such as one for the accuracy."""
    outcome, found, hidden = judged(captures(tmp_path, passes=1), tmp_path)
    assert (outcome, found, hidden) == ("holds", None, "hidden")
    assert "num_batches_tracked counts 2 batches, and the steps took 1" in capsys.readouterr().err


def test_another_truth_does_not_explain_them(tmp_path: Path) -> None:
    folders = captures(tmp_path)
    (folders[0] / "truth.npz").write_bytes((folders[1] / "truth.npz").read_bytes())
    outcome, found, _ = judged(folders, tmp_path)
    assert outcome == "violated" and found is not None and found.error > 0.01


def test_a_defense_of_single_examples_is_refused(tmp_path: Path) -> None:
    folders = captures(tmp_path, defense={"name": "fed_cdp"})
    with pytest.raises(UsageError, match=r"single examples.*resnet8\+group_norm"):
        judged(folders, tmp_path)


def test_without_truth_each_client_is_read_with_its_own_statistics(tmp_path: Path) -> None:
    clients = gathered([read_capture(folder) for folder in captures(tmp_path)])
    (cell,) = cells_of(clients, "captures", ["gradinversion"], "none", "cpu")
    scene = SimulatedStage(tmp_path, 8, clients, cell, None, None).set(cell)
    # Stand-ins are more, and other, than the captured clients.
    like = scene.observation.take(torch.tensor([2, 2, 1, 0, 0]))
    batches = observed(clients, like, cell).batches
    assert batches is not None and batches.statistics is not None
    for name, (mean, variance) in scene.observation.batches.statistics.items():
        torch.testing.assert_close(batches.statistics[name], (mean, variance), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize(("covered", "clip", "level", "alone", "told"), [
    (True, 0.5, 0.5, "holds", "holds"),
    (False, 0.5, 0.5, "violated", "violated"),
    # Statistics move by more than weak noise, with it or without it.
    (True, 10.0, 0.002, "cannot tell", "holds"),
    (False, 10.0, 0.02, "violated", "violated"),
    (False, 10.0, 0.0002, "cannot tell", "violated"),
])  # fmt: skip
def test_noise_on_statistics_too_is_no_violation(
    tmp_path: Path, covered: bool, clip: float, level: float, alone: str, told: str
) -> None:
    """As Flower's LocalDpMod has it: one clip, which the statistics count in, and noise on everything."""
    settings = {"clip": clip, "sigma": level / clip, "noise_at": "client", "clipping": "whole"}
    folders = captures(tmp_path, defense={"name": "fed_sdp", "settings": settings})
    names = [name for name, _ in own_network().named_parameters()]
    for number, folder in enumerate(folders):
        random = np.random.default_rng(number)
        before, after = (dict(np.load(folder / f"{one}.npz")) for one in ("before", "after"))
        noisy = [name for name, value in after.items() if value.dtype.kind == "f" and (covered or name in names)]
        norm = np.sqrt(sum(np.square(after[name] - before[name]).sum() for name in noisy))
        for name in noisy:
            moved = (after[name] - before[name]) * min(1, clip / norm)
            noise = level * random.standard_normal(moved.shape)
            after[name] = (before[name] + moved + noise).astype(np.float32)
        np.savez(folder / "after.npz", **after)
    (group,) = groups_of([gathered([read_capture(folder) for folder in folders])], "captures", ["cpl"], "none", "cpu")
    checks = checks_of(group.captured, group.cell)
    (check,) = (check for check in checks if check.name == BUFFERS)
    known = by_truth(check, group, tmp_path)
    assert (check.outcome, known.outcome) == (alone, told)
    assert explained(group.captured, group.cell, tmp_path).outcome == "holds"
    for one in (check, known):
        seen = without_covered(group, [one])
        proven = any(of.guarantee != "none" for of in stated([seen], [one]))
        assert proven is (one.outcome == "holds") is not bool(seen.captured.running)


def test_half_precision_may_swallow_the_noise_on_statistics(tmp_path: Path) -> None:
    """A variance of 4 has no nearer neighbour than 0.002: noise of 0.0001 beside a strong clip leaves it as it is."""
    settings = {"clip": 0.001, "sigma": 0.1, "noise_at": "client", "clipping": "whole"}
    folders = captures(tmp_path, defense={"name": "fed_sdp", "settings": settings}, dtype="float16")
    for number, folder in enumerate(folders):
        random = np.random.default_rng(number)
        before, after = (dict(np.load(folder / f"{one}.npz")) for one in ("before", "after"))
        for name in (name for name in after if "running_var" in name):
            before[name], after[name] = 4 * before[name], after[name] + np.float32(2.7)
        numbers = [name for name, value in after.items() if value.dtype.kind == "f"]
        norm = np.sqrt(sum(np.square(after[name] - before[name]).sum() for name in numbers))
        for name in numbers:
            noise = 0.0001 * random.standard_normal(after[name].shape)
            after[name] = (before[name] + (after[name] - before[name]) * 0.001 / norm + noise).astype(np.float16)
        np.savez(folder / "before.npz", **before)
        np.savez(folder / "after.npz", **after)
    (group,) = groups_of([gathered([read_capture(folder) for folder in folders])], "captures", ["cpl"], "none", "cpu")
    (check,) = (check for check in checks_of(group.captured, group.cell) if check.name == BUFFERS)
    assert by_truth(check, group, tmp_path).outcome == check.outcome != "violated"


def test_statistics_without_noise_are_seen_in_a_later_round_too(tmp_path: Path) -> None:
    settings = {"clip": 0.5, "sigma": 1.0, "noise_at": "client", "clipping": "whole"}
    names, rounds = [name for name, _ in own_network().named_parameters()], []
    for number, covered in enumerate((True, False)):
        folders = captures(tmp_path / str(number), defense={"name": "fed_sdp", "settings": settings})
        for client, folder in enumerate(folders):
            random = np.random.default_rng((number, client))
            before, after = (dict(np.load(folder / f"{one}.npz")) for one in ("before", "after"))
            for name in (name for name, value in after.items() if value.dtype.kind == "f"):
                if covered or name in names:
                    noise = 0.5 * random.standard_normal(after[name].shape)
                    after[name] = (before[name] + (after[name] - before[name]) * 0.1 + noise).astype(np.float32)
            np.savez(folder / "after.npz", **after)
        rounds.append(gathered([read_capture(folder) for folder in folders]))
    both = replace(rounds[0], later=(rounds[1],))
    for clients, outcome in ((rounds[0], "holds"), (both, "violated")):
        checks, found = checked(groups_of([clients], "captures", ["cpl"], "none", "cpu"), tmp_path)
        assert {one.outcome for one in [*checks, *found[0]] if one.name == BUFFERS} == {outcome}


@pytest.mark.parametrize(("defense", "clipped", "outcome"), [
    ({"name": "none"}, "", "cannot tell"),
    ({"name": "fed_sdp", "settings": {"noise_at": "receive"}}, "", "cannot tell"),
    ({"name": "fixedclipping_mod", "settings": {"clipping_norm": 0.01}}, "all", "cannot tell"),
    ({"name": "fixedclipping_mod", "settings": {"clipping_norm": 0.01}}, "weights", "violated"),
    ({"name": "pruning", "settings": {}}, "", "violated"),
])  # fmt: skip
def test_statistics_lack_nothing_that_weights_have(
    tmp_path: Path, defense: dict[str, Any], clipped: str, outcome: str
) -> None:
    """Without noise at the client they leave it as the weights do, and nobody is accused of it."""
    folders = captures(tmp_path, defense=defense)
    names = [name for name, _ in own_network().named_parameters()]
    for folder in folders if clipped else ():
        before, after = (dict(np.load(folder / f"{one}.npz")) for one in ("before", "after"))
        within = [name for name in after if "num_batches" not in name and (clipped == "all" or name in names)]
        norm = np.sqrt(sum(np.square(after[name] - before[name]).sum() for name in within))
        after |= {name: before[name] + np.float32(0.01 / norm) * (after[name] - before[name]) for name in within}
        np.savez(folder / "after.npz", **after)
    (group,) = groups_of([gathered([read_capture(folder) for folder in folders])], "captures", ["cpl"], "none", "cpu")
    (check,) = (check for check in checks_of(group.captured, group.cell) if check.name == BUFFERS)
    assert check.outcome == by_truth(check, group, tmp_path).outcome == outcome
    assert without_covered(group, [check]).captured.running


@pytest.mark.parametrize(("law", "covered", "alone", "told"), [
    ("gaussian", True, "cannot tell", "holds"),
    ("gaussian", False, "violated", "violated"),
    ("laplace", True, "cannot tell", "cannot tell"),
])  # fmt: skip
def test_noise_without_a_clip_is_on_statistics_too(
    tmp_path: Path, law: str, covered: bool, alone: str, told: str
) -> None:
    folders = captures(tmp_path, 2, defense={"name": "noise", "settings": {"amount": 0.05, "distribution": law}})
    names = [name for name, _ in own_network().named_parameters()]
    for number, folder in enumerate(folders):
        random, after = np.random.default_rng(number), dict(np.load(folder / "after.npz"))
        draw = random.normal if law == "gaussian" else random.laplace
        scale = 0.05 if law == "gaussian" else 0.05 / 2**0.5
        for name in (name for name, value in after.items() if value.dtype.kind == "f" and (covered or name in names)):
            after[name] = (after[name] + draw(0, scale, after[name].shape)).astype(np.float32)
        np.savez(folder / "after.npz", **after)
    (group,) = groups_of([gathered([read_capture(folder) for folder in folders])], "captures", ["cpl"], "none", "cpu")
    (check,) = (check for check in checks_of(group.captured, group.cell) if check.name == BUFFERS)
    assert (check.outcome, by_truth(check, group, tmp_path).outcome) == (alone, told)


def test_a_clip_that_counts_statistics_is_explained(tmp_path: Path) -> None:
    """Without noise: the statistics move far more than the weights, and use up the clip."""
    settings = {"clip": 0.01, "sigma": 0.0, "noise_at": "client", "clipping": "whole"}
    folders = captures(tmp_path, defense={"name": "fed_sdp", "settings": settings})
    for folder in folders:
        before, after = (dict(np.load(folder / f"{one}.npz")) for one in ("before", "after"))
        numbers = [name for name, value in after.items() if value.dtype.kind == "f"]
        norm = np.sqrt(sum(np.square(after[name] - before[name]).sum() for name in numbers))
        for name in numbers:
            after[name] = before[name] + (after[name] - before[name]) * np.float32(0.01 / norm)
        np.savez(folder / "after.npz", **after)
    clients = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(clients, "captures", ["cpl"], "none", "cpu")
    check = explained(clients, cell, tmp_path)
    assert check.outcome == "holds" and "counts running statistics too" in check.detail, check


@pytest.mark.slow
def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = captures(tmp_path / "captures")
    out = ["--out", str(tmp_path / "out"), "--prior", "digits", "--attack", "map"]
    assert run(["judge", *map(str, folders), *out]) == 0
    assert "running statistics that came back give away" in capsys.readouterr().out
    document = json.loads((tmp_path / "out" / "judged.json").read_text())
    assert document["running_statistics"]["first"] == "norm"
    ran = [cell for cell in document["results"]["cells"] if cell["not_applicable_reason"] is None]
    assert len(ran) == 2 and {cell["batch_norm"] for cell in ran} == {"sent"}


@pytest.mark.parametrize("kind", ["after", pytest.param("update", marks=pytest.mark.slow)])
def test_statistics_of_each_client_s_own_tell_the_same(tmp_path: Path, kind: str) -> None:
    folders = captures(tmp_path, kind=kind)
    _, known, _ = judged(folders, tmp_path)
    for number, folder in enumerate(folders):
        files = {name: dict(np.load(folder / f"{name}.npz")) for name in ("before", kind)}
        for name in files["before"]:
            if "running" in name:
                files["before"][name] += np.float32(0.3 * number)
                files[kind][name] += np.float32(0.3 * number * (0.9 if kind == "after" else -0.1))
        for name, arrays in files.items():
            np.savez(folder / f"{name}.npz", **arrays)
    outcome, found, _ = judged(folders, tmp_path)
    assert outcome == "holds" and known is not None and found is not None
    np.testing.assert_allclose(found.means, known.means, atol=1e-4)
    np.testing.assert_allclose(found.variances, known.variances, atol=1e-4)


class Residual(nn.Module):
    """A block of a ResNet: two convolutions with BatchNorm, and what they are added to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.relu(values + self.last(self.second(torch.relu(self.norm(self.first(values))))))


def small_resnet(image_shape: tuple[int, ...], classes: int) -> nn.Module:
    stem = nn.Conv2d(image_shape[0], 2, 3, stride=2, padding=1), nn.BatchNorm2d(2), nn.ReLU()
    return nn.Sequential(*stem, Residual(2), nn.Flatten(), nn.Linear(32, classes))


@validated_attack
class Hasty(GradInversion):
    """It looks at statistics of batches, and hardly anywhere else."""

    max_iterations: Count = 2
    restarts: Count = 1


@pytest.mark.parametrize("sends", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_resnet_without_truth_is_judged_from_end_to_end(
    sends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two clients beside more stand-ins, each with its own statistics, or with none: no index of one serves another."""
    module = types.ModuleType("somebodys")
    module.small_resnet = small_resnet  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "somebodys", module)
    monkeypatch.setattr("harness.judging.without_truth.STAND_INS", 3)
    for kept in ("_entries", "_aliases"):
        monkeypatch.setattr(ATTACKS, kept, dict(getattr(ATTACKS, kept)))
    ATTACKS.register("hasty")(Hasty)
    images, _ = digits(2, 2)
    network = small_resnet((1, 8, 8), 10)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    folders = []
    for client in range(2):
        network.load_state_dict(before)
        labels = digits(2, 2)[1][client]
        nn.functional.cross_entropy(network(images[client]), labels).backward()
        torch.optim.SGD(network.parameters(), lr=RATE).step()
        network.zero_grad()
        after = {name: value for name, value in network.state_dict().items() if sends or "running" not in name}
        record = CaptureRecord(
            model="somebodys:small_resnet", image_shape=(1, 8, 8), classes=10, learning_rate=RATE, batch_size=2,
        )  # fmt: skip
        folders.append(write_capture(tmp_path / str(client), record, before, after=after))
    options = ["--prior", "digits", "--attack", "hasty", "--jobs", "1", "--out", str(tmp_path / "out"), "--json"]
    assert run(["judge", *map(str, folders), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["estimates"][0]["estimates"]) == 2 and ("running_statistics" in document) is sends


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_counts_and_statistics_may_be_missing(named: bool, statistics: bool, tmp_path: Path) -> None:
    """As where somebody keeps the arrays of floats alone, or the parameters."""
    folders = captures(tmp_path)
    for path in (folder / f"{stem}.npz" for folder in folders for stem in ("before", "after")):
        with np.load(path) as archive:
            kept = {name: array for name, array in archive.items() if array.dtype.kind == "f"}
        kept = {name: array for name, array in kept.items() if statistics or "running" not in name}
        np.savez(path, *(() if named else kept.values()), **(kept if named else {}))
    clients = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(clients, "test", ["cpl"], "none", "cpu")
    assert explained(clients, cell, tmp_path).outcome == "holds"
