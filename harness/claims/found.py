"""Content of a source: filters with the arguments that are known, facts, and conditions that nobody settled."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.base.errors import UsageError
from harness.claims.answers import Answer, Facts, Filter, counted

#: Arguments that no number depends on, so that it does not matter what they are.
UNCOUNTED = (
    "module", "optimizer", "data_loader", "criterion", "noise_generator", "strategy", "batch_first", "loss_reduction",
    "grad_sample_mode", "secure_mode", "rand_on_empty",
)  # fmt: skip
_MOST_FILTERS = 100
_KINDS = ("WEIGHT_DIFF", "WEIGHTS")
#: Where an accountant's history says everything, these would contradict it.
_BESIDE_HISTORY = ("noise_multiplier", "sample_rate", "steps", "engine")


@dataclass
class Found:
    """A filter of a source, with the arguments that are known.

    Attributes:
        open: arguments whose value the source does not say, and what stands there.
        ifs: what nobody said. fails: conditions that are known to fail.
        facts: of this filter alone. unsettled: what nobody said, by the fact that would settle it.
        version: of its package, as the source asks for it.
        target: the epsilon and delta that the source asks for, in place of what an accountant would report.
        drawn: the share of all clients that a round draws, and the least number of them.
    """

    filter: Filter
    arguments: dict[str, Any]
    where: str
    open: dict[str, str] = field(default_factory=dict)
    ifs: list[str] = field(default_factory=list)
    fails: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    unsettled: dict[str, str] = field(default_factory=dict)
    version: str | None = None
    target: tuple[float, float] | None = None
    drawn: tuple[float, int] | None = None

    def known(self, source: "Source", given: Mapping[str, Any]) -> Facts:
        """Return what is known of the federation: what is ``given`` on the command line goes before what the source
        says.

        Raises:
            UsageError: a fact is none, or two contradict each other.
        """
        where = self.where or source.name
        for fact, key in source.keys.items():
            if fact not in given:
                fix = f"write such a number, or add --{fact.replace('_', '-')}"
                counted(key, source.facts[fact], fix)
        said = {**source.facts, **self.facts}
        for one, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
            if one in given:
                said.pop(other, None)
        said |= given
        clients = said.get("clients")
        if self.drawn and clients and "per_round" not in given:
            part, least = self.drawn
            said["per_round"] = min(clients, max(int(clients * part), least))
        try:
            return Facts(**said)
        except UsageError as mistake:
            raise UsageError(f"{where}: {mistake}") from None

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments, with those ``given`` on the command line before those of the source.

        Raises:
            UsageError: one that it needs is known of neither, or two contradict each other.
        """
        own = {name: value for name, value in given.items() if name in self.filter.settings}
        if unsaid := {name: text for name, text in self.open.items() if name not in own and name not in UNCOUNTED}:
            said = ", ".join(f"{name} = {text}" for name, text in unsaid.items())
            fix = " ".join(f"--arg {name}=VALUE" for name in unsaid)
            raise UsageError(f"{self.where}: {said} is no literal and no key; add {fix}")
        merged = {**self.arguments, **own}
        if merged.get("history") is not None:
            merged = _with_history(merged, self.where)
        elif self.target and "noise_multiplier" not in merged:
            raise UsageError(
                f"{self.where}: Opacus computes the noise for epsilon {self.target[0]:g} as it runs; print "
                "optimizer.noise_multiplier and add --arg noise_multiplier=VALUE"
            )
        return self.filter.arguments(merged, self.where)

    def stated(self, answer: Answer, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Adds to an answer what the source says beside arguments: conditions, and the epsilon that it asks for.

        Args:
            given: facts and arguments of the command line.
        """
        answer.fails += self.fails
        settled = {*given, *(["local_epochs"] if "local_steps" in given else [])}
        answer.unknown += [*self.ifs, *(text for fact, text in self.unsettled.items() if fact not in settled)]
        kinds = arguments.get("data_kinds")
        if isinstance(kinds, list) and kinds and not set(_KINDS) <= {str(kind) for kind in kinds}:
            answer.unknown.append(f"results are of kind {' or '.join(map(str, kinds))}: every other leaves as it is")
        if self.target:
            epsilon, delta = self.target
            last = max(line.rounds for line in answer.lines)
            forgets = arguments.get("engine") == "per-round"
            for place, line in enumerate(answer.lines):
                asked = line.claimed is not None and (forgets or line.rounds == last)
                claim = (epsilon, delta) if asked else (None, None)
                answer.lines[place] = replace(line, claimed=claim[0], claimed_delta=claim[1])


def _with_history(merged: dict[str, Any], where: str) -> dict[str, Any]:
    """The arguments of an accountant's history, which stands alone and has numbers of the right kind."""
    at = f"{where}: " if where else ""
    if beside := next((name for name in _BESIDE_HISTORY if merged.get(name) is not None), None):
        raise UsageError(f"{at}{beside} contradicts the accountant's history, which says it; leave one of them out")
    entries = merged["history"]
    if not (isinstance(entries, list) and entries and all(_is_entry(one) for one in entries)):
        raise UsageError(
            f"{at}history must be a list of [sigma above 0, rate in (0, 1], whole steps above 0], all of them numbers; "
            'give "history": [[1.0, 0.01, 5]]'
        )
    return {"noise_multiplier": 1.0, **merged}


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        return False
    sigma, rate, steps = entry
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in entry)
    return numbers and sigma > 0 and 0 < rate <= 1 and isinstance(steps, int) and steps > 0


@dataclass
class Source:
    """Content of what was read: filters, facts as they are named in :class:`harness.claims.answers.Facts`, unknown
    classes.

    Attributes:
        keys: of facts that are counted: the file and the key that say them, whatever they say.
    """

    name: str
    found: list[Found] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    unsettled: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def check_number(source: Source) -> None:
    """Raises UsageError where a source names too many filters to answer."""
    if len(source.found) + len(source.unknown) > _MOST_FILTERS:
        raise UsageError(f"{source.name}: names more than {_MOST_FILTERS} filters; give the part that is asked about")


def table(document: Any, *names: str) -> dict[str, Any]:
    """The table under these keys; empty where there is none."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def listed(value: Any) -> list[Any]:
    """A list as it is; empty for everything else."""
    return value if isinstance(value, list) else []


def flat(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys joined by dots, with underscores for dashes."""
    for key, value in document.items():
        name = f"{before}{key}".replace("-", "_")
        if isinstance(value, dict):
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def once(pairs: Iterator[tuple[str, Any]], where: str) -> dict[str, Any]:
    """The pairs as a mapping.

    Raises:
        UsageError: a key has two values.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and (found[key] != value or type(found[key]) is not type(value)):
            raise UsageError(f"{where}: {key} has two values, {found[key]!r} and {value!r}; keep the one that counts")
        found[key] = value
    return found


def is_whole(value: Any) -> bool:
    """Return whether it is a whole number, which true is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def in_a_line(error: BaseException) -> str:
    """Return what a reader of files said, in short."""
    return re.sub(r"\s+", " ", str(error)).strip()[:120] or "nested too deeply"
