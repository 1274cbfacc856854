"""The three harms at one place, in words: what an attack did, what the numbers allow, or why that is not settled.

Sentences cannot be said without a field behind them: each names the fields of the files that it comes from.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.attacks import ATTACKS, Identifier
from harness.base.kinds import Kind
from harness.reports import text
from harness.reports.columns import kinds_of
from harness.reports.html import wording
from harness.reports.html.places import Decided
from harness.reports.html.run_data import RunData
from harness.reports.html.verdict import undecided
from harness.results import CellResult, SummaryRow, VictimRecord
from harness.scoring.harms import CONFIDENCE, Count, by_guessing, first_in_lineup, reconstructed
from harness.scoring.verdict import LEAK_P

RECONSTRUCTED, RECOGNISED, TOLD = "reconstructed", "recognised", "membership"
#: The harms, each with the title of its column.
HARMS = {
    RECONSTRUCTED: "Reconstructed", RECOGNISED: "Recognised among look-alikes", TOLD: "Membership told",
}  # fmt: skip
#: What a state is called, and the style of its mark.
STATES = {
    "succeeded": ("an attack succeeded", "leaks"), "not found": ("not found", "resilient"),
    "not settled": ("not settled", "inconclusive"), "not tested": ("not tested", "untried"),
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A value in words, and where it comes from: a file and a JSON pointer (RFC 6901), or an option."""

    shown: str
    source: str


@dataclass(frozen=True)
class Sentence:
    """Words with the fields behind them; ``kind`` is a style of ours."""

    words: str
    sources: tuple[str, ...]
    kind: str = ""

    @property
    def origin(self) -> str:
        """The sources in a row, as the page notes them."""
        return " ".join(self.sources)


def sentence(template: str, kind: str = "", because: Iterable[str] = (), **fields: Field) -> Sentence:
    """The template with its fields in it.

    Args:
        because: sources that decide whether this is said at all.

    Raises:
        ValueError: no field stands behind it.
    """
    return filled(template, fields, kind, because)


def filled(template: str, fields: Mapping[str, Field], kind: str = "", because: Iterable[str] = ()) -> Sentence:
    """Return the template with fields in it, as :func:`sentence` does, from fields in a mapping."""
    sources = dict.fromkeys([*(field.source for field in fields.values()), *because])
    if not sources:
        raise ValueError(f"no field stands behind {template!r}")
    return Sentence(template.format(**{name: field.shown for name, field in fields.items()}), tuple(sources), kind)


def listed(lines: Iterable[Sentence]) -> Sentence:
    """Different things said of one subject as one line, each once."""
    found = list(lines)
    words = "; ".join(dict.fromkeys(one.words for one in found))
    return Sentence(words, tuple(dict.fromkeys(source for one in found for source in one.sources)))


def merged(same: Sequence[Sentence]) -> Sentence:
    """Sentences of the same words as one, with all their sources."""
    sources = dict.fromkeys(source for one in same for source in one.sources)
    return Sentence(same[0].words, tuple(sources), same[0].kind)


def together(lines: Sequence[Sentence]) -> Sentence:
    """Short sentences as one list of words, each once."""
    names = wording.join(list(dict.fromkeys(one.words for one in lines)))
    return Sentence(names, tuple(dict.fromkeys(source for one in lines for source in one.sources)))


@dataclass(frozen=True)
class Files:
    """Names the fields of one run's files; ``number`` tells runs apart."""

    number: int
    run: RunData

    def result(self, *names: object) -> str:
        """A place in ``results.json``."""
        return self._at("results.json", names)

    def judged(self, *names: object) -> str:
        """A place in ``judged.json``."""
        return self._at("judged.json", names)

    def row(self, row: SummaryRow, *names: object) -> str:
        """A place in a summary row."""
        return self.result("summary", next(at for at, one in enumerate(self.run.summary) if one is row), *names)

    def cell(self, cell: CellResult, *names: object) -> str:
        """A place in a cell."""
        return self.result("cells", next(at for at, one in enumerate(self.run.cells) if one is cell), *names)

    def own(self, cell: CellResult, *names: object) -> str:
        """A place in a cell's own file."""
        return self._at(f"cells/{cell.key}.json", names)

    def victims(self, cell: CellResult) -> str:
        """The lines of a cell in ``victims.jsonl``, by its key."""
        return f"run{self.number}/victims.jsonl#{cell.key}"

    def _at(self, file: str, names: Iterable[object]) -> str:
        return f"run{self.number}/{file}#" + "".join(
            f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in names
        )


