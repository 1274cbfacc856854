"""Captures of the same clients in several rounds: put side by side they are what ``evaluate`` combines."""

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.capture import CaptureRecord, captured, write_capture
from harness.cli import run
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings
from harness.judging.capture import Capture, read_capture
from harness.judging.declared import groups_of
from harness.judging.evidence import Check
from harness.judging.explained import explained_in_order
from harness.judging.federation import federations
from harness.judging.judgement import require_one_batch
from harness.judging.series import along_the_way, held_over, over_rounds
from harness.judging.stage import CapturedStage
from harness.models.networks import build_module
from harness.testing import digits

VICTIMS, ROUNDS, SIGMA = 4, 3, 0.05


DECLARED: dict[str, Any] = {"name": "fed_cdp", "settings": {"sigma": SIGMA}}
FEEDBACK: dict[str, Any] = {"name": "paper:top-k", "settings": {"share": 0.2}}
CHANCE: dict[str, Any] = {"name": "noise+paper:top-k", "settings": {"paper:top-k.share": 0.2, "noise.amount": 1e-6}}


def _scene(tmp_path: Path, batch: int = 2, declared: dict[str, Any] = DECLARED, **how: Any) -> Scene:
    asked: dict[str, Any] = {"attack": "identify", "tap": "T2.step"} | how
    settings = cell_settings(
        dataset="digits", model="mlp", defense=declared["name"], defense_args=declared["settings"], victims=VICTIMS,
        rounds_seen=ROUNDS, prior="none", batch_size=batch, **asked,
    )  # fmt: skip
    return Stage(tmp_path, 64).set(settings)


def _written(
    scene: Scene, folder: Path, order: list[int], declared: dict[str, Any] = DECLARED, **changes: Any
) -> list[Path]:
    """A capture of each client in each round, the rounds in that order of folders; ``changes`` are of the last one."""
    seen, found = scene.observation, []
    size = seen.weights.shape[1] // ROUNDS
    model = seen.model.single  # type: ignore[attr-defined]
    for place, number in enumerate(order):
        part = slice(number * size, (number + 1) * size)
        for row in range(VICTIMS):
            facts = {"client": f"hospital {row}", "round": number, "first_round": 0}
            images, labels, moved = scene.truth.images[row], scene.truth.labels[row], seen.target[row, part]
            if (place, row) == (len(order) - 1, VICTIMS - 1):
                facts |= {name: value for name, value in changes.items() if name in facts}
                images, labels = changes.get("images", images), changes.get("labels", labels)
                moved = moved.flip(0) if changes.get("turned") else moved
            record = CaptureRecord(
                model="mlp", image_shape=(1, 8, 8), classes=10, learning_rate=0.05, batch_size=len(labels),
                defense=declared, **facts,
            )  # fmt: skip
            before = {name: value.numpy() for name, value in model.state(seen.weights[row, part]).items()}
            kind, unit = ("gradient", 1.0) if declared is DECLARED else ("update", -0.05)
            sent: Any = {kind: {name: value.numpy() for name, value in model.layout.split(unit * moved).items()}}
            where = folder / f"{place} {row}"
            found.append(write_capture(where, record, before, images=images, labels=labels, **sent))
    return found


