"""The statement of a framework's filter: the lines of ``harness claims``, as privacy statements of a run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from harness.base.errors import UsageError
from harness.base.presence import FALSE_ALARMS, told_apart
from harness.claims.answers import Answer, Facts, Line
from harness.claims.filters import FILTERS
from harness.claims.registry import schedule_of, tag
from harness.federation.operations import Operation, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.privacy import Statement

_VIEWS = ("third party", "server", "client")
_EVERYBODY = "everybody"
Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Claimed(Operation):
    """Changes nothing; says of the operations that it goes with what ``harness claims`` says of their filter.

    Attributes:
        filter: its name there. settings: its arguments by name. version: of the framework; None for the newest known.
    """

    filter: str
    settings: Settings = ()
    _: KW_ONLY
    version: str | None = None

    acts: ClassVar[bool] = False
    silent = True

    @property
    def only_adds(self) -> bool:
        return True

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        try:
            settings, asked = self._asked(facts)
            answer = _answer(self.filter, settings, asked)
        except UsageError as mistake:
            return states_nothing(f"harness claims {self.filter} has no number here: {mistake}")
        kind = FILTERS[self.filter]
        shared = f"{facts.holders} clients hold one example" if facts.holders > 1 else None
        said = schedule_of(kind, dict(settings))
        return [_stated(said, view, lines, answer, shared) for view, lines in _by_view(answer, kind.acts)]

    def _asked(self, facts: PrivacyFacts) -> tuple[Settings, Facts]:
        """The arguments and the facts of a run. A client takes part in every round, and all weigh the same."""
        cohort, settings = facts.cohort, dict(self.settings)
        if self.filter == "opacus:PrivacyEngine":
            bounds = settings["max_grad_norm"]
            if isinstance(bounds, tuple) and len(bounds) != facts.tensors:
                raise UsageError(f"{len(bounds)} bounds for {facts.tensors} tensors, which Opacus refuses")
            settings |= {"sample_rate": facts.rate, "steps": cohort.steps_per_round}
            settings["poisson_sampling"] = facts.example_sampler == "poisson" and settings.get("poisson_sampling", True)
        # What a client keeps of its own leaves nothing to gain by sampling.
        poisson = facts.client_sampler == "poisson" and not self.filter.startswith("flower:")
        sampled = (facts.client_sampler == "without-replacement" or poisson) and not facts.own_state
        # An accountant has a cohort and a population of its own, which noise is scaled to.
        accounted = "population" in settings
        return tuple(settings.items()), Facts(
            rounds=cohort.rounds, participations=cohort.rounds,
            clients=cohort.clients if sampled and not accounted else None,
            per_round=None if accounted or not facts.counted else cohort.clients_per_round,
            weights="equal", server_optimizer="FedAvg",
            local_epochs=facts.steps_of_a_record(cohort.steps_per_round), clients_clip=True, numbers=facts.parameters,
            scalars=facts.scalars, version=self.version,
            sampler="poisson" if poisson and sampled else None,
            delta=None if {"delta", "dp_delta"} & settings.keys() else facts.delta,
        )  # fmt: skip


@lru_cache(maxsize=256)
def _answer(name: str, settings: Settings, facts: Facts) -> Answer:
    one = FILTERS[name]
    return one.asked(one.arguments(dict(settings)), facts)


def _by_view(answer: Answer, acts: str) -> Iterator[tuple[str, list[Line]]]:
    """The lines about each view: those with a number, else the first; a message is as noisy for whoever sees less."""
    every = list(answer.lines)
    for view in _VIEWS if any(line.epsilon is not None for line in every) else ("server",):
        own = [
            line for line in every
            if line.view == _EVERYBODY or view in line.view or (acts == "s1" and line.view == "server")
        ]  # fmt: skip
        yield view, [line for line in own if line.epsilon is not None] or own[:1]


def _stated(schedule: str, view: str, lines: Sequence[Line], answer: Answer, shared: str | None) -> Statement:
    """The statement against a view: the line by which a claim stands or falls, and the others in words."""
    last = max(line.rounds for line in lines)
    whole = [line for line in lines if line.rounds == last]
    # A number that holds as it is goes before one that holds "if ...".
    main = min((line for line in whole if line.judged), key=lambda line: len(line.ifs), default=whole[0])
    claim = next((line for line in (main, *lines) if line.claimed is not None and line.judged), main)
    fails = [*answer.fails, *([shared] if shared and main.unit == "example" else [])]
    held = main.epsilon is not None and math.isfinite(main.epsilon) and not fails
    others = (_in_words(line, main) for line in whole if line is not main and line.epsilon is not None and held)
    notes = [
        main.why, *(f"does not hold: {one}" for one in fails), *(f"if {one}" for one in answer.unknown), *others,
        *answer.warnings, *([f"claimed of {_rounds(claim)}"] if claim is not main else []), *answer.notes,
    ]  # fmt: skip
    stated = Statement(
        view=view, claimed_epsilon=claim.claimed, unit=main.unit, schedule=schedule, guarantee="none",
        notes="; ".join(dict.fromkeys(notes)),
    )  # fmt: skip
    if not held:
        return stated
    return replace(
        stated, epsilon=main.epsilon, delta=main.delta, mu=main.mu, adjacency=main.relation, sampler=main.sampler,
        told_apart=told_apart(FALSE_ALARMS, mu=main.mu, epsilon=main.epsilon, delta=main.delta),
        conversion=main.conversion, guarantee=tag(main.unit, view),
    )  # fmt: skip


def _in_words(line: Line, main: Line) -> str:
    """Another line of the same rounds, with its reason where that is another: what holds "if ..." says so."""
    reason = "" if line.why == main.why else f" ({line.why})"
    return f"{line.relation} at delta {line.delta:g}: {line.epsilon:.4g}{reason}"


def _rounds(line: Line) -> str:
    proven = "" if line.epsilon is None else f", of which {line.epsilon:.4g} is proven"
    return ("one round" if line.rounds == 1 else f"{line.rounds} rounds") + proven


def of_filter(
    name: str, record: Any, names: Sequence[str], of: Operation, at: Point | None = None, version: str | None = None,
    **more: Any,
) -> Claimed:  # fmt: skip
    """Return what is claimed of operations that go by ``of``, the last of which acts ``at`` a point.

    Args:
        record: the defense; ``names`` are those of its settings that the filter has too, ``more`` are its others.
    """
    settings = tuple((one, getattr(record, one)) for one in names)
    return Claimed(name, settings + tuple(more.items()), of=of, at=of.at if at is None else at, version=version)


def settings(**named: Any) -> dict[str, Any]:
    """Settings of a filter by name, for :func:`of_filter`."""
    return named
