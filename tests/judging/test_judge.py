"""``harness judge`` from end to end: with the truth what ``evaluate`` says, without it an estimate and its controls."""

import html
import json
import shutil
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from harness.capture import CaptureRecord, captured, write_capture
from harness.cli import run
from harness.evaluation import Run, evaluate, scores
from harness.experiment import cell_settings
from harness.judging.capture import read_capture
from harness.judging.noise_checks import BOUND, ENOUGH, NO_MORE
from harness.judging.stage import of_captures
from harness.judging.without_truth import Likeness, _estimates, _without_traces
from harness.models.networks import build_module
from harness.parallel.worker_pool import WorkerPool
from harness.privacy.pld import gaussian_epsilon
from harness.results import RunFolder
from harness.scoring.lineup import Ranking
from harness.testing import digits

Federation = Callable[..., list[Path]]
FACTS: dict[str, Any] = {
    "model": "mlp", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.05, "batch_size": 1,
}  # fmt: skip
CDP = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 6.0, "clipping": "whole"}}
DECAYS = {"name": "fed_acdp", "settings": {"policy": "linear", "floor": 4.0}}


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, Any, str]]:
    def command(folders: list[Path], *options: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        out = ["--out", str(tmp_path / "out"), "--json"]
        code = run(["judge", *map(str, folders), *options, *out])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return command


def test_an_undefended_client_leaks(federation: Federation, judge: Any, tmp_path: Path, drawn: None) -> None:
    code, document, _ = judge(federation(6), "--prior", "digits", "--attack", "cpl,map")
    assert code == 0 and document["captures"] == 6
    assert {check["outcome"] for check in document["checks"]} == {"holds"}
    (row,) = document["results"]["summary"]
    assert (row["verdict"], row["defense"], row["tap"], row["dataset"]) == ("leaks", "none", "T1.out", "6 captures")
    for cell in document["results"]["cells"]:
        if cell["role"] == "cell":
            assert cell["asr"]["strict"]["successes"] == 6 and cell["prior"]["name"] == "digits, public half"
    assert len(list((tmp_path / "out" / "pictures").glob("*.png"))) == 2


def test_data_unlike_the_prior_are_named_where_other_truths_stand_out(
    federation: Federation, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of clients who share a writer: what another client holds is nearer than look-alikes too."""
    usual = scores.swap_control

    def told(*given: Any) -> Ranking | None:
        found = usual(*given)
        return found and replace(found, lineup=found.lineup.model_copy(update={"p_value": 1e-5}))

    monkeypatch.setattr(scores, "swap_control", told)
    code, document, said = judge(federation(12), "--prior", "digits", "--attack", "analytic")
    assert code == 3
    assert "negative control swap failed" in document["results"]["valid_reason"]
    assert "name data of the same source that no client holds" in said


def test_a_defended_client_does_not(federation: Federation, judge: Any) -> None:
    folders = federation(6, declared=CDP, clip=1.0, deviation=6.0)
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "map")
    (row,) = document["results"]["summary"]
    assert code == 0 and row["verdict"] == "inconclusive" and "too few" in row["verdict_reason"]
    assert {check["outcome"] for check in document["checks"] if check["name"] != BOUND} == {"holds"}
    controls = {cell["control"] for cell in document["results"]["cells"] if cell["role"] == "control"}
    assert {"positive", "positive_sigma0", "noise_x100", "blind"} <= controls


def test_without_truth_it_is_an_estimate(federation: Federation, judge: Any, tmp_path: Path) -> None:
    _, document, _ = judge(federation(2, truth=False), "--prior", "digits", "--attack", "cpl")
    (made,) = document["estimates"]
    assert made["estimates"] == ["plausibly reconstructed"] * 2 and document["results"] is None
    assert made["reason"].startswith("of 24 stand-ins without a defense it brings 24 back")
    assert run(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    command = "harness judge CAPTURE... --attack cpl --prior digits"
    assert command in (tmp_path / "page.html").read_text()
    assert max(made["left"]) < min(made["left_shuffled"]) and made["left_usually"] < min(made["left_shuffled"])
    assert (tmp_path / "out" / "pictures" / "judged_cpl.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("truth", [True, False])
def test_processes_change_nothing(
    truth: bool, federation: Federation, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, end = list[float](), WorkerPool.end
    monkeypatch.setattr(WorkerPool, "end", lambda pool, kill=False: shared.append(pool.seconds) or end(pool, kill))
    folders = federation(5, truth=truth)
    options = ("--prior", "digits", "--attack", "cpl", "--threads", "1", "--jobs")
    found = [judge(folders, *options, jobs)[1] for jobs in ("1", "2")]
    seconds = [cell.pop("seconds") for one in found if one["results"] for cell in one["results"]["cells"]]
    assert found[0] == found[1] and bool(seconds) == truth
    assert shared[0] == 0 < shared[1]


@pytest.mark.parametrize("draws", ["right", "masks"])
def test_without_truth_noise_is_seen_to_protect(draws: str, federation: Federation, judge: Any) -> None:
    """Masks that cancel out in a sum do not, however much each of them hides."""
    folders = federation(3, truth=False, declared=CDP, clip=1.0, deviation=6.0, draws=draws)
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "map")
    if draws == "masks":
        assert code == 3 and document["estimates"][0]["estimates"] == ["could not tell"] * 3
        return
    (made,) = document["estimates"]
    assert made["estimates"] == ["no"] * 3 and "stand-ins under the declared defense it" in made["reason"]
    assert "explains what was sent within the declared noise" in made["reason"]


@pytest.mark.parametrize(
    ("defense", "knows", "protects", "verdict", "said"),
    [
        ("none", True, False, "inconclusive", "use --attack auto"),
        ("fed_cdp", True, True, "inconclusive", ""),
        ("fed_cdp", False, True, "inconclusive", "use --attack auto"),
        ("global_dp", True, False, "inconclusive", "of which nothing is on what clients send"),
        ("fed_cdp", True, True, "leaks", "stand-ins leave traces"),
    ],
)
def test_no_is_said_of_a_defense_and_not_of_an_attack_that_reads_no_such_client(
    defense: str, knows: bool, protects: bool, verdict: str, said: str
) -> None:
    """Nor of noise that only the server adds, or where stand-ins leave traces."""
    facts = {"victims": 24, "controls": [], "verdict": verdict, "verdict_reason": "why"}
    cell: Any = types.SimpleNamespace(defense=defense, outcomes=types.SimpleNamespace(success=0), **facts)
    alike = Likeness(np.ones(2), np.ones(2))
    told = _estimates(cell, np.ones(2), np.ones(2), None, alike, knows, protects)
    estimates, reason = _without_traces(cell, *told)
    assert estimates == ["could not tell" if said else "no"] * 2 and said in reason


@pytest.mark.parametrize(("share", "said"), [(True, "0.1 of the loss left at most"), (False, "a loss of 0.1 at most")])
def test_a_loss_that_is_no_share_is_not_called_one(share: bool, said: str) -> None:
    outcomes = types.SimpleNamespace(success=24)
    cell: Any = types.SimpleNamespace(defense="none", outcomes=outcomes, victims=24, controls=[])
    alike = Likeness(np.ones(2), np.ones(2))
    assert said in _estimates(cell, np.full(2, 0.1), np.ones(2), 0.1, alike, True, True, share)[1]


def narrow(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, classes))


@pytest.mark.parametrize(("attack", "said"), [("cpl", "could not tell"), ("map", "plausibly reconstructed")])
def test_an_attack_that_knows_no_defense_says_nothing_of_it(attack: str, said: str, judge: Any, tmp_path: Path) -> None:
    """Who looks for the largest numbers of a gradient alone finds the images in them."""
    images, labels = digits(2, 1)
    declared = {"name": "pruning", "settings": {"threshold": 0.95}}
    facts = FACTS | {"model": f"{__name__}:narrow", "defense": declared}
    for number in range(2):
        torch.manual_seed(0)
        network = narrow((1, 8, 8), 10)
        nn.functional.cross_entropy(network(images[number]), labels[number]).backward()
        gradient = {name: one.grad for name, one in network.named_parameters() if one.grad is not None}
        least = torch.cat([one.flatten() for one in gradient.values()]).abs().quantile(0.95)
        update = {name: -facts["learning_rate"] * one * (one.abs() >= least) for name, one in gradient.items()}
        write_capture(tmp_path / str(number), CaptureRecord(**facts), network.state_dict(), update=update)
    _, document, _ = judge([tmp_path / "0", tmp_path / "1"], "--prior", "digits", "--attack", attack)
    assert document["estimates"][0]["estimates"] == [said] * 2, document["checks"]


def test_an_update_that_was_shuffled_is_not_plausible(federation: Federation, judge: Any) -> None:
    folders = federation(2, truth=False)
    with np.load(folders[1] / "before.npz") as archive:
        before = dict(archive)
    with np.load(folders[1] / "after.npz") as archive:
        after = dict(archive)
    random = np.random.default_rng(0)
    moved = {name: before[name] + random.permutation((after[name] - before[name]).ravel()).reshape(before[name].shape)
             for name in before}  # fmt: skip
    np.savez(folders[1] / "after.npz", **moved)
    _, document, _ = judge(folders, "--prior", "digits", "--attack", "cpl")
    assert document["estimates"][0]["estimates"] == ["plausibly reconstructed", "could not tell"]
    assert "it is not what these settings send" in document["estimates"][0]["reason"]


def sgd(**more: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda network: torch.optim.SGD(network.parameters(), lr=0.05, **more)


# How clients really train, and what they declare beside FACTS: capture.json cannot say the one or says the other.
OTHERWISE: dict[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], float, dict[str, Any]]] = {
    "nesterov": (sgd(momentum=0.9, nesterov=True), 0.0, {"optimizer": "momentum"}),
    "weight decay": (sgd(weight_decay=0.05), 0.0, {}),
    "smoothed labels": (sgd(), 0.1, {}),
    "adam": (lambda network: torch.optim.Adam(network.parameters(), lr=0.05), 0.0, {}),
}


@pytest.mark.parametrize(
    ("optimizer", "smoothing", "declared"),
    [
        pytest.param(*how, id=name, marks=() if name == "nesterov" else pytest.mark.slow)
        for name, how in OTHERWISE.items()
    ],
)
def test_no_is_not_said_of_clients_who_train_otherwise_than_they_declare(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], smoothing: float, declared: dict[str, Any], judge: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Undefended clients leak, whether or not the attack is told the right settings."""
    images, labels = digits(2, 1)
    folders = [tmp_path / str(number) for number in range(2)]
    for number, folder in enumerate(folders):
        network = build_module("mlp", (1, 8, 8), 10, seed=0)
        with captured(network, folder, **FACTS | declared):
            logits = network(images[number])
            nn.functional.cross_entropy(logits, labels[number], label_smoothing=smoothing).backward()
            optimizer(network).step()
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "cpl")
    violated = any(check["outcome"] == "violated" for check in document["checks"])
    assert code == (3 if violated else 0) and "no" not in document["estimates"][0]["estimates"]


@pytest.mark.parametrize("sigma", [0.03, 0.08])
def test_no_is_not_said_of_who_trains_otherwise_behind_a_clip_that_hides_it(
    sigma: float, judge: Any, tmp_path: Path
) -> None:
    """A clip makes norms alike, and little noise hides from nobody who is told the optimizer.

    The weaker noise shows that what is left is too large, the stronger one that the reconstruction is not in it.
    """
    defense = {"name": "fed_sdp", "settings": {"clip": 0.05, "sigma": sigma, "noise_at": "client"}}
    (images, labels), random = digits(2, 1), torch.Generator().manual_seed(0)
    folders = [tmp_path / str(number) for number in range(2)]
    for number, folder in enumerate(folders):
        network = build_module("mlp", (1, 8, 8), 10, seed=0)
        with captured(network, folder, **FACTS, defense=defense):
            before = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
            nn.functional.cross_entropy(network(images[number]), labels[number]).backward()
            torch.optim.Adam(network.parameters(), lr=0.05).step()
            step = torch.nn.utils.parameters_to_vector(network.parameters()).detach() - before
            noise = sigma * 0.05 * torch.randn(step.shape, generator=random)
            moved = before + step * min(1.0, 0.05 / float(step.norm())) + noise
            torch.nn.utils.vector_to_parameters(moved, network.parameters())
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "map")
    (made,) = document["estimates"]
    assert code == 0 and made["estimates"] == ["could not tell"] * 2
    assert "does not explain what 2 of 2 clients sent" in made["reason"]