def plain(value: object, source: str, longest: int = 300) -> Field:
    """A value of a file as one harmless line."""
    return Field(text.safe(str(value), longest), source)


@dataclass(frozen=True)
class Harm:
    """One harm at one place; the first sentence has the count."""

    name: str
    state: str
    sentences: tuple[Sentence, ...]

    @property
    def word(self) -> str:
        """The state in words."""
        return STATES[self.state][0]

    @property
    def title(self) -> Sentence:
        """The state, by the fields that decide it."""
        return sentence(f"{self.word[0].upper()}{self.word[1:]}.", self.kind, self.sentences[0].sources)

    @property
    def kind(self) -> str:
        """The style of the state."""
        return STATES[self.state][1]

    @property
    def symbol(self) -> str:
        """A mark beside the colour."""
        return wording.SYMBOLS[self.kind]


@dataclass(frozen=True)
class Examined:
    """A place, its files, and its harms by name; ``apart``: how it was tested, as far as others were otherwise."""

    place: Decided
    files: Files
    harms: dict[str, Harm]
    apart: str = ""

    @property
    def system(self) -> Sentence:
        """Data, network and defense, where several stand side by side."""
        row = self.place.summary
        shown = " ".join(filter(None, (row.dataset, row.model, self.place.defense, self.place.arguments, self.apart)))
        return sentence("{system}", system=plain(shown, self.files.row(row, "defense")))

    @property
    def where(self) -> Sentence:
        """The place in words."""
        row = self.place.summary
        name = "surface" if row.surface is not None else "tap"
        return sentence("{where}", where=plain(wording.place(row), self.files.row(row, name)))


def apart(place: Decided, others: Iterable[Decided]) -> str:
    """The settings of a place that not all have, in brackets; not data and network, which stand beside it."""
    settings = {one.setting for one in others}
    own = [
        part for part in place.setting.split(" · ")[2:]
        if not all(part in one.split(" · ") for one in settings)
    ]  # fmt: skip
    return f"({', '.join(own)})" if own else ""


def examined(place: Decided, files: Files, others: Iterable[Decided] = ()) -> Examined:
    """The harms at a place; runs of attackers that were told the labels do not count."""
    told = {standing.cell for standing in place.summary.attacks if standing.told}
    ran = [cell for cell in place.cells if cell.not_applicable_reason is None and cell.key not in told]
    rebuilding = [cell for cell in ran if cell.identified is None]
    telling = [cell for cell in ran if cell.identified is not None]
    looked = _Looked(place, files, kinds_of(ran))
    found = [looked.reconstructed(rebuilding), looked.recognised(rebuilding), looked.membership(telling)]
    return Examined(place, files, {harm.name: harm for harm in found}, apart(place, others))


