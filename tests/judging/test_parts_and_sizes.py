"""Captures of clients with unequal batches, of parts of a network, and of batches whose size nobody gave."""

import json
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

from federation_cases import Client, run_case, suite_cases
from harness.capture import CaptureRecord, Declared, captured, write_capture
from harness.cli import run
from harness.judging.evidence import LEVEL, Check, pooled
from harness.judging.explained import NAME
from harness.judging.noise_checks import BOUND, ENOUGH, GIVE_SIZE
from harness.testing import digits

Federation = Callable[..., list[Path]]
Judge = Callable[..., tuple[int, Any, str]]
CDP = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 6.0, "clipping": "whole"}}
CASES = {case.about: case for case in suite_cases()}


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Judge:
    def command(folders: list[Path], *options: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        out = [] if "--checks-only" in options else ["--jobs", "1", "--out", str(tmp_path / "out")]
        code = run(["judge", *map(str, folders), *options, *out, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return command


def outcomes(document: Any) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in document["checks"]}


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "capture.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Kinds of honest clients of whom a check may easily think ill, with their truth and without it.
HONEST = [
    ("small last batch", True), ("small last batch under noise", True), ("several epochs", True),
    ("batches of two sizes", True), ("Poisson batches of a size that nobody gave", True),
    ("Poisson batches of a size that nobody gave", False), ("Adam under clip and noise", False),
    ("weight decay under weak noise", False), ("noise on statistics of BatchNorm too", False),
]  # fmt: skip


@pytest.mark.parametrize(("about", "truth"), HONEST)
def test_honest_clients_of_more_kinds_are_not_accused(about: str, truth: bool, tmp_path: Path) -> None:
    checks = run_case(CASES[about], tmp_path, truth)
    assert CASES[about].as_expected(checks), checks
    assert any(check.outcome == "holds" for check in checks)


@pytest.mark.parametrize("truth", [pytest.param(True, marks=pytest.mark.slow), False])
def test_clients_with_batches_of_unequal_sizes_are_judged_together(
    truth: bool, federation: Federation, judge: Judge
) -> None:
    folders = federation(3, truth) + federation(2, truth, name="larger", batch=2)
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "cpl")
    assert code == 0 and document["captures"] == 5
    assert [one["batches"] for one in document["groups"]] == ["batches of 1", "batches of 2"]
    if not truth:
        assert [len(one["estimates"]) for one in document["estimates"]] == [3, 2]
        return
    cells = [cell for cell in document["results"]["cells"] if cell["role"] == "cell"]
    # Who took part is tested too, though nobody asked for it, and belongs to the same places.
    found = [(cell["attack"], cell["victims"], cell["batch_size"]) for cell in cells]
    assert found == [("cpl", 3, 1), ("cpl", 2, 2), ("identify", 3, 1), ("identify", 2, 2)]
    assert [row["identifies"] is None for row in document["results"]["summary"]] == [False, False]
    assert cells[0]["asr"]["strict"]["successes"] == 3


def test_all_sizes_are_counted_in_one_line(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two clients in two rounds, of one example and of two."""
    folders = federation(2) + federation(2, name="larger", batch=2)
    for folder in folders:
        facts = json.loads((folder / "capture.json").read_text())
        facts |= {"client": f"client {folder.name}", "round": int(folder.parent.name == "larger")}
        (folder / "capture.json").write_text(json.dumps(facts))
    out = str(tmp_path / "out")
    assert run(["judge", *map(str, folders), "--attack", "cpl,analytic", "--jobs", "1", "--out", out]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all captures together: cpl brings images of" in said and "of 4 back" in said
    assert "analytic brings images of 2 of 2 back and did not run on 2" in said
    assert run(["report", out, "--out", str(tmp_path / "page.html")]) == 0
    assert "2 clients in 4 captures, 1 to 2 examples each" in (tmp_path / "page.html").read_text()


def test_a_mistake_of_one_size_is_named_with_its_clients(federation: Federation, judge: Judge) -> None:
    honest = federation(2, declared=CDP, clip=1.0, deviation=6.0, batch=2)
    folders = honest + federation(2, declared=CDP, name="other", clip=1.0, deviation=0.6, batch=3)
    code, document, _ = judge(folders, "--checks-only")
    found = next(check for check in document["checks"] if check["name"] == ENOUGH)
    assert code == 3 and found["outcome"] == "violated" and found["detail"].startswith("batches of 3: ")


@pytest.mark.parametrize(("p_value", "outcome"), [(LEVEL / 3, "violated"), (LEVEL / 1.5, "cannot tell")])
def test_groups_share_the_chance_of_a_false_alarm(p_value: float, outcome: str) -> None:
    groups = [("some", [Check("one", "violated", "seen", p_value)]), ("others", [Check("one", "holds", "", 0.5)])]
    (check,) = pooled(groups)
    assert check.outcome == outcome and check.p_value == pytest.approx(2 * p_value)


@pytest.mark.parametrize(("count", "steps", "said"), [
    (3, 1, "to be of 3"), (7, 2, "to be of 3"), pytest.param(5, 2, "to be of 1", marks=pytest.mark.slow),
])  # fmt: skip
def test_fewer_true_examples_are_a_smaller_last_batch(
    count: int, steps: int, said: str, judge: Judge, tmp_path: Path
) -> None:
    """A client's examples seldom divide by the batch size; nobody has to say so."""
    images, labels = digits(1, count)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    facts: dict[str, Any] = {
        "model": "logistic", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1, "batch_size": 4,
        "local_steps": steps,
    }  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with captured(network, tmp_path / "0", **facts) as capture:
        for batch, truth in zip(images[0].split(4), labels[0].split(4), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch), truth).backward()
            optimizer.step()
            capture.batch(batch, truth)
    code, document, told = judge([tmp_path / "0"], "--attack", "cpl")
    assert code == 0 and set(outcomes(document).values()) == {"holds"} and document["images_each"] == count
    assert said in told and told.count("\n") >= 1


def part_of_a_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))


