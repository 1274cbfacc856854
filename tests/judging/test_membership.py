"""``harness judge --members``: who was in a training is told where the model tells it, and only there."""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from scipy.stats import norm
from sklearn.datasets import load_digits
from torch import nn

from harness.capture import captured
from harness.cli import run
from harness.judging.capture import read_capture
from harness.judging.member_signals import halves
from harness.judging.members import MOST_ROUNDS, Final, Sides, finals_of_captures, read_sides
from harness.judging.membership import judge_members
from harness.models.networks import build_module

SHAPE = (1, 8, 8)
Files = tuple[Path, Path]


def data(seed: int, *counts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parts of the 8x8 digits in an order of this seed, that share no example."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = (pixels / 16).astype("f4").reshape(-1, *SHAPE)
    ends = np.cumsum(counts)
    return [(images[part], labels[part]) for part in np.split(order, ends)[:-1]]


def trained(name: str, images: np.ndarray, labels: np.ndarray, steps: int, seed: int = 0) -> nn.Module:
    module = build_module(name, SHAPE, 10, seed)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
        optimizer.step()
    return module


def save(folder: Path, **sides: tuple[np.ndarray, np.ndarray]) -> list[Path]:
    for name, (images, labels) in sides.items():
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
    return [folder / f"{name}.npz" for name in sides]


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any, str]]:
    def command(members: Path, others: Path, *options: Any, as_json: bool = True) -> tuple[int, Any, str]:
        capsys.readouterr()
        named = ["--members", str(members), "--non-members", str(others), *map(str, options)]
        code = run(["judge", *named, *(["--json"] if as_json else [])])
        said = capsys.readouterr()
        return code, (json.loads(said.out) if as_json else said.out) if said.out else None, said.err

    return command


def area_of(document: Any, name: str) -> tuple[float, float, float]:
    (found,) = (one for one in document["scores"] if one["name"] == name)
    return found["area"], found["low"], found["high"]


def test_an_overfitted_model_tells_its_members(judge: Any, tmp_path: Path) -> None:
    members, others = data(0, 120, 160)
    files = save(tmp_path, members=members, others=others)
    torch.save(trained("mlp2", *members, 20).state_dict(), tmp_path / "final.pt")
    asked = (*files, "--model", "mlp2", "--weights", tmp_path / "final.pt", "--references", 6)
    code, document, _ = judge(*asked)
    assert code == 0 and document["valid"] and document["counts"] == [120, 160]
    assert document["accuracy"][0] == 1.0 > document["accuracy"][1]
    for name in ("RMIA", "LiRA"):
        found, low, _ = area_of(document, name)
        assert found > 0.58 and low > 0.5
    assert all("not measurable with 160" in rate["reason"] for rate in document["scores"][0]["rates"])
    assert len(document["members"]) == 120 and min(one["p"] for one in document["members"]) >= 1 / 161
    code, said, _ = judge(*asked[:-1], 4, as_json=False)
    assert code == 0 and "a gap of " in said and "RMIA: AUC 0." in said and "at 1% false alarms: not measurable" in said


@pytest.mark.slow
def test_without_their_influence_members_are_not_told(tmp_path: Path) -> None:
    """In 20 of 20 trainings on others' data, by an interval that holds for all 20 together at 95%; alone it would miss
    one in 20."""
    wide, found, rejected = float(norm.isf(0.025 / 20) / norm.isf(0.025)), [], []
    for seed in range(20):
        members, others, trained_on = data(seed, 120, 120, 120)
        sides = read_sides(*save(tmp_path, members=members, others=others))
        finals = [of(f"{steps} steps", trained("logistic", *trained_on, steps, seed)) for steps in (20, 40, 60)]
        made = judge_members(finals, sides, references=4, seed=seed)
        assert made.problem is None and made.rounds is not None
        scores = [*made.scores, *(one.told for one in made.rounds.gains)]
        for one in scores:
            middle = logit(one.area)
            low, high = (expit(middle + wide * (logit(end) - middle)) for end in (one.low, one.high))
            assert low <= 0.5 <= high, (seed, one)
        found.append([one.area for one in scores])
        rejected.append(np.mean([one.p <= 0.05 for one in made.members]))
    # Members, and the non-members that they are held against, make this share each time.
    assert np.mean(rejected) < 0.05 + 4 * (0.05 * 0.95 * 2 / 120 / 20) ** 0.5
    # Nor are they on the mean of all.
    assert np.abs(np.mean(found, 0) - 0.5).max() < 4 * (1 / 12 * (2 / 120)) ** 0.5 / 20**0.5