@dataclass(frozen=True)
class _Looked:
    """Statements on one place."""

    place: Decided
    files: Files
    kind: Kind

    def reconstructed(self, cells: Sequence[CellResult]) -> Harm:
        if not cells:
            return self._untested(RECONSTRUCTED, False)
        count = reconstructed(self.place.run.victims[cell.key or ""] for cell in cells)
        numbers = self._numbers(cells, count)
        told = [self._counted(count, numbers, "were reconstructed")]
        by_luck = next(((cell, at) for cell in cells for at, one in enumerate(cell.controls) if one.by_luck), None)
        if count.touched and by_luck:
            told.append(self._guess(*by_luck))
        if count.touched:
            told.append(sentence(
                "With {sure} confidence, attackers of the kinds listed below reconstruct {one} of more than {least} of "
                "{unit}.", one=numbers["one"], unit=numbers["unit"], sure=numbers["sure"],
                least=_down(count.at_least, numbers["touched"]),
            ))  # fmt: skip
            return Harm(RECONSTRUCTED, "succeeded", tuple(told))
        fit = any(one.identifies is None and one.informative and not one.flags for one in self.place.summary.attacks)
        if self.place.kind != "resilient" and not (self.place.kind == "leaks" and fit):
            return self._unsettled(RECONSTRUCTED, told)
        told.append(sentence(
            "With {sure} confidence, attackers of the kinds listed below reconstruct {one} of at most {most} of "
            "{unit} at this place.", one=numbers["one"], unit=numbers["unit"], sure=numbers["sure"],
            most=_up(count.at_most, numbers["touched"]),
        ))  # fmt: skip
        return Harm(RECONSTRUCTED, "not found", tuple(told))

    def recognised(self, cells: Sequence[CellResult]) -> Harm:
        lined = [cell for cell in cells if cell.lineup.p_value is not None]
        if not lined:
            return self._untested(RECOGNISED, False)
        sharpest = min(lined, key=lambda cell: (cell.lineup.p_value or 0.0, -(cell.lineup.rate or 0.0)))
        p_value = sharpest.lineup.p_value
        if self.place.kind == "leaks" and p_value is not None and p_value < LEAK_P:
            return Harm(RECOGNISED, "succeeded", (
                self._picked(sharpest, "were nearest to what the attack {attack} made of the update"),
                self._chance(sharpest),
                self._tested(sharpest, ("lineup", "p_value"), p_value),
            ))  # fmt: skip
        return self._bounded(RECOGNISED, lined, "were nearest to what the best attack, {attack}, made",
                             self.place.kind == "resilient")  # fmt: skip

    def membership(self, cells: Sequence[CellResult]) -> Harm:
        if not cells:
            return self._untested(TOLD, True)
        telling = [cell for cell in cells if cell.identified and cell.identified.identifies]
        if telling:
            sharpest = min(telling, key=lambda cell: cell.tested_p or 0.0)
            return Harm(TOLD, "succeeded", (
                self._picked(sharpest, "were picked by the attack {attack}, which was shown them among look-alikes"),
                self._chance(sharpest), self._tested(sharpest, ("identified", "p_value"), sharpest.tested_p),
            ))  # fmt: skip
        settled = all(cell.verdict == "resilient" and not cell.flags for cell in cells)
        failing = next((cell for cell in cells if cell.verdict != "resilient"), cells[0])
        return self._bounded(TOLD, cells, "were picked by the best attack, {attack}, which was shown them among "
                             "look-alikes", settled, failing)  # fmt: skip

    def _bounded(
        self, name: str, cells: Sequence[CellResult], words: str, settled: bool, failing: CellResult | None = None
    ) -> Harm:
        """Nothing was told by the attack that came nearest to it; the largest bound holds for each of them."""
        counts = {cell.key: first_in_lineup(self._victims(cell)) for cell in cells}
        best = max(cells, key=lambda cell: counts[cell.key].at_most)
        told = [self._picked(best, words), self._chance(best)]
        if not settled:
            return self._unsettled(name, told, failing)
        source = Field("", self.files.victims(best))
        told.append(sentence(
            "With {sure} confidence, each of these attackers does so for at most {most} of {unit}, guesses included.",
            unit=Field(self._unit, source.source), sure=_sure(source), most=_up(counts[best.key].at_most, source),
        ))  # fmt: skip
        return Harm(name, "not found", tuple(told))

    @property
    def _together(self) -> int:
        return wording.summed(self.place.summary)

    @property
    def _unit(self) -> str:
        """Return the noun of what counts as one trial, in the plural."""
        return "clients" if self._together == 1 else "rounds"

    def _numbers(self, cells: Sequence[CellResult], count: Count) -> dict[str, Field]:
        lines = " ".join(self.files.victims(cell) for cell in cells)
        shown: dict[str, object] = {
            "records": count.records, "hit": count.hit, "clients": count.clients, "touched": count.touched,
            "one": _a(self.kind.one), "unit": self._unit,
            "clients_word": wording.victims(count.clients, self._together),
            "records_word": f"{count.records} {self.kind.one if count.records == 1 else self.kind.many}",
        }  # fmt: skip
        return {name: Field(str(value), lines) for name, value in shown.items()} | {"sure": _sure(Field("", lines))}

    def _counted(self, count: Count, numbers: dict[str, Field], words: str, **more: Field) -> Sentence:
        if count.hit is None:
            template = "Of {clients_word}, {touched} had {one} that " + _was(1, words) + "."
        elif count.records == count.clients:
            own = ", one of each client" if count.records > 1 else ""
            template = "Of {records_word}" + own + ", {hit} " + _was(count.hit, words) + "."
        else:
            whose = "it belongs" if count.hit == 1 else "they belong"
            holders = f"; {whose} to {{touched}} of the {{unit}}" if count.touched and count.clients > 1 else ""
            template = "Of {records_word} of {clients_word}, {hit} " + _was(count.hit, words) + holders + "."
        return filled(template, numbers | more)

    def _picked(self, cell: CellResult, words: str) -> Sentence:
        count = first_in_lineup(self._victims(cell))
        attack = plain(cell.attack, self.files.cell(cell, "attack"))
        return self._counted(count, self._numbers([cell], count), words, attack=attack)

    def _chance(self, cell: CellResult) -> Sentence:
        guess = by_guessing(self._victims(cell))
        return sentence(
            "A guess does so for {guess} of them.", guess=Field(text.percent(guess), self.files.victims(cell))
        )

    def _tested(self, cell: CellResult, names: tuple[str, str], p_value: float | None) -> Sentence:
        return sentence(
            "If nothing leaked, ranks this good would come up with probability {p}.",
            p=Field(_probability(p_value), self.files.cell(cell, *names)),
        )

    def _guess(self, cell: CellResult, at: int) -> Sentence:
        guess = cell.controls[at].by_luck
        assert guess is not None
        source = self.files.cell(cell, "controls", at, "by_luck")
        return sentence(
            "A guess that saw no update reaches {hit} of {of}.", hit=Field(str(guess.successes), f"{source}/successes"),
            of=Field(str(guess.n), f"{source}/n"),
        )  # fmt: skip

    def _unsettled(self, name: str, told: Sequence[Sentence], cell: CellResult | None = None) -> Harm:
        if cell is not None:
            reason, source = cell.verdict_reason, self.files.cell(cell, "verdict_reason")
        else:
            reason, source = undecided(self.place), self.files.row(self.place.summary, "verdict_reason")
        why = sentence("The reason: {reason}.", reason=plain(plainer(reason).rstrip("."), source))
        none = sentence("So no bound holds, with any confidence.", because=why.sources)
        return Harm(name, "not settled", (why, *told, none))

    def _untested(self, name: str, identifies: bool) -> Harm:
        """Return the harm as not tested, and why no attack after it ran: the reason of one that was refused, or that
        none was asked for."""
        refused = [cell for cell in self.place.cells if cell.not_applicable_reason is not None]
        wanted = [cell for cell in refused if _identifies(cell.attack) == identifies]
        if wanted:
            reason = plain(
                plainer(wanted[0].not_applicable_reason or ""), self.files.cell(wanted[0], "not_applicable_reason")
            )
            return Harm(name, "not tested", (sentence("No attack could test this: {reason}.", reason=reason),))
        source = self.files.row(self.place.summary, "attacks")
        return Harm(name, "not tested", (sentence("No attack was asked for that tests this.", because=[source]),))

    def _victims(self, cell: CellResult) -> list[VictimRecord]:
        return self.place.run.victims[cell.key or ""]