# Steps and attack of clients whose optimizer the capture reads off the very object.
OPTIMIZERS: dict[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], int, str]] = {
    "momentum": (sgd(momentum=0.9), 2, "cpl"),
    "nesterov and decay": (sgd(momentum=0.5, nesterov=True, weight_decay=0.05), 2, "cpl"),
    "adam": (lambda network: torch.optim.Adam(network.parameters(), lr=0.05), 1, "analytic"),
    "adamw": (lambda network: torch.optim.AdamW(network.parameters(), lr=0.05), 1, "analytic"),
}


# More of them in test_as_evaluated.py.
@pytest.mark.parametrize(("optimizer", "steps", "attack"), [
    pytest.param(*one, marks=() if name == "adam" else pytest.mark.slow, id=name)
    for name, one in OPTIMIZERS.items()
])  # fmt: skip
def test_clients_are_judged_with_the_optimizer_they_have(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], steps: int, attack: str, judge: Any, tmp_path: Path
) -> None:
    images, labels = digits(3, steps)
    folders = [tmp_path / str(number) for number in range(3)]
    for number, folder in enumerate(folders):
        network = build_module("mlp", (1, 8, 8), 10, seed=0)
        made, facts = optimizer(network), {name: FACTS[name] for name in FACTS if name != "learning_rate"}
        with captured(network, folder, made, local_steps=steps, **facts) as capture:
            for image, label in zip(images[number], labels[number], strict=True):
                capture.batch(image[None], label[None])
                made.zero_grad()
                nn.functional.cross_entropy(network(image[None]), label[None]).backward()
                made.step()
    code, document, _ = judge(folders, "--prior", "digits", "--attack", attack, "--update-model", "unroll")
    outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
    (row,) = document["results"]["summary"]
    assert code == 0 and outcomes["the truth explains what was sent"] == "holds" and row["verdict"] == "leaks"
    # Declared as plain SGD, it is neither explained nor called private.
    plain = ["--prior", "digits", "--attack", attack, "--update-model", "unroll"]
    for folder in folders:
        edit(folder, optimizer="sgd")
    _, document, _ = judge(folders, *plain)
    outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
    assert outcomes["the truth explains what was sent"] == "violated"


