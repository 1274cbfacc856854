"""Servers that tamper: the same round with other weights, rows that say so, and theorems that hold for them too."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from harness.attacks import ATTACKS, run_attack
from harness.base.building import build
from harness.base.errors import UsageError
from harness.defenses import DEFENSES, Cohort, Defense, Operation, Point
from harness.defenses.fed_cdp import FedCDP
from harness.defenses.registry import validated_defense
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.sending import Sent
from harness.experiment import check_adversary
from harness.federation.context import RoundContext
from harness.federation.defense import LocalStep
from harness.models import RowModel

Harness = Callable[..., Any]
TAMPERING: dict[str, Any] = {
    "attack": "imprint", "attack_args": {"bins": 64}, "prior": "auto", "batch_size": 8, "victims": 6,
}  # fmt: skip


@pytest.fixture
def scene(small: Any) -> Any:
    def of(chunk: int = 64, **settings: Any) -> Scene:
        return Stage(Path("no data root"), chunk).set(small.cell(**{**TAMPERING, **settings}))

    return of


@pytest.fixture(scope="module")
def document(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    common = TAMPERING | {"victims": 8}
    cells = [
        *(small.cell(**common, tap=tap) for tap in ("T2.step", "T0.in")),
        small.cell(**common, defense="fed_cdp"),
        small.cell(**common | {"attack": "blind", "attack_args": {}}),
    ]
    return small.play(cells, tmp_path_factory.mktemp("tampering"))


def test_an_undefended_batch_comes_back_and_a_defended_one_does_not(document: Any) -> None:
    step, update, noisy, honest = (cell for cell in document.cells if cell.role == "cell")
    assert document.valid and step.asr["strict"].rate > 0.7
    assert update.asr["strict"] == step.asr["strict"] and step.verdict == update.verdict == "leaks"
    assert noisy.asr["strict"].rate <= noisy.kappa.ci95[1] and noisy.verdict != "leaks"
    assert {check.name: check.held for check in noisy.controls} == {
        "positive": True, "positive_sigma0": True, "swap": True, "noise_x100": True, "blind": True,
    }  # fmt: skip
    assert noisy.bound.theorem and all(event.p_value > 1e-3 for event in noisy.bound.events if event.p_value)
    assert (step.tier, honest.tier) == ("tampering", "informed") and honest.detectable is None


@pytest.fixture
def without_its_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed-CDP that says what it clips, and sends a million times as much."""
    applied = FedCDP.client_step

    def too_loud(self: FedCDP, per_example: Any, context: RoundContext) -> LocalStep:
        quiet, made = (applied(self, per_example, each) for each in (replace(context, noise_scale=0.0), context))
        return replace(made, step=made.step + 1e6 * quiet.step)

    monkeypatch.setattr(FedCDP, "client_step", too_loud)


@pytest.mark.usefixtures("without_its_clip")
def test_a_clip_that_is_not_there_makes_a_tampering_row_invalid(small: Any, tmp_path: Path) -> None:
    """The theorem is one of each image, however many a client has in its batch."""
    planted = small.play([small.cell(**TAMPERING, defense="fed_cdp")], tmp_path)
    lineup, strict = planted.cells[0].bound.events
    assert (lineup.measured.n, strict.measured.n) == (48, 48) and lineup.p_value < 1e-6
    assert "imprint against fed_cdp at T2.step did what no attacker can" in (planted.valid_reason or "")


@pytest.mark.usefixtures("without_its_clip")
def test_a_crossing_ends_the_command_with_the_code_of_an_invalid_run(harness: Harness) -> None:
    cell = "--dataset digits --model mlp --defense fed_cdp --attack imprint --attack-arg bins=64 --batch-size 8"
    made = harness("evaluate", *cell.split(), "--prior", "auto", "--victims", "6", "--surface", "2", "--no-pictures")
    assert made.code == 3
    assert "imprint against fed_cdp at T2.step did what no attacker can" in " ".join((made.out + made.err).split())


def test_a_row_says_what_a_client_could_see(document: Any) -> None:
    seen = document.cells[0].detectable
    assert seen.module == "64 units over the whole image"
    assert seen.weights == 0 and seen.dead_units_honest is None and 0 < seen.dead_units < 0.5
    assert 0 < seen.gradients <= 1 and 0 < seen.gradients_honest <= 1