# What results say to who runs attacks, in words for who reads of them.
_PLAINER = (
    (re.compile("label inference at chance"), "it infers labels no better than chance"),
    (re.compile("stalled: "), "it stalled: "),
    (re.compile("(^|: )takes numbers"), r"\1it takes numbers"),
    (re.compile("prior foreign: victims"), "its public data are of another kind: records"),
)  # fmt: skip


def plainer(reason: str) -> str:
    """A reason without the options of commands that would change it, in words for who reads a report."""
    kept = [part for part in reason.split("; ") if "--" not in part and not part.startswith("use ")]
    words = text.reason("; ".join(kept) or reason)
    for pattern, instead in _PLAINER:
        words = pattern.sub(instead, words)
    return words


def _identifies(name: str) -> bool:
    """Return whether an attack only tells examples apart."""
    return name in ATTACKS and issubclass(ATTACKS[name], Identifier)


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _was(count: int, words: str) -> str:
    """Words that begin with "were", of so many."""
    return words.replace("were", "was", 1) if count == 1 else words


def _sure(source: Field) -> Field:
    return Field(f"{CONFIDENCE:.0%}", source.source)


def _up(share: float, source: Field) -> Field:
    """A bound from above is rounded up."""
    return Field(text.percent_up(share), source.source)


def _down(share: float, source: Field) -> Field:
    """A bound from below is rounded down."""
    return Field(f"{math.floor(round(share * 1000, 6)) / 10:.1f}%", source.source)


def _probability(p_value: float | None) -> str:
    return text.MISSING if p_value is None else f"{p_value:.1g}"
