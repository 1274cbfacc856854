"""The settings that decide whether two cells may be compared: everything but which and how many victims, and where."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from harness.base.errors import UsageError
from harness.experiment import CellSettings, usual_attack, usual_defense
from harness.results import StoredCell
from harness.results.record import WHOM

Settings = dict[str, str | int | float | bool | None]

# Whom to attack, where to compute, the suite an attack is tried for, and files, which are known by their hashes and not
# by their places. What a cell's identity has beside its settings (which control it is, the versions and digests of
# what it was made with) is none either: what an edit of the user's own network or data did to the numbers is what a
# comparison is for.
_LEFT_OUT = {
    *WHOM, "device", "weights", "server_state", "variates", "trained", "defense_args", "attack_args", "suite",
}  # fmt: skip
_COMPARED = set(CellSettings.model_fields) - _LEFT_OUT
NOT_THERE = object()


def effective(stored: StoredCell) -> Settings:
    """The settings of a stored cell with every default written out, flat: ``defense.sigma``, ``attack.tv``."""
    cell = stored.cell
    defense_args = {name: value for name, value in cell.defense_args.items() if name != "noise_scale"}
    return _flat(stored.settings, defense_args, cell.attack_args)


def _flat(settings: dict[str, Any], defense_args: dict[str, Any], attack_args: dict[str, Any]) -> Settings:
    flat = {name: value for name, value in settings.items() if name in _COMPARED}
    flat |= {f"defense.{name}": value for name, value in defense_args.items()}
    flat |= {f"attack.{name}": value for name, value in attack_args.items()}
    return {name: value if isinstance(value, Plain) else repr(value) for name, value in flat.items()}


Plain = str | int | float | bool | None


def named(settings: Mapping[str, JsonValue]) -> str:
    """The defense with the arguments that are not its defaults, and batch and rounds where they are more than one."""
    defaults = defaults_of(settings)
    own = [
        f"{name.partition('.')[2]}={value}"
        for name, value in settings.items()
        if name.startswith("defense.") and value != defaults.get(name, NOT_THERE)
    ]
    scale = settings.get("noise_scale", 1)
    noise = [] if scale == 1 else ["without noise" if scale == 0 else f"noise x{scale}"]
    batch = [] if settings.get("batch_size", 1) == 1 else [f"batch {settings['batch_size']}"]
    rounds = [] if settings.get("rounds_seen", 1) == 1 else [f"{settings['rounds_seen']} rounds"]
    return " ".join([str(settings.get("defense")), *own, *noise, *batch, *rounds])


def told_apart(cells: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """The titles of cells, each given with its flat settings; those of other settings do not have the same one.

    Where they would, the settings that differ among them come last.
    """
    alike: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for title, settings in cells:
        alike[title].append(settings)
    differ = {
        title: [
            name
            for name in dict.fromkeys(name for one in group for name in one)
            if len({_word(one, name) for one in group}) > 1
        ]
        for title, group in alike.items()
    }
    return [
        " / ".join([title, *(f"{name} {_word(settings, name)}" for name in differ[title])]) for title, settings in cells
    ]


def _word(settings: Mapping[str, Any], name: str) -> str:
    return str(settings.get(name, "absent"))


def defaults_of(settings: Mapping[str, JsonValue]) -> Settings:
    """Today's defaults of a cell with this defense and attack."""
    try:
        defense = usual_defense(str(settings.get("defense")))
        attack = usual_attack(str(settings.get("attack")))
    except UsageError:
        return {}
    cell = CellSettings()  # pyright: ignore[reportCallIssue]  # the fields' defaults come from functions
    return _flat(cell.model_dump(mode="json"), defense, attack)
