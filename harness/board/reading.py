"""Reading a card that may come from anywhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.base.errors import UsageError
from harness.base.version import SCHEMA_VERSION
from harness.experiment import CellSettings, cell_settings, own_files, read_by
from harness.results.card import KIND, Card
from harness.results.files import MOST_OF_A_DOCUMENT, Damaged, Unreadable, checked, parse_json, read_bytes
from harness.training import TrainSettings

_OF_AN_ATTACK = {"attack": "cpl", "attack_args": {}, "suite": None}
_FIX = "take it from the board again"
_NAMES = (
    "dataset", "model", "defense", "clients", "clients_per_round", "rounds", "local_steps", "learning_rate",
)  # fmt: skip
# What an attacked round is played with, and what every epsilon of a board is of.
_PLAIN = {
    name: TrainSettings.model_fields[name].default
    for name in (
        "algorithm",
        "local_momentum",
        "server_learning_rate",
        "server_momentum",
        "optimizer",
        "server_optimizer",
        "delta",
    )
}


def read_card(path: Path) -> Card:
    """The card in a file, whose hash is that of its content.

    Raises:
        UsageError: there is none, it is not a card, of another schema, damaged, or its content is not what was sealed.
    """
    try:
        content = read_bytes(path, MOST_OF_A_DOCUMENT)
        document = parse_json(content)
    except Unreadable as problem:
        raise UsageError(f"card {str(path)!r} {problem.reason}; check the path") from problem
    except Damaged as problem:
        raise UsageError(f"card {str(path)!r} {problem}; {_FIX}") from problem
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f"{str(path)!r} is not a card; give a file that harness site wrote below cards/")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"card {str(path)!r} is of another schema than this harness's ({SCHEMA_VERSION}); use the one that wrote it"
        )
    try:
        card = checked(Card, document)
    except Damaged as problem:
        raise UsageError(f"card {str(path)!r} {problem}; {_FIX}") from problem
    if card.hash != card.digest():
        raise UsageError(f"card {str(path)!r} was changed: its hash is not that of its content; {_FIX}")
    if content != card.content():
        raise UsageError(f"card {str(path)!r} was changed: harness site writes the same content otherwise; {_FIX}")
    return card


def cells_of(card: Card) -> list[CellSettings]:
    """The cells that a card asks for; of a suite all members. Its training is of their federation.

    Who is told the labels, where a suite runs it beside the same attack that infers them, is not asked for: the suite
    decides again whether it does.

    Raises:
        UsageError: they are impossible, not those of its suite, or the training is of something else.
    """
    for one in card.cells:
        files = [name for name in ("weights", "server_state", "variates", "trained") if one.settings.get(name)]
        if files or own_files(one.settings):
            raise UsageError(f"the card names files that it does not hold; {_FIX}")
    asked = [cell_settings(**one.settings) for one in card.cells]
    if any(one.noise_scale != 1 for one in asked):
        raise UsageError(f"the card's attacks are on other noise than its defense adds; {_FIX}")
    if len({one.model_dump_json() for one in asked}) < len(asked):
        raise UsageError(f"the card has an attack more than once; {_FIX}")
    firsts = {one.model_dump_json() for one in asked if one.labels == "inferred"}
    asked = [
        one
        for one in asked
        if not one.suite
        or one.labels == "inferred"
        or one.model_copy(update={"labels": "inferred"}).model_dump_json() not in firsts
    ]
    if len({one.model_copy(update=_OF_AN_ATTACK).model_dump_json() for one in asked}) > 1:
        raise UsageError(f"the card's attacks are of more than one place; {_FIX}")
    if card.training and not is_of(asked[0], card.training.settings):
        raise UsageError(f"the card's training is not of the federation that was attacked; {_FIX}")
    for suite in {one.suite for one in asked if one.suite}:
        members = read_by(suite, asked[0].dataset)
        absent = set(members) - {one.attack for one in asked}
        if absent:
            raise UsageError(f"the card lacks {', '.join(sorted(absent))} of its suite {suite}; {_FIX}")
    return asked


def is_of(settings: CellSettings, training: Mapping[str, Any]) -> bool:
    """Return whether settings of a training, which may come from anywhere, are of the same federation, under the same
    defense.

    Raises:
        UsageError: the defense cannot be built.
    """
    facts = (
        settings.dataset, settings.model, settings.defense, settings.clients, settings.clients_per_round,
        settings.rounds, settings.steps_per_round, settings.learning_rate,
    )  # fmt: skip
    arguments = training.get("defense_args")
    if facts != tuple(training.get(name) for name in _NAMES) or not isinstance(arguments, dict):
        return False
    # Absent is what it is by default; noise that is multiplied is a control's, which nothing is trained with.
    if any(training.get(name, plain) != plain for name, plain in _PLAIN.items()) or settings.noise_scale != 1:
        return False
    return settings.model_copy(update={"defense_args": arguments}).build_defense() == settings.build_defense()
