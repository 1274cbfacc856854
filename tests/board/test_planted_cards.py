"""Wrong cards, each sealed anew, are rejected for what is wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.results.card import Card

Harness = Callable[..., Any]
#: Places of a card, ``*`` for every one, and what is said there instead: a value, or a function of what was said.
Planted = dict[str, Any]


def plant(part: Any, place: str, said: Any) -> None:
    """Say something else at a place of a card."""
    name, _, rest = place.partition(".")
    for key in (range(len(part)) if isinstance(part, list) else list(part)) if name == "*" else [name]:
        key = int(key) if isinstance(part, list) else key
        if rest:
            plant(part[key], rest, said)
        else:
            part[key] = said(part[key]) if callable(said) else said


def but_last(values: list[Any]) -> list[Any]:
    return values[:-1]


def another(verdict: str) -> str:
    return "resilient" if verdict != "resilient" else "leaks"


def hundredfold(count: int) -> int:
    return 100 * count


def narrower(rate: dict[str, Any]) -> dict[str, Any]:
    return rate | {"ci95": [max(0.0, rate["rate"] - 0.001), min(1.0, rate["rate"] + 0.001)]}


def one_off(rate: dict[str, Any]) -> dict[str, Any]:
    return rate | {"successes": rate["successes"] + (1 if rate["successes"] < rate["n"] else -1)}


FIRST, VICTIMS = "cells.0.result", "cells.0.victims"
STRICT, RMSE = f"{FIRST}.asr.strict", f"{FIRST}.metrics.rmse"
#: Numbers may differ under these.
VERSIONS, PROCESSOR = {"environment.versions.torch": "1.0"}, {"environment.processor": "another"}
LEFT_OUT = {"cells": but_last, "row.attacks": but_last}
BOUND = {f"{FIRST}.bound.events.1.ceiling": 0.01}
NOT_OF_IT = "training is not of the federation"

WRONG: dict[str, tuple[Planted, int, str]] = {
    "changed number": ({f"{STRICT}.rate": 0.5}, 1, "cells[0].result.asr.strict.rate: 0.5 in the card, "),
    "changed verdict": ({"row.verdict": another, f"{FIRST}.verdict": another}, 1, "row.verdict: "),
    "other seed": ({"cells.*.settings.seeds": [1]}, 1, "seeds[0]: 0 in the card, 1 computed again"),
    "missing control": ({f"{FIRST}.controls": but_last}, 1, "cells[0].result.controls: "),
    # One attack fewer than the version of today, under the name of an older one.
    "older suite": (
        LEFT_OUT | dict.fromkeys(("row.suite", f"{FIRST}.suite", "cells.0.settings.suite"), "tiny-1")
        | {"command": lambda command: command.replace("tiny-2", "tiny-1")},
        2, "suite tiny-1 belongs to 0.1.7; use tiny",
    ),
    "attack left out of the suite": (LEFT_OUT, 2, "lacks identify of its suite tiny-2"),
    "changed epsilon": ({"statement.epsilon": lambda epsilon: epsilon / 2}, 1, "statement.epsilon: "),
    "changed bound": (BOUND, 1, "bound.events[1].ceiling: 0.01 in the card"),
    "other tier": ({f"{FIRST}.tier": "informed"}, 1, "tier: informed in the card, plain computed again"),
    "dropped victims": ({f"{VICTIMS}.*": lambda numbers: numbers[:-4]}, 1,
                        "victims.names: 20 entries in the card, 24 entries computed again"),
    "changed accuracy": ({"training.accuracy": 0.99}, 1, "training.accuracy: 0.99 in the card"),
    "changed command": ({"command": lambda command: f"{command} --seed 1"}, 1, "command: "),
    "invented report": ({"reported": {"source": "a table", "data": "digits", "resists": "Y"}}, 1, "reported: "),
    # Numbers of nobody, excused by another torch.
    "numbers of other versions": (
        VERSIONS
        | {f"{VICTIMS}.rmses": [0.001] * 24, f"{VICTIMS}.ranks": [0.0] * 24, f"{VICTIMS}.successes": [1.0] * 24},
        1, "victims: ",
    ),
    "bound of other versions": (VERSIONS | BOUND, 1, "ceilings[1][0]: 0.01 in the card"),
    "missing control of other versions": (VERSIONS | {f"{FIRST}.controls": but_last}, 1, "controls"),
    "accuracy of other versions": (VERSIONS | {"training.accuracy": 0.99}, 1, "training.accuracy: 0.990 in the card"),
    # Luck grows with fewer examples, which a card says itself.
    "test examples of other versions": (VERSIONS | {"training.accuracy": 0.05, "training.test_examples": 1}, 1,
                                        "training.test_examples: 1 in"),
    "success of other versions": (VERSIONS | {f"{STRICT}.rate": lambda rate: 0.0 if rate > 0.5 else 1.0}, 1,
                                  "cells[0].result.asr.strict.rate: "),
    "delta of other versions": (VERSIONS | {"statement.delta": 1e-12}, 1, "statement.delta: 1e-12 in the card"),
    # Another defense than was attacked, in the row and in what is said of every attack.
    "defense of other versions": (VERSIONS | {"row.defense": "fed_sdp", "cells.*.result.defense": "fed_sdp"}, 1,
                                  "row.defense: fed_sdp in the card, fed_cdp computed again"),
    "headline of other versions": (VERSIONS | {"row.headline": "withstood 9 attacks"}, 1, "row.headline: withstood 9"),
    "reason of other versions": (VERSIONS | {"row.verdict_reason": "all is well"}, 1, "by the card's own cells"),
    "more victims of other versions": (VERSIONS | {f"{STRICT}.n": hundredfold, f"{STRICT}.successes": hundredfold}, 1,
                                       "cells[0].trials[0]: 2400 in the card"),
    "narrow interval of other versions": (VERSIONS | {STRICT: narrower}, 1, "interval of strict are not those of"),
    "other successes of other versions": (VERSIONS | {STRICT: one_off}, 1, "interval of strict are not those of"),
    "other victims of other versions": (VERSIONS | {f"{VICTIMS}.names.*": lambda name: f"9{name}"}, 1,
                                        "cells[0].victims"),
    "praised control of other versions": (VERSIONS | {f"{FIRST}.controls.0.detail": "audited by somebody"}, 1,
                                          "controls[0].detail: audited"),
    "other units of other versions": (VERSIONS | {f"{FIRST}.units": "noise std 10*sigma*S"}, 1,
                                      "cells[0].units: noise std 10"),
    "more than versions": (VERSIONS | {"environment.certified": "yes"}, 1, "environment: "),
    "mean of another processor": (PROCESSOR | {f"{RMSE}.mean": 123.0}, 1, "rmse.mean: 123 in"),
    "median of another processor": (PROCESSOR | {f"{RMSE}.median": 123.0}, 1, "rmse.median: 123 in"),
    "deviation of another processor": (PROCESSOR | {f"{RMSE}.std": 123.0}, 1, "interval is not that"),
    "interval of another processor": (PROCESSOR | {f"{RMSE}.ci95": [0.1, 0.1]}, 1,
                                      "metrics.rmse: the interval is not that"),
    # Of every victim, and so that the card agrees with itself.
    "errors of another processor": (PROCESSOR | {f"{VICTIMS}.rmses.*": lambda rmse: 30 * rmse}, 1, "victims.rmses: "),
    "ranks of another processor": (PROCESSOR | {f"{VICTIMS}.ranks.*": lambda rank: rank * 0.9 + 0.1}, 1,
                                   "of its own victims"),
    "lineup of another processor": (PROCESSOR | {f"{FIRST}.lineup.rate": 0.5}, 1,
                                    "result.lineup.rate: 0.500 in the card"),
    "chance of another processor": (PROCESSOR | {f"{FIRST}.lineup.p_value": 1e-4}, 1,
                                    "result.lineup.p_value: 0.0001 in the card"),
    "labels of another processor": (PROCESSOR | {f"{FIRST}.label.accuracy": 0.5}, 1,
                                    "result.label.accuracy: 0.500 in the card"),
    "identified by another processor": (PROCESSOR | {"cells.1.result.identified.rate": 0.5}, 1,
                                        "result.identified.rate: 0.500 in the card"),
    "outcomes of another processor": (PROCESSOR | {f"{FIRST}.outcomes": {"success": 24}}, 1,
                                      "result.outcomes.success: 1.000 in the card"),
    "more victims than there are": (PROCESSOR | {f"{FIRST}.outcomes.failure": 25}, 1, "outcomes: of "),
    "more confirmed than came back": (PROCESSOR | {f"{FIRST}.confirmed": 1}, 1,
                                      "1 accurate and nearest beside 0 successes"),
    "a chance above one": (PROCESSOR | {f"{FIRST}.lineup.confirmed_p_value": 3.0}, 1, "p_value: 3 is no chance"),
    "a reason of its own": (PROCESSOR | {"reason": "proved by a theorem"}, 1, "reason: proved by a theorem in the"),
    "noise of another processor": (PROCESSOR | {f"{FIRST}.noise": "laplace"}, 1, "cells[0].noise: laplace in the card"),
    "warnings of another processor": (PROCESSOR | {f"{FIRST}.warnings": ["all is well"]}, 1, "cells[0].warnings: "),
    "reason of another processor": (PROCESSOR | {f"{FIRST}.verdict_reason": "proved by a theorem"}, 1,
                                    "cells[0].verdict_reason: proved by a theorem in the card"),
    "a processor of parts": ({"environment.processor": ["a", "b"]}, 2, "in words"),
    "versions of numbers": ({"environment.versions": [1, 2]}, 2, "in words"),
    "noise of a control": ({"cells.*.settings.noise_scale": 100.0}, 2, "on other noise than its defense adds"),
    "an attack twice": ({"cells": lambda cells: [*cells, cells[1]]}, 2, "an attack more than once"),
    "another delta": ({"training.settings.delta": 0.9}, 2, NOT_OF_IT),
    "momentum": ({"training.settings.local_momentum": 0.9}, 2, NOT_OF_IT),
    "impossible settings": ({"cells.0.settings.victims": 0}, 2, "victims"),
    "unknown setting": ({"cells.0.settings.luck": 1}, 2, "luck"),
    "a file of this machine": ({"cells.0.settings.weights": "/etc/passwd"}, 2, "names files"),
    "code of this machine": ({"cells.*.settings.model": "antigravity:fly"}, 2, "names files"),
    "another place for an attack": ({"cells.1.settings.tap": "T2.step"}, 2, "more than one place"),
    "code of this machine to train": ({"training.settings.model": "antigravity:fly"}, 2, NOT_OF_IT),
    # Its accuracy is true, and so is its epsilon: of a federation with hardly any noise.
    "training of another defense": ({"training.settings.defense_args.sigma": 0.01}, 2, NOT_OF_IT),
    "unreliable": ({"status": "unreliable", "reason": "a negative control failed"}, 2, "a negative control failed"),
}  # fmt: skip


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
    for place, said_instead in planted.items():
        plant(content, place, said_instead)
    try:
        file.write_bytes(Card.model_validate(content).sealed().content())
    except ValidationError:  # no card at all
        file.write_text(json.dumps(content))
    finished = harness("verify", str(file), "--out", str(made), "--resume")
    assert finished.code == code, finished
    assert said in (finished.err if code == 2 else finished.out)
    assert finished.err.count("\n") == (code == 2) and "confirmed" not in finished.out
