"""Notes: short patient notes that were never written by anybody, drawn from a grammar of our own.

Each topic has one form, so that notes of a topic differ in what is private: names, towns, ages, drugs and amounts.
"""

from functools import cache
from pathlib import Path

import torch

from harness.base.randomness import generator
from harness.base.words import MARKS, Words, images_of, pieces
from harness.datasets.catalogue import Source, add
from harness.datasets.record import Dataset

COUNT, PLACES = 2_000, 40

# Sound by sound, so that nobody is named after a person.
_FIRST = [a + b for a in ("Al", "Be", "Ca", "Do", "El", "Fa", "Gi", "He", "Jo", "Ka") for b in
          ("na", "rin", "dal", "mo", "vis", "lia", "ron", "tea")]  # fmt: skip
_LAST = [a + b for a in ("Arn", "Bor", "Cal", "Den", "Esk", "Fol", "Gar", "Hol", "Kel", "Mar") for b in
         ("wick", "sted", "ler", "mond", "by", "ton", "berg", "ow")]  # fmt: skip
_TOWN = [a + b for a in ("North", "South", "Oak", "Stone", "River", "Lake") for b in
         ("ham", "field", "ford", "mouth", "dale", "port")]  # fmt: skip
_NUMBER = [str(number) for number in range(1, 100)]
_DAY = _NUMBER[:28]
_DRUG = [a + b for a in ("al", "be", "cor", "dex", "lor", "met", "pra", "sul") for b in
         ("opril", "azol", "ipin", "afen", "icin")]  # fmt: skip
_CARD = ["angina", "arrhythmia", "palpitations", "fainting", "breathlessness", "hypertension", "endocarditis",
         "murmur", "oedema", "thrombosis"]  # fmt: skip
_BONE = ["wrist", "ankle", "hip", "shoulder", "elbow", "knee", "collarbone", "rib", "shin", "thumb"]
_FEAR = ["heights", "crowds", "flying", "needles", "lifts", "bridges", "storms", "dogs", "exams", "silence"]
_KIN = ["mother", "father", "sister", "brother", "aunt", "uncle", "neighbour", "partner", "daughter", "son"]
_WORK = ["baker", "teacher", "driver", "farmer", "nurse", "welder", "clerk", "cook", "pilot", "painter", "student",
         "carpenter", "librarian", "plumber", "florist", "guard"]  # fmt: skip
_MONTH = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December"]  # fmt: skip
_ORGAN = ["liver", "kidney", "lung", "thyroid", "spleen", "stomach", "bladder", "pancreas"]
_MEAL = ["bread", "milk", "eggs", "nuts", "apples", "fish", "cheese", "soy", "shrimp", "celery", "mustard", "honey"]
_FILLERS = {
    "first": _FIRST, "last": _LAST, "town": _TOWN, "number": _NUMBER, "day": _DAY, "drug": _DRUG, "heart": _CARD,
    "bone": _BONE, "fear": _FEAR, "kin": _KIN, "work": _WORK, "month": _MONTH, "organ": _ORGAN, "meal": _MEAL,
}  # fmt: skip

# A topic's form: {kind} is filled in, and what stands after a bar is there in every second note.
_FORMS = {
    "cardiology": "{first} {last} , {number} , {work} from {town} , came in with {heart} . Pulse {number} , pressure "
    "{number} over {number} . | Started on {drug} , {number} mg . | Her {kin} had {heart} at {number} .",
    "fractures": "{work} {first} {last} of {town} , {number} years , fell on {day} {month} and broke the {bone} . "
    "| Cast for {number} weeks . | Pain {number} , takes {drug} {number} mg .",
    "psychiatry": "Talk with {first} {last} from {town} : fear of {fear} since {month} . | Sleeps {number} hours . "
    "| Lives with the {kin} , works as a {work} . | {drug} {number} mg at night .",
    "oncology": "Scan of {day} {month} : {first} {last} , {number} , {town} . {organ} , {number} mm , was {number} "
    "mm . | Cycle {number} of {drug} . | Informed the {kin} , {first} .",
    "allergies": "{first} {last} , {work} , {town} . Reacts to {meal} and {meal} within {number} minutes . | The {kin} "
    "carries {drug} {number} mg . | Avoid {meal} until {month} .",
    "discharge": "Discharge {day} {month} : {first} {last} , {number} , back to {town} with the {kin} . | {drug} "
    "{number} mg for {number} days . | Call {number} {number} {number} if {heart} returns .",
}

_SOURCE = Source(
    origin="2,000 notes drawn from a grammar of the harness; no person, town or drug in them exists",
    licence="that of the harness",
    find=lambda root: Path("harness"),
    text=True,
)


@add("notes", _SOURCE)
def load_notes(root: Path) -> Dataset:
    """2,000 notes of at most 40 tokens and six topics, all different; the vocabulary is that of the grammar."""
    texts, labels = written()
    words = vocabulary()
    return Dataset(
        name="notes",
        images=images_of(words.tokens(texts, PLACES)),
        labels=torch.tensor(labels),
        class_names=tuple(_FORMS),
        origin=_SOURCE.origin,
        words=words,
        texts=tuple(texts),
    )


@cache
def written() -> tuple[list[str], list[int]]:
    """The notes and their topics, the topics in turn; a note that was written before is written anew."""
    random, texts = generator("notes"), dict[str, int]()
    forms = [form.split("|") for form in _FORMS.values()]
    while len(texts) < COUNT:
        topic = len(texts) % len(forms)
        always, *sometimes = forms[topic]
        kept = [part for part in sometimes if torch.rand((), generator=random) < 0.5]
        texts.setdefault(" ".join(_filled(word, random) for part in (always, *kept) for word in part.split()), topic)
    return list(texts), list(texts.values())


def _filled(word: str, random: torch.Generator) -> str:
    if not word.startswith("{"):
        return word
    choices = _FILLERS[word[1:-1]]
    return choices[int(torch.randint(len(choices), (), generator=random))]


@cache
def vocabulary() -> Words:
    """Every word that the grammar can write, in alphabetical order."""
    fixed = {
        piece for form in _FORMS.values() for word in form.split() if word[0] not in "{|" for piece in pieces(word)
    }
    return Words((*MARKS, *sorted(fixed.union(*_FILLERS.values()))))
