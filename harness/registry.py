"""Names for the things a user can choose: attacks, defenses, datasets, models."""

import difflib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from harness.errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names (and aliases) to registered objects.

    Other installed packages join through the entry-point group ``group``; they are imported the first time
    anything is looked up.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._entries: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._plugins_loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[T], T]:
        """Decorator that registers its target under ``name`` and ``aliases``."""

        def decorate(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            self._aliases.update(dict.fromkeys(aliases, name))
            return entry

        return decorate

    def resolve(self, name: str) -> str:
        """The registered name behind ``name`` or one of its aliases.

        Raises:
            UsageError: the name is unknown; the message suggests the nearest one.
        """
        self._load_plugins()
        canonical = self._aliases.get(name, name)
        if canonical in self._entries:
            return canonical
        known = [*self._entries, *self._aliases]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._entries))}"
        raise UsageError(f"unknown {self.kind} {name!r}; {hint}")

    def __getitem__(self, name: str) -> T:
        return self._entries[self.resolve(name)]

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def aliases(self, name: str) -> list[str]:
        """The aliases of a registered name."""
        return sorted(alias for alias, target in self._aliases.items() if target == name)

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            point.load()