def pretrained(image_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Its first layer is the same whenever it is built, as weights that are loaded."""
    return part_of_a_network()


def drawn(image_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))


class Adapted(nn.Module):
    """A fixed layer with one of low rank beside it, named as peft does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(64, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 10, bias=False)})

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = images.flatten(1)
        return self.layer(values) + self.lora_B["default"](self.lora_A["default"](values))


@pytest.fixture
def somebodys(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somebodys")
    module.pretrained, module.drawn = pretrained, drawn  # pyright: ignore[reportAttributeAccessIssue]
    module.adapted = lambda *_: Adapted()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "somebodys", module)


def trained(
    folder: Path, network: nn.Module, model: str, kept: Callable[[str], bool], whole: bool = True,
    noise: float = 0.0, **facts: Any,
) -> Path:  # fmt: skip
    """One step of all that ``kept`` says, which alone is sent; ``before`` is ``whole`` or holds no more than that."""
    images, labels = digits(1, 1)
    for name, one in network.named_parameters():
        one.requires_grad_(kept(name))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    nn.functional.cross_entropy(network(images[0]), labels[0]).backward()
    torch.optim.SGD([one for one in network.parameters() if one.requires_grad], lr=0.1).step()
    sent = {name: value + noise * torch.randn_like(value) for name, value in network.state_dict().items() if kept(name)}
    record = CaptureRecord(
        model=model, image_shape=(1, 8, 8), classes=10, learning_rate=0.1, batch_size=1, **facts,
    )  # fmt: skip
    start = before if whole else {name: value for name, value in before.items() if kept(name)}
    return write_capture(folder, record, start, after=sent, images=images[0], labels=labels[0])


def is_head(name: str) -> bool:
    return name.startswith("3.")


PARTS: dict[str, tuple[str, bool, int, str]] = {
    "the head alone": ("somebodys:drawn", True, 0, ""),
    "the head alone, the rest in the factory": ("somebodys:pretrained", False, 0, ""),
    "the head alone, the rest nowhere": ("somebodys:drawn", False, 2, "before.npz needs all of the network but"),
}


@pytest.mark.parametrize(("model", "whole", "code", "said"), PARTS.values(), ids=PARTS.keys())
def test_a_part_of_a_network_is_judged_where_the_rest_is_known(
    model: str, whole: bool, code: int, said: str, judge: Judge, somebodys: None, tmp_path: Path
) -> None:
    folder = trained(tmp_path / "0", part_of_a_network(), model, is_head, whole)
    ended, document, told = judge([folder], "--attack", "cpl")
    assert ended == code and said in told
    if code == 0:
        assert {*outcomes(document).values()} == {"holds"} and document["record"]["model"] == f"{model}+only(3)"