def of(source: str, module: nn.Module, name: str = "logistic") -> Final:
    return Final(name, SHAPE, 10, source, module)


def test_rounds_that_each_train_on_some_members_tell_more_than_the_last(tmp_path: Path) -> None:
    """The last model saw a third of the members, and all three together saw each of them."""
    members, others = data(4, 180, 200)
    sides, thirds = read_sides(*save(tmp_path, members=members, others=others)), np.split(np.arange(180), 3)
    finals = [of(f"round {number}", trained("mlp2", members[0][part], members[1][part], 25, number), "mlp2")
              for number, part in enumerate(thirds)]  # fmt: skip
    made = judge_members(finals, sides, references=4)
    assert made.rounds is not None and made.rounds.sources == ("round 0", "round 1", "round 2")
    for last, gain in zip(made.scores, made.rounds.gains, strict=True):
        assert gain.told.name == f"{last.name}, rounds added"
        assert gain.low < gain.more == pytest.approx(gain.told.area - last.area) and gain.more < gain.high
    rmia = made.rounds.gains[0]
    assert rmia.low > 0 and "a gain over the last alone (+" in rmia.said
    said = "\n".join(made.lines())
    assert "over 3 rounds: round 0, round 1, round 2" in said and "RMIA, rounds added: AUC 0." in said
    alone = judge_members(finals[-1:], sides, references=4)
    assert alone.rounds is None and (alone.scores, alone.passes, alone.members) == (
        made.scores, made.passes, made.members,
    )  # fmt: skip


def test_a_round_whose_model_was_looked_at_twice_adds_nothing(tmp_path: Path) -> None:
    members, others = data(5, 60, 80)
    sides = read_sides(*save(tmp_path, members=members, others=others))
    final = of("twice", trained("logistic", *members, 200))
    made = judge_members([final, final], sides, references=4)
    assert made.rounds is not None
    for last, gain in zip(made.scores, made.rounds.gains, strict=True):
        assert (gain.told.area, gain.more, gain.low, gain.high) == (last.area, 0, 0, 0)
        assert "no gain is shown over the last alone" in gain.said


def test_rounds_are_invalid_with_members_of_other_data(tmp_path: Path) -> None:
    """Told by reference models of all rounds, without the models."""
    (images, labels), others = data(1, 150, 150)
    noisy = np.clip(images + np.random.default_rng(0).normal(0, 0.5, images.shape), 0, 1).astype("f4")
    sides = read_sides(*save(tmp_path, members=(noisy, labels), others=others))
    made = judge_members([of(str(steps), trained("logistic", *others, steps)) for steps in (30, 60)], sides)
    assert made.rounds is not None and not made.rounds.without[1] <= 0.5 <= made.rounds.without[2]
    assert made.problem and "differ without the model" in made.problem


def test_examples_that_are_not_as_the_model_takes_them_are_doubted(judge: Any, tmp_path: Path) -> None:
    members, others = data(0, 120, 160)
    torch.save(trained("mlp2", *members, 20).state_dict(), tmp_path / "final.pt")
    asked = ("--model", "mlp2", "--weights", tmp_path / "final.pt", "--references", 4)
    for name, changed in {
        "as they are": lambda images, labels: (images, labels),
        "inverted": lambda images, labels: (1 - images, labels),
        "numbered otherwise": lambda images, labels: (images, 9 - labels),
    }.items():
        files = save(tmp_path, members=changed(*members), others=changed(*others))
        code, document, _ = judge(*files, *asked)
        _, said, _ = judge(*files, *asked, as_json=False)
        words = " ".join(said.split())
        told = "check how they are scaled" in words and "how labels are numbered" in words
        assert (code, document["doubt"] is not None, told) == (0, name != "as they are", name != "as they are")


