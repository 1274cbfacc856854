"""Suites: several attacks under one name, so that what was tried on a defense can be said in a word.

A suite takes no settings: each member runs at its defaults or at those that the suite has for it, whatever the cell,
since an attack that is tuned until it fails proves nothing, and one that is tuned until it succeeds counts its trials
wrongly. Its content never changes; other members or settings are another version. See docs/attackers.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.attacks.attacker import ATTACKS
from harness.base.errors import UsageError

Settings = Mapping[str, Any]

#: By the suite's name and version: its members, each with what differs from its defaults. Members that are impossible
#: at a place are recorded as not applicable there; those that read images are no members for texts, nor the reverse.
SUITES: dict[str, Mapping[str, Settings]] = {
    # inverting_gradients takes 1,000 iterations, because its rate falls at fixed shares of them. Where inferred labels
    # are at chance, the members that use labels run a second time with labels known.
    "auto-7": {
        "cpl": {}, "inverting_gradients": {"max_iterations": 1000}, "map": {}, "identify": {}, "analytic": {},
        "spear": {}, "learned": {}, "slope": {}, "levels": {},
    },
    # Closed forms come first, since a place where images come back to one of them is settled. Of those that search,
    # the one that need not know the defense comes before the one that does: what falls to it says more.
    "auto-8": {
        "token_rows": {}, "span": {}, "decode": {},
        "patches": {}, "analytic": {}, "spear": {}, "learned": {}, "levels": {}, "slope": {}, "identify": {},
        "cpl": {}, "map": {}, "inverting_gradients": {"max_iterations": 1000},
    },
    # Of the two that joined, the first reads batches of tables, of which it brings more back than the one behind it in
    # the same time; the second reads what compression leaves, before the one that takes rounded numbers for exact ones.
    "auto-9": {
        "token_rows": {}, "span": {}, "decode": {},
        "patches": {}, "analytic": {}, "rows": {}, "spear": {}, "learned": {}, "levels": {}, "slope": {},
        "identify": {}, "cpl": {}, "intervals": {}, "map": {}, "inverting_gradients": {"max_iterations": 1000},
    },
}  # fmt: skip
#: What a name without a version means.
LATEST = {"auto": "auto-9"}
#: Suites whose members all run everywhere, whatever leaks to an earlier one.
EXHAUSTIVE = ("auto-7",)
#: Earlier suites, whose verdicts are outdated, and the last version of the harness that is to run them.
DROPPED = dict.fromkeys(("auto-1", "auto-2", "auto-3", "auto-4", "auto-5", "auto-6"), "0.1.7")


@dataclass(frozen=True)
class Chosen:
    """An attack of a run with its own settings, and the suite it is tried for, None where it was named itself."""

    attack: str
    arguments: Settings = field(default_factory=dict)
    suite: str | None = None


def resolve(name: str) -> str:
    """Return the canonical name of an attack, or of a suite with its version.

    Raises:
        UsageError: there is no such attack, or the suite is of an earlier version.
    """
    named = LATEST.get(name, name)
    require_current(named)
    return named if named in SUITES else ATTACKS.resolve(name)


def require_current(suite: str) -> None:
    """Raise UsageError where a suite is of an earlier version."""
    if suite in DROPPED:
        raise UsageError(f"suite {suite} belongs to {DROPPED[suite]}; use {suite.partition('-')[0]}")


def members(names: Iterable[str]) -> list[str]:
    """Every attack behind these names of attacks and suites, once, in order."""
    return list(dict.fromkeys(chosen.attack for chosen in expanded((name, {}) for name in names)))


def reading(suite: str, texts: bool) -> list[str]:
    """Names of a suite's members that can make texts, or else images and rows of tables; others are no members there.

    Of an unknown suite none.
    """
    kinds = ("anything", "texts" if texts else "images")
    return [name for name in SUITES.get(suite, ()) if ATTACKS[name].reads in kinds]


def expanded(attacks: Iterable[tuple[str, Settings]]) -> list[Chosen]:
    """Attacks and suites, each with its settings, as attacks; what is named twice with the same settings is one.

    Raises:
        UsageError: an unknown name, or settings for a suite.
    """
    found: dict[str, Chosen] = {}
    for name, arguments in attacks:
        for chosen in _members(resolve(name), arguments):
            key = repr((chosen.attack, sorted(chosen.arguments.items())))
            # An attack that was named beside its suite is tried for the suite, when its turn comes.
            if chosen.suite and key in found and found[key].suite is None:
                del found[key]
            found.setdefault(key, chosen)
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
    """Return what is said to who gives settings to a suite."""
    return UsageError(
        f"attack {name!r} is a suite, which takes no settings; leave --attack-arg out, or write NAME.key=value for an "
        "attack that is named beside it"
    )