def test_what_is_frozen_is_no_part_of_checks_and_attacks(federation: Federation, judge: Judge) -> None:
    """Zeros in the place of noise are an alarm, unless the layer is declared frozen."""
    declared = CDP | {"settings": CDP["settings"] | {"sigma": 1.0}}
    (folder,) = federation(1, truth=False, declared=declared, clip=1.0, deviation=1.0)
    before, after = (dict(np.load(folder / f"{one}.npz")) for one in ("before", "after"))
    np.savez(folder / "after.npz", **after | {name: before[name] for name in ("1.weight", "1.bias")})
    assert judge([folder], "--checks-only")[0] == 3
    edit(folder, frozen=["1.weight", "1.bias"])
    code, document, _ = judge([folder], "--checks-only")
    assert code == 0 and document["record"]["model"].endswith("+only(3|5)")


SDP = {"clip": 0.5, "sigma": 1.0, "noise_at": "client", "clipping": "whole"}


@pytest.mark.parametrize(("noise", "code"), [(0.5, 0), (0.05, 3)])
@pytest.mark.parametrize("model", ["somebodys:adapted", "logistic"])
def test_adapters_are_checked_and_attacked_where_the_factory_builds_them(
    model: str, noise: float, code: int, judge: Judge, somebodys: None, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    declared = {"name": "fed_sdp", "settings": SDP}
    folder = trained(
        tmp_path / "0", Adapted(), model, lambda name: "lora" in name, noise=noise, defense=declared
    )  # fmt: skip
    ended, document, told = judge([folder], "--checks-only")
    assert ended == code and outcomes(document)[ENOUGH] == ("holds" if code == 0 else "violated")
    assert ("as they stand in the files" in told) is (model == "logistic")
    if code == 0:
        ended, _, told = judge([folder], "--attack", "cpl")
        assert ended == (0 if model == "somebodys:adapted" else 2)
        assert model == "somebodys:adapted" or "'lora_A.default.weight' (2, 64) is not the network's" in told


def opacus(sigma: float) -> dict[str, Any]:
    return {"name": "make_private", "settings": {"noise_multiplier": sigma, "max_grad_norm": 1.0}}


# How many examples were drawn, expected and said to be in the batch, the noise, and the exit code.
POISSON: dict[str, tuple[tuple[int, int, int], float, int]] = {
    "more than expected": ((9, 4, 9), 0.02, 0), "fewer": ((7, 14, 7), 0.02, 0), "a tenth": ((9, 4, 9), 0.002, 3),
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "deviation", "code"), POISSON.values(), ids=POISSON.keys())
def test_a_poisson_batch_of_unknown_size_is_not_accused(
    sizes: tuple[int, int, int], deviation: float, code: int, federation: Federation, judge: Judge
) -> None:
    """A tenth of the noise is no matter of the size."""
    batch, expected, size = sizes
    folders = federation(2, False, opacus(0.02), clip=1.0, deviation=deviation, batch=batch, expected=expected)
    for folder in folders:
        edit(folder, batch_size=size)
    ended, document, _ = judge(folders, "--checks-only")
    found = {check["name"]: check for check in document["checks"]}
    assert ended == code
    if code == 0:
        unsure = [check for check in found.values() if GIVE_SIZE in check["detail"]]
        assert unsure and {check["outcome"] for check in unsure} == {"cannot tell"}
    else:
        assert found[ENOUGH]["outcome"] == "violated"


@pytest.mark.parametrize("name", ["make_private", "fed_cdp"])
def test_norms_of_a_larger_poisson_batch_are_no_accusation(name: str, tmp_path: Path) -> None:
    """Seven examples of one class, where four were expected; behind a batch of one size it is an alarm."""
    case, fixed = CASES["Poisson batches of the expected size"], {"clip": 1.0, "sigma": 0.01, "clipping": "whole"}
    if name == "fed_cdp":
        case = replace(case, declared=Declared(name=name, settings=fixed))
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == BOUND]
    assert check.outcome == "cannot tell" and GIVE_SIZE in check.detail
    known = replace(case, said={"batch_size": 4, "expected_batch_size": 4.0})
    (check,) = [one for one in run_case(known, tmp_path, truth=False) if one.name == BOUND]
    assert check.outcome == "violated"


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({}, "cannot tell"), ({"deviation": 0.05}, "violated"), ({"deviation": 0.2}, "violated"),
     ({"deviation": 0.02, "per_layer": True}, "violated")],
)  # fmt: skip
def test_a_poisson_batch_has_its_size_in_the_signal_as_in_the_noise(
    changes: dict[str, Any], outcome: str, tmp_path: Path
) -> None:
    """Half the noise, twice the noise, or a clip per tensor beside it are no matter of the size."""
    case = CASES["Poisson batches of a size that nobody gave"]
    assert isinstance(case.really, Client)
    level = 0.02 if "per_layer" in changes else 0.1
    declared = Declared(name="make_private", settings={"noise_multiplier": level, "max_grad_norm": 1.0})
    really = replace(case.really, **{"deviation": level} | changes)
    found = run_case(replace(case, declared=declared, really=really), tmp_path)
    (check,) = [one for one in found if one.name == NAME]
    assert check.outcome == outcome and (GIVE_SIZE in check.detail) == (outcome == "cannot tell"), check


