"""Suites: several attacks under one name, so that what was tried on a defense can be said in a word.

A suite takes no settings: each member runs at its defaults or at those that the suite has for it, whatever the cell,
since an attack that is tuned until it fails proves nothing, and one that is tuned until it succeeds counts its trials
wrongly. Its content never changes; other members or settings are another version. See docs/attackers.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.attacks.attacker import ATTACKS
from harness.errors import UsageError

Settings = Mapping[str, Any]

#: By the suite's name and version: its members, each with what differs from its defaults. Members that are impossible
#: at a place are recorded as not applicable there.
SUITES: dict[str, Mapping[str, Settings]] = {
    "auto-1": {"cpl": {}, "inverting_gradients": {}, "map": {}, "identify": {}, "analytic": {}},
    # The rate of inverting_gradients falls at fixed shares of its iterations: fewer are a schedule of their own, whose
    # successes are measured beside the default's.
    "auto-2": {"cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {}},
    # Batches of a network that begins fully connected, which no other member takes apart.
    "auto-3": {
        "cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {},
        "spear": {},
    },
    # Where victims share weights the round itself can be learned, whatever it does to what is read.
    "auto-4": {
        "cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {},
        "spear": {}, "learned": {},
    },
    # Noise that draws the most probable image to its class leaves the slope towards the victim's own.
    "auto-5": {
        "cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {},
        "spear": {}, "learned": {}, "slope": {},
    },
    # Noise whose level follows the private gradient gives the sizes of its tensors away.
    "auto-6": {
        "cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {},
        "spear": {}, "learned": {}, "slope": {}, "levels": {},
    },
    # The same members, of which identify and slope read several examples; where inferred labels are at chance, those
    # that use labels run a second time with labels known.
    "auto-7": {
        "cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {},
        "spear": {}, "learned": {}, "slope": {}, "levels": {},
    },
}  # fmt: skip
#: What a name without a version means.
LATEST = {"auto": "auto-7"}


@dataclass(frozen=True)
class Chosen:
    """An attack of a run with its own settings, and the suite it is tried for, None where it was named itself."""

    attack: str
    arguments: Settings = field(default_factory=dict)
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
    return list(dict.fromkeys(chosen.attack for chosen in expanded((name, {}) for name in names)))


def expanded(attacks: Iterable[tuple[str, Settings]]) -> list[Chosen]:
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


def _members(name: str, arguments: Settings) -> list[Chosen]:
    if name not in SUITES:
        return [Chosen(name, arguments)]
    if arguments:
        raise without_settings(name)
    return [Chosen(ATTACKS.resolve(member), settings, name) for member, settings in SUITES[name].items()]


def described(suite: str) -> str:
    """A suite's members in words, each with what differs from its defaults."""
    said = {name: ", ".join(f"{key}={value}" for key, value in own.items()) for name, own in SUITES[suite].items()}
    return ", ".join(f"{name} ({settings})" if settings else name for name, settings in said.items())


def without_settings(name: str) -> UsageError:
    """What is said to who gives settings to a suite."""
    return UsageError(
        f"attack {name!r} is a suite, which takes no settings; leave --attack-arg out, or write NAME.key=value for an "
        "attack that is named beside it"
    )
