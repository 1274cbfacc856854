"""Membership tests: whether a final model, and those of earlier rounds, tell who was in training (docs/verdicts.md).

A server keeps the model of every round. With reference models for each round, the scores of an example add up over
rounds: were rounds independent, the sum of log-likelihood ratios would be the best test of all of them together.
Rounds follow each other, so it need not be the best. What it tells is measured like that of one model, on the same
members and non-members, and its gain over the last model alone with an interval.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.judging.capture import Capture
from harness.judging.federation import OF_DATA, require_same_facts
from harness.judging.member_signals import REFERENCES, Signals, signals_of
from harness.judging.members import Final, Sides
from harness.judging.series import require_one_model
from harness.scoring.membership import (
    Numbers,
    SitesTold,
    Told,
    area,
    area_gain,
    area_interval,
    best_weight,
    lira_score,
    p_values,
    rmia_ratio,
    rmia_score,
    site_test,
    told,
)

# A difference of the two groups without the model is shown at the first level. Of few non-members, whose halves are
# unlike by chance, reference models vary more than an interval for given scores knows: there at the second.
_APART, _APART_OF_FEW, _FEW = 0.999, 0.99999, 300
# Of labels that are told as well by chance, at most.
_BY_CHANCE = 0.01


class Score(NamedTuple):
    """RMIA's score of an example, the share of non-members that its ratio exceeds, and its p-value."""

    score: float
    p: float


@dataclass(frozen=True)
class Gain:
    """Result of one score that is added over rounds.

    Attributes:
        told: like that of one model.
        more, low, high: its AUC less that of the last model alone, with a 95% interval.
    """

    told: Told
    more: float
    low: float
    high: float

    @property
    def said(self) -> str:
        """Result in words."""
        said = "a gain over" if self.low > 0 else "less than" if self.high < 0 else "no gain is shown over"
        return f"{_in_words(self.told)}; {said} the last alone ({self.more:+.3f}, {self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class OverRounds:
    """Results of telling members from the models of several rounds, the last one last.

    Attributes:
        sources: of each model, where it comes from. gains: of each score.
        without: as in :class:`Membership`, of reference models of all rounds.
    """

    sources: tuple[str, ...]
    gains: tuple[Gain, ...]
    without: tuple[float, float, float]


@dataclass(frozen=True)
class Membership:
    """Results of telling members of a training from its final model, and from those of earlier rounds.

    Attributes:
        accuracy: on members and non-members. most_frequent: share of the members' most frequent label.
            reference_accuracy: of reference models, on their own half and the other.
        passes: of each reference model over its half. unfitted: how many fit it less well than the model its members.
        weight: RMIA's a.
        scores: RMIA, LiRA, and the loss alone.
        without: AUC and its interval (of 99.9%, of few non-members 99.999%) of reference models alone, which know no
            member: 0.5 where the two sides are alike in all but the training.
        members, others: RMIA's score of each example, in the order of the files.
        rounds: of several; None of one model.
    """

    model: str
    source: str
    counts: tuple[int, int]
    accuracy: tuple[float, float]
    most_frequent: float
    reference_accuracy: tuple[float, float]
    passes: tuple[int, ...]
    unfitted: int
    weight: float
    scores: tuple[Told, ...]
    without: tuple[float, float, float]
    members: tuple[Score, ...]
    others: tuple[Score, ...]
    rounds: OverRounds | None = None

    @property
    def problem(self) -> str | None:
        """Reason why the result does not count; None where it does."""
        checks = [self.without, *([self.rounds.without] if self.rounds else [])]
        wrong = [one for one in checks if not one[1] <= 0.5 <= one[2]]
        if not wrong:
            return None
        (found, low, high), sure = wrong[0], _percent(_apart(self.counts[1]))
        return (
            f"members and non-members differ without the model (AUC {found:.3f}, {sure} {low:.3f} to {high:.3f}, by "
            "models that saw no member); draw both from the same data"
        )

    @property
    def doubt(self) -> str | None:
        """Reason why the examples may not be as the model takes them, or on the wrong side; None where nothing says so.

        Of other images, or of labels that are numbered otherwise, no score tells who was in the training.
        """
        right = round(self.accuracy[0] * self.counts[0])
        if binom.sf(right - 1, self.counts[0], self.most_frequent) <= _BY_CHANCE:
            other = self.accuracy[0] < self.accuracy[1] and all(one.high < 0.5 for one in self.scores[:2])
            return "the model knows non-members better than members: are the two files exchanged?" if other else None
        return (
            f"the model is right on {self.accuracy[0]:.1%} of its members, of whom {self.most_frequent:.1%} have one "
            "label: it learned nothing of them, or they are not as it takes them; check how they are scaled "
            "(--model NAME+normalised(mean|deviation)) and how labels are numbered"
        )

    def lines(self) -> list[str]:
        """Return the results in words."""
        (members, others), (own, other), (found, low, high) = self.accuracy, self.reference_accuracy, self.without
        sure = _percent(_apart(self.counts[1]))
        less = f"; {self.unfitted} of them did not fit as well as the model" if self.unfitted else ""
        return [
            f"membership: {plural(self.counts[0], 'member')}, {plural(self.counts[1], 'non-member')}, weights of "
            f"{self.source}",
            f"accuracy: {members:.1%} on members, {others:.1%} on non-members, a gap of {100 * (members - others):.1f} "
            "points",
            *([self.doubt] if self.doubt else []),
            *(_in_words(one) for one in self.scores),
            *(
                [f"over {plural(len(self.rounds.sources), 'round')}: {', '.join(self.rounds.sources)}"]
                if self.rounds
                else []
            ),
            *(one.said for one in (self.rounds.gains if self.rounds else ())),
            *(f"at {_percent(one.alarms)} false alarms: {one.reason}" for one in self.scores[0].rates if one.reason),
            f"{len(self.passes)} reference models, each trained on half of the non-members: accuracy {own:.1%} on "
            f"their half, {other:.1%} on the other{less}",
            f"without the model, by the reference models alone: AUC {found:.3f} ({sure} {low:.3f} to {high:.3f})",
            *([f"do not use these results: {self.problem}"] if self.problem else []),
        ]

    def record(self) -> dict[str, Any]:
        """Return the results as JSON."""
        found = asdict(replace(self, members=(), others=()))
        for name in ("members", "others"):
            found[name] = [one._asdict() for one in getattr(self, name)]
        return {"valid": self.problem is None, "problem": self.problem, "doubt": self.doubt} | found


