"""Meaning of the order of operations: which of them are one mechanism, and what its theorem covers beside the others.

A clip and the noise that goes by its bound are one mechanism, with nothing between them. Its guarantee survives what
comes before it, which is part of its input, and what comes after it, which is post-processing; where what comes before
it keeps something from earlier rounds, it is stated for clients with a state of their own. It does not survive an
operation between its clip and its noise; nor one on both sides of it, such as quantile clipping, whose bits travel
beside the message; nor one before it that may send what it saw in clear, or mix examples before each is clipped. Where
it rests on noise that adds up over clients, it survives in the sum only if nothing changes a client's message before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from harness.base.errors import UsageError
from harness.base.vectors import noise_deviation
from harness.federation.clip_and_noise import AnyClip, GaussianNoise
from harness.federation.operations import Operation, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Hook, Point
from harness.privacy import Statement, sum_multiplier, without_guarantee

NoisePlace = Literal["server", "message", "step"]
Flow = Sequence[tuple[str, Operation]]
Place = tuple[int, int]  # position of the point in a round, position in the list

_ORDER = {point: number for number, point in enumerate(Point)}
_EACH_EXAMPLE = (Point.INPUTS, Point.EXAMPLES)
NOTHING = "nothing is clipped and no calibrated noise is added, so no epsilon exists"
LENGTHENED = "rounding to {} may lengthen what clients clipped, and the noise is made for their bound"
_TOO_EARLY = "the noise comes before the clip that scales it, so nothing bounds what it hides"


@dataclass(frozen=True)
class FixedNoise:
    """Gaussian noise that a defense adds to clipped vectors, of the same scale and bound in every round of a run.

    Attributes:
        place: where it is added: by the ``server`` to the sum of the clients' clipped messages, by each client to its
            own clipped ``message``, or by each client in a local ``step`` to the sum of its clipped example gradients.
        deviation: its standard deviation on a coordinate.
        bound: largest L2 norm of one clipped vector as a whole: of a message, or of an example's gradient.
    """

    place: NoisePlace
    deviation: float
    bound: float


def arranged(operations: Sequence[Operation]) -> list[Operation]:
    """A defense's list as it runs: noise after a clip goes by its bound, and has a random stream of its own.

    Raises:
        UsageError: operations that contradict each other.
    """
    made: list[Operation] = []
    streams: dict[tuple[Point, str], int] = {}
    for one in operations:
        if one.of is not None and not any(one.of is other for other in operations):
            raise UsageError(
                f"{one.title} goes by a {one.of.title} that is not in the list; put that before it, or leave of= out"
            )
        if isinstance(one, GaussianNoise):
            one = _scaled(one, made)
            number = streams[one.at, one.stream] = streams.get((one.at, one.stream), 0) + 1
            one = replace(one, stream=f"{one.purpose} {number}") if number > 1 else one
        made.append(one)
    sums = [one.title for one in made if one.at is Point.SUM]
    if len(sums) > 1:
        raise UsageError(f"{' and '.join(sums)} would both sum a round's messages; keep only one of them")
    return made


def _scaled(noise: GaussianNoise, before: Sequence[Operation]) -> GaussianNoise:
    """Noise of a plain deviation as a multiple of the bound of a fixed clip right before it."""
    clip = before[-1] if before else None
    if noise.of or noise.law != "gaussian" or not isinstance(clip, AnyClip) or not clip.fixed or math.isinf(clip.bound):
        return noise
    alike = (clip.unit == "example") == (noise.at in (Point.EXAMPLES, Point.STEP))
    return replace(noise, of=clip, level=noise.level / clip.bound) if alike and noise.at in noise.points else noise


def sentence(operations: Sequence[Operation]) -> str:
    """Return what operations apply to and do, in one sentence."""
    if not operations:
        return "no clipping, no noise"
    said = [one for one in operations if one.words()]
    parts = [
        f"{subject}: {'; '.join(one.words() for one in own)}"
        for subject, own in groupby(said, key=lambda one: one.subject)
    ]
    if not any(one.noises for one in operations):
        parts.append("no noise")
    elif not any(one.clips for one in operations):
        parts.append("no clipping")
    return f"applies to {'; '.join(parts)}"


@dataclass(frozen=True)
class Claim:
    """Operations that are one mechanism, by name, and where they act, in the order of a round."""

    name: str
    operations: tuple[Operation, ...]
    places: tuple[Place, ...]

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        """Return what it states on its own: its last operation that has something to say."""
        if self._too_early:
            return states_nothing(_TOO_EARLY)
        stated = (one.statements(facts) for one in reversed(self.operations))
        made = next((own for own in stated if own is not None), states_nothing(NOTHING))
        if facts.sent_as is None or not clips_before_sending(self.operations):
            return made
        reason = LENGTHENED.format(facts.sent_as)
        return [one if one.guarantee == "none" else without_guarantee(one, reason) for one in made]

    @property
    def _too_early(self) -> bool:
        """Return whether noise acts before the clip that it goes by."""
        return any(
            isinstance(one, GaussianNoise) and one.of is other
            for place, one in enumerate(self.operations)
            for other in self.operations[place + 1 :]
        )

    @property
    def keeps(self) -> bool:
        """Return whether clients remember something of it."""
        return any(one.clients_remember() for one in self.operations)


def clips_before_sending(operations: Sequence[Operation]) -> bool:
    """Return whether clients clip what noise is added to after they sent it."""
    later = any(one.noises and _ORDER[one.at] > _ORDER[Point.MESSAGE] for one in operations)
    return later and any(one.clips and one.at is Point.MESSAGE for one in operations)


def claims_of(flow: Flow, parts: Sequence[str]) -> list[Claim]:
    """The mechanisms of a list; of a stack with these ``parts``, each named after its own."""
    numbered, claims = list(enumerate(flow)), []
    for part in parts:
        own = [(number, one) for number, (name, one) in numbered if name == part]
        groups = _linked(own) or [[]]
        for group in groups:
            title = group[-1][1].title if group else ""
            name = part if len(groups) == 1 else ".".join(filter(None, (part, title)))
            places = sorted((_ORDER[one.at], number) for number, one in group)
            ordered = tuple(flow[number][1] for _, number in places)
            claims.append(Claim(name, ordered, tuple(place for place in places if flow[place[1]][1].acts)))
    return claims


def _linked(own: Sequence[tuple[int, Operation]]) -> list[list[tuple[int, Operation]]]:
    """Operations that go by each other, together; each other one alone."""
    groups: list[list[tuple[int, Operation]]] = []
    for number, one in own:
        tied = [group for group in groups if any(one.of is other or other.of is one for _, other in group)]
        rest = [group for group in groups if not any(group is other for other in tied)]
        groups = [*rest, [*(entry for group in tied for entry in group), (number, one)]]
    return groups


def statements_of(flow: Flow, parts: Sequence[str], facts: PrivacyFacts) -> list[Statement]:
    """The statements of the mechanisms that guarantee something, or one that says why none does."""
    claims = claims_of(flow, parts)
    if len(claims) == 1:
        return claims[0].statements(facts)
    stated = [claim.statements(facts_of(claims, claim, facts)) for claim in claims]
    combined = [
        _beside(claims, claim, own, statement)
        for claim, own in zip(claims, stated, strict=True)
        if any(one.guarantee != "none" for one in own)
        for statement in own
    ]
    return combined or [_nothing_holds(claims, stated)]


def finished_of(flow: Flow, parts: Sequence[str], facts: PrivacyFacts) -> str | None:
    """Return why training must stop before the round that ``facts.cohort.rounds`` would include; None to go on."""
    claims = claims_of(flow, parts)
    for claim in claims:
        # By the same facts as its statements: what is kept before it takes its sampling away.
        own = facts_of(claims, claim, facts)
        for reason in (one.finished(own) for one in claim.operations):
            if reason:
                return f"{claim.name}: {reason}" if len(parts) > 1 else reason
    return None


def fixed_noise_of(flow: Flow, parts: Sequence[str], facts: PrivacyFacts) -> FixedNoise | None:
    """The noise of a defense that is one mechanism; None where it is not, or follows the data or the round."""
    claims = claims_of(flow, parts)
    last = claims[0].operations[-1] if len(claims) == 1 and claims[0].operations else None
    if not isinstance(last, GaussianNoise) or last.law != "gaussian" or not last.level or not last.steady:
        return None
    clip = last.of
    if not isinstance(clip, AnyClip) or not clip.fixed:
        return None
    bound = facts.whole_bound(clip.bound, clip.grouping)
    if last.at in (Point.EXAMPLES, Point.STEP):
        multiplier = sum_multiplier(last.level, last.convention, facts.cohort.batch_size)
        return FixedNoise("step", multiplier * clip.bound, bound)
    deviation = noise_deviation(last.level, clip.bound)
    if last.at is Point.AGGREGATE:
        return FixedNoise("server", deviation, bound)
    share = math.sqrt(facts.cohort.clients_per_round) if last.shared else 1.0
    return FixedNoise("message", deviation / share, bound) if last.at is Point.MESSAGE else None


def facts_of(claims: Sequence[Claim], claim: Claim, facts: PrivacyFacts) -> PrivacyFacts:
    """The run as one mechanism meets it: clients have a state of their own where something before it keeps some."""
    kept = any(
        other.keeps and claim.places and other.places[0] < claim.places[-1] for other in claims if other is not claim
    )
    return replace(facts, own_state=facts.own_state or kept)


def _nothing_holds(claims: Sequence[Claim], stated: Sequence[list[Statement]]) -> Statement:
    """One statement with every reason, and the first epsilon that is claimed anyway."""
    firsts = [own[0] for own in stated]
    claiming = next((one for one in firsts if one.claimed_epsilon is not None), firsts[0])
    notes = "; ".join(f"{claim.name}: {one.notes}" for claim, one in zip(claims, firsts, strict=True))
    return replace(claiming, notes=notes)


def _beside(claims: Sequence[Claim], claim: Claim, own: Sequence[Statement], statement: Statement) -> Statement:
    """Return what is left of one mechanism's statement beside the others."""
    if statement.guarantee == "none":
        return statement
    name, first, last = claim.name, claim.places[0], claim.places[-1]
    others = {other.name: other.places for other in claims if other is not claim}
    before = [other for other, acts in others.items() if any(place < first for place in acts)]
    between = [other for other, acts in others.items() if any(first < place < last for place in acts)]
    after = [other for other, acts in others.items() if any(place > last for place in acts)]
    if between:
        return _void(statement, f"{_and(between)} may act between the clipping and the noise of {name}")
    if around := [other for other in before if other in after]:
        return _void(statement, f"{_and(around)} may carry what it saw before {name} past it")
    telling = [
        other.name
        for other in claims
        if other is not claim and any(one.sends for one in other.operations) and other.places[0] < last
    ]
    if telling:
        return _void(statement, f"{_and(telling)} may send what it saw before {name} in clear")
    mixing = [
        other for other, acts in others.items()
        if any(place < first and list(Point)[place[0]] in _EACH_EXAMPLE for place in acts)
    ]  # fmt: skip
    if mixing and statement.unit == "example":
        return _void(statement, f"{_and(mixing)} may mix examples before each is clipped by {name}")
    aggregate = _ORDER[Point.AGGREGATE]
    on_the_way = [other for other, acts in others.items() if any(last < place < (aggregate, 0) for place in acts)]
    if on_the_way and last[0] < aggregate and statement.view != "server":
        statement = _as_the_server(
            own, statement, f"{_and(on_the_way)} may change the messages of {name} before the sum"
        )
    notes = [statement.notes]
    notes += [f"{_and(before)} before {name}: part of its input"] if before else []
    notes += [f"{_and(after)} after {name}: post-processing"] if after else []
    return replace(statement, notes="; ".join(notes))


