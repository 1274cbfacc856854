"""Is the declared defense on? Honest clients pass every check, and what is planted is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from federation_cases import RATE, Case, Client, run_case, suite_cases, summary
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.capture import CaptureRecord
from harness.cli import run
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.judging.capture import read_capture
from harness.judging.checks import ON_GRID, bare, checks_of
from harness.judging.declared import cells_of
from harness.judging.evidence import Check, Evidence, ranks_of
from harness.judging.explained import explained
from harness.judging.federation import gathered
from harness.judging.framework_defenses import Declared, draws_batches, translated
from harness.judging.noise_checks import (
    ANEW,
    BOUND,
    ENOUGH,
    NO_MORE,
    SHAPE,
    UNROUNDED,
    beyond_others,
    crowded,
    distance,
    fits_facts,
    moved,
    noise_beyond,
    shape,
    tailless,
)

Federation = Callable[..., list[Path]]
CDP = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 6.0, "clipping": "whole"}}


def checked(folders: list[Path]) -> dict[str, Check]:
    captured = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")
    return {check.name: check for check in checks_of(captured, cell)}


CASES = {case.about: case for case in suite_cases()}
QUICK = (
    "noise on each of four batches that make a step", "noise on the mean of each of four batches",
    "a batch", "weak noise", "signs of numbers", "Poisson batches without noise", "two bits for a number",
    "shared noise on a grid", "pruned, then noise", "noise off, where it would be weak",
    "biases left out", "the last bias left out in all", "the same noise in all rounds",
    "masks of a secure sum in the place of noise",
    "the same noise in all tensors", "the same noise in clients of two sizes", "batches of two sizes", "no clip",
    "clipped per tensor, not as a whole", "Laplace noise of the same level", "uniform noise of the same level",
    "rounded behind its noise, and not declared",
    "statistics of BatchNorm sent raw", "an array without a dimension", "noise on statistics of BatchNorm too",
    "a tenth sent, a hundredth declared", "no integers",
)  # fmt: skip


@pytest.mark.parametrize("about", QUICK)
def test_the_honest_are_not_accused_and_what_is_planted_is_named(about: str, tmp_path: Path) -> None:
    checks = run_case(CASES[about], tmp_path, truth=False)
    assert CASES[about].as_expected(checks), checks


def test_that_no_noise_is_declared_is_said_once(federation: Federation) -> None:
    declared = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 0.0, "clipping": "whole"}}
    found = checked(federation(2, declared=declared, clip=1.0))
    assert [(name, check.outcome) for name, check in found.items()] == [(BOUND, "holds"), (ENOUGH, "cannot tell")]


@pytest.mark.parametrize(("name", "settings"), [("fed_sdp", {"noise_at": "aggregate"}), ("global_dp", {})])
def test_a_defense_of_the_server_is_not_looked_for_at_clients(
    federation: Federation, name: str, settings: dict[str, Any]
) -> None:
    found = checked(federation(2, declared={"name": name, "settings": settings}))
    assert found[ENOUGH].outcome == "cannot tell" and "declared at the server" in found[ENOUGH].detail


@pytest.mark.parametrize("about", ["Poisson batches without noise",
                                   "Poisson batches without noise of a size that nobody gave"])  # fmt: skip
def test_a_drawn_batch_without_noise_is_not_accused_of_its_size(about: str, tmp_path: Path) -> None:
    checks = run_case(CASES[about], tmp_path)
    assert CASES[about].as_expected(checks), checks


QSGD, BITS = {"name": "paper:QSGD", "settings": {}}, {"name": "quantization", "settings": {"bits": 4}}


@pytest.mark.parametrize("declared", [QSGD, BITS, {"name": "paper:signSGD", "settings": {"scaled": True}}])
@pytest.mark.parametrize("really", [True, False])
def test_numbers_that_are_declared_to_be_rounded_are_few(
    declared: dict[str, Any], really: bool, tmp_path: Path
) -> None:
    case = replace(CASES["two bits for a number"], declared=Declared.model_validate(declared))
    sent = replace(case, really=None if really else Declared(name="none"))
    (check,) = [one for one in run_case(sent, tmp_path, truth=False) if one.name == ON_GRID]
    assert check.outcome == ("holds" if really else "violated")


@pytest.mark.parametrize(
    "declared", [QSGD, {"name": "nvflare:PercentilePrivacy", "settings": {"percentile": 0.0, "gamma": 1e-3}}]
)
def test_that_what_is_changed_number_by_number_has_any_rank(declared: dict[str, Any], tmp_path: Path) -> None:
    case = replace(CASES["two bits for a number"], declared=Declared.model_validate(declared), batch=2, model="mlp2")
    assert not case.alarms(run_case(case, tmp_path, truth=False))


@pytest.mark.parametrize("really", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("quantization", {"kind": kind}) for kind in ("float16", "bfloat16", "normfloat4")]
    + [("nvflare:ModelQuantizer", {"quantization_type": kind}) for kind in ("float4", "blockwise8", "adaquant")],
)
def test_numbers_that_are_declared_to_be_coarser_are(
    name: str, settings: dict[str, Any], really: bool, tmp_path: Path
) -> None:
    declared = Declared(name=name, settings=settings)
    case = replace(CASES["two bits for a number"], declared=declared, model="logistic")
    sent = replace(case, really=None if really else Client(batch=4))
    (check,) = [one for one in run_case(sent, tmp_path, truth=False) if one.name == ON_GRID]
    assert check.outcome == ("holds" if really else "violated"), check.detail


@pytest.mark.parametrize(("kind", "outcome"), [("adaquant", "violated"), ("blockwise8", "violated")])
def test_that_steps_of_adam_have_few_sizes_is_no_rounding(kind: str, outcome: str, tmp_path: Path) -> None:
    declared = Declared(name="nvflare:ModelQuantizer", settings={"quantization_type": kind})
    case = replace(CASES["two bits for a number"], declared=declared, model="mlp", sent_as="update")
    case = replace(case, really=Client(batch=4, adam=True), said={"optimizer": f"adam:lr={RATE}"})
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == ON_GRID]
    assert check.outcome == outcome, check.detail


def test_weights_that_are_rounded_and_not_their_change_accuse_nobody(tmp_path: Path) -> None:
    declared = Declared(name="nvflare:ModelQuantizer", settings={"quantization_type": "float16"})
    case = replace(CASES["two bits for a number"], declared=declared, really=Client(batch=4), sent_as="half")
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == ON_GRID]
    assert check.outcome == "cannot tell"


def test_weight_decay_that_nobody_declared_is_seen_and_not_accused(tmp_path: Path) -> None:
    checks = {check.name: check for check in run_case(CASES["weight decay under weak noise"], tmp_path)}
    explained = checks["the truth explains what was sent"]
    assert explained.outcome == "cannot tell" and "weight decay" in explained.detail


HIDDEN_BY_SIGNAL = {
    "the last bias left out in all": {"clients": 1},
    "the same noise in all clients": {"declared": Declared(name="fed_cdp", settings={"clip": 4, "sigma": 0.01}),
                                      "really": Client(clip=4.0, deviation=0.04, draws="shared"), "model": "logistic"},
}  # fmt: skip


@pytest.mark.parametrize("about", HIDDEN_BY_SIGNAL)
def test_noise_that_is_missing_under_a_signal_is_seen_with_the_truth(about: str, tmp_path: Path) -> None:
    case = replace(CASES[about], **HIDDEN_BY_SIGNAL[about])
    without = {check.name: check.outcome for check in run_case(case, tmp_path, truth=False)}
    explained = run_case(case, tmp_path)[-1]
    assert "violated" not in without.values(), without
    assert explained.outcome == "violated" and "without what the truth gives" in explained.detail, explained


@pytest.mark.slow
def test_of_all_cases_every_mistake_is_named(tmp_path: Path) -> None:
    cases = suite_cases()
    counts = summary(cases, [run_case(case, tmp_path, truth=case.expected is None) for case in cases])
    assert counts["passed"]
    assert counts["honest"] >= 20 and counts["planted"] >= 20
    assert counts["alarms"] == 0 and counts["named"] == counts["planted"]


@pytest.mark.parametrize("sigma", [0.0, 1e-9, 1e-4, 0.03])
@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({"batch": 4, "of_update": True}, "cannot tell"), ({"batch": 4}, "cannot tell"),
        ({"batch": 4, "steps": 3, "each_batch": True}, "cannot tell"), ({"steps": 3, "of_update": True}, "cannot tell"),
        ({"batch": 4, "clip": float("inf"), "below": True}, "cannot tell"), ({}, "holds"),
    ],
)  # fmt: skip
def test_a_clip_of_batches_is_not_taken_for_one_of_examples(
    how: dict[str, Any], outcome: str, sigma: float, tmp_path: Path
) -> None:
    """Nor is none, where gradients are short by themselves."""
    how = dict(how)
    bound = 20.0 if how.pop("below", False) else 0.1
    declared = Declared(name="fed_cdp", settings={"clip": bound, "sigma": sigma, "clipping": "whole"})
    deviation = bound * sigma / (how.get("batch", 1) if "of_update" in how else 1)
    client = Client(**{"clip": 0.1, "deviation": deviation} | how)
    case = Case("a clip", declared, client, batch=client.batch, steps=client.steps)
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == BOUND]
    assert check.outcome == (outcome if sigma < 0.01 else "cannot tell"), check  # as so much noise hides it


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({}, "cannot tell"), ({"deviation": 0.02}, "cannot tell"), ({"deviation": 0.0, "steps": 2}, "cannot tell"),
        ({"deviation": 0.0}, "violated"), ({"deviation": 1e-3}, "violated"), ({"noisy": "last"}, "violated"),
    ],
)  # fmt: skip
def test_noise_that_is_off_under_a_step_of_adam_is_seen(how: dict[str, Any], outcome: str, tmp_path: Path) -> None:
    """Pixels that are 0 give gradients of 0, which noise leaves nowhere. Whether it is a little weaker, nobody sees."""
    declared = Declared(name="fed_cdp", settings={"clip": 0.1, "sigma": 1.0, "clipping": "whole"})
    client = Client(**{"clip": 0.1, "deviation": 0.1, "batch": 4, "adam": True} | how)
    case = Case("a step of Adam", declared, client, batch=4, steps=client.steps)
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == ENOUGH]
    assert check.outcome == outcome and (outcome == "cannot tell" or "it is off or weaker there" in check.detail), check


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_what_adam_hides_is_said_to_be_hidden_and_accuses_nobody(sigma: float, steps: int, tmp_path: Path) -> None:
    declared = Declared(name="fed_cdp", settings={"clip": 1.0, "sigma": sigma, "clipping": "whole"})
    client = Client(clip=1.0, deviation=sigma, batch=2, steps=steps, adam=True)
    found = run_case(Case("Adam", declared, client, said={"optimizer": f"adam:lr={RATE}"}), tmp_path, truth=False)
    of_noise = {BOUND, ENOUGH, SHAPE, ANEW, UNROUNDED} if sigma else {BOUND}
    hidden = {check.name for check in found if check.detail.startswith("steps of the optimizer hide how")}
    assert hidden == of_noise and {check.outcome for check in found} == {"cannot tell"}, found


@pytest.mark.parametrize("actual", [0.1, 0.7])
def test_short_steps_of_adam_at_another_rate_accuse_nobody_of_noise_that_is_off(actual: float, tmp_path: Path) -> None:
    declared = Declared(name="fed_cdp", settings={"clip": 0.1, "sigma": 1.0, "clipping": "whole"})
    client = Client(clip=0.1, deviation=0.1, batch=4, adam=True)
    case = Case("another rate", declared, client, batch=4, said={"learning_rate": RATE / actual})
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == ENOUGH]
    assert check.outcome == "cannot tell" and "this learning_rate: correct it" in check.detail, check


@pytest.mark.parametrize(("deviation", "violated"), [(0.1, False), (0.0, True)])
@pytest.mark.parametrize("steps", [1, 3])
def test_with_the_truth_it_is_seen_under_more_steps_too(
    deviation: float, violated: bool, steps: int, tmp_path: Path
) -> None:
    declared = Declared(name="fed_cdp", settings={"clip": 0.1, "sigma": 1.0, "clipping": "whole"})
    client = Client(clip=0.1, deviation=deviation, batch=4, adam=True, steps=steps)
    check = run_case(Case("steps of Adam", declared, client, batch=4, steps=steps, model="logistic"), tmp_path)[-1]
    assert (check.outcome == "violated") == violated and ("the noise is off" in check.detail) == violated, check


def test_a_capture_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["judge"]) == 2
    assert "add folders of captures" in capsys.readouterr().err


LAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "normal": lambda random: torch.randn(200, 800, generator=random),
    "laplace": lambda random: torch.empty(200, 800).exponential_(2**0.5, generator=random)
    * (2 * torch.randint(2, (200, 800), generator=random) - 1),
    "uniform": lambda random: 3**0.5 * (2 * torch.rand(200, 800, generator=random) - 1),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("signal", [0.0, 0.3, 3.0])
def test_the_shape_of_noise_is_seen_and_no_signal_makes_gaussian_noise_another(law: str, signal: float) -> None:
    """200 draws of 800 coordinates: p-values of Gaussian noise are never too small, under whatever signal."""
    random = torch.Generator().manual_seed(0)
    sent = (LAWS[law](random) + signal * (torch.arange(800) % 3 - 1)).double()
    p_values = np.minimum(crowded(sent, np.zeros(200)), tailless(sent, np.zeros(200))) * 2
    if law == "normal":
        assert all((p_values < share).mean() <= 1.5 * share for share in (0.02, 0.1, 0.5))
    elif not signal:
        assert (p_values < 1e-3).mean() > 0.9


@pytest.mark.parametrize(("end", "least", "most"), [(9.0, 1e-3, 1.0), (3.0, 0.0, 1e-6)])
def test_noise_that_is_cut_at_three_deviations_has_no_tails(end: float, least: float, most: float) -> None:
    random = torch.Generator().manual_seed(0)
    sent = torch.nn.init.trunc_normal_(torch.empty(5, 8000, dtype=torch.float64), a=-end, b=end, generator=random)
    p_values = tailless(sent, np.zeros(5))
    assert least <= p_values.min() and p_values.max() <= most


@pytest.mark.parametrize("law", LAWS)
def test_the_shape_of_noise_is_seen_in_many_small_tensors_together(law: str) -> None:
    """50 clients, whose largest tensor has 24 coordinates."""
    random = torch.Generator().manual_seed(1)
    tensors = [one.double() for one in LAWS[law](random)[:50, :40].split((24, 16), dim=1)]
    evidence: Any = SimpleNamespace(
        level=1.0, unit=1.0, noise=SimpleNamespace(law="gaussian"), tensors=lambda: tensors,
        layout=SimpleNamespace(names=("weight", "bias")), captured=SimpleNamespace(grain=torch.zeros(50)),
    )  # fmt: skip
    found = shape(evidence, Check(ENOUGH, "holds", ""))
    assert found.outcome == ("holds" if law == "normal" else "violated"), found
    assert law == "normal" or "values of all that was sent" in found.detail


SIGNAL = 50.0


@pytest.mark.parametrize(("times", "alarms"), [(1.0, False), (0.5, True), (1.4, True)])
def test_noise_is_measured_under_a_signal_of_low_rank(times: float, alarms: bool) -> None:
    """Rank 2 in 24 x 30, far above the noise: the p-values of 400 draws are never too small."""
    random = torch.Generator().manual_seed(0)
    rows, columns = (SIGNAL * torch.randn(400, size, 2, generator=random, dtype=torch.float64) for size in (24, 30))
    noise = times * torch.randn(400, 24, 30, generator=random, dtype=torch.float64)
    weaker, stronger, found = noise_beyond(rows @ columns.mT + noise, 2, 1.0, np.zeros(400))
    assert abs(found.mean() / times - 1) < 0.05
    for p_values, wrong in ((weaker, times < 1), (stronger, times > 1)):
        for share in (0.01, 0.1, 0.5):
            often = (p_values < share).mean()
            assert often > 0.9 if alarms and wrong else often <= share


def test_beyond_a_rank_is_what_the_best_of_that_rank_leaves() -> None:
    matrix = torch.diag(torch.tensor([5.0, 4.0, 3.0]))[None]
    assert distance(matrix, 1).item() == pytest.approx(5.0) and distance(matrix, 3).item() == 0.0


def test_ranks_count_the_rows_that_a_layer_multiplies() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(8, 4), nn.Linear(4, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(images[:, 0]).mean(1))

    facts = {"model": "mlp", "image_shape": (1, 6, 8), "classes": 3, "learning_rate": 0.1, "batch_size": 5}
    assert ranks_of(Tokens(), CaptureRecord(**facts), 5) == {"embed.weight": 30, "head.weight": 5}


def test_a_weight_that_is_a_matrix_elsewhere_has_no_rank_of_its_layer() -> None:
    class Decoder(nn.Module):
        """Goes back by the matrix that it came by, as an autoencoder with one weight does."""

        def __init__(self) -> None:
            super().__init__()
            self.encode, self.head = nn.Linear(48, 4), nn.Linear(48, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.encode(images.flatten(1)) @ self.encode.weight)

    facts = {"model": "mlp", "image_shape": (1, 6, 8), "classes": 3, "learning_rate": 0.1, "batch_size": 5}
    assert ranks_of(Decoder(), CaptureRecord(**facts), 5) == {"head.weight": 5}


def test_the_clip_of_an_update_is_divided_by_its_steps(federation: Federation) -> None:
    """Without noise the norm is at the bound to rounding; half as much again is beyond it."""
    how: dict[str, Any] = {"of_update": True, "steps": 4, "batch": 2}
    declared = {"name": "fed_sdp", "settings": {"clip": 0.2 * 0.05 * 4, "sigma": 0, "clipping": "whole",
                                                "noise_at": "client"}}  # fmt: skip
    assert checked(federation(2, declared=declared, clip=0.2, **how))[BOUND].outcome == "holds"
    assert checked(federation(2, declared=declared, clip=0.3, **how))[BOUND].outcome == "violated"


def test_a_defense_of_updates_is_not_looked_for_in_gradients(federation: Federation) -> None:
    declared = {"name": "LocalDpMod", "settings": {"clipping_norm": 1, "sensitivity": 1, "epsilon": 1, "delta": 1e-5}}
    folders = federation(2, declared=declared)
    for folder in folders:
        with np.load(folder / "after.npz") as after:
            np.savez(folder / "gradient.npz", allow_pickle=False, **after)
        (folder / "after.npz").unlink()
    found = checked(folders)
    assert {found[name].outcome for name in (BOUND, ENOUGH)} == {"cannot tell"}
    assert all("capture after.npz or update.npz" in found[name].detail for name in (BOUND, ENOUGH))


@pytest.mark.parametrize(
    ("name", "meant"), [("localdpmod", "LocalDpMod"), ("make_private_with_epsilon", "make_private")]
)
def test_a_slip_in_a_framework_s_name_is_told(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown defense '{name}'; did you mean '{meant}'"):
        translated(Declared(name=name))


def test_a_defense_of_ones_own_may_be_called_like_a_framework_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEFENSES._entries, "localdpmod", object)
    assert translated(Declared(name="localdpmod")) == Declared(name="localdpmod")


def test_an_engine_of_opacus_is_known_by_its_class() -> None:
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    made, engine = (Declared(name=name, settings=settings) for name in ("make_private", "opacus.PrivacyEngine"))
    assert translated(engine) == translated(made) and draws_batches(engine)


def test_the_law_of_noise_is_told_in_the_declared_unit(tmp_path: Path) -> None:
    case = CASES["uniform noise of the same level"]
    (check,) = [one for one in run_case(case, tmp_path, truth=False) if one.name == SHAPE]
    assert check.outcome == "violated" and f"of deviation {RATE * 6:.3g} lets" in check.detail


def test_more_noise_is_told_and_no_violation(federation: Federation) -> None:
    found = checked(federation(2, declared=CDP, clip=1.0, deviation=9.0))
    assert found[NO_MORE].outcome == "more than declared" and "noise of deviation 8.9" in found[NO_MORE].detail
    assert found[BOUND].outcome == "cannot tell" and found[ENOUGH].outcome == "holds"


def told(folders: list[Path], root: Path) -> Check:
    captured = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")
    return explained(captured, cell, root)


EXPLAINED: dict[str, dict[str, Any]] = {
    "no defense": {}, "two steps of batches": {"batch": 3, "steps": 2},
    "a clip": {"declared": CDP | {"settings": CDP["settings"] | {"sigma": 0.0}}, "clip": 1.0},
    "noise": {"declared": CDP, "clip": 1.0, "deviation": 6.0, "batch": 2},
}  # fmt: skip


@pytest.mark.parametrize("how", EXPLAINED.values(), ids=EXPLAINED.keys())
def test_the_truth_explains_an_honest_client(federation: Federation, how: dict[str, Any], tmp_path: Path) -> None:
    check = told(federation(4, **how), tmp_path)
    assert check.outcome == "holds", check


UNEXPLAINED: dict[str, dict[str, Any]] = {
    "a tenth more noise": {"declared": CDP, "clip": 1.0, "deviation": 6.6},
    "a tenth less noise": {"declared": CDP, "clip": 1.0, "deviation": 5.4},
    "a clip that nobody declared": {"clip": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("how", UNEXPLAINED.values(), ids=UNEXPLAINED.keys())
def test_it_does_not_explain_another_client(federation: Federation, how: dict[str, Any], tmp_path: Path) -> None:
    assert told(federation(4, **how), tmp_path).outcome == "violated"


def test_nor_another_learning_rate(federation: Federation, tmp_path: Path) -> None:
    folders = federation(2)
    for folder in folders:
        facts = folder / "capture.json"
        facts.write_text(facts.read_text().replace("0.05", "0.1"))
    check = told(folders, tmp_path)
    assert check.outcome == "violated" and "check learning_rate" in check.detail


@pytest.mark.parametrize(
    ("kind", "weights", "said"),
    [
        ("after", 0.0, "call it update.npz"), ("update", 1.0, "call it after.npz"),
        ("after", 4.0, "holds 4 times the weights (of client 1): weights are captured before they are weighted"),
        ("after", 0.6, "holds 0.6 times the weights (of client 1): weights are captured before they are weighted"),
        ("after", 0.2, "holds 0.2 times the weights (of client 1): weights are captured before they are weighted"),
        ("update", 0.2, "holds 0.2 times the weights (of client 1): call it after.npz, without the factor"),
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_named(
    federation: Federation, kind: str, weights: float, said: str, tmp_path: Path
) -> None:
    """So many times the weights, or their change for none."""
    folders = federation(2)
    for folder in folders:
        before, after = (dict(np.load(folder / f"{stem}.npz")) for stem in ("before", "after"))
        (folder / "after.npz").unlink()
        held = {name: np.float32(weights) * after[name] if weights else after[name] - before[name] for name in before}
        np.savez(folder / f"{kind}.npz", **held)
    check = told(folders, tmp_path)
    assert check.outcome == "violated" and check.detail.endswith(said), check


def test_a_part_that_came_back_as_it_was_is_named(federation: Federation, tmp_path: Path) -> None:
    folders = federation(2)
    for folder in folders:
        before, after = (dict(np.load(folder / f"{stem}.npz")) for stem in ("before", "after"))
        first = next(iter(before))
        np.savez(folder / "after.npz", **after | {first: before[first]})
    check = told(folders, tmp_path)
    assert check.outcome == "violated" and f"{first} came back as it was: name it in frozen" in check.detail


def test_weight_decay_is_no_violation_without_noise_either(federation: Federation, tmp_path: Path) -> None:
    check = told(federation(2, weight_decay=0.5), tmp_path)
    assert check.outcome == "cannot tell" and "as weight decay does (weight_decay about 0.5)" in check.detail


@pytest.mark.parametrize("size", [8, 11])
def test_a_poisson_batch_is_explained(federation: Federation, size: int, tmp_path: Path) -> None:
    """The sum of 11 is divided by the expected 8: said by both numbers, or by the expected one and the truth."""
    declared = {"name": "fed_cdp", "settings": {"clip": 1.0, "sigma": 1.0, "clipping": "whole"}}
    folders = federation(2, declared=declared, clip=1.0, deviation=1.0, batch=11, expected=8)
    for folder in folders:
        facts = json.loads((folder / "capture.json").read_text()) | {"batch_size": size}
        if size == 11:
            facts["expected_batch_size"] = 8
        (folder / "capture.json").write_text(json.dumps(facts))
    assert told(folders, tmp_path).outcome == "holds"
    assert "violated" not in {check.outcome for check in checked(folders).values()}


@pytest.mark.parametrize(("times", "half"), [(0.01, True), (1e-5, False)])
def test_rounding_of_what_is_sent_is_no_violation(
    federation: Federation, times: float, half: bool, tmp_path: Path
) -> None:
    """Half precision is seen and played again; of single precision what it loses is no proof."""
    folders = federation(2)
    for folder in folders:
        with np.load(folder / "after.npz") as archive:
            after = dict(archive)
        with np.load(folder / "before.npz") as archive:
            # A smaller step, whose rounding is a large part of it.
            small = {name: one + np.float32(times) * (after[name] - one) for name, one in archive.items()}
        np.savez(folder / "after.npz", **{name: one.astype("f2" if half else "f4") for name, one in small.items()})
        facts = json.loads((folder / "capture.json").read_text()) | {"learning_rate": 0.05 * times}
        (folder / "capture.json").write_text(json.dumps(facts))
    check = told(folders, tmp_path)
    assert check.outcome == ("holds" if half else "cannot tell"), check
    assert half or "rounding of the floats" in check.detail


@pytest.mark.parametrize("steps", [1, 3])
def test_more_steps_than_declared_are_seen(federation: Federation, steps: int) -> None:
    folders = federation(1, truth=False, steps=steps)
    for folder in folders:
        facts = json.loads((folder / "capture.json").read_text()) | {"local_steps": 1}
        (folder / "capture.json").write_text(json.dumps(facts))
    captured = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")
    check = fits_facts(Evidence(captured, cell))
    assert check is not None and check.outcome == ("holds" if steps == 1 else "violated"), check


@pytest.mark.parametrize(("moved", "outcome"), [(1.0, "holds"), (3.0, "cannot tell")])
def test_counts_of_batches_are_counts_or_were_changed(federation: Federation, moved: float, outcome: str) -> None:
    declared = {"name": "LocalDpMod", "settings": {"clipping_norm": 1, "sensitivity": 2, "epsilon": 8, "delta": 1e-5}}
    captured = gathered([read_capture(folder) for folder in federation(2, declared=declared)])
    counted = replace(captured, counted={"norm.num_batches_tracked": torch.full((2, 1), moved)})
    (cell,) = cells_of(counted, "test", ["cpl"], "none", "cpu")
    check = bare(Evidence(counted, cell))
    assert check is not None and check.outcome == outcome


def test_noise_that_cancels_out_among_some_clients_is_named(federation: Federation) -> None:
    """Of six clients the first five, of which no two are alike in any way."""
    captured = gathered([read_capture(one) for one in federation(6, declared=CDP, clip=1.0, deviation=6.0)])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")

    def found() -> Check:
        return {check.name: check for check in checks_of(captured, cell)}[ANEW]

    assert found().outcome == "holds"
    captured.target[4] = -captured.target[:4].sum(0)
    assert found().outcome == "violated" and "client 5 and multiples of those before it add up" in found().detail


def test_independent_noise_is_seldom_near_to_that_of_others() -> None:
    """Whatever the signals are, and of rounded values; where it depends on others, it always is."""
    random, found = torch.Generator().manual_seed(0), []
    for seed in range(300):
        noise = torch.randn(4, 12, generator=random, dtype=torch.float64)
        signal = torch.randn(1, 12, generator=random, dtype=torch.float64) * (0.0, 1.0, 30.0)[seed % 3]
        found.append(beyond_others((noise + signal).half().double(), 0.0 if seed % 3 == 0 else 0.02 * 12**0.5))
        noise[2] = 3 * noise[0] - noise[1]
        assert beyond_others(noise, 1e-9)[1] < 1e-9
    p_values = np.stack(found)
    assert (p_values[::3] <= 0.05).mean() == pytest.approx(0.05, abs=0.04)
    assert (p_values <= 0.05).mean() < 0.07 and p_values.min() > 1e-5


def test_a_stream_of_noise_that_another_client_uses_later_is_named(federation: Federation) -> None:
    captured = gathered([read_capture(one) for one in federation(3, declared=CDP, clip=1.0, deviation=6.0)])
    (cell,) = cells_of(captured, "test", ["cpl"], "none", "cpu")
    captured.target[2, 7:] = captured.target[0, :-7]
    found = {check.name: check for check in checks_of(captured, cell)}[ANEW]
    assert found.outcome == "violated" and "clients 3 and 1, 7 numbers later, differ by" in found.detail


def test_independent_noise_is_seldom_that_of_another_at_any_lag() -> None:
    """Nor are signals that both have, at any lag, under it."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 2, 150, generator=random, dtype=torch.float64)
    p_values = np.stack([moved(one + (number % 3) * one[0].roll(1).sign(), 0.0)[0] for number, one in enumerate(noise)])
    assert (p_values.min((1, 2)) <= 0.025).mean() <= 0.08 and p_values.min() > 1e-5
    found, lags = moved(torch.stack([noise[0, 0], noise[0, 0].roll(20)]), 1e-3)
    assert found[1, 0] < 1e-6 and lags[1, 0] == 20 and found[0, 1] > 1e-5 and not lags.diagonal().any()