def test_batches_that_are_declared_not_to_be_drawn_are_of_their_size(tmp_path: Path) -> None:
    case, settings = CASES["Poisson batches of the expected size"], {"noise_multiplier": 0.01, "max_grad_norm": 1.0}
    fixed = Declared(name="make_private", settings=settings | {"poisson_sampling": False})
    (check,) = [
        one for one in run_case(replace(case, declared=fixed), tmp_path, truth=False) if one.name == BOUND
    ]  # fmt: skip
    assert check.outcome == "violated"


def test_steps_on_other_batches_with_their_truth_are_refused_with_the_way_out(
    federation: Federation, judge: Judge
) -> None:
    folders = federation(1, True, opacus(0.02), clip=1.0, deviation=0.02, batch=4, steps=2, expected=3)
    edit(folders[0], batch_size=3, expected_batch_size=3)
    ended, _, told = judge(folders)
    assert ended == 2 and "Poisson batches of different sizes, leave the truth out" in told
    (folders[0] / "truth.npz").unlink()
    assert judge(folders, "--checks-only")[0] == 0


def test_of_a_poisson_batch_of_unknown_size_no_is_not_said(federation: Federation, judge: Judge) -> None:
    folders = federation(2, truth=False, declared=opacus(6.0), clip=1.0, deviation=6.0)
    _, document, _ = judge(folders, "--prior", "digits", "--attack", "analytic")
    (made,) = document["estimates"]
    assert made["estimates"] == ["could not tell"] * 2 and GIVE_SIZE in made["reason"]


def test_exchanged_truths_are_told(federation: Federation, judge: Judge) -> None:
    folders = federation(2)
    truths = [(folder / "truth.npz").read_bytes() for folder in folders]
    for folder, truth in zip(folders, reversed(truths), strict=True):
        (folder / "truth.npz").write_bytes(truth)
    code, document, _ = judge(folders, "--attack", "cpl")
    assert code == 3 and "client 1 sent fits the truth of client 2 better" in document["checks"][-1]["detail"]


def test_half_precision_with_nan_is_one_line(federation: Federation, judge: Judge) -> None:
    folders = federation(2)
    after = {name: value.astype(np.float16) for name, value in np.load(folders[1] / "after.npz").items()}
    after["1.bias"][0] = np.nan
    np.savez(folders[1] / "after.npz", **after)
    for options in (("--attack", "cpl"), ("--checks-only",)):
        code, document, said = judge(folders, *options)
        assert (code, document) == (2, None) and said.count("\n") == 1
        assert "'1.bias' holds NaN or infinity: the client's training diverged" in said


def _cast(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda value: torch.from_numpy(value).to(getattr(torch, kind)).float().numpy()


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_weights_in_half_precision_are_read_so_whoever_says_it(
    federation: Federation, judge: Judge, kind: str, said: bool
) -> None:
    """Files of single precision may hold them; without the truth too, of other numbers of clients than stand-ins."""
    folders = federation(2, truth=False)
    for folder in folders:
        np.savez(folder / "after.npz", **{n: _cast(kind)(one) for n, one in np.load(folder / "after.npz").items()})
        edit(folder, **{"dtype": kind} if said else {})
    code, document, line = judge(folders, "--prior", "digits", "--attack", "cpl")
    assert code == 0 and set(outcomes(document).values()) == {"holds"} and (kind in line) == (not said)
    assert document["estimates"][0]["estimates"] == ["plausibly reconstructed"] * 2, document["estimates"]


def test_adam_is_judged_without_the_truth(federation: Federation, judge: Judge) -> None:
    folders = federation(2, truth=False, adam=True)
    for folder in folders:
        edit(folder, optimizer={"name": "Adam", "lr": 0.05})
    code, document, _ = judge(folders, "--prior", "digits", "--attack", "cpl")
    assert code == 0 and len(document["estimates"][0]["estimates"]) == 2


def test_no_truth_in_some_captures_is_one_line(federation: Federation, judge: Judge) -> None:
    folders = federation(2)
    (folders[1] / "truth.npz").unlink()
    code, document, said = judge(folders, "--attack", "cpl")
    assert (code, document) == (2, None) and said.count("\n") == 1 and "has no truth and others have" in said
