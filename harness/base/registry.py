"""Names for the things a user can choose: attacks, defenses, datasets, models."""

import contextlib
import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from harness.base.errors import UsageError, in_one_line, printable

# Running what users bring along, own networks and plugins, without letting it disturb the run.


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """Run an import or a call of somebody's own code in the block, which sees the current folder's modules.

    What it prints goes to standard error, where a document on standard output stays whole, and so does what programs
    that it starts print; torch's default precision and device are put back.

    Raises:
        RuntimeError: it ended the program, which would have looked like success.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last: no file of theirs hides an installed module
    try:
        with contextlib.redirect_stdout(sys.stderr), _descriptor_too(), _torchs_defaults():
            yield
    except SystemExit as end:
        raise RuntimeError(f"it calls sys.exit({end.code!r})") from end


@contextlib.contextmanager
def installed(module: str) -> Iterator[None]:
    """Import an installed module in the block, for which a mere folder of its name here is not taken.

    Python takes any folder on its path for a package, and asks only then where an editable installation lies, such as
    that of the very project in this folder.
    """
    top, whole = module.partition(".")[0], list(sys.path)
    if top not in sys.modules and _is_mere_folder(top):
        sys.path[:] = [place for place in whole if os.path.abspath(place) != os.getcwd()]
    try:
        yield
    finally:
        sys.path[:] = whole


def _is_mere_folder(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is None


@contextlib.contextmanager
def _descriptor_too() -> Iterator[None]:
    """Programs and compiled code write to the descriptor, which Python's redirection leaves as it is."""
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output, as under some servers
        yield
        return
    try:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _torchs_defaults() -> Iterator[None]:
    import torch  # here, since a registry is no reason to load it

    precision, device, gradients = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(precision)
        if torch.get_default_device() != device:
            # None, as it was, and not the CPU by name, which would go through every call.
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(gradients)


#: What this context was given in Python, by kind and name: no other thread, and nothing after it, finds it.
_given: ContextVar[Mapping[tuple[str, str], Any]] = ContextVar("given", default=MappingProxyType({}))


@contextlib.contextmanager
def given(entries: Mapping[tuple[str, str], Any]) -> Iterator[None]:
    """Within the block, registries of a kind know these names too: what is registered is left as it is."""
    token = _given.set({**_given.get(), **entries})
    try:
        yield
    finally:
        _given.reset(token)


T = TypeVar("T")
Entry = TypeVar("Entry")

# Where a colon stands, a framework or source comes first: flower:LocalDpMod.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(:[A-Za-z0-9_][A-Za-z0-9_-]*)?")


class Registry(Generic[T]):
    """Maps names (and aliases) to registered objects.

    Other installed packages join through the entry-point group ``group``; they are imported the first time
    anything is looked up, and one that fails is named on standard error and left out. With ``combine``, which makes
    one thing of several by name, names joined by ``+`` stand for a stack of these things, in that order.
    """

    def __init__(self, kind: str, group: str, combine: Callable[[Mapping[str, Any]], Any] | None = None) -> None:
        self.kind = kind
        self.group = group
        self.combine = combine
        self._entries: dict[str, Any] = {}  # of T; a decorated class keeps its own type
        self._aliases: dict[str, str] = {}
        self._plugins_loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[Entry], Entry]:
        """Decorator that registers its target under ``name`` and ``aliases``.

        Raises:
            ValueError: one of them is taken, or could not be written on a command line.
        """

        def decorate(entry: Entry) -> Entry:
            for new in (name, *aliases):
                if not _NAME.fullmatch(new):
                    raise ValueError(f"{self.kind} {new!r}: a name is of letters, digits, _ and -; before a colon too")
                if new in self._entries or new in self._aliases:
                    raise ValueError(f"{self.kind} {new!r} is registered twice")
            self._entries[name] = entry
            self._aliases.update(dict.fromkeys(aliases, name))
            return entry

        return decorate

    def resolve(self, name: str) -> str:
        """The registered name behind ``name`` or one of its aliases; of a stack, the registered names joined.

        Raises:
            UsageError: the name is unknown (the message suggests the nearest one) or twice in a stack.
        """
        self._load_plugins()
        if len(parts := self.parts(name)) > 1:
            if "" in parts:
                raise UsageError(f"{self.kind} {name!r} lacks a name beside a plus sign; name it or leave the sign out")
            stack = [self.resolve(part) for part in parts]
            twice = next((part for part in stack if stack.count(part) > 1), None)
            if twice is not None:
                raise UsageError(f"{self.kind} {twice!r} is twice in the stack {name!r}; name it once")
            return "+".join(stack)
        canonical = self._aliases.get(name, name)
        if canonical in self._entries or (self.kind, canonical) in _given.get():
            return canonical
        known = [*self._entries, *self._aliases]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._entries))}"
        if "," in name:
            hint = "name one alone"
        raise UsageError(f"unknown {self.kind} {name!r}; {hint}")

    def is_given(self, name: str) -> bool:
        """Return whether the caller's own object is meant, see :func:`given`."""
        return name not in self._entries and (self.kind, name) in _given.get()

    def parts(self, name: str) -> list[str]:
        """The names that a stack's name joins, or the name alone."""
        return name.split("+") if self.combine else [name]

    def __getitem__(self, name: str) -> T:
        found = self.resolve(name)
        return self._entries[found] if found in self._entries else _given.get()[self.kind, found]

    def name_of(self, entry: object) -> str | None:
        """The name that this very object is registered under; None where it is not."""
        self._load_plugins()
        return next((name for name, one in self._entries.items() if one is entry), None)

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def aliases(self, name: str) -> list[str]:
        """The aliases of a registered name."""
        return sorted(alias for alias, target in self._aliases.items() if target == name)

    def outside(self, name: str) -> list[str]:
        """The modules of other packages that a registered name, or the parts of a stack, come from."""
        self._load_plugins()
        own = {part: self._aliases.get(part, part) for part in self.parts(name)}
        entries = [self._entries.get(one) or _given.get().get((self.kind, one)) for one in own.values()]
        modules = [getattr(getattr(entry, "func", entry), "__module__", "") for entry in entries if entry]
        return [module for module in modules if module.partition(".")[0] != "harness"]

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            self._load(point)

    def _load(self, point: EntryPoint) -> None:
        before = dict(self._entries), dict(self._aliases)
        try:
            with own_code(), installed(point.module):
                point.load()
        except Exception as error:  # somebody else's code may raise anything
            self._entries, self._aliases = before
            why = in_one_line(error)
            said = f"plugin {point.name!r} ({point.value}) is left out: {why}"
            print(f"harness: {printable(said)}", file=sys.stderr)
