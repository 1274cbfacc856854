"""The cells that judge captured clients: their federation's settings, the declared defense, and the attacks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from harness.attacks import ATTACKS, Identifier, expanded
from harness.attacks.suites import Chosen, reading
from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN
from harness.datasets.public import NONE
from harness.evaluation.played_round import round_context, server_state
from harness.experiment import AS_CAPTURED, CellSettings, cell_settings
from harness.federation.context import RoundContext
from harness.federation.knowledge import noise_at
from harness.federation.taps import Tap
from harness.judging.capture import FACTS, CaptureRecord
from harness.judging.federation import CapturedClients
from harness.judging.framework_defenses import Declared
from harness.judging.series import SameData, held_over
from harness.observation import Noise, UpdateModel


@dataclass(frozen=True, eq=False)
class Group:
    """Clients whose batches are of the same sizes, and the cells that judge them, one for each attack.

    Attributes:
        declared: a cell of all clients where ``cells`` may be of fewer, or none.
        late: cells that a budget leaves no time for, or too little, each with the reason.
        name: of clients who are there beside those asked for, and why; empty of those.
    """

    captured: CapturedClients
    cells: Sequence[CellSettings]
    declared: CellSettings | None = None
    late: Sequence[tuple[CellSettings, str]] = ()
    name: str = ""

    @property
    def cell(self) -> CellSettings:
        """One of all clients: all cells are of the declared defense."""
        return self.declared or self.cells[0]

    @property
    def sizes(self) -> str:
        """Their batches in words."""
        sizes = list(dict.fromkeys(self.captured.record.step_sizes())) if self.captured.of_update else []
        return f"batches of {' and '.join(map(str, sizes or [self.captured.record.step_size]))}" + (
            f" in {self.cell.local_steps} steps" if self.cell.local_steps > 1 else ""
        )


def groups_of(
    clients: Sequence[CapturedClients], title: str, attacks: Sequence[str], prior: str, device: str,
    update_model: str = "unroll", rounds_seen: int = 1, same_data: SameData = "batch",
) -> list[Group]:  # fmt: skip
    """Groups of captured clients with the cells that judge them; see :func:`cells_of`."""
    more = prior, device, update_model, rounds_seen, same_data
    found = [Group(one, cells_of(one, title, attacks, *more)) for one in clients]
    if len(found) == 1:
        return found

    names = [f"{group.captured.clients} of {title}, {group.sizes}" for group in found]
    return [
        replace(group, cells=[cell.model_copy(update={"dataset": name}) for cell in group.cells])
        for name, group in zip(names, found, strict=True)
    ]


def cells_of(
    captured: CapturedClients, title: str, attacks: Sequence[str], prior: str, device: str,
    update_model: str = "unroll", rounds_seen: int = 1, same_data: SameData = "batch",
) -> list[CellSettings]:  # fmt: skip
    """One cell for each attack; what a client sends is read as it leaves the client, a gradient as the step leaves it.

    Args:
        title: what stands in the place of a dataset's name.
        attacks: names of attacks and suites.
        prior: what is public, ``none`` or what was named.
        update_model: of several local steps.
        rounds_seen: rounds that an attacker has of each client.
        same_data: whether a client trains on the same examples in all of them, or sums alone are seen.

    Raises:
        UsageError: an unknown name, settings out of range, an attack that knows public data where none are named, or a
            defense that does not do the same in all captured rounds.
    """
    if update_model not in get_args(UpdateModel):
        raise UsageError(f"unknown update model {update_model!r}; use --update-model avg, path or unroll")
    attempts = [one for one in expanded([(name, {}) for name in attacks]) if _is_asked(one, captured.record)]
    if prior == NONE:
        _require_none_public(attempts, captured.record)
    record, update = captured.record, captured.of_update
    defense = record.defense or Declared(name="none")
    # What the federation does not say is as `evaluate` has it.
    facts = {"clients": record.clients, "clients_per_round": record.clients_per_round}
    known = {name: value for name, value in facts.items() if value is not None}
    epochs, sizes = (record.passes, record.step_sizes()) if update else (1, ())
    own = sum(sizes) // epochs if len(set(sizes)) > 1 else None
    if same_data == "client":
        own = held_over(captured).labels.shape[1]
    if captured.recovered and not update:
        raise UsageError("captures are of gradients, and a sum is of updates; capture those, or leave --same-data out")
    tap = Tap.PUBLISHED if captured.recovered else Tap.SENT if update else Tap.STEP
    cells = [
        cell_settings(
            dataset=title, model=record.model, defense=defense.name, defense_args=dict(defense.settings),
            attack=chosen.attack, attack_args=dict(chosen.arguments), suite=chosen.suite,
            tap=tap, victims=captured.clients, batch_size=record.step_size,
            learning_rate=record.rate, local_steps=record.local_steps if update else 1,
            optimizer=(record.local_optimizer or PLAIN).text if update else PLAIN.text, epochs=epochs,
            client_examples=own, same_data=same_data,
            update_model=update_model if update and record.local_steps > 1 else "first", prior=prior, device=device,
            weights=AS_CAPTURED, weights_hash=captured.digest, round=record.rounds_before,
            sent_as=record.dtype if update else None,
            batch_norm="hidden" if captured.normalised and not captured.running else None,
            rounds=max(record.rounds or 100, captured.rounds[-1] + 1, record.rounds_before + rounds_seen),
            rounds_seen=rounds_seen, **known,
        )
        for chosen in attempts
    ]  # fmt: skip
    _require_same_in_rounds(captured, cells[0])
    _require_counts(captured, cells[0], set(known))
    return cells


def _require_counts(captured: CapturedClients, settings: CellSettings, known: set[str]) -> None:
    """Nobody is accused of noise whose level follows from a number that nobody gave. Raises UsageError."""
    for name in ("clients", "clients_per_round", "rounds"):
        if name in known or (name == "rounds" and captured.record.rounds is not None):
            continue
        other = settings.model_copy(update={name: 2 * getattr(settings, name)})
        noises = [noise_of(captured, one, within=True) for one in (settings, other)]
        if len({str(noise and (noise.law, noise.deviation)) for noise in noises}) > 1:
            raise UsageError(f'the noise of {settings.defense!r} depends on "{name}"; add what it is to {FACTS}')


def _is_asked(chosen: Chosen, record: CaptureRecord) -> bool:
    """Return whether an attack was named, or is a member of a suite that can make what the captures hold."""
    return chosen.suite is None or chosen.attack in reading(chosen.suite, record.data == "text")


def _require_none_public(attempts: Sequence[Chosen], record: CaptureRecord) -> None:
    for chosen in attempts:
        attack = build(ATTACKS, chosen.attack, chosen.arguments)
        # Who tells images apart may know nothing but the noise.
        if chosen.suite or (attack.tier == "informed" and not isinstance(attack, Identifier)):
            raise UsageError(
                f"attack {chosen.suite or chosen.attack!r} needs public data; add --prior NAME or --prior FILE.npz, "
                f"data that no client holds, or use --attack {'span' if record.data == 'text' else 'cpl'}"
            )


def _require_same_in_rounds(captured: CapturedClients, settings: CellSettings) -> None:
    """All captures are held against one declaration, and their controls are simulated in one round."""
    defense, last = settings.build_defense(), captured.rounds[-1]
    if last and defense.adapts():
        raise UsageError(
            f"defense {settings.defense!r} goes by what the server remembers after {last} round(s), which a capture "
            "does not hold; capture the first round"
        )
    if len(captured.rounds) == 1:
        return
    noises = [noise_of(captured, settings.model_copy(update={"round": one})) for one in captured.rounds]
    # Noise that decays may be of a level that nobody publishes.
    if defense.needs_planned_rounds() or len({noise and noise.facts() for noise in noises}) > 1:
        raise UsageError(
            f"defense {settings.defense!r} does not do the same in every round, and captures are of rounds "
            f"{', '.join(map(str, captured.rounds))}, counted from 0; judge each round apart"
        )


def context_of(captured: CapturedClients, settings: CellSettings) -> RoundContext:
    """The captured round, as its first client knows it."""
    return round_context(settings, captured, ((settings.seeds[0], 0),), server_state(settings))


def steps_of(settings: CellSettings) -> int:
    """Local steps behind what was captured."""
    return settings.local_steps if settings.tap.of_update else 1


def noise_of(captured: CapturedClients, settings: CellSettings, within: bool = False) -> Noise | None:
    """The noise that the declared defense puts on what was captured, or on the gradients ``within`` its steps, of which
    an optimizer may leave something else; None where there is none."""
    sizes, steps, reading = captured.record.step_sizes(), steps_of(settings), settings.update_reading
    shares = () if within else reading.noise_shares

    def of_size(size: int) -> Noise | None:
        context = context_of(captured, settings.model_copy(update={"batch_size": size}))
        context = replace(context, learning_rate=reading.rate)
        return noise_at(settings.build_defense(), settings.tap, context, steps, 1, shares)

    usual = of_size(settings.batch_size)
    if steps == 1 or len(set(sizes)) == 1 or usual is None or not isinstance(usual.deviation, int | float):
        return usual
    # The smaller the last batch, the stronger the noise on its mean.
    noises = [of_size(size) for size in sizes]
    levels = [float(one.deviation) for one in noises if one and isinstance(one.deviation, int | float)]
    return replace(usual, deviation=float(np.sqrt(np.mean(np.square(levels)))))