def test_all_attacks_at_a_place_are_judged_together(document: Any) -> None:
    row = next(row for row in document.summary if row.tap == "T2.step" and row.defense == "none")
    assert row.tier == "tampering" and [one.tier for one in row.attacks] == ["tampering", "informed"]
    assert row.headline == "fell only to a server that tampers" and row.strongest == "imprint"


def test_chunks_change_no_bit(scene: Any) -> None:
    for settings in ({}, {"defense": "fed_cdp"}, {"tap": "T1.out", "local_steps": 2, "update_model": "avg"}):
        assert len({scene(chunk, **settings).observation.fingerprint() for chunk in (64, 2, 1)}) == 1


def test_what_is_sent_follows_from_public_data_and_from_no_victim(scene: Any) -> None:
    """Other victims are sent the same module, and beside another attack nothing is tampered with."""
    ours, theirs = (scene(seeds=(seed,)).observation for seed in (0, 1))
    layout = ours.model.layout
    sent, other = (layout.split(one.weights) for one in (ours, theirs))
    for name in ("front.linear.weight", "front.linear.bias"):
        assert torch.equal(sent[name], other[name]) and len(sent[name].unique(dim=0)) == 1
    honest = scene(attack="cpl", attack_args={}).observation
    assert torch.equal(honest.weights, ours.weights[:, -honest.weights.shape[1] :])


def test_one_stage_keeps_the_rounds_of_different_servers_apart(small: Any) -> None:
    stage = Stage(Path("no data root"), 64)
    made = [
        stage.set(small.cell(**TAMPERING | changes)).observation.weights.shape[1]
        for changes in ({}, {"attack": "cpl", "attack_args": {}}, {"attack_args": {"bins": 32}}, {})
    ]
    assert len(set(made)) == 3 and made[0] == made[3]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"defense": "fed_cdp"},
        {
            "attack": "cpl",
            "attack_args": {},
            "defense": "fed_cdp",
            "defense_args": {"convention": "per_example"},
            "tap": "T2.examples",
            "shared_weights": True,
        },
    ],
)
def test_a_smaller_scene_is_the_beginning_of_a_larger_one(small: Any, settings: Any, monkeypatch: Any) -> None:
    """So a control of some of a cell's victims plays no round again."""
    stage, fresh = Stage(Path("no data root"), 64), Stage(Path("no data root"), 64)
    large, few = (small.cell(**TAMPERING | settings | {"victims": count}) for count in (12, 8))
    whole, alone = stage.set(large), fresh.set(few)
    monkeypatch.setattr(stage, "_fresh", None)  # nothing may be played
    part = stage.set(few)
    assert part.observation.fingerprint() == alone.observation.fingerprint() != whole.observation.fingerprint()
    assert torch.equal(part.truth.images, alone.truth.images) and torch.equal(part.truth.indices, alone.truth.indices)
    assert part.detectable == alone.detectable and stage.set(few) is part and stage.set(large) is whole
    with pytest.raises(TypeError):  # fewer clients than are looked at, or other networks, are played
        stage.set(small.cell(**TAMPERING | settings | ({"victims": 2} if whole.detectable else {"seeds": (1,)})))