def _in_words(one: Told) -> str:
    said = [f"{one.name}: AUC {one.area:.3f} (95% {one.low:.3f} to {one.high:.3f})"]
    for rate in one.rates:
        if rate.found is not None and rate.members:
            share = f"{rate.found / rate.members:.1%}, 95% {rate.low:.1%} to {rate.high:.1%}"
            said.append(f"at {_percent(rate.alarms)} false alarms {rate.found} of {rate.members} members ({share})")
    return "; ".join(said)


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def judge_members(
    finals: Sequence[Final], sides: Sides, references: int = REFERENCES, seed: int = 0, device: str = "cpu"
) -> Membership:
    """Train reference models on non-members, and compare the models' confidence with theirs.

    Args:
        finals: the model, or those of several rounds, the last one last.
        references: how many, even, at least 4.
        seed: of the halves, the weights and the order of examples.

    Raises:
        UsageError: the sides do not fit the models, or their numbers are not finite.
    """
    most_frequent = float(sides.members.labels.bincount().max()) / sides.count
    return _judged(finals, signals_of(finals, sides, references, seed, device), most_frequent)


class _Scored(NamedTuple):
    """Scores (n + N,) of one model, and what reference models make of examples that they did not see."""

    weight: float
    scores: dict[str, Numbers]
    alone: Numbers


def _scored(signals: Signals) -> _Scored:
    own, references, out = signals.own, signals.references, signals.out
    weight = best_weight(references[:, signals.count :], signals.seen)
    scores = {"RMIA": rmia_ratio(own, references, out, weight), "LiRA": lira_score(own, references, out)}
    alone = np.where(out, references, 0.0).sum(0) / out.sum(0)
    return _Scored(weight, scores | {"loss alone": own}, alone)


def _judged(finals: Sequence[Final], found: Sequence[Signals], most_frequent: float) -> Membership:
    signals, final, rounds = found[-1], finals[-1], [_scored(one) for one in found]
    last, count = rounds[-1], signals.count
    seen, hits, ratio = signals.seen, signals.hits[:, count:], last.scores["RMIA"]
    exceeds, p = rmia_score(ratio, ratio[count:]), p_values(ratio, ratio[count:])
    each = tuple(Score(*both) for both in zip(exceeds.tolist(), p.tolist(), strict=True))
    return Membership(
        model=final.name, source=final.source, counts=(count, len(ratio) - count),
        accuracy=(float(signals.right[:count].mean()), float(signals.right[count:].mean())),
        most_frequent=most_frequent,
        reference_accuracy=(float(hits[seen].mean()), float(hits[~seen].mean())), passes=signals.passes,
        unfitted=signals.unfitted, weight=last.weight,
        scores=tuple(told(name, values[:count], values[count:]) for name, values in last.scores.items()),
        without=_without(last.alone, count), members=each[:count], others=each[count:],
        rounds=_over_rounds(finals, rounds, count) if len(finals) > 1 else None,
    )  # fmt: skip


