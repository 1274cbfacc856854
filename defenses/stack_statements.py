"""What a stack of defenses may claim, from what each of its parts may.

A part's guarantee survives what comes before it, which is part of its input, and what comes after it, which is
post-processing; where what comes before it keeps something from earlier rounds, it is stated for clients with a state
of their own. It does not survive a part that acts between its clipping and its noise, nor one that acts on both
sides of it, such as quantile clipping, whose bits travel beside the message. Where it rests on noise that adds up over
clients, it survives in the sum only if nothing changes a client's message on the way there.
"""

from collections.abc import Sequence
from dataclasses import replace

from harness.federation.defense import Defense
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Hook
from harness.privacy import Statement

_FLOW = (Hook.CLIENT_STEP, Hook.CLIENT_MESSAGE, Hook.SERVER_RECEIVE, Hook.AGGREGATE)

Parts = Sequence[tuple[str, Defense]]
Position = tuple[int, int]  # position of the hook in a round, position of the part in the stack


def combined_statements(parts: Parts, facts: PrivacyFacts) -> list[Statement]:
    """The statements of the parts that guarantee something, or one that says why none does."""
    stated = [part.statements(facts_of(parts, position, facts)) for position, (_, part) in enumerate(parts)]
    combined = [
        _within_stack(parts, position, own, statement)
        for position, own in enumerate(stated)
        if any(one.guarantee != "none" for one in own)
        for statement in own
    ]
    return combined or [_nothing_holds(parts, stated)]


def facts_of(parts: Parts, position: int, facts: PrivacyFacts) -> PrivacyFacts:
    """The run as one part meets it: clients have a state of their own where a part before it keeps something."""
    acts = _places(parts, position)
    kept = any(
        part.clients_remember() and acts and min(_places(parts, other)) < acts[-1]
        for other, (_, part) in enumerate(parts)
        if other != position
    )
    return replace(facts, own_state=facts.own_state or kept)


def _nothing_holds(parts: Parts, stated: Sequence[list[Statement]]) -> Statement:
    """One statement with every part's reason, and the first epsilon that is claimed anyway."""
    firsts = [own[0] for own in stated]
    claiming = next((one for one in firsts if one.claimed_epsilon is not None), firsts[0])
    notes = "; ".join(f"{name}: {one.notes}" for (name, _), one in zip(parts, firsts, strict=True))
    return replace(claiming, notes=notes)


def _within_stack(parts: Parts, position: int, own: Sequence[Statement], statement: Statement) -> Statement:
    """What is left of one part's statement beside the other parts."""
    if statement.guarantee == "none":
        return statement
    name = parts[position][0]
    places = _places(parts, position)
    first, last = places[0], places[-1]
    others = {parts[index][0]: _places(parts, index) for index in range(len(parts)) if index != position}
    before = [other for other, acts in others.items() if any(place < first for place in acts)]
    between = [other for other, acts in others.items() if any(first < place < last for place in acts)]
    after = [other for other, acts in others.items() if any(place > last for place in acts)]
    if between:
        return _void(statement, f"{_and(between)} may act between the clipping and the noise of {name}")
    if around := [other for other in before if other in after]:
        return _void(statement, f"{_and(around)} may carry what it saw before {name} past it")
    aggregate = _FLOW.index(Hook.AGGREGATE)
    on_the_way = [other for other, acts in others.items() if any(last < place < (aggregate, 0) for place in acts)]
    if on_the_way and last[0] < aggregate and statement.view != "server":
        statement = _as_the_server(
            own, statement, f"{_and(on_the_way)} may change the messages of {name} before the sum"
        )
    notes = [statement.notes]
    notes += [f"{_and(before)} before {name}: part of its input"] if before else []
    notes += [f"{_and(after)} after {name}: post-processing"] if after else []
    return replace(statement, notes="; ".join(notes))


def _places(parts: Parts, position: int) -> list[Position]:
    """Where a part acts, in the order of a round."""
    return [(hook, position) for hook, name in enumerate(_FLOW) if parts[position][1].acts_at(name)]


def _as_the_server(own: Sequence[Statement], statement: Statement, reason: str) -> Statement:
    """What holds for the server, who sees every message, holds for those who see less; else nothing does."""
    server = next((one for one in own if one.view == "server" and one.unit == statement.unit), statement)
    if server.view != "server" or server.guarantee == "none":
        return _void(statement, reason)
    notes = f"{reason}, so noise does not add up and what holds for the server is stated: {server.notes}"
    return replace(server, view=statement.view, guarantee=statement.guarantee, notes=notes)


def _void(statement: Statement, reason: str) -> Statement:
    """The statement without a guarantee; what is claimed anyway stays."""
    return replace(
        statement, epsilon=None, delta=None, adjacency=None, sampler=None, conversion=None, guarantee="none",
        notes=f"{reason}, so no theorem covers the result",
    )  # fmt: skip


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