def test_a_bound_that_has_moved_is_refused(federation: Federation) -> None:
    (folder,) = federation(1, declared={"name": "quantile", "settings": {}})
    facts = folder / "capture.json"
    facts.write_text(facts.read_text().replace('"round": 0', '"round": 3'))
    with pytest.raises(UsageError, match="remembers after 3 round"):
        checked([folder])


def test_noise_that_depends_on_the_federation_is_that_of_its_facts(federation: Federation) -> None:
    declared = {"name": "fed_sdp", "settings": {"noise_at": "client", "clip": 1.0, "sigma": 6.0}}
    (folder,) = federation(1, declared=declared)
    captured = gathered([read_capture(folder)])
    known = replace(captured, record=captured.record.model_copy(update={"clients": 5, "clients_per_round": 4}))
    (cell,) = cells_of(known, "test", ["cpl"], "none", "cpu")
    assert (cell.clients, cell.clients_per_round) == (5, 4)


# Declared, what the client really does, and what is said of the coordinates that it left out.
FILTERS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "percentile 10": ({}, {}, {"holds"}),
    "cut, so that all that is sent is alike": (
        {"percentile": 95.0, "gamma": 1e-6},
        {"percentile": 95.0, "gamma": 1e-6},
        {"holds", "cannot tell"},
    ),
    "twice as many": ({"percentile": 95.0, "gamma": 0.01}, {"percentile": 90.0, "gamma": 0.01}, {"violated"}),
    "twice as many, all alike": (
        {"percentile": 95.0, "gamma": 1e-6},
        {"percentile": 90.0, "gamma": 1e-6},
        {"violated"},
    ),
}


@pytest.mark.parametrize("case", FILTERS)
def test_filters_that_share_the_largest_are_not_accused_of_ties(case: str, federation: Federation) -> None:
    declared, done, outcomes = FILTERS[case]
    folders = federation(4, declared={"name": "PercentilePrivacy", "settings": declared})
    own = DEFENSES["nvflare:PercentilePrivacy"](**done)
    for folder in folders:
        before, after = (dict(np.load(folder / f"{name}.npz")) for name in ("before", "after"))
        layout = Layout(tuple(before), tuple(one.shape for one in before.values()))
        moved = torch.cat([torch.from_numpy(after[name] - before[name]).flatten() for name in before])
        here = RoundContext(0, 0, 1.0, Cohort(clients_per_round=1), layout, ((0, 0),))
        sent = layout.split(own.client_message(moved[None], here))
        np.savez(folder / "after.npz", **{name: before[name] + sent[name][0].numpy() for name in before})
    assert checked(folders)["coordinates are left out"].outcome in outcomes
