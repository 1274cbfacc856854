"""The commands that make a figure again. Names come from result files: each is quoted for a shell."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from harness.attacks.suites import reading
from harness.experiment import AS_CAPTURED, FILE_SETTINGS, OPTIONS, CellSettings
from harness.reports import text
from harness.reports.html.judged import Budget
from harness.reports.html.places import Shown
from harness.reports.html.run_data import RunData
from harness.scoring.summarise import settles
from harness.training import TrainSettings

_MOST = 6
_JUDGED_BY = "unroll"  # of several local steps, unless something else is asked for
# Options that are written with their value where that is not the default, and those that are written alone.
_EVALUATE = {name: CellSettings.model_fields[name].default for name in OPTIONS if name != "victims"}
_FLAGS = [name for name, usual in _EVALUATE.items() if usual is False]
_SECRET = "# splits and initial weights come out again; noise and sampling had a secret key, and do not"
# What a named run brings along.
_OF_A_RUN = (*FILE_SETTINGS, "rounds")
_TRAIN = [name for name, field in TrainSettings.model_fields.items() if field.description is not None]


def report_command(runs: Sequence[RunData]) -> str:
    """Return what makes this page again."""
    return " ".join(["harness report", *(_quoted(str(run.folder)) for run in runs), "--out report.html"])


def evaluate_commands(cells: Iterable[Shown]) -> list[str]:
    """Return what makes these cells again, as few commands as cover them; at most six."""
    groups: dict[tuple[str, ...], list[Shown]] = {}
    taken: dict[tuple[tuple[str, ...], str, str], dict[str, int]] = {}
    for item in cells:
        common = _common(item)
        # A command sets a defense's arguments once: other arguments are another command.
        variants = taken.setdefault((common, item.cell.defense, item.cell.attack), {})
        variant = variants.setdefault(repr(_arguments(item)), len(variants))
        groups.setdefault((*common, str(variant)), []).append(item)
    commands = list(dict.fromkeys(_evaluate(members) for members in groups.values()))
    more = [f"# and {len(commands) - _MOST} more, see the exact settings"] if len(commands) > _MOST else []
    return commands[:_MOST] + more


def judge_commands(runs: Iterable[RunData]) -> list[str]:
    """Return what makes the estimates again; where the truth was known, the cells say it."""
    judged = [run.judged for run in runs if run.judged and run.judged.estimates]
    return [
        _judge(_option("attack", ",".join(one.attack for one in made.estimates)), dict(made), made.budget)
        for made in judged
    ]


def train_command(run: RunData) -> str:
    """Return what makes a training run again, as far as it can be: a secret key of its noise is nobody's to repeat."""
    settings, secret = (run.training.settings, run.training.secret) if run.training else ({}, False)
    parts = [
        _option(name, settings[name])
        for name in _TRAIN
        if settings.get(name) is not None and not (secret and name == "seed")
    ]
    parts += _assignments("defense", settings.get("defense_args"), None)
    return " ".join(["harness train", *parts, *([_SECRET] if secret else [])])


def _settings(item: Shown) -> dict[str, Any]:
    """The settings as asked for; where they are not at hand, what the cell itself tells."""
    asked = item.run.settings.get(item.cell.key or "")
    if asked is not None:
        return asked
    cell = item.cell
    known = {name: value for name, value in cell.settings.items() if name in OPTIONS and name != "prior"}
    arguments = {name: value for name, value in cell.defense_args.items() if name != "noise_scale"}
    return cell.cohort | known | {"defense_args": arguments, "attack_args": cell.attack_args}


def _common(item: Shown) -> tuple[str, ...]:
    settings, cell = _settings(item), item.cell
    options = [_option("training", item.trained[0])] if item.trained else []
    options += [
        _option(name, settings[name])
        for name, usual in _EVALUATE.items()
        if name not in _FLAGS
        and settings.get(name) is not None
        and settings[name] != usual
        and not (item.trained and name in _OF_A_RUN)
    ]
    options += [f"--{name.replace('_', '-')}" for name in _FLAGS if settings.get(name) is True]
    victims = cell.victims // max(1, len(cell.seeds))
    return (
        _option("dataset", cell.dataset), _option("model", cell.model), _option("victims", victims),
        _option("seed", ",".join(map(str, cell.seeds))), *options,
    )  # fmt: skip


def _arguments(item: Shown, attack: bool = True) -> list[str]:
    settings, cell = _settings(item), item.cell
    own = _assignments("defense", settings.get("defense_args"), None if "+" in cell.defense else cell.defense)
    return own + (_assignments("attack", settings.get("attack_args"), cell.attack) if attack else [])


def _assignments(kind: str, values: Any, owner: str | None) -> list[str]:
    if not isinstance(values, dict):
        return []
    prefix = f"{owner}." if owner else ""
    return [
        _option(f"{kind}_arg", f"{prefix}{name}={value}") for name, value in values.items() if not _structured(value)
    ]


def _structured(value: Any) -> bool:
    return value is None or isinstance(value, dict | list)


def _evaluate(members: Sequence[Shown]) -> str:
    def every(name: str) -> str:
        return _option(name, ",".join(dict.fromkeys(str(getattr(item.cell, name)) for item in members)))

    settings = _settings(members[0])
    if settings.get("weights") == AS_CAPTURED:
        judged = members[0].run.judged
        return _judge(every("attack"), settings, judged and judged.budget)
    suite = _suite(members)
    arguments = dict.fromkeys(part for item in members for part in _arguments(item, attack=suite is None))
    attacks = every("attack") if suite is None else _option("attack", suite)
    whole = ["--all-members"] if suite and _ran_on(members) else []
    return " ".join(
        ["harness evaluate", every("defense"), attacks, every("tap"), *_common(members[0]), *arguments, *whole]
    )


def _ran_on(members: Sequence[Shown]) -> bool:
    """Return whether members of a suite ran at a place that an earlier one had settled."""
    return any(settles(item.cell) for item in members) and not any(item.cell.settled_by for item in members)


def _suite(members: Sequence[Shown]) -> str | None:
    """The suite that these cells are the whole of, whose members have settings of their own; None of others."""
    (suite, *others) = {item.cell.suite for item in members}
    if others or suite is None:
        return None
    found = {item.cell.attack for item in members}
    return suite if any(found == set(reading(suite, texts)) for texts in (False, True)) else None


def _judge(attacks: str, settings: Mapping[str, Any], budget: Budget | None) -> str:
    """``budget``: what fits into it depends on all attacks, and on the machine."""
    within = [_option("budget", f"{budget.seconds:g}s")] if budget else []
    attacks = _option("attack", ",".join(budget.asked)) if budget and budget.asked else attacks
    steps = settings.get("update_model", "first")
    several = [_option("update_model", steps)] if steps not in ("first", _JUDGED_BY) else []
    return " ".join(
        ["harness judge CAPTURE...", attacks, _option("prior", settings.get("prior", "none")), *several, *within]
    )


def _option(name: str, value: object) -> str:
    return f"--{name.replace('_', '-')} {_quoted(str(value))}"


@lru_cache(maxsize=4096)
def _quoted(value: str) -> str:
    quoted = shlex.quote(text.safe(value, 200))
    # What starts with a dash would be an option of its own.
    return f"./{quoted}" if value.startswith("-") else quoted