class TrainOnlyTheAgreed(Operation):
    points = (Point.NETWORK,)

    def refuses(self, module: str) -> bool:
        return bool(module)


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defense ``watchful`` whose clients train only the network that was agreed on."""

    @validated_defense
    class Watchful(Defense):
        name: ClassVar[str] = "watchful"

        def operations(self, cohort: Cohort) -> list[Operation]:
            return [TrainOnlyTheAgreed()]

    monkeypatch.setattr(DEFENSES, "_entries", dict(DEFENSES._entries))
    DEFENSES.register("watchful")(Watchful)


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("defense", ["watchful", "watchful+fed_cdp"])
def test_clients_may_refuse_a_module_that_was_not_agreed_on(scene: Any, defense: str) -> None:
    with pytest.raises(UsageError, match=r"no network with a module.*'imprint' puts one.*use --attack trap_weights"):
        scene(defense=defense)
    changed = {"attack": "trap_weights", "attack_args": {}, "model": "mlp2"}  # weights alone are changed: no module
    assert scene(**changed, defense=defense).detectable.module is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"clients_per_round": 1}, "1 clients are there for a secure sum, 2 are needed.*; raise clients_per_round"),
        ({"defense_args": {"threshold": 6}}, "threshold must be 2 to 4.*, not 6; choose one of these, or let more"),
        ({"defense_args": {"dropouts": 3}}, "3 of 4 clients must stay.*expect fewer dropouts"),
        ({"attack_args": {"bins": 2}}, "at most 2 images apart.*use --attack-arg loki.bins=64"),
        ({"attack": "trap_weights", "attack_args": {}}, "needs a first layer with rectified units.*use --model mlp2"),
        ({"prior": "none"}, "from public data; use --prior auto"),
    ],
)
def test_mistakes_of_sums_are_told_with_their_fix(scene: Any, settings: Any, told: str) -> None:
    common = {"attack": "loki", "defense": "secagg_ddp", "tap": "T0.in", "victims": 2, "clients_per_round": 4}
    with pytest.raises(UsageError, match=told):
        scene(**common | settings)


def test_a_tampering_attack_implies_its_server(small: Any) -> None:
    cells = [small.cell(**TAMPERING)]
    for adversary in (None, "tampering"):
        check_adversary(adversary, cells)
    with pytest.raises(UsageError, match="an honest server does not"):
        check_adversary("honest", cells)


def test_a_secure_sum_keeps_apart_whom_the_server_sends_other_kernels(scene: Any) -> None:
    """Imprint, which sends all clients the same, gets what falls alone into a bin of all their images."""
    secure = {
        "tap": "T0.in", "defense": "secagg_ddp", "defense_args": {"sigma": 0.0, "protocol": "sum"}, "victims": 3,
        "clients_per_round": 4, "batch_size": 4,
    }  # fmt: skip
    settings = {"bins": 32, "gain": 100.0}
    made = {attack: scene(**secure, attack=attack, attack_args=settings) for attack in ("loki", "imprint")}
    back = {}
    for attack, one in made.items():
        images = run_attack(build(ATTACKS, attack, settings), one.observation).images
        nearest = torch.cdist(one.truth.images.flatten(2), images.flatten(2).clamp(0, 1)).amin(2) / 8
        back[attack] = float((nearest <= 0.1).float().mean())
    assert back["loki"] >= max(0.7, back["imprint"] + 0.1)
    kernels = made["loki"].observation.model.layout.split(made["loki"].observation.weights)["front.copy.weight"]
    assert kernels.sum() == 3  # one copy of each victim's first client


def test_small_local_steps_share_one_layer(scene: Any) -> None:
    """An update of several steps gives away what their gradients would together: all their images share the bins."""
    back = {}
    for steps in (1, 4):
        settings = {"local_steps": steps, "update_model": "avg", "tap": "T1.out", "batch_size": 4}
        made = scene(**settings, learning_rate=0.01)
        images = run_attack(build(ATTACKS, "imprint", TAMPERING["attack_args"]), made.observation).images
        nearest = torch.cdist(made.truth.images.flatten(2), images.flatten(2).clamp(0, 1)).amin(2) / 8
        back[steps] = float((nearest <= 0.1).float().mean())
    assert 0.6 < back[4] <= back[1]


def test_each_client_of_a_sum_is_sent_kernels_of_its_own(small: Any) -> None:
    model = RowModel("mlp", (1, 8, 8), 10, front=build(ATTACKS, "loki", {"bins": 8}).tamper(3, 2).front)
    sent = Sent(build(ATTACKS, "loki", {"bins": 8}).tamper(3, 2), torch.rand(50, 1, 8, 8))
    weights = sent.first(model, model.initial_weights([(0, 0), (0, 1)]))
    once, everyone = (model.layout.split(flat) for flat in (weights, sent.to_all(model, weights, 3)))
    kernels = everyone["front.copy.weight"].flatten(1)
    assert torch.equal(kernels, torch.eye(3).repeat(2, 1))
    assert torch.equal(once["network.1.weight"].repeat_interleave(3, 0), everyone["network.1.weight"])