class Wrapped:
    """Networks as federations hold them; what is sent of each has the names, or the gradients, of ``plain``."""

    plain = staticmethod(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10)))

    @staticmethod
    def tied() -> nn.Module:
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10),
        )  # fmt: skip
        network[4].weight = network[3].weight
        return network

    @staticmethod
    def head() -> nn.Module:
        network = Wrapped.plain()
        network[1].requires_grad_(False)
        return network


WRAPPED: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], nn.Module]]] = {
    "compiled": (Wrapped.plain, lambda network: torch.compile(network, backend="eager")),
    "parallel": (Wrapped.plain, nn.DataParallel),
    "both": (Wrapped.plain, lambda network: torch.compile(nn.DataParallel(network), backend="eager")),
    "opacus": (Wrapped.plain, lambda network: nn.ModuleDict({"_module": network})),
    "tied": (Wrapped.tied, lambda network: network),
    "head": (Wrapped.head, lambda network: network),
}


@pytest.mark.parametrize(("factory", "wrap"), WRAPPED.values(), ids=WRAPPED.keys())
def test_networks_as_federations_hold_them_are_judged(
    factory: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module], judge: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module = types.ModuleType("somebodys")
    module.make = lambda image_shape, classes: factory()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "somebodys", module)
    network, (images, labels) = factory(), digits(1, 1)
    with captured(wrap(network), tmp_path / "0", **FACTS | {"model": "somebodys:make"}) as capture:
        nn.functional.cross_entropy(network(images[0]), labels[0]).backward()
        torch.optim.SGD([one for one in network.parameters() if one.requires_grad], lr=0.05).step()
        capture.batch(images[0], labels[0])
    code, document, _ = judge([tmp_path / "0"], "--attack", "cpl")
    assert code == 0 and {check["outcome"] for check in document["checks"]} == {"holds"}
    if factory is Wrapped.tied:  # noise on each of its names is on one weight twice
        after = dict(np.load(tmp_path / "0" / "after.npz"))
        np.savez(tmp_path / "0" / "after.npz", **after | {"4.weight": after["4.weight"] + 0.01})
        code, _, said = judge([tmp_path / "0"], "--attack", "cpl")
        assert code == 2 and "'3.weight' and '4.weight' are one weight" in said and "keep the last alone" in said


def test_a_success_is_no_failed_control(federation: Federation, judge: Any) -> None:
    for count, more in ((2, ()), (1, ("--prior", "digits"))):
        code, document, _ = judge(federation(count), "--attack", "cpl", *more)
        (cell,) = [one for one in document["results"]["cells"] if one["role"] == "cell"]
        assert code == 0 and cell["asr"]["strict"]["successes"] == count and not cell["flags"]
        assert cell["verdict"] == "inconclusive"


LOCAL_DP = {
    "name": "flwr.clientapp.mod.LocalDpMod",
    "settings": {"clipping_norm": 0.05, "sensitivity": 0.05, "epsilon": 0.8074674911, "delta": 1e-5},
}
OPACUS = {"name": "make_private", "settings": {"noise_multiplier": 6.0, "max_grad_norm": 1.0}}
CLIP = {"name": "fixedclipping_mod", "settings": {"clipping_norm": 0.05}}
UPDATE = {"clip": 1.0, "of_update": True}
# What is declared, what clients do, and the check that says it is not the same; None where it is.
ON: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "a local mod": (LOCAL_DP, UPDATE | {"deviation": 6.0}, None),
    "a local mod that is off": (LOCAL_DP, UPDATE, "noise is on every tensor"),
    "a clip": (CLIP, UPDATE, None),
    "no clip": (CLIP, {}, "norms are within the bound"),
    "opacus": (OPACUS, {"clip": 1.0, "deviation": 6.0, "batch": 2}, None),
    "opacus with a tenth": (OPACUS, {"clip": 1.0, "deviation": 0.6, "batch": 2}, "noise is on every tensor"),
}


@pytest.mark.parametrize(("declared", "how", "violated"), ON.values(), ids=ON.keys())
def test_checks_alone_say_whether_a_framework_s_defense_is_on(
    declared: Any, how: dict[str, Any], violated: str | None, federation: Federation, capsys: Any
) -> None:
    folders = federation(2, declared=declared, **how)
    code = run(["judge", *map(str, folders), "--checks-only", "--json"])
    document = json.loads(capsys.readouterr().out)
    found = [check["name"] for check in document["checks"] if check["outcome"] == "violated"]
    assert (code == 0, document["valid"]) == (violated is None, violated is None)
    assert violated in found if violated else not found