def _as_the_server(own: Sequence[Statement], statement: Statement, reason: str) -> Statement:
    """Return what holds for the server, who sees every message, holds for those who see less; else nothing does."""
    server = next((one for one in own if one.view == "server" and one.unit == statement.unit), statement)
    if server.view != "server" or server.guarantee == "none":
        return _void(statement, reason)
    notes = f"{reason}, so noise does not add up and what holds for the server is stated: {server.notes}"
    return replace(server, view=statement.view, guarantee=statement.guarantee, notes=notes)


def _void(statement: Statement, reason: str) -> Statement:
    """The statement without a guarantee; what is claimed anyway stays."""
    return without_guarantee(statement, f"{reason}, so no theorem covers the result")


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)


def why_unbounded(operations: Sequence[Operation], hook: Hook) -> str | None:
    """Return why a clip does not bound what the noise of a stage hides; None where it does, or where there is no noise.

    Args:
        operations: all, of one defense. hook: the stage.
    """
    played = sorted(operations, key=lambda one: _ORDER[one.at])
    for noise in played:
        clip = noise.of
        if noise.at.hook is not hook or not isinstance(noise, GaussianNoise) or not isinstance(clip, AnyClip):
            continue
        mine, its = (next(place for place, one in enumerate(played) if one is which) for which in (noise, clip))
        if mine < its:
            return _TOO_EARLY
        if any(one.of is not clip for one in played[its + 1 : mine] if not isinstance(one, GaussianNoise)):
            return "something acts between the clip and the noise"
        if told := next((one for one in played[:mine] if one.sends and clip not in (one, one.of)), None):
            return f"{told.title} may send what it saw before in clear"
        mixes = (one for one in played[:its] if one.at in _EACH_EXAMPLE and not isinstance(one, AnyClip))
        if clip.unit == "example" and any(mixes):
            return "something may mix examples before each is clipped"
    return None