def test_exchanged_files_are_doubted(judge: Any, tmp_path: Path) -> None:
    others, members = data(0, 160, 120)
    files = save(tmp_path, members=others, others=members)
    torch.save(trained("mlp2", *members, 20).state_dict(), tmp_path / "final.pt")
    code, said, _ = judge(
        *files, "--model", "mlp2", "--weights", tmp_path / "final.pt", "--references", 4, as_json=False
    )
    assert code == 0 and "the model knows non-members better than members: are the two files exchanged?" in said


def test_members_of_other_data_are_no_result(judge: Any, tmp_path: Path) -> None:
    """Told without the model: by models that saw none of them."""
    (images, labels), others = data(1, 150, 150)
    noisy = np.clip(images + np.random.default_rng(0).normal(0, 0.5, images.shape), 0, 1).astype("f4")
    files = save(tmp_path, members=(noisy, labels), others=others)
    torch.save(trained("logistic", *others, 60).state_dict(), tmp_path / "final.pt")
    code, document, _ = judge(*files, "--model", "logistic", "--weights", tmp_path / "final.pt")
    assert code == 3 and not document["valid"]
    assert "differ without the model" in document["problem"] and "draw both from the same data" in document["problem"]


def test_a_few_members_of_the_same_data_are_a_result(tmp_path: Path) -> None:
    """One draw of 600: reference models that know few examples vary more than an interval for given scores."""
    members, others = data(57, 60, 60)
    final = of("12 steps", trained("logistic", *members, 12, 57))
    made = judge_members([final], read_sides(*save(tmp_path, members=members, others=others)), seed=57)
    assert made.problem is None and made.without[1] < 0.5 and "(99.999% " in made.lines()[-1]


def test_half_of_the_models_see_a_non_member() -> None:
    seen = halves(8, 101, 0)
    assert (seen.sum(0) == 4).all() and (seen[::2] != seen[1::2]).all()
    assert set(seen.sum(1)) == {50, 51}


def factory(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = image_shape
    normal = nn.BatchNorm2d(4)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), normal, nn.ReLU(), nn.Flatten(), nn.Linear(4 * (height - 2) * (width - 2), classes)
    )