def _captures(folders: list[Path]) -> list[Capture]:
    return [read_capture(one) for one in folders]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_rounds_side_by_side_are_what_evaluate_combines(order: list[int], tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    clients = over_rounds(federations(_captures(_written(scene, tmp_path, order))), ROUNDS)
    (group,) = groups_of(clients, "captures", ["identify"], "none", "cpu", rounds_seen=ROUNDS)
    judged = CapturedStage(tmp_path, 64, group.captured, group.cell, None, None).set(group.cell)
    ours, theirs = scene.observation, judged.observation
    assert torch.equal(theirs.weights, ours.weights)
    assert torch.allclose(theirs.target, ours.target, atol=1e-6)
    assert theirs.noise == ours.noise and theirs.clipping == ours.clipping
    assert theirs.rows == VICTIMS  # R looks are one victim
    assert theirs.model.rounds == ROUNDS  # type: ignore[attr-defined]


def test_a_single_round_is_judged_as_before(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    found = federations(_captures(_written(scene, tmp_path, [0])))
    assert over_rounds(found, 1)[0] is found[0]


@pytest.mark.parametrize(
    ("changes", "rounds", "words"),
    [({}, 4, "lower it, or leave that client out"), ({"round": 1}, ROUNDS, "two captures of round 1"),
     ({"client": None}, ROUNDS, 'add "client"'), ({"client": "hospital 9"}, ROUNDS, "captured in 2 round"),
     ({"images": torch.zeros(2, 1, 8, 8)}, ROUNDS, "other examples in round 2 than in round 0")],
)  # fmt: skip
def test_what_does_not_fit_together_is_one_line(
    changes: dict[str, Any], rounds: int, words: str, tmp_path: Path
) -> None:
    scene = _scene(tmp_path)
    with pytest.raises(UsageError, match=words) as error:
        over_rounds(federations(_captures(_written(scene, tmp_path, [0, 1, 2], **changes))), rounds)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("order", "missing"), [([0, 2], 1), ([2, 0], 1), ([1, 2], 0)])
def test_a_round_that_clients_remember_has_to_be_there(order: list[int], missing: int, tmp_path: Path) -> None:
    """Of others a gap is no harm: each round is what it is without the one before."""
    feeding = _scene(tmp_path, 1, FEEDBACK, attack="cpl", tap="T1.out")
    with pytest.raises(UsageError, match=f"'hospital 0' was not captured in round {missing}, .* capture all rounds"):
        over_rounds(federations(_captures(_written(feeding, tmp_path / "a", order, FEEDBACK))), 2)
    (clients,) = over_rounds(federations(_captures(_written(_scene(tmp_path), tmp_path / "b", order))), 2)
    assert (clients.at[0], clients.later[0].at[0]) == (min(order), max(order))
    assert groups_of([clients], "t", ["cpl"], "none", "cpu", rounds_seen=2)[0].cell.round == min(order)


@pytest.mark.parametrize(("order", "gap"), [([0, 1, 2], False), ([0, 2], True)])
def test_a_gap_that_harms_nothing_is_told(
    order: list[int], gap: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over_rounds(federations(_captures(_written(_scene(tmp_path), tmp_path, order))), 2)
    said = capsys.readouterr().err
    assert ("'hospital 0' was not captured in round 1 and 3 more: attackers have the rounds that were" in said) == gap
    assert len(said.splitlines()) == gap


def test_rounds_of_noise_that_is_correlated_are_not_combined(tmp_path: Path) -> None:
    tree = {"name": "tff:tree_aggregation", "settings": {}}
    clients = over_rounds(federations(_captures(_written(_scene(tmp_path), tmp_path, [0, 2], tree))), 2)
    with pytest.raises(UsageError, match=r"remembers after 2 round\(s\), which a capture does not hold"):
        groups_of(clients, "t", ["cpl"], "none", "cpu", rounds_seen=2)


# Who begins with which model, by round and client, and in which order a round's step leads to the next model.
SHARED = [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]
OWN = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
NUMBERS: dict[str, tuple[list[list[int]], dict[int, int], str]] = {
    "one model for all": (SHARED, {}, ""),
    "a model of their own": (OWN, {}, ""),
    "models that never move": ([[0, 1, 2, 3]] * 3, {}, ""),
    "one model that never moves": ([[0] * 4] * 3, {}, ""),
    "two groups": ([[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]], {},
                   "'hospital 0' begins round 0 with the model that 'hospital 1' begins round 0 with"),
    "one client's exchanged": ([[2, 0, 0, 0], [1, 1, 1, 1], [0, 2, 2, 2]], {},
                               "'hospital 0' begins round 0 with the model that 'hospital 1' begins round 2 with"),
    "one from elsewhere": ([[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 9]], {},
                           "'hospital 0' begins round 2 with the model that 'hospital 1' begins round 2 with"),
    "steps ahead": (SHARED, {0: 1, 1: 2}, ""),
    "steps back": (SHARED, {2: 1, 1: 0}, "clients together sent in round 1 leads to the model that round 0"),
    "swinging": ([[0] * 4, [1] * 4, [0] * 4], {0: 1, 1: 0}, ""),
    "a client's own steps back": (OWN, {9: 5}, "client 'hospital 1' sent in round 2 leads to the model that round 1"),
}  # fmt: skip


@pytest.mark.parametrize(("models", "leads", "words"), NUMBERS.values(), ids=NUMBERS)
def test_models_tell_rounds_of_other_numbers(
    models: list[list[int]], leads: dict[int, int], words: str, tmp_path: Path
) -> None:
    (found,) = federations(_captures(_written(_scene(tmp_path), tmp_path, [0, 1, 2])))
    begun, flat = torch.randn(12, found.layout.total), torch.tensor(models).flatten()
    steps = torch.stack([begun[one] - begun[leads[one]] if one in leads else begun[one] * 0.1 for one in range(12)])
    clients = [replace(found, before=begun[flat], target=steps[flat])]
    if not words:
        assert over_rounds(clients, ROUNDS)[0].clients == VICTIMS
        return
    with pytest.raises(UsageError, match=words) as error:
        over_rounds(clients, ROUNDS)
    assert "\n" not in str(error.value)


def test_the_order_of_one_steps_examples_makes_no_difference(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    turned = {"images": scene.truth.images[-1].flip(0), "labels": scene.truth.labels[-1].flip(0)}
    (clients,) = over_rounds(federations(_captures(_written(scene, tmp_path, [0, 1, 2], **turned))), ROUNDS)
    assert (clients.clients, len(clients.later)) == (VICTIMS, ROUNDS - 1)


def test_without_truth_nobody_knows_that_examples_are_the_same(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    folders = _written(scene, tmp_path, [0, 1, 2])
    captures = [replace(one, truth=None) for one in _captures(folders)]
    with pytest.raises(UsageError, match="needs each capture's truth"):
        over_rounds(federations(captures), ROUNDS)


def test_the_command_judges_rounds_and_says_of_how_many_a_row_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checks read every round."""
    scene = _scene(tmp_path, batch=1)
    named = [str(one) for one in _written(scene, tmp_path, [0, 1, 2])]
    assert run(["judge", *named, "--attack", "cpl", "--rounds-seen", "4", "--out", str(tmp_path / "o")]) == 2
    assert "lower it" in capsys.readouterr().err
    asked = [
        "judge",
        *named,
        "--attack",
        "identify",
        "--prior",
        "digits",
        "--rounds-seen",
        "3",
        "--out",
        str(tmp_path / "o"),
        "--json",
    ]
    code = run(asked)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    document = json.loads(printed.out)
    assert (document["captures"], document["clients"]) == (VICTIMS * ROUNDS, VICTIMS)
    (row,) = document["results"]["summary"]
    assert row["rounds_tried"] == [3] and row["options"]["rounds_seen"] == 3 and row["victims"] == VICTIMS


# What clients remember of earlier rounds.

REMEMBERING: dict[str, tuple[dict[str, Any], list[int], dict[str, Any], list[str]]] = {
    "every round": (FEEDBACK, [0, 1, 2], {}, ["holds"] * 3),
    "in any order of folders": (FEEDBACK, [2, 0, 1], {}, ["holds"] * 3),
    "another truth": (FEEDBACK, [0, 1, 2], {"images": torch.zeros(1, 1, 8, 8)}, ["holds", "holds", "violated"]),
    "another update": (FEEDBACK, [0, 1, 2], {"turned": True}, ["holds", "holds", "violated"]),
    "the middle one is missing": (FEEDBACK, [0, 2], {}, ["holds", "cannot tell"]),
    "one later round": (FEEDBACK, [2], {}, ["cannot tell"]),
    "perhaps counted from 1": (FEEDBACK, [1, 2], {}, ["cannot tell"] * 2),
    "no name": (FEEDBACK, [0, 1], {"client": None}, ["holds", "holds", "cannot tell"]),
    "chance in what is kept": (CHANCE, [0, 1], {}, ["holds", "cannot tell"]),
    "nothing kept": (DECLARED, [0, 2], {}, ["holds"]),
}


@pytest.mark.parametrize(("declared", "order", "changes", "outcomes"), REMEMBERING.values(), ids=REMEMBERING)
def test_rounds_are_played_with_what_clients_remember(
    declared: dict[str, Any], order: list[int], changes: dict[str, Any], outcomes: list[str], tmp_path: Path
) -> None:
    kept = declared is not DECLARED
    scene = _scene(tmp_path, 1, FEEDBACK if kept else DECLARED, attack="cpl", tap="T1.out" if kept else "T2.step")
    (clients,) = federations(_captures(_written(scene, tmp_path, order, declared, **changes)))
    (group,) = groups_of([clients], "captures", ["cpl"], "none", "cpu")
    found = [check for _, check in explained_in_order([("all", clients, group.cell)], tmp_path)]
    assert [check.outcome for check in found] == outcomes, found
    untold = [check for check in found if check.outcome == "cannot tell"]
    assert all(check.undecided and "remember earlier rounds" in check.detail for check in untold)
    assert any('give "first_round": 1' in check.detail for check in untold) == (min(order) == 1)


def test_a_round_of_another_batch_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any attack; by itself such a capture is judged, and called violated."""
    scene = _scene(tmp_path, 1, FEEDBACK, attack="cpl", tap="T1.out")
    named = [str(one) for one in _written(scene, tmp_path, [0, 1, 2], FEEDBACK, turned=True)]
    asked = ["judge", *named, "--attack", "cpl", "--out", str(tmp_path / "o")]
    assert run([*asked, "--rounds-seen", "3"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert (
        "the truth explains other rounds and not batches of 1, round 3 of 3" in said
        and "leave that round out, or" in said
    )
    assert run(["judge", named[-1], "--attack", "cpl", "--out", str(tmp_path / "o")]) == 0


@pytest.mark.parametrize(("p_value", "refused"), [(1e-6, True), (5e-6, False)])
def test_rounds_share_the_chance_of_a_false_alarm(p_value: float, refused: bool) -> None:
    """Of four rounds each has a quarter of the level, 1e-5."""
    each = [(f"round {number}", Check("truth", "holds", "fits", 0.5)) for number in range(3)]
    each.append(("round 3", Check("truth", "violated", "differs", p_value)))
    with pytest.raises(UsageError, match="and not round 3: differs;") if refused else nullcontext():
        require_one_batch(each, behind_sums=False)


@pytest.mark.parametrize("number", [0, 2])
def test_stand_ins_are_not_like_clients_who_remember(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later round without the truth: nothing is said to be safe."""
    scene = _scene(tmp_path, 1, FEEDBACK, attack="cpl", tap="T1.out")
    named = _written(scene, tmp_path, [0, 1, 2], FEEDBACK)[number * VICTIMS : (number + 1) * VICTIMS]
    for one in named:
        (one / "truth.npz").unlink()
    asked = ["judge", *map(str, named), "--attack", "cpl", "--prior", "digits", "--out", str(tmp_path / "o"), "--json"]
    assert run(asked) == 0
    (made,) = json.loads(capsys.readouterr().out)["estimates"]
    assert ("remember earlier rounds and stand-ins do not; capture the first" in made["reason"]) == (number > 0)
    assert number == 0 or "no" not in made["estimates"]


AHEAD: dict[str, tuple[dict[int, int], str]] = {
    "as they were": ({}, ""),
    "one client's exchanged": ({0: 2, 2 * VICTIMS: 0}, "noise that client 'hospital 0' drew in round [12] is in its"),
    "all in reverse": ({row: 2 - row // VICTIMS for row in range(3 * VICTIMS)}, "is in its model of round"),
}


@pytest.mark.parametrize(("numbers", "said"), AHEAD.values(), ids=AHEAD)
def test_noise_tells_rounds_of_other_numbers(numbers: dict[int, int], said: str, tmp_path: Path) -> None:
    """The next model holds a tenth of it."""
    (clients,) = federations(_captures(_written(_scene(tmp_path), tmp_path, [0, 1, 2])))
    rounds = replace(clients, at=tuple(numbers.get(row, at) for row, at in enumerate(clients.at)))
    cell = groups_of([clients], "captures", ["cpl"], "none", "cpu")[0].cell
    found = [check for _, check in explained_in_order([("all", rounds, cell)], tmp_path)]
    assert [check.outcome for check in found] == ["holds", *["violated"] * bool(said)]
    assert re.search(said, found[-1].detail) and (not said or found[-1].detail.endswith("in capture.json"))


def test_models_that_never_move_tell_nothing() -> None:
    models, own = torch.randn(1, 40).double().expand(3, -1), torch.randn(3, 40).double()
    assert not along_the_way(models, own).any()
    models = torch.stack([models[0], models[0] + own[1]])
    assert along_the_way(models, own[:2])[1, 0] == pytest.approx(float(own[0] @ own[1] / own[1].norm()))


# Rounds in which a client takes others of its examples.

HELD = 6


def _drawing(tmp_path: Path, **changes: Any) -> Scene:
    asked = {"defense": "none", "attack": "cpl", "tap": "T2.step", "batch_size": 2} | changes
    return Stage(tmp_path, 64).set(cell_settings(
        dataset="digits", model="mlp", victims=VICTIMS, rounds_seen=ROUNDS, same_data="client", client_examples=HELD,
        prior="none", **asked,
    ))  # fmt: skip


def _written_draws(scene: Scene, folder: Path, **changes: Any) -> list[Path]:
    """A capture of each client in each round, with what it took there; ``changes`` are of the last one."""
    seen, found = scene.observation, []
    assert scene.drawn is not None
    for number in range(ROUNDS):
        for client in range(VICTIMS):
            row, places = client * ROUNDS + number, scene.drawn[client, number]
            facts = {"client": f"hospital {client}", "round": number, "first_round": 0}
            images, labels = scene.truth.images[client, places], scene.truth.labels[client, places]
            if (number, client) == (ROUNDS - 1, VICTIMS - 1):
                facts |= {name: value for name, value in changes.items() if name in facts}
                images, labels = (changes.get(name, own) for name, own in (("images", images), ("labels", labels)))
            record = CaptureRecord(
                model="mlp", image_shape=(1, 8, 8), classes=10, learning_rate=0.05, batch_size=len(labels), **facts
            )
            before, sent = (
                {name: value.numpy() for name, value in values.items()}
                for values in (seen.model.state(seen.weights[row]), seen.model.layout.split(seen.target[row]))
            )
            where = folder / f"{number} {client}"
            found.append(write_capture(where, record, before, images=images, labels=labels, gradient=sent))
    return found


def test_rounds_of_other_batches_are_what_evaluate_pools(tmp_path: Path) -> None:
    scene = _drawing(tmp_path)
    found = federations(_captures(_written_draws(scene, tmp_path)))
    clients = over_rounds(found, ROUNDS, "client")
    (group,) = groups_of(clients, "captures", ["cpl"], "none", "cpu", rounds_seen=ROUNDS, same_data="client")
    judged = CapturedStage(tmp_path, 64, group.captured, group.cell, None, None).set(group.cell)
    ours, theirs = scene.observation, judged.observation
    assert torch.equal(theirs.weights, ours.weights) and torch.allclose(theirs.target, ours.target, atol=1e-6)
    assert theirs.rows == VICTIMS * ROUNDS and scene.drawn is not None and judged.drawn is not None
    used = [len(own.unique()) for own in scene.drawn]
    assert theirs.client == (ROUNDS, max(used)) and judged.truth.labels.shape == (VICTIMS, max(used))
    assert torch.equal(judged.of_rows, scene.of_rows)
    # Who used fewer examples has its first one in the other places, which do not count.
    assert [len(own.unique()) for own in judged.truth.indices] == used


def test_the_command_judges_rounds_of_other_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More comes back than a client's best round alone brings, and nothing is called resilient."""
    named = [str(one) for one in _written_draws(_drawing(tmp_path), tmp_path)]
    common = ["judge", *named, "--attack", "cpl", "--rounds-seen", "3", "--out", str(tmp_path / "o")]
    assert run(common) == 2
    assert "combines the same examples, or any with --same-data client" in capsys.readouterr().err
    code = run([*common, "--prior", "digits", "--same-data", "client", "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    document = json.loads(printed.out)
    (row,) = document["results"]["summary"]
    assert row["options"] == {"client_examples": 5, "rounds_seen": 3, "same_data": "client"}
    assert row["victims"] == VICTIMS and (row["verdict"], row["strongest"]) == ("leaks", "cpl")
    (cell,) = [one for one in document["results"]["cells"] if one["attack"] == "cpl" and one["role"] == "cell"]
    best, more = (cell["metrics"][name]["mean"] for name in ("best_round", "above_best_round"))
    # All of the 18 examples, though three clients used four or five, and a round takes two of them.
    assert best + more == pytest.approx(1) and 2 / 5 <= best <= 2 / 4
    assert any("membership: not told" in one["said"] for one in document["measured"])


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--same-data", "client"], "add --rounds-seen R"), (["--same-data", "sums"], "use --same-data batch, client or"),
     (["--same-data", "client", "--rounds-seen", "4"], "lower it, or leave that client out")],
)  # fmt: skip
def test_rounds_of_a_client_that_are_not_there_are_one_line(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(one) for one in _written_draws(_drawing(tmp_path), tmp_path)]
    assert run(["judge", *named, "--attack", "cpl", "--out", str(tmp_path / "o"), *options]) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1


def test_a_round_that_took_an_example_twice_is_refused(tmp_path: Path) -> None:
    scene = _drawing(tmp_path)
    twice = {"images": scene.truth.images[-1, [0, 0]], "labels": scene.truth.labels[-1, [0, 0]]}
    clients = over_rounds(federations(_captures(_written_draws(scene, tmp_path, **twice))), ROUNDS, "client")
    with pytest.raises(UsageError, match="'hospital 3' took an example twice in a round"):
        held_over(clients[0])


# Sums of a round's clients, as a server behind secure aggregation has them.

COHORTS = [(0, 1), (1, 2), (2, 0), (2, 3)]


def _summed(
    folder: Path, still: float = 1e-7, batch: int = 1, clients: tuple[int, ...] = (0, 1, 2, 3), **changes: Any
) -> list[Path]:
    """A capture of each client in each round; the model moves so little that a client sends nearly the same.

    ``clients``: whose examples each client has.
    """
    found, (images, labels) = [], (part[list(clients)] for part in digits(4, batch))
    for number, cohort in enumerate(COHORTS):
        for client in cohort:
            network = build_module("mlp", (1, 8, 8), 10, seed=0)
            with torch.no_grad():
                for value in network.parameters():
                    value.add_(still * number)
            facts: dict[str, Any] = {"clients_per_round": 2, "defense": None, "round": number} | changes
            if (number, client) == changes.get("other"):
                with torch.no_grad():
                    network.load_state_dict(build_module("mlp", (1, 8, 8), 10, seed=1).state_dict())
            found.append(folder / f"{number} {client}")
            facts = {name: value for name, value in facts.items() if name not in ("other", "noisy")}
            with captured(
                network, found[-1], model="mlp", image_shape=(1, 8, 8), classes=10, learning_rate=0.05,
                batch_size=batch, client=f"hospital {client}", first_round=0, **facts,
            ) as capture:  # fmt: skip
                own = torch.optim.SGD(network.parameters(), 0.05)
                torch.nn.functional.cross_entropy(network(images[client]), labels[client]).backward()
                own.step()
                if (number, client) == changes.get("noisy"):
                    with torch.no_grad():
                        for value in network.parameters():
                            value.add_(0.01 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
                capture.batch(images[client], labels[client])
    return found


def test_sums_of_changing_cohorts_tell_single_updates(tmp_path: Path) -> None:
    """By hand: a, b and c of a + b, b + c and c + a, then d of c + d; of the first two sums nothing is told."""
    found = federations(_captures(_summed(tmp_path)))
    (clients,) = over_rounds(found, 4, "cohorts")
    sent = {name: row for name, row in zip(reversed(found[0].names), reversed(found[0].target), strict=True)}
    told = clients.recovered
    assert told is not None and told.determined.all() and told.rank.tolist() == [4] * 4
    for name, update, error in zip(clients.names, clients.target, told.error, strict=True):
        assert float((update - sent[name]).norm() / sent[name].norm()) < 1e-4 and float(error) < 1e-4
    assert [one.names for one in clients.later] == [tuple(f"hospital {one}" for one in own) for own in COHORTS]
    # The third client's update is (b + c) + (c + a) - (a + b), over 2: errors of single sums grow by sqrt(3).
    assert float(clients.grain[2] / found[0].grain[0]) == pytest.approx(3**0.5, rel=0.2)
    (two,) = over_rounds(found, 2, "cohorts")
    assert two.recovered is not None and not two.recovered.determined.any() and float(two.recovered.error.max()) > 0.1


def test_the_command_judges_what_sums_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = [str(one) for one in _summed(tmp_path)]
    asked = ["judge", *named, "--attack", "cpl", "--prior", "digits", "--same-data", "cohorts"]
    rows = {}
    for rounds in ("2", "4"):
        code = run([*asked, "--rounds-seen", rounds, "--out", str(tmp_path / rounds), "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        document = json.loads(printed.out)
        (rows[rounds],) = document["results"]["summary"]
        assert {one["outcome"] for one in document["checks"]} <= {"holds", "cannot tell"}
        (cell,) = [one for one in document["results"]["cells"] if one["role"] == "cell"]
        assert cell["metrics"]["rank_of_sums"]["mean"] == int(rounds)
        assert (cell["metrics"]["determined"]["mean"] == 1) == (rounds == "4")
        assert cell["outcomes"]["success"] == (4 if rounds == "4" else 0)
    assert rows["4"]["victims"] == 4 and rows["4"]["options"]["same_data"] == "cohorts"
    assert (rows["2"]["verdict"], rows["4"]["verdict"]) == ("inconclusive", "leaks")


def test_what_is_measured_beside_sums_is_of_single_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The control of a batch is one client that takes one step on one example, and no sum of two such clients."""
    named = [str(one) for one in _summed(tmp_path, batch=2)]
    asked = ["judge", *named, "--attack", "cpl", "--prior", "digits", "--same-data", "cohorts", "--rounds-seen", "4"]
    code = run([*asked, "--out", str(tmp_path / "o"), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    document = json.loads(printed.out)
    measured = {one["what"]: one for one in document["measured"]}
    alone, tested = measured["one step on one example"], measured["membership"]
    assert (alone["found"], alone["count"]) == (8, 8)
    assert (tested["count"], tested["held"]) == (8, True)


@pytest.mark.parametrize("declared", ["of the same batch", "as it was"])
def test_a_client_with_another_batch_behind_sums_is_never_looked_at_by_itself(
    declared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way out keeps the sums, whether the truth or the update alone is of another batch."""
    named, strange = _summed(tmp_path / "a"), _summed(tmp_path / "b", clients=(3, 2, 1, 0))[-2]
    shutil.copy(strange / "after.npz", named[-2])
    if declared == "as it was":
        shutil.copy(strange / "truth.npz", named[-2])
    asked = ["judge", *map(str, named), "--attack", "cpl", "--same-data", "cohorts", "--rounds-seen", "4"]
    assert run([*asked, "--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "leave that round out" in said and "--same-data client" not in said


@pytest.mark.parametrize(
    ("changes", "rounds", "words"),
    [({}, 1, "add --rounds-seen R"), ({}, 5, "captures are of 4 round"),
     ({"clients_per_round": None}, 4, 'add "clients_per_round"'),
     ({"clients_per_round": 3}, 4, "has captures of 2 clients, and clients_per_round is 3"),
     ({"other": (1, 2)}, 4, "begin round 1 with different models")],
)  # fmt: skip
def test_sums_that_cannot_be_are_one_line(changes: dict[str, Any], rounds: int, words: str, tmp_path: Path) -> None:
    found = _summed(tmp_path, **changes)
    with pytest.raises(UsageError, match=words) as error:
        over_rounds(federations(_captures(found)), rounds, "cohorts")
    assert "\n" not in str(error.value)


def test_an_update_that_fits_neither_truth_nor_facts_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(one) for one in _summed(tmp_path, noisy=(3, 3))]
    asked = ["judge", *named, "--attack", "cpl", "--same-data", "cohorts", "--rounds-seen", "4"]
    assert run([*asked, "--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "the truth explains other rounds and not" in said


def test_noise_is_not_followed_from_sums_into_updates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = {"name": "fed_sdp", "settings": {"noise_at": "client"}}
    named = [str(one) for one in _summed(tmp_path, defense=noisy)]
    asked = ["judge", *named, "--attack", "cpl", "--prior", "digits", "--same-data", "cohorts", "--rounds-seen", "4"]
    assert run([*asked, "--out", str(tmp_path / "o")]) == 2
    assert "not followed from sums into single updates" in capsys.readouterr().err