@pytest.mark.parametrize(("declared", "how"), [(LOCAL_DP, UPDATE | {"deviation": 6.0}), ON["opacus"][:2]])
def test_checks_alone_need_the_truth_of_none(
    declared: Any, how: dict[str, Any], federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor of all: what is checked is the same for those that have it and those that have not."""
    folders = federation(3, declared=declared, **how)
    for folder in folders[:2]:
        (folder / "truth.npz").unlink()
    capsys.readouterr()
    assert run(["judge", *map(str, folders), "--checks-only", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["captures"] == 3
    assert said.err.count("\n") == 1 and "2 of 3 captures have no truth: the updates of all are checked" in said.err


@pytest.mark.parametrize(
    ("build", "steps"),
    [
        (torch.optim.SGD, 1), pytest.param(torch.optim.SGD, 3, marks=pytest.mark.slow),
        *(pytest.param(torch.optim.AdamW, steps, marks=pytest.mark.slow) for steps in (1, 3)),
    ],
)  # fmt: skip
def test_groups_of_parameters_are_read_as_they_were_trained(build: Any, steps: int, tmp_path: Path, judge: Any) -> None:
    """With a rate and a decay of its own for the head: the truth explains what was sent, and an attack reads it."""
    images, labels = digits(3, steps)
    folders, facts = [], {"model": "mlp", "batch_size": 1}
    for number in range(3):
        network = build_module("mlp", (1, 8, 8), 10, seed=0)
        *body, weight, bias = network.parameters()
        groups = [{"params": body}, {"params": [weight], "lr": 0.002}, {"params": [bias], "weight_decay": 0.0}]
        optimizer = build(groups, 0.01, weight_decay=0.1)
        folders.append(tmp_path / "captures" / str(number))
        with captured(network, folders[-1], optimizer, strict=True, **facts) as capture:
            for one, label in zip(images[number], labels[number], strict=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(one[None]), label[None]).backward()
                optimizer.step()
                capture.batch(one[None], label[None])
    code, document, _ = judge(folders, "--attack", "cpl", "--jobs", "1")
    assert code == 0 and document["checks"] and {check["outcome"] for check in document["checks"]} == {"holds"}
    (cell,) = (one for one in document["results"]["cells"] if one["role"] == "cell")
    assert "groups=" in document["record"]["optimizer"]
    assert steps > 1 or build is torch.optim.AdamW or cell["asr"]["strict"]["successes"] == 3
    named = json.loads((folders[0] / "capture.json").read_text())
    named["groups"][0]["parameters"] = ["nowhere"]
    (folders[0] / "capture.json").write_text(json.dumps(named))
    code, _, said = judge(folders[:1], "--attack", "cpl")
    assert code == 2 and "groups name 'nowhere', which is no weight that the network trains" in said


@pytest.mark.parametrize(("framework", "first", "before"), [("flower", None, 2), ("nvflare", None, 3),
                                                            (None, 1, 2), ("flower", 0, 3)])  # fmt: skip
def test_rounds_are_counted_as_the_framework_does(framework: str | None, first: Any, before: int) -> None:
    record = CaptureRecord(**FACTS, framework=framework, round=3, first_round=first)
    assert record.rounds_before == before


NOT_CHECKED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "nothing declared": (None, (), "no defense is declared, so there is nothing to check; name it in capture.json"),
    "an attack": (CLIP, ("--attack", "cpl"), "--checks-only makes no attack; drop --attack, or --checks-only"),
    "an argument too much": (CLIP | {"settings": {"clip": 1}}, (), "clipping_norm: Missing required argument"),
    "an argument out of range": (CLIP | {"settings": {"clipping_norm": -1}}, (), "clipping_norm: Input should be"),
    "several bounds": (
        {"name": "make_private", "settings": {"noise_multiplier": 1, "max_grad_norm": [1, 2]}}, (), "declare fed_cdp",
    ),
    "an unknown one": ({"name": "LocalDPMod", "settings": {}}, (), "unknown defense 'LocalDPMod'"),
}  # fmt: skip


@pytest.mark.parametrize(("declared", "options", "said"), NOT_CHECKED.values(), ids=NOT_CHECKED.keys())
def test_what_cannot_be_checked_is_one_line(
    declared: Any, options: tuple[str, ...], said: str, federation: Federation, capsys: Any
) -> None:
    (folder,) = federation(1, declared=declared)
    assert run(["judge", str(folder), "--checks-only", *options]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


MISTAKES: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "no capture": (lambda folder: (folder / "capture.json").unlink(), (), "is no capture"),
    "no folder": (lambda folder: folder.rename(folder.with_name("other")), (), "there is no folder"),
    "nothing sent": (lambda folder: (folder / "after.npz").unlink(), (), "must hold one of after, update, gradient"),
    "a pickle instead": (
        lambda folder: (folder / "after.npz").rename(folder / "after.pt"), (), "may run code when it is loaded",
    ),
    "one array instead": (
        lambda folder: (folder / "after.npz").rename(folder / "after.npy"), (), "load it, and numpy.savez(NEW, *arr",
    ),
    "a table instead": (
        lambda folder: (folder / "after.npz").rename(folder / "after.parquet"), (), "'after.parquet' there is of a",
    ),
    "a truth of another kind": (
        lambda folder: (folder / "truth.npz").rename(folder / "truth.parquet"), (), "savez(FILE, images=images, labels",
    ),
    "a field too much": (lambda folder: edit(folder, hidden=1), (), "'hidden'"),
    "a setting beside the name": (
        lambda folder: edit(folder, defense={"name": "fed_cdp", "sigma": 3}), (), "sigma belongs into settings: {",
    ),
    "noise that is shared among nobody knows how many": (
        lambda folder: edit(folder, defense={"name": "secagg_ddp", "settings": {}}), (), '"clients_per_round"; add',
    ),
    "noise that decays over nobody knows how many rounds": (
        lambda folder: edit(folder, round=5, defense=DECAYS), (), 'depends on "rounds"; add',
    ),
    "a scale before or behind a clip": (
        lambda folder: edit(folder, defense=CDP, loss_scale=4), (), "whether loss_scale 4 is in gradients before the",
    ),
    "a scale before or behind noise": (
        lambda folder: edit(folder, loss_scale=4, defense={"name": "noise", "settings": {"applies_to": "gradient"}}),
        (), "if what the defense made is multiplied, give learning_rate",
    ),
    "a scale that Adam takes away": (
        lambda folder: edit(folder, defense=CDP, loss_scale=4, optimizer="adam"), (),
        "noise is not said; capture a round with the mean\n",
    ),
    "an unknown optimizer": (lambda folder: edit(folder, optimizer="lion"), (), "should be 'sgd', 'adam'"),
    "unknown momentum": (lambda folder: edit(folder, optimizer="momentum", local_steps=2), (), "its coefficient"),
    "counts that contradict": (
        lambda folder: edit(folder, batch_size=2, local_steps=3), (), "1 true images, but batch_size 2",
    ),
    "counts of a step": (
        lambda folder: edit(folder, accumulate=3, optimizer={"name": "SGD"}), (),
        "but batch_size 1, accumulate 3 and local_steps 1 make 3",
    ),
    "a change of steps as a gradient": (
        lambda folder: [
            (folder / "after.npz").rename(folder / "gradient.npz"), edit(folder, local_steps=2),
            np.savez(folder / "truth.npz", images=np.zeros((2, 1, 8, 8)), labels=np.zeros(2, int)),
        ], (), "the one step of a gradient make 1; give those the client trained on, in order; the change of all steps",
    ),
    "another network": (lambda folder: edit(folder, model="logistic"), (), "does not fit the network"),
    "a shape": (lambda folder: rewrite(folder, lambda array: array[:-1]), (), "the network's ("),
    "a name": (lambda folder: rewrite(folder, None), (), "Give each array its name in the network's state_dict(), or"),
    "other axes": (
        lambda folder: rewrite_all(folder, np.transpose), (), "Turn each array to the axes of the network's state_dict",
    ),
    "one vector": (
        lambda folder: np.savez(folder / "after.npz", np.concatenate([one.ravel() for one in stored(folder)])), (),
        "cut it into them, as torch.nn.utils.vector_to_parameters does",
    ),
    "another order": (
        lambda folder: np.savez(folder / "after.npz", *stored(folder)[::-1]), (), "in the order of its state_dict()",
    ),
    "a part of a list": (
        lambda folder: np.savez(folder / "after.npz", *stored(folder)[::2]), (), "A list without names holds all param",
    ),
    "nan": (lambda folder: rewrite(folder, lambda array: array * np.nan), (), "holds NaN or infinity"),
    "more than a float holds": (
        lambda folder: rewrite(folder, lambda array: array.astype(np.float64) * 0 + 1e300), (), "up to 1e+300",
    ),
    "more than a gradient holds": (lambda folder: rewrite(folder, lambda array: array * 0 + np.float32(3e38)), (),
                                   "too large for a gradient"),
    "an object": (lambda folder: rewrite(folder, lambda array: np.array([{}], dtype=object)), (), "pickled objects"),
    "more truth than trained on": (
        lambda folder: np.savez(folder / "truth.npz", images=np.zeros((9, 1, 8, 8)), labels=np.zeros(9, int)), (),
        "9 true images, but batch_size 1",
    ),
    "a truth of another shape": (
        lambda folder: np.savez(folder / "truth.npz", images=np.zeros((1, 1, 9, 8)), labels=np.zeros(1, int)), (),
        "check image_shape",
    ),
    "a truth of vectors as labels": (
        lambda folder: np.savez(folder / "truth.npz", images=np.zeros((1, 1, 8, 8)), labels=np.eye(10)[:1]), (),
        "give one number, its class, as the label of each image",
    ),
    "a truth of names as labels": (
        lambda folder: np.savez(folder / "truth.npz", images=np.zeros((1, 1, 8, 8)), labels=np.array(["a"])), (),
        "holds <U1, no numbers; write it with numpy.savez(FILE, images=images, labels=labels)",
    ),
    "a truth with nan": (
        lambda folder: np.savez(folder / "truth.npz", images=np.full((1, 1, 8, 8), np.nan), labels=np.zeros(1, int)),
        (), "'images' holds NaN or infinity: no number; write it with",
    ),
    "text in UTF-16": (
        lambda folder: (folder / "capture.json").write_text(
            (folder / "capture.json").read_text(), encoding="utf-16"
        ), (), "is text in UTF-16; save it in UTF-8",
    ),
    "a truth without labels": (
        lambda folder: np.savez(folder / "truth.npz", images=np.zeros((1, 1, 8, 8))), (), "has no array 'labels'",
    ),
    "a truth of texts": (
        lambda folder: np.savez(folder / "truth.npz", tokens=np.ones((1, 3), int), lengths=[3], labels=[1]), (),
        "is a truth of texts, and the capture is of images; correct data in capture.json",
    ),
    "a network of texts": (
        lambda folder: edit(folder, model="text_transformer"), (), "reads texts, not images of (1, 8, 8); give it",
    ),
    "a prior of texts": (lambda folder: None, ("--prior", "notes"), "has examples of shape (1, 16, 40), not (1, 8, 8)"),
    "sent what it got": (lambda folder: same(folder), (), "sent what it got"),
    "an unknown prior": (lambda folder: None, ("--prior", "digitz"), "did you mean 'digits'"),
    "another kind of prior": (lambda folder: None, ("--prior", "mnist-sample"), "has examples of shape (1, 28, 28)"),
    "no prior for a suite": (lambda folder: None, ("--attack", "auto"), "needs public data; add --prior NAME or"),
    "no prior for who knows it": (lambda folder: None, ("--attack", "cpl,map"), "'map' needs public data; add --prior"),
    "a part of no dataset": (lambda folder: None, ("--prior", "auto"), "with --prior NAME or --prior FILE.npz"),
    "an empty prior": (lambda folder: None, ("--prior", ""), "harness: "),
    "no attack": (lambda folder: None, ("--attack", ","), "--attack is empty; give it a value or leave it out"),
    "codes": (lambda folder: rewrite(folder, lambda array: (9 * array).astype(np.int8)), (), "codes times their scale"),
    "bits of bfloat16": (
        lambda folder: rewrite(folder, lambda array: (np.float32(array).view("u4") >> 16).astype("u2")), (),
        "or bits of bfloat16: those as float32",
    ),
    "codes as floats": (
        lambda folder: rewrite_all(folder, lambda array: np.round(99 * array)), (), "whole numbers only",
    ),
    "steps that are not the epochs'": (
        lambda folder: edit(folder, epochs=3, examples=8), (), "are 24 local_steps, and 1 are declared",
    ),
    "frozen, and moved": (lambda folder: edit(folder, frozen=["1.weight"]), (), "is declared frozen and"),
    "a batch of more than all": (lambda folder: edit(folder, batch_size=3, examples=2), (), "than the client's 2"),
    "an unknown update model": (lambda folder: None, ("--update-model", "foo"), "use --update-model avg, path"),
}  # fmt: skip


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "capture.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder: Path, change: Callable[[np.ndarray], np.ndarray] | None) -> None:
    with np.load(folder / "after.npz") as archive:
        arrays = dict(archive)
    name = next(iter(arrays))
    if change is None:
        arrays["mine"] = arrays.pop(name)
    else:
        arrays[name] = change(arrays[name])
    np.savez(folder / "after.npz", **arrays)


def stored(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "after.npz") as archive:
        return list(archive.values())


def rewrite_all(folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    with np.load(folder / "after.npz") as archive:
        np.savez(folder / "after.npz", **{name: change(array) for name, array in archive.items()})


def same(folder: Path) -> None:
    (folder / "after.npz").write_bytes((folder / "before.npz").read_bytes())


@pytest.mark.parametrize(("spoil", "options", "fix"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_that_names_the_fix(
    federation: Federation, judge: Any, spoil: Callable[[Path], object], options: tuple[str, ...], fix: str
) -> None:
    (folder,) = federation(1)
    spoil(folder)
    code, document, said = judge([folder], *options)
    assert (code, document) == (2, None)
    assert said.startswith("harness: ") and said.count("\n") == 1 and fix in said


@pytest.mark.parametrize("change", [
    pytest.param(lambda text: text.encode("utf-8-sig"), id="with a mark of its encoding"),
    pytest.param(lambda text: json.dumps(json.loads(text) | {"defense": "none"}).encode(), id="a defense by its name"),
])  # fmt: skip
def test_a_document_may_be_written_so(federation: Federation, change: Callable[[str], bytes]) -> None:
    (folder,) = federation(1)
    before, path = read_capture(folder).record, folder / "capture.json"
    path.write_bytes(change(path.read_text()))
    assert read_capture(folder).record.model_copy(update={"defense": before.defense}) == before


REASONS = {
    "'analytic' reads one example; use --batch-size 1 and one local step, or --attack spear": (
        "'analytic' reads one example; use captures of one step on one example, or --attack spear"
    ),
    "which it lacks; use --model mlp2 or another attack": "which it lacks; use another --attack, such as cpl",
    "needs public data; use --prior auto, or --prior FILE.npz with data of your own": (
        "needs public data; use --prior NAME, or --prior FILE.npz with data of your own"
    ),
    "no bias; use --attack-arg label_rule=row_sum or --labels known": (
        "no bias; use --attack-arg label_rule=row_sum or --labels known (--attack-arg is of evaluate: of captures, "
        "choose another --attack)"
    ),
    "takes images; use --dataset notes, or another --attack": "takes images; use another --attack",
    "alone it fits into --budget 7h": "alone it fits into --budget 7h",
    "adds up no gradients; use --attack cpl": "adds up no gradients; use --attack cpl",
}


@pytest.mark.parametrize(("simulated", "captured"), REASONS.items())
def test_no_refusal_names_an_option_that_judge_lacks(simulated: str, captured: str) -> None:
    assert of_captures(simulated) == captured


def test_an_attack_on_single_examples_says_what_to_capture(federation: Federation, judge: Any) -> None:
    code, _, said = judge(federation(2, batch=2), "--attack", "analytic")
    assert code == 2 and "captures of one step on one example" in said


def test_clients_that_trained_differently_are_judged_apart(federation: Federation, judge: Any) -> None:
    folders = federation(2)
    edit(folders[1], learning_rate=0.1)
    code, _, said = judge(folders)
    assert code == 2 and "captures differ in learning_rate" in said


def test_a_capture_that_its_truth_does_not_explain_is_no_evidence(federation: Federation, judge: Any) -> None:
    (folder,) = federation(1)
    edit(folder, learning_rate=0.1)
    code, document, _ = judge([folder], "--attack", "cpl")
    assert code == 3 and not document["valid"] and document["checks"][-1]["outcome"] == "violated"


# The noise that clients add in the place of 6, and what is said of it: of the declaration, and of the truth.
PLANTED = {"off": (0.0, "violated"), "half": (3.0, "violated"), "double": (12.0, "more than declared")}


# Without the truth, one kind of client is quick; the checks of the others are those of test_noise_checks.py.
@pytest.mark.parametrize(("deviation", "outcome", "truth"), [
    *((*planted, True) for planted in PLANTED.values()), (*PLANTED["half"], False),
    *(pytest.param(*PLANTED[name], False, marks=pytest.mark.slow) for name in ("off", "double")),
])  # fmt: skip
def test_clients_that_do_not_what_they_declare_are_told_by_the_checks(
    truth: bool, deviation: float, outcome: str, federation: Federation, judge: Any, tmp_path: Path
) -> None:
    """With the truth and without; whatever is violated, the exit code says so. More noise than declared is told."""
    folders = federation(2, truth=truth, declared=CDP, clip=1.0, deviation=deviation)
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "analytic")
    found = {check["name"]: check for check in document["checks"]}
    of_noise = NO_MORE if outcome == "more than declared" else ENOUGH
    assert found[of_noise]["outcome"] == outcome
    violated = [check for check in found.values() if check["outcome"] == "violated"]
    # What the truth leaves over is more than attackers who know the noise are told.
    assert document["valid"] == (not truth and outcome != "violated") == (not violated)
    assert code == (3 if violated else 0)
    # Of noise that is not what is declared nothing is proven, in any file of the run.
    rows = [row for row in (document["results"] or {"cells": []})["cells"] if row["role"] == "cell"]
    guarantees = {one["guarantee"] for row in (document, *rows) for one in row["privacy"]}
    assert (guarantees == {"none"}) == bool(violated)
    if truth:
        kept = json.loads((tmp_path / "out" / "results.json").read_text())
        for results in (kept, document["results"]):
            assert not results["valid"] and results["valid_reason"].startswith(f"{violated[0]['name']}: violated")


def test_all_files_state_the_same_of_clients_whose_noise_is_their_own(
    federation: Federation, judge: Any, tmp_path: Path
) -> None:
    """One pass of two steps counts once in a round, of the rows as of the document. A client of unknown passes beside
    is protected less."""
    folders = federation(2, declared=CDP, clip=1.0, deviation=6.0, steps=2)
    for folder in folders:
        edit(folder, examples=2, epochs=1)
    _, document, _ = judge(folders, "--attack", "cpl", "--update-model", "avg")
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    epsilons = {one["view"]: one["epsilon"] for one in document["privacy"]}
    assert epsilons["server"] == pytest.approx(gaussian_epsilon(10 / 6, 1e-5))
    rows = [row for row in (*kept["cells"], *document["results"]["cells"]) if row["role"] == "cell" and row["privacy"]]
    assert rows and all({one["view"]: one["epsilon"] for one in row["privacy"]} == epsilons for row in rows)
    assert not any("seed" in one["notes"] for row in rows for one in row["privacy"])
    more = federation(3, declared=CDP, clip=1.0, deviation=6.0, steps=3, name="more")[2:]
    for named in ([*folders, *more], [*more, *folders]):
        _, document, _ = judge(named, "--checks-only")
        (server,) = [one for one in document["privacy"] if one["view"] == "server"]
        assert server["epsilon"] == pytest.approx(gaussian_epsilon(10 * 3**0.5 / 6, 1e-5))


@pytest.mark.parametrize(
    ("truth", "adam", "unseen"), [(True, False, None), (False, False, "clip"), (False, True, "clip and noise")]
)
def test_a_statement_on_what_was_not_seen_says_so(
    truth: bool, adam: bool, unseen: str | None, federation: Federation, judge: Any
) -> None:
    """Noise is seen in what SGD sends, and the clip behind it is not without the truth; steps of Adam hide both."""
    folders = federation(2, truth=truth, declared=CDP, clip=1.0, deviation=6.0, adam=adam)
    for folder in folders:
        edit(folder, **({"optimizer": {"name": "Adam", "lr": 0.05}} if adam else {}))
    asked = ("--attack", "analytic") if truth else ("--checks-only",)
    _, document, _ = judge(folders, *asked)
    stated = [one for one in document["privacy"] if one["guarantee"] != "none"]
    said = f"rests on the declared {unseen}: that it is there was not seen"
    assert stated and all(one["notes"].startswith(said if unseen else "") for one in stated), stated
    assert unseen or not any("rests on the declared" in one["notes"] for one in stated)


@pytest.mark.slow
def test_who_learns_from_public_data_judges_too(federation: Federation, judge: Any) -> None:
    _, document, _ = judge(federation(2), "--prior", "digits", "--attack", "learned")
    cell = document["results"]["cells"][0]
    assert (cell["attack"], cell["not_applicable_reason"]) == ("learned", None)


def in_rounds(folders: list[Path]) -> list[Path]:
    for number, folder in enumerate(folders):
        edit(folder, round=number)
    return folders


def test_rounds_are_judged_together_where_the_noise_is_the_same(federation: Federation, judge: Any) -> None:
    folders = in_rounds(federation(3, declared=CDP, clip=1.0, deviation=6.0))
    code, document, _ = judge(folders, "--attack", "analytic")
    assert code == 0 and {one["outcome"] for one in document["checks"] if one["name"] != BOUND} == {"holds"}


@pytest.mark.parametrize("deviation", [0.0, 5.0])
def test_one_image_in_many_rounds_is_one_draw(federation: Federation, judge: Any, deviation: float) -> None:
    """It leaks, as it comes back in all of them; noise is not the weaker for being drawn often."""
    declared = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": deviation, "clipping": "whole"}}
    folders = in_rounds(federation(12, declared=declared, clip=1.0, deviation=deviation, same_data=True, apart=True))
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "analytic")
    cell = next(one for one in document["results"]["cells"] if one["role"] == "cell")
    assert code == 0 and (cell["verdict"] == "leaks") is (deviation == 0)
    # Twelve rounds of one image say as much of other images as one round does.
    assert cell["asr"]["strict"]["ci95"][1] - cell["asr"]["strict"]["ci95"][0] > 0.9


APART: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str]] = {
    "noise that decays": (
        "fed_acdp",
        {"policy": "linear", "floor": 4.0},
        (0, 1, 2),
        "of rounds 0, 1, 2, counted from 0; judge each",
    ),
    "of no published level": ("fed_acdp", {"policy": "linear"}, (0, 1, 2), "does not do the same in every round"),
    "a bound that moves": ("quantile", {}, (0, 1, 2), "remembers after 2 round"),
    "the last one first": ("quantile", {}, (2, 1, 0), "remembers after 2 round"),
}


@pytest.mark.parametrize(("defense", "settings", "order", "fix"), APART.values(), ids=APART.keys())
def test_rounds_in_which_the_defense_differs_are_judged_apart(
    defense: str, settings: dict[str, Any], order: tuple[int, ...], fix: str, federation: Federation, judge: Any
) -> None:
    folders = in_rounds(federation(3, declared={"name": defense, "settings": settings}))
    code, _, said = judge([folders[number] for number in order], "--attack", "analytic")
    assert code == 2 and fix in said


@pytest.mark.parametrize("truth", [True, False])
def test_a_client_is_counted_once(truth: bool, federation: Federation, judge: Any, tmp_path: Path) -> None:
    folders = federation(2, truth=truth)
    copy = shutil.copytree(folders[1], tmp_path / "copy")
    edit(copy, client="another", round=1)
    for twice, other in ((folders[0], folders[0]), (folders[1], copy)):
        code, _, said = judge([*folders, other], "--prior", "digits", "--attack", "analytic")
        assert code == 2 and f"captures {str(twice)!r} and {str(other)!r} hold the same update" in said


@pytest.mark.parametrize("attack", ["map", "imprint"])
def test_a_mistake_leaves_what_an_earlier_run_found(
    attack: str, federation: Federation, judge: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def left() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    (folder,) = federation(1)
    judge([folder], "--attack", "analytic")
    before = left()
    code, _, said = judge([folder], "--attack", attack)
    assert code == 2 and said.count("\n") == 1 and left() == before and not caplog.messages
    assert judge([folder], "--attack", "analytic")[0] == 0 and "replaces the earlier results" in caplog.text


def test_bare_lists_are_in_the_order_of_the_state(federation: Federation, judge: Any) -> None:
    folders = federation(2)
    for folder in folders:
        for kind in ("before", "after"):
            with np.load(folder / f"{kind}.npz") as archive:
                values = list(archive.values())
            np.savez(folder / f"{kind}.npz", *values)
    _, document, _ = judge(folders, "--prior", "digits", "--attack", "cpl")
    assert document["results"]["summary"][0]["verdict"] == "leaks"


def test_another_machine_s_order_of_bytes_is_read(federation: Federation, judge: Any) -> None:
    (folder,) = federation(1)
    for kind in ("before", "after"):
        with np.load(folder / f"{kind}.npz") as archive:
            np.savez(folder / f"{kind}.npz", **{name: array.astype(">f4") for name, array in archive.items()})
    code, document, _ = judge([folder], "--attack", "cpl")
    assert code == 0 and document["checks"][0]["outcome"] == "holds"


ALIKE: list[Any] = [
    (5, "none", {}, "leaks"), pytest.param(59, "none", {}, "leaks", marks=pytest.mark.slow),
    pytest.param(59, "fed_cdp", CDP["settings"], "inconclusive", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("clients", "defense", "arguments", "verdict"), ALIKE)
def test_what_evaluate_saw_is_judged_as_evaluate_judges_it(
    tmp_path: Path, judge: Any, clients: int, defense: str, arguments: dict[str, Any], verdict: str
) -> None:
    """The same clients, captured from a run of ours: the same reconstructions to the bit, and the same verdict."""
    settings = cell_settings(
        dataset="digits", model="mlp", victims=clients, defense=defense, defense_args=arguments, prior="none"
    )
    run_ = Run(tmp_path, RunFolder(tmp_path / "evaluated"))
    document, scene = evaluate([settings], run_), run_.stage.set(settings)
    declared: dict[str, Any] = {"defense": {"name": defense, "settings": arguments}} if arguments else {}
    folders = []
    for row in range(clients):
        seen = scene.observation
        folders.append(
            write_capture(
                tmp_path / str(row), CaptureRecord(**FACTS, **declared), seen.model.state(seen.weights[row]),
                images=scene.truth.images[row], labels=scene.truth.labels[row],
                gradient=seen.model.layout.split(seen.target[row]),
            )
        )  # fmt: skip
    _, judged, _ = judge(folders, "--attack", "cpl", "--prior", "digits")
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / name / "victims.jsonl").read_text().splitlines()]
        for name in ("evaluated", "out")
    )
    for name in ("rmse_raw", "loss", "outcome"):
        of_cell = [[line[name] for line in lines if line["role"] == "cell"] for lines in (ours, theirs)]
        assert of_cell[0] == of_cell[1] and len(of_cell[0]) == clients, name
    (row,) = judged["results"]["summary"]
    assert document.summary[0].verdict == row["verdict"] == verdict


def test_a_report_names_the_command_that_judged(federation: Federation, judge: Any, tmp_path: Path) -> None:
    judge(federation(2), "--attack", "cpl")
    assert run(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "harness judge CAPTURE... --attack cpl --prior none" in page and "harness evaluate" not in page


def test_an_impossible_attack_cannot_tell(federation: Federation, judge: Any) -> None:
    folders = federation(2, truth=False, batch=2)
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "analytic")
    (made,) = document["estimates"]
    assert code == 0 and made["estimates"] == ["could not tell"] * 2 and made["left"] is None and made["reason"]


def test_a_folder_that_is_used_again_keeps_nothing_of_the_first(federation: Federation) -> None:
    (folder,) = federation(1)
    with np.load(folder / "before.npz") as archive:
        arrays = dict(archive)
    write_capture(folder, CaptureRecord(**FACTS), arrays, gradient=arrays)
    assert sorted(path.name for path in folder.iterdir()) == ["before.npz", "capture.json", "gradient.npz"]


@pytest.mark.parametrize("named", [pytest.param(True, marks=pytest.mark.slow), False])
def test_one_client_in_several_rounds_is_one_draw(named: bool, federation: Federation, judge: Any) -> None:
    """Twelve rounds of three clients say as much of other clients as three rounds do, and an example counts once."""
    folders = in_rounds(federation(12, apart=True))
    for number, folder in enumerate(folders if named else ()):
        edit(folder, client=f"client {number % 3}")
    _, document, _ = judge(folders, "--attack", "cpl")
    (told,) = document["examples"]
    cell = next(one for one in document["results"]["cells"] if one["role"] == "cell")
    assert (told["clients"], told["examples"], told["back"]) == (3 if named else 12, 12, 12)
    low, high = cell["asr"]["strict"]["ci95"]
    assert high == 1.0 and (low < 0.4) is named and "12 of the 12 distinct examples of" in told["said"]


def test_an_example_of_several_epochs_is_one_victim(judge: Any, tmp_path: Path) -> None:
    images, labels = digits(2, 1)
    for number in range(2):
        network = build_module("mlp", (1, 8, 8), 10, seed=number)
        made, facts = sgd()(network), FACTS | {"local_steps": 3, "epochs": 3, "examples": 1}
        with captured(network, tmp_path / str(number), made, **facts) as capture:
            for _ in range(3):
                capture.batch(images[number], labels[number])
                made.zero_grad()
                nn.functional.cross_entropy(network(images[number]), labels[number]).backward()
                made.step()
    _, document, _ = judge([tmp_path / "0", tmp_path / "1"], "--attack", "cpl")
    (told,) = document["examples"]
    assert (told["clients"], told["examples"]) == (2, 2) and document["images_each"] == 3
    assert "counted once however often it was trained on" in told["said"]


@pytest.mark.slow
def test_several_steps_tell_labels_and_members_and_one_step_more(
    federation: Federation, judge: Any, tmp_path: Path
) -> None:
    """Parts of it are in test_beside.py."""
    _, document, _ = judge(federation(3, batch=4, steps=2), "--prior", "digits", "--attack", "learned")
    labels, members, alone = document["measured"]
    assert labels["count"] == 24 and labels["p_value"] < 0.001
    assert members["count"] == 24 and members["p_value"] < 0.001 and members["held"]
    assert alone["held"] and alone["by"] == "learned" and "leaks, as it must" in alone["said"]
    assert run(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    page = html.unescape((tmp_path / "page.html").read_text())
    assert all(one["said"] in page for one in document["measured"])
    # Who took part decides over the place too; clients of one step do not.
    cells = [cell for cell in document["results"]["cells"] if cell["role"] == "cell"]
    assert [cell["attack"] for cell in cells] == ["learned", "identify"]