def _over_rounds(finals: Sequence[Final], rounds: Sequence[_Scored], count: int) -> OverRounds:
    gains = []
    for name, last in rounds[-1].scores.items():
        summed = np.sum([one.scores[name] for one in rounds], axis=0)
        gain = area_gain(summed[:count], summed[count:], last[:count], last[count:])
        gains.append(Gain(told(f"{name}, rounds added", summed[:count], summed[count:]), *gain))
    alone = np.sum([one.alone for one in rounds], axis=0)
    return OverRounds(tuple(one.source for one in finals), tuple(gains), _without(alone, count))


def _without(alone: Numbers, count: int) -> tuple[float, float, float]:
    confidence = _apart(len(alone) - count)
    return area(alone[:count], alone[count:]), *area_interval(alone[:count], alone[count:], confidence)


def _apart(others: int) -> float:
    return _APART_OF_FEW if others < _FEW else _APART


# --------------------------------------------------------------------------------------
# Which site sent an update: whether what sites send in several rounds tells them apart, with no name beside it.
#
# Whoever reads updates without names, as behind a relay or a shuffler, may still put those of one site together. A
# permutation test says whether they can (:func:`harness.scoring.membership.site_test`).


#: Orders of the sites within rounds that the found one is compared with.
PERMUTATIONS = 999
_SMALL = 0.01


@dataclass(frozen=True)
class Sites:
    """Results of telling sites from the updates of several rounds that they sent.

    Attributes:
        names: of the S sites. rounds: the R rounds, in order.
        told: the test. least: what its p-value can be at least, with so many sites and rounds.
    """

    names: tuple[str, ...]
    rounds: tuple[int, ...]
    told: SitesTold
    least: float

    def lines(self) -> list[str]:
        """Return the results in words. The share has no interval, as updates of a round are told together."""
        told = self.told
        lines = [
            f"sites: {len(self.names)} in {plural(len(self.rounds), 'round')}",
            f"updates that go to their own site by its updates of the other rounds: {told.right} of {told.updates} "
            f"({told.right / told.updates:.0%}, by chance {told.chance:.0%})",
            f"permutation test: p = {told.p:.3g}",
        ]
        if self.least > _SMALL:
            lines.append(f"so few rounds cannot show more than p = {self.least:.2g}; capture more of them")
        elif told.p <= _SMALL:
            lines.append("updates tell which site sent them")
        return lines

    def record(self) -> dict[str, Any]:
        """Return the results as JSON."""
        return asdict(self)


def judge_sites(captures: Sequence[Capture], permutations: int = PERMUTATIONS, seed: int = 0) -> Sites:
    """Test whether the captured updates tell which site sent them; the captures' clients are the sites.

    Raises:
        UsageError: a site is not named, or missing in a round, or there are too few of either; or sites trained
            otherwise than others, or began a round with another model, which would tell them apart by itself.
    """
    placed = dict[tuple[int, str], Capture]()
    for one in captures:
        name, number = one.record.client, one.record.round
        if name is None:
            raise UsageError(f'capture {str(one.folder)!r} names no site; add "client" to its capture.json')
        if (number, name) in placed:
            raise UsageError(f"site {name!r} has two captures of round {number}; leave one of them out")
        placed[number, name] = one
    rounds, names = tuple(sorted({number for number, _ in placed})), tuple(sorted({name for _, name in placed}))
    for number in rounds:
        for name in names:
            if (number, name) not in placed:
                raise UsageError(f"round {number} has no capture of site {name!r}; leave that round or that site out")
    if min(len(rounds), len(names)) < 2:
        raise UsageError(
            f"{len(rounds)} round(s) of {len(names)} site(s) tell no site; name captures of two and more of both"
        )
    require_same_facts(captures, OF_DATA | {"learning_rate"})
    for number in rounds:
        require_same_facts([placed[number, name] for name in names])
    require_one_model(captures)
    sent = np.stack([np.stack([_update(placed[number, name]) for name in names]) for number in rounds])
    told = site_test(sent, permutations, seed)
    return Sites(names, rounds, told, max(1 / (1 + permutations), math.factorial(len(names)) ** (1.0 - len(rounds))))


def _update(capture: Capture) -> Numbers:
    """All numbers (P,) that a client sent, less those that it got; a gradient as it is.

    Raises:
        UsageError: they are of another size than those it got, or not finite.
    """
    parts = []
    for name in sorted(capture.moved):
        sent = np.asarray(capture.moved[name], dtype=np.float64)
        if capture.kind == "after":
            got = np.asarray(capture.before[name]) if name in capture.before else None
            if got is None or got.shape != sent.shape:
                raise UsageError(f"capture {str(capture.folder)!r}: {name!r} is not what the client got; capture again")
            sent = sent - got
        parts.append(sent.ravel())
    made = np.concatenate(parts) if parts else np.zeros(0)
    if not np.isfinite(made).all():
        raise UsageError(f"capture {str(capture.folder)!r} has numbers that are not finite; leave its round out")
    return made
