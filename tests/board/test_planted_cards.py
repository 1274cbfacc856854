"""Wrong cards, each sealed anew, are rejected for what is wrong with them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.results.card import Card

Harness = Callable[..., Any]
Planted = Callable[[dict[str, Any]], None]


def cell(card: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return card["cells"][number]["result"]


def number(card: dict[str, Any]) -> None:
    cell(card)["asr"]["strict"]["rate"] = 0.5


def verdict(card: dict[str, Any]) -> None:
    other = "resilient" if card["row"]["verdict"] != "resilient" else "leaks"
    card["row"]["verdict"] = cell(card)["verdict"] = other


def other_seed(card: dict[str, Any]) -> None:
    for one in card["cells"]:
        one["settings"]["seeds"] = [1]


def missing_control(card: dict[str, Any]) -> None:
    cell(card)["controls"].pop()


def older_suite(card: dict[str, Any]) -> None:
    """One attack fewer than the version of today, under the name of an older one."""
    card["cells"].pop()
    card["row"]["attacks"].pop()
    card["row"]["suite"] = cell(card)["suite"] = card["cells"][0]["settings"]["suite"] = "tiny-1"
    card["command"] = card["command"].replace("tiny-2", "tiny-1")


def attack_left_out(card: dict[str, Any]) -> None:
    card["cells"].pop()
    card["row"]["attacks"].pop()


def epsilon(card: dict[str, Any]) -> None:
    card["statement"]["epsilon"] /= 2


def bound(card: dict[str, Any]) -> None:
    cell(card)["bound"]["events"][1]["ceiling"] = 0.01


def tier(card: dict[str, Any]) -> None:
    cell(card)["tier"] = "informed"


def dropped_victims(card: dict[str, Any]) -> None:
    for numbers in card["cells"][0]["victims"].values():
        del numbers[-4:]


def accuracy(card: dict[str, Any]) -> None:
    card["training"]["accuracy"] = 0.99


def command(card: dict[str, Any]) -> None:
    card["command"] += " --seed 1"


def reported(card: dict[str, Any]) -> None:
    card["reported"] = {"source": "a table", "data": "digits", "resists": "Y"}


def wrong_versions(card: dict[str, Any]) -> None:
    """Numbers of nobody, excused by another torch."""
    card["environment"]["versions"]["torch"] = "1.0"
    numbers = card["cells"][0]["victims"]
    numbers["rmses"], numbers["ranks"], numbers["successes"] = [0.001] * 24, [0.0] * 24, [1.0] * 24


def bound_of_other_versions(card: dict[str, Any]) -> None:
    card["environment"]["versions"]["torch"] = "1.0"
    bound(card)


def control_of_other_versions(card: dict[str, Any]) -> None:
    card["environment"]["versions"]["torch"] = "1.0"
    missing_control(card)


def accuracy_of_other_versions(card: dict[str, Any]) -> None:
    card["environment"]["versions"]["torch"] = "1.0"
    accuracy(card)


def fewer_test_examples_of_other_versions(card: dict[str, Any]) -> None:
    """Luck grows with fewer examples, which a card says itself."""
    accuracy_of_other_versions(card)
    card["training"]["accuracy"], card["training"]["test_examples"] = 0.05, 1


def success_of_other_versions(card: dict[str, Any]) -> None:
    card["environment"]["versions"]["torch"] = "1.0"
    rate = cell(card)["asr"]["strict"]
    rate["rate"] = 0.0 if rate["rate"] > 0.5 else 1.0


def delta_of_other_versions(card: dict[str, Any]) -> None:
    card["environment"]["versions"]["torch"] = "1.0"
    card["statement"]["delta"] = 1e-12


def row_of_other_versions(card: dict[str, Any], name: str, value: object) -> None:
    card["environment"]["versions"]["torch"] = "1.0"
    card["row"][name] = value


def place_of_other_versions(card: dict[str, Any]) -> None:
    """Another defense than was attacked, in the row and in what is said of every attack."""
    row_of_other_versions(card, "defense", "fed_sdp")
    for one in card["cells"]:
        one["result"]["defense"] = "fed_sdp"


def of_other_versions(planted: Planted) -> Planted:
    """The same under the excuse of another torch."""

    def both(card: dict[str, Any]) -> None:
        card["environment"]["versions"]["torch"] = "1.0"
        planted(card)

    return both


def more_victims(card: dict[str, Any]) -> None:
    rate = cell(card)["asr"]["strict"]
    rate["n"] *= 100
    rate["successes"] *= 100


def narrow_interval(card: dict[str, Any]) -> None:
    rate = cell(card)["asr"]["strict"]
    rate["ci95"] = [max(0.0, rate["rate"] - 0.001), min(1.0, rate["rate"] + 0.001)]


def other_successes(card: dict[str, Any]) -> None:
    rate = cell(card)["asr"]["strict"]
    rate["successes"] += 1 if rate["successes"] < rate["n"] else -1


def renamed_victims(card: dict[str, Any]) -> None:
    card["cells"][0]["victims"]["names"] = [f"9{name}" for name in card["cells"][0]["victims"]["names"]]


def praised_control(card: dict[str, Any]) -> None:
    cell(card)["controls"][0]["detail"] = "audited by somebody"


def other_units(card: dict[str, Any]) -> None:
    cell(card)["units"] = "noise std 10*sigma*S"


def certified(card: dict[str, Any]) -> None:
    card["environment"]["certified"] = "yes"


def hundredfold_noise(card: dict[str, Any]) -> None:
    for one in card["cells"]:
        one["settings"]["noise_scale"] = 100.0


def attack_twice(card: dict[str, Any]) -> None:
    card["cells"].append(card["cells"][1])


def trained_otherwise(card: dict[str, Any], name: str, value: object) -> None:
    card["training"]["settings"][name] = value


def impossible(card: dict[str, Any]) -> None:
    card["cells"][0]["settings"]["victims"] = 0


def unknown_setting(card: dict[str, Any]) -> None:
    card["cells"][0]["settings"]["luck"] = 1


def names_a_file(card: dict[str, Any]) -> None:
    card["cells"][0]["settings"]["weights"] = "/etc/passwd"


def names_a_module(card: dict[str, Any]) -> None:
    for one in card["cells"]:
        one["settings"]["model"] = "antigravity:fly"


def training_names_a_module(card: dict[str, Any]) -> None:
    card["training"]["settings"]["model"] = "antigravity:fly"


def training_of_another_defense(card: dict[str, Any]) -> None:
    """Its accuracy is true, and so is its epsilon: of a federation with hardly any noise."""
    card["training"]["settings"]["defense_args"]["sigma"] = 0.01


def unreliable(card: dict[str, Any]) -> None:
    card["status"], card["reason"] = "unreliable", "a negative control failed"


def other_places(card: dict[str, Any]) -> None:
    card["cells"][1]["settings"]["tap"] = "T2.step"


def of_another_processor(planted: Planted) -> Planted:
    """The same under the excuse of another processor."""

    def both(card: dict[str, Any]) -> None:
        card["environment"]["processor"] = "another"
        planted(card)

    return both


def better_mean(card: dict[str, Any], name: str) -> None:
    cell(card)["metrics"]["rmse"][name] = 123.0


def better_errors(card: dict[str, Any]) -> None:
    """Of every victim, and so that the card agrees with itself."""
    numbers = card["cells"][0]["victims"]
    numbers["rmses"] = [rmse * 30 for rmse in numbers["rmses"]]


def better_ranks(card: dict[str, Any]) -> None:
    numbers = card["cells"][0]["victims"]
    numbers["ranks"] = [rank * 0.9 + 0.1 for rank in numbers["ranks"]]


def changed(card: dict[str, Any], part: str, name: str, value: object, attack: int = 0) -> None:
    cell(card, attack)[part][name] = value


def said_otherwise(card: dict[str, Any], name: str, value: object) -> None:
    cell(card)[name] = value


def nowhere(card: dict[str, Any], name: str, value: object) -> None:
    card["environment"][name] = value


WRONG: dict[str, tuple[Planted, int, str]] = {
    "changed number": (number, 1, "cells[0].result.asr.strict.rate: 0.5 in the card, "),
    "changed verdict": (verdict, 1, "row.verdict: "),
    "other seed": (other_seed, 1, "seeds[0]: 0 in the card, 1 computed again"),
    "missing control": (missing_control, 1, "cells[0].result.controls: "),
    "older suite": (older_suite, 2, "suite tiny-1 belongs to 0.1.7; use tiny"),
    "attack left out of the suite": (attack_left_out, 2, "lacks identify of its suite tiny-2"),
    "changed epsilon": (epsilon, 1, "statement.epsilon: "),
    "changed bound": (bound, 1, "bound.events[1].ceiling: 0.01 in the card"),
    "other tier": (tier, 1, "tier: informed in the card, plain computed again"),
    "dropped victims": (dropped_victims, 1, "victims.names: 20 entries in the card, 24 entries computed again"),
    "changed accuracy": (accuracy, 1, "training.accuracy: 0.99 in the card"),
    "changed command": (command, 1, "command: "),
    "invented report": (reported, 1, "reported: "),
    "numbers of other versions": (wrong_versions, 1, "victims: "),
    "bound of other versions": (bound_of_other_versions, 1, "ceilings[1][0]: 0.01 in the card"),
    "missing control of other versions": (control_of_other_versions, 1, "controls"),
    "accuracy of other versions": (accuracy_of_other_versions, 1, "training.accuracy: 0.990 in the card"),
    "test examples of other versions": (fewer_test_examples_of_other_versions, 1, "training.test_examples: 1 in"),
    "success of other versions": (success_of_other_versions, 1, "cells[0].result.asr.strict.rate: "),
    "delta of other versions": (delta_of_other_versions, 1, "statement.delta: 1e-12 in the card"),
    "defense of other versions": (
        place_of_other_versions,
        1,
        "row.defense: fed_sdp in the card, fed_cdp computed again",
    ),
    "headline of other versions": (
        partial(row_of_other_versions, name="headline", value="withstood 9 attacks"),
        1,
        "row.headline: withstood 9",
    ),
    "reason of other versions": (
        partial(row_of_other_versions, name="verdict_reason", value="all is well"),
        1,
        "by the card's own cells",
    ),
    "more victims of other versions": (of_other_versions(more_victims), 1, "cells[0].trials[0]: 2400 in the card"),
    "narrow interval of other versions": (of_other_versions(narrow_interval), 1, "interval of strict are not those of"),
    "other successes of other versions": (of_other_versions(other_successes), 1, "interval of strict are not those of"),
    "other victims of other versions": (of_other_versions(renamed_victims), 1, "cells[0].victims"),
    "praised control of other versions": (of_other_versions(praised_control), 1, "controls[0].detail: audited"),
    "other units of other versions": (of_other_versions(other_units), 1, "cells[0].units: noise std 10"),
    "more than versions": (of_other_versions(certified), 1, "environment: "),
    "mean of another processor": (
        of_another_processor(partial(better_mean, name="mean")),
        1,
        "rmse.mean: 123 in",
    ),
    "median of another processor": (
        of_another_processor(partial(better_mean, name="median")),
        1,
        "rmse.median: 123 in",
    ),
    "deviation of another processor": (
        of_another_processor(partial(better_mean, name="std")),
        1,
        "interval is not that",
    ),
    "interval of another processor": (
        of_another_processor(lambda card: cell(card)["metrics"]["rmse"].update(ci95=[0.1, 0.1])),
        1,
        "metrics.rmse: the interval is not that",
    ),
    "errors of another processor": (of_another_processor(better_errors), 1, "victims.rmses: "),
    "ranks of another processor": (of_another_processor(better_ranks), 1, "of its own victims"),
    "lineup of another processor": (
        of_another_processor(partial(changed, part="lineup", name="rate", value=0.5)),
        1,
        "result.lineup.rate: 0.500 in the card",
    ),
    "chance of another processor": (
        of_another_processor(partial(changed, part="lineup", name="p_value", value=1e-4)),
        1,
        "result.lineup.p_value: 0.0001 in the card",
    ),
    "labels of another processor": (
        of_another_processor(partial(changed, part="label", name="accuracy", value=0.5)),
        1,
        "result.label.accuracy: 0.500 in the card",
    ),
    "identified by another processor": (
        of_another_processor(partial(changed, part="identified", name="rate", value=0.5, attack=1)),
        1,
        "result.identified.rate: 0.500 in the card",
    ),
    "outcomes of another processor": (
        of_another_processor(partial(said_otherwise, name="outcomes", value={"success": 24})),
        1,
        "result.outcomes.success: 1.000 in the card",
    ),
    "noise of another processor": (
        of_another_processor(partial(said_otherwise, name="noise", value="laplace")),
        1,
        "cells[0].noise: laplace in the card",
    ),
    "warnings of another processor": (
        of_another_processor(partial(said_otherwise, name="warnings", value=["all is well"])),
        1,
        "cells[0].warnings: ",
    ),
    "reason of another processor": (
        of_another_processor(partial(said_otherwise, name="verdict_reason", value="proved by a theorem")),
        1,
        "cells[0].verdict_reason: proved by a theorem in the card",
    ),
    "a processor of parts": (partial(nowhere, name="processor", value=["a", "b"]), 2, "in words"),
    "versions of numbers": (partial(nowhere, name="versions", value=[1, 2]), 2, "in words"),
    "noise of a control": (hundredfold_noise, 2, "on other noise than its defense adds"),
    "an attack twice": (attack_twice, 2, "an attack more than once"),
    "another delta": (partial(trained_otherwise, name="delta", value=0.9), 2, "training is not of the federation"),
    "momentum": (partial(trained_otherwise, name="local_momentum", value=0.9), 2, "training is not of the federation"),
    "impossible settings": (impossible, 2, "victims"),
    "unknown setting": (unknown_setting, 2, "luck"),
    "a file of this machine": (names_a_file, 2, "names files"),
    "code of this machine": (names_a_module, 2, "names files"),
    "another place for an attack": (other_places, 2, "more than one place"),
    "code of this machine to train": (training_names_a_module, 2, "training is not of the federation"),
    "training of another defense": (training_of_another_defense, 2, "training is not of the federation"),
    "unreliable": (unreliable, 2, "a negative control failed"),
}


# Of another seed everything is computed again, and no number of it is another test's.
@pytest.mark.parametrize(("planted", "code", "said"), [
    pytest.param(*wrong, id=name, marks=pytest.mark.slow if name == "other seed" else ())
    for name, wrong in WRONG.items()
])  # fmt: skip
def test_wrong_cards_are_rejected(
    harness: Harness, card: Card, file: Path, made: Path, planted: Planted, code: int, said: str
) -> None:
    """Each is sealed anew: its hash is right, and what it says is not."""
    content = json.loads(card.content())
    planted(content)
    try:
        file.write_bytes(Card.model_validate(content).sealed().content())
    except ValidationError:  # no card at all
        file.write_text(json.dumps(content))
    finished = harness("verify", str(file), "--out", str(made), "--resume")
    assert finished.code == code, finished
    assert said in (finished.err if code == 2 else finished.out)
    assert finished.err.count("\n") == (code == 2) and "confirmed" not in finished.out