@pytest.mark.parametrize("kind", ["after", "update"])
def test_captures_bring_the_network_and_what_it_became(
    kind: str, judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two rounds the later one, with running statistics; an update is added to what it began with."""
    network = types.ModuleType("their_network")
    network.factory = factory
    monkeypatch.setitem(sys.modules, "their_network", network)
    members, others = data(2, 60, 80)
    files = save(tmp_path, members=members, others=others)
    module = factory(SHAPE, 10)
    facts = {"model": "their_network:factory", "image_shape": SHAPE, "classes": 10, "learning_rate": 0.05,
             "batch_size": 60}  # fmt: skip
    for number in (1, 0):
        with captured(module, tmp_path / "captures" / str(1 - number), round=1 - number, **facts):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
            nn.functional.cross_entropy(module(torch.from_numpy(members[0])), torch.from_numpy(members[1])).backward()
            optimizer.step()
    last = tmp_path / "captures" / "1"
    if kind == "update":
        before, after = (dict(np.load(last / f"{name}.npz")) for name in ("before", "after"))
        changed = {
            name: value if "running" in name or "num_batches" in name else value - before[name]
            for name, value in after.items()
        }
        np.savez(last / "update.npz", **changed)
        (last / "after.npz").unlink()
    code, document, said = judge(*files, tmp_path / "captures", "--references", 4)
    assert code in (0, 3), said
    module.eval()
    with torch.no_grad():
        told = (module(torch.from_numpy(members[0])).argmax(1).numpy() == members[1]).mean()
    assert document["accuracy"][0] == pytest.approx(told) and document["source"] == f"{kind} of 1"
    assert len(document["passes"]) == 4
    assert document["rounds"]["sources"] == ["after of 0", f"{kind} of 1"]
    _, alone, _ = judge(*files, last, "--references", 4)
    assert alone["rounds"] is None and alone["scores"] == document["scores"] and alone["members"] == document["members"]
    torch.save(module.state_dict(), tmp_path / "final.pt")
    _, named, said = judge(*files, tmp_path / "captures", "--references", 4, "--weights", tmp_path / "final.pt")
    assert named["rounds"]["sources"] == ["after of 0", f"{kind} of 1", "final.pt"], said


def spoiled(number: int, members: Any, others: Any) -> tuple[Any, Any]:
    """Members and non-members with one mistake."""
    (images, labels), (more, theirs) = members, others
    return [
        ((images[:19], labels[:19]), others),
        (members, (more[:19], theirs[:19])),
        ((np.concatenate([images, images[:1]]), np.append(labels, labels[:1])), others),
        (members, (np.concatenate([more, more[-1:]]), np.append(theirs, theirs[-1:]))),
        (members, (np.concatenate([more, images[:2]]), np.append(theirs, labels[:2]))),
        (members, (more[..., :7], theirs)),
        ((images[..., :7], labels), (more[..., :7], theirs)),
        ((images, np.where(labels == 3, 10, labels)), others),
        ((images, np.where(labels == 3, 10, labels)), (more, np.where(theirs == 3, 10, theirs))),
        (members, (np.concatenate([more, images[:1]]), np.append(theirs, (labels[0] + 1) % 10))),
        ((np.concatenate([images, images[:1]]), np.append(labels, (labels[0] + 1) % 10)), others),
    ][number]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "has 19 examples, which can show nothing; give at least 20"),
        (1, "has 19 examples, which can show nothing; give at least 20"),
        (2, "has example 61 twice (first as 1; labels aside); keep each example once"),
        (3, "has example 81 twice (first as 80; labels aside); keep each example once"),
        (4, "2 members are also non-members, such as example 81 of"),
        (5, "members are of shape (1, 8, 8), non-members of (1, 8, 7); save both"),
        (6, "failed to build"),
        (7, "members have label 10, which no non-member has; give non-members of all classes"),
        (8, "cannot load weights"),
        (9, "1 members are also non-members, such as example 81 of"),
        (10, "has example 61 twice (first as 1; labels aside)"),
    ],
)
def test_a_mistake_is_one_line(number: int, said: str, judge: Any, tmp_path: Path) -> None:
    files = save(tmp_path, **dict(zip(("members", "others"), spoiled(number, *data(3, 60, 80)), strict=True)))
    torch.save(build_module("logistic", SHAPE, 10, 0).state_dict(), tmp_path / "final.pt")
    code, document, line = judge(*files, "--model", "logistic", "--weights", tmp_path / "final.pt")
    if number == 6:
        said = "cannot load weights"  # a linear layer of fewer pixels
    assert code == 2 and document is None and said in line and len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "whose members? name folders of captures, or --model NAME and --weights FILE"),
        (["--model", "logistic"], "name folders of captures, or --model NAME and --weights FILE"),
        (["--prior", "digits"], "--members makes no other attack; drop"),
        (["--model", "logistic", "--weights", "FINAL", "--references", "5"], "take an even number from 4 to 256"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str, judge: Any, tmp_path: Path) -> None:
    members, others = data(3, 60, 80)
    files = save(tmp_path, members=members, others=others)
    torch.save(build_module("logistic", SHAPE, 10, 0).state_dict(), tmp_path / "final.pt")
    named = [str(tmp_path / "final.pt") if one == "FINAL" else one for one in options]
    code, _, line = judge(*files, *named)
    assert code == 2 and said in line and len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda images, labels: (images[..., :7], labels), "and the network takes (1, 8, 8); save them as the clients"),
        (
            lambda images, labels: (images, np.where(labels == 3, 10, labels)),
            "label 10, and the network 10 classes",
        ),
        (None, "holds a gradient and no trained model; give it with --weights FILE"),
    ],
)
def test_what_does_not_fit_a_capture(change: Any, said: str, judge: Any, tmp_path: Path, federation: Any) -> None:
    folders = federation(1)
    sides = data(3, 60, 80)
    members, others = sides if change is None else [change(*side) for side in sides]
    if change is None:
        (folders[0] / "after.npz").rename(folders[0] / "gradient.npz")
    code, _, line = judge(*save(tmp_path, members=members, others=others), folders[0])
    assert code == 2 and said in line and len(line.splitlines()) == 1


def test_rounds_of_another_network_are_judged_apart(judge: Any, tmp_path: Path, federation: Any) -> None:
    folders = [*federation(2)]
    record = json.loads((folders[0] / "capture.json").read_text())
    (folders[0] / "capture.json").write_text(json.dumps(record | {"round": 7, "model": "mlp2"}))
    members, others = data(3, 60, 80)
    code, _, line = judge(*save(tmp_path, members=members, others=others), *folders)
    assert code == 2 and "are of different networks" in line and "judge them separately" in line
    assert len(line.splitlines()) == 1


def test_of_many_rounds_some_are_asked(tmp_path: Path) -> None:
    """Evenly spread, with the first and the last."""
    module = build_module("logistic", SHAPE, 10, 0)
    for number in range(30):
        with captured(module, tmp_path / f"{number:02}", round=number, model="logistic", image_shape=SHAPE, classes=10,
                      learning_rate=0.1, batch_size=4):  # fmt: skip
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            nn.functional.cross_entropy(module(torch.rand(4, *SHAPE)), torch.zeros(4, dtype=torch.long)).backward()
            optimizer.step()
    captures = [read_capture(one) for one in sorted(tmp_path.iterdir())]
    places = [int(one.source.split()[-1]) for one in finals_of_captures(captures, None)]
    assert len(places) == MOST_ROUNDS and (places[0], places[-1]) == (0, 29)
    assert set(np.diff(places)) <= {2, 3}
    (captures[3].folder / "after.npz").rename(captures[3].folder / "gradient.npz")
    kept = finals_of_captures([read_capture(one.folder) for one in captures[:5]], None)
    assert [one.source[-2:] for one in kept] == ["00", "01", "02", "04"]


def test_one_file_alone_and_weights_without_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (members,) = save(tmp_path, members=data(3, 60)[0])
    assert run(["judge", "--members", str(members)]) == 2
    assert "give --members FILE.npz and --non-members FILE.npz" in capsys.readouterr().err
    assert run(["judge", "--weights", str(members)]) == 2
    assert "need --members; add it, or drop them" in capsys.readouterr().err


def test_pickled_examples_and_weights_are_refused(judge: Any, tmp_path: Path) -> None:
    members, others = data(3, 60, 80)
    files = save(tmp_path, members=members, others=others)
    np.savez(tmp_path / "pickled.npz", images=members[0].astype(object), labels=members[1])
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    code, _, line = judge(tmp_path / "pickled.npz", files[1], "--model", "logistic", "--weights", "none.pt")
    assert code == 2 and len(line.splitlines()) == 1
    code, _, line = judge(*files, "--model", "logistic", "--weights", tmp_path / "whole.pt")
    assert code == 2 and "weights file" in line and len(line.splitlines()) == 1


def test_sides_know_both(tmp_path: Path) -> None:
    members, others = data(3, 60, 80)
    sides = read_sides(*save(tmp_path, members=members, others=others))
    assert isinstance(sides, Sides) and sides.count == 60 and len(sides.together.labels) == 140
    assert torch.equal(sides.together.images[60:], sides.others.images)
