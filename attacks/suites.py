"""Suites: several attacks under one name, so that what was tried on a defense can be said in a word.

A suite has no settings: each member runs at its defaults, whatever the cell, since an attack that is tuned until it
fails proves nothing, and one that is tuned until it succeeds counts its trials wrongly. Its content never changes;
other members are another version. See docs/attackers.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.attacks.attacker import ATTACKS
from harness.errors import UsageError

#: Members by the suite's name and version. Those that are impossible at a place are recorded as not applicable there.
SUITES: dict[str, tuple[str, ...]] = {
    "auto-1": ("cpl", "inverting_gradients", "map", "identify", "analytic"),
}
#: What a name without a version means.
LATEST = {"auto": "auto-1"}


@dataclass(frozen=True)
class Chosen:
    """An attack of a run with its own settings, and the suite it is tried for, None where it was named itself."""

    attack: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    suite: str | None = None


def resolve(name: str) -> str:
    """The canonical name of an attack, or of a suite with its version.

    Raises:
        UsageError: there is no such attack.
    """
    named = LATEST.get(name, name)
    return named if named in SUITES else ATTACKS.resolve(name)


def members(names: Iterable[str]) -> list[str]:
    """Every attack behind these names of attacks and suites, once, in order."""
    return [chosen.attack for chosen in expanded((name, {}) for name in names)]


def expanded(attacks: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Chosen]:
    """Attacks and suites, each with its settings, as attacks; what is named twice with the same settings is one.

    Raises:
        UsageError: an unknown name, or settings for a suite.
    """
    found: dict[str, Chosen] = {}
    for name, arguments in attacks:
        for chosen in _members(resolve(name), arguments):
            key = repr((chosen.attack, sorted(chosen.arguments.items())))
            # An attack that was named beside its suite is tried for the suite.
            if key not in found or found[key].suite is None:
                found[key] = chosen
    return list(found.values())


def _members(name: str, arguments: Mapping[str, Any]) -> list[Chosen]:
    if name not in SUITES:
        return [Chosen(name, arguments)]
    if arguments:
        raise without_settings(name)
    return [Chosen(ATTACKS.resolve(member), {}, name) for member in SUITES[name]]


def without_settings(name: str) -> UsageError:
    """What is said to who gives settings to a suite."""
    return UsageError(
        f"attack {name!r} is a suite, which takes no settings; leave --attack-arg out, or write NAME.key=value for an "
        "attack that is named beside it"
    )
