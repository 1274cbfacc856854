"""What is asked of filters, and the rows that answer it: of the command, and of ``harness.claims(...)`` in Python."""

import math
from collections.abc import Iterator
from typing import Any

from harness.base.building import require_known
from harness.base.errors import UsageError
from harness.base.presence import FALSE_ALARMS, told_apart
from harness.claims.answers import Answer, Facts, Filter, Line, network
from harness.claims.registry import schedule_of, tag, unread
from harness.claims.sources import source_of

Row = dict[str, Any]

_NAMES = {"parameters": "numbers", "framework_version": "version"}
_FACTS = (
    "rounds", "clients", "per_round", "participations", "weights", "examples", "batch_size", "local_epochs",
    "local_steps", "drop_last", "optimizer", "server_optimizer", "parameters", "scalars", "buffers", "delta",
    "framework_version",
)  # fmt: skip


def claims(
    sources: str | list[str] | tuple[str, ...], *, arg: dict[str, Any] | None = None, model: str | None = None,
    **facts: Any,
) -> list[Row]:  # fmt: skip
    """What filters of frameworks claim, beside the epsilon that is proven.

    Args:
        sources: configurations, which are read and never run, or names such as ``flower:LocalDpMod``.
        arg: arguments of the filters by name.
        model: the size of an update by a name, such as ``resnet18``.
        facts: of the federation, as ``harness claims --help`` names them: ``rounds``, ``clients``, ``examples``,
            ``batch_size``, ``delta`` in (0, 1), ...; ``weights`` is ``equal``, ``private`` or a tuple of numbers.

    Returns:
        The rows that ``harness claims --json`` prints: a dictionary for each filter, unit and relation.

    Raises:
        UsageError: an unknown filter or fact, a source that cannot be read, or numbers that no epsilon follows from.
    """
    require_known(facts, _FACTS)
    given = {_NAMES.get(name, name): value for name, value in facts.items() if value is not False}
    named = [sources] if isinstance(sources, str) else list(sources)
    rows, unknown = answered(named, arg or {}, facts_of(given, model))
    if unknown:
        raise UsageError(f"not known: {unknown[0]}; harness claims lists the filters that are")
    return rows


def facts_of(given: dict[str, Any], model: str | None) -> dict[str, Any]:
    """What was given of the federation, and the size of an update by the model's name where no number says it."""
    sizes = {} if model is None else dict(zip(("numbers", "scalars"), network(model), strict=True))
    return {**sizes, **{name: value for name, value in given.items() if value is not None}}


def answered(sources: list[str], given: dict[str, Any], facts: dict[str, Any]) -> tuple[list[Row], list[str]]:
    """A row for each line of each filter of the sources, and the classes that nothing is known of."""
    Facts(**{"rounds": max(1, facts.get("participations", 1)), **facts})  # a mistake of the command line is no source's
    rows, unknown = [], []
    sources_read = [source_of(name) for name in dict.fromkeys(sources)]
    settings = {name for source in sources_read for found in source.found for name in given
                if name in found.filter.settings}  # fmt: skip
    if unused := next((name for name in given if name not in settings), None):
        raise UsageError(f"no filter of the sources has an argument {unused!r}; leave --arg {unused}=... out")
    for source in sources_read:
        unknown += [f"{one} ({source.name})" for one in source.unknown]
        for found in source.found:
            where = found.where or source.name
            arguments, known = found.filled(given), found.known(source, facts)
            try:
                answer = found.filter.asked(arguments, known)
                answer.unknown += [one] if (one := unread(found.filter.name, known.version)) else []
            except UsageError as mistake:
                raise UsageError(f"{where}: {mistake}") from None
            except (ArithmeticError, ValueError, MemoryError) as mistake:
                raise UsageError(
                    f"{where}: no epsilon follows from these numbers ({mistake}); change the arguments"
                ) from None
            answer.unknown += [text for fact, text in source.unsettled.items() if fact not in facts]
            found.stated(answer, arguments, {**given, **facts})
            version = facts.get("version") or found.version
            rows += list(_rows(found.filter, answer, where, version, schedule_of(found.filter, arguments)))
    return rows, unknown


def _rows(one: Filter, answer: Answer, where: str, version: str | None, schedule: str) -> Iterator[Row]:
    """The fields of a statement for each line, and what else there is to know."""
    newest = f"newest known: {one.source}{'' if one.ran else ' (read, not run)'}"
    for line, proven in zip(answer.lines, answer.proven, strict=True):
        holds = not proven.exceeded if line.claimed is not None and line.judged else None
        epsilon = _finite(proven.epsilon)
        yield {
            "defense": one.name, "acts": one.acts, "view": line.view, "claimed_epsilon": _finite(line.claimed),
            "claimed_delta": line.claimed_delta, "epsilon": epsilon, "delta": line.delta, "unit": line.unit,
            "adjacency": None if line.epsilon is None else line.relation, "sampler": line.sampler,
            "conversion": None if epsilon is None else line.conversion, "schedule": schedule,
            "guarantee": "none" if epsilon is None else tag(line.unit, line.view), "notes": line.why,
            "rounds": line.rounds, "mu": line.mu, "holds": holds, "by_adjacency": _by_adjacency(line, answer),
            "epsilon_at_claimed_delta": _finite(_at_claim(proven)),
            "told_apart": None if epsilon is None else told_apart(
                FALSE_ALARMS, mu=line.mu, epsilon=epsilon, delta=line.delta
            ),
            "delta_at_claimed_epsilon": None if proven.epsilon is None else proven.delta_at_claim,
            "would_be": _finite(line.epsilon) if answer.fails else None,
            "conditions": {"fails": answer.fails, "unknown": [*answer.unknown, *line.ifs]}, "warnings": answer.warnings,
            "remarks": answer.notes, "source": where, "version": version or newest,
        }  # fmt: skip


def _by_adjacency(line: Line, answer: Answer) -> dict[str, float | None]:
    """What is proven for each relation of two neighbors, of the same view, unit, rounds, delta and sampling."""
    return {one.relation: _finite(one.epsilon) for one in answer.proven if _same(one) == _same(line)}


def _same(line: Line) -> tuple[Any, ...]:
    return line.view, line.unit, line.rounds, line.delta, line.sampler


def _at_claim(line: Any) -> float | None:
    """What is proven at the claim's own delta; None where nothing is claimed or proven."""
    if line.claimed is None or line.epsilon is None:
        return None
    return line.epsilon if line.at_claim is None else line.at_claim


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
