"""The cells that judge captured clients: their federation's settings, the declared defense, and the attacks."""

from collections.abc import Sequence

from harness.attacks import expanded
from harness.capture.record import AS_CAPTURED, Declared
from harness.errors import UsageError
from harness.evaluation.played_round import round_context, server_state
from harness.experiment import CellSettings, cell_settings
from harness.federation.context import RoundContext
from harness.federation.known_noise import noise_at
from harness.federation.taps import Tap
from harness.judging.federation import CapturedClients
from harness.models import RowModel
from harness.observation import Noise, UpdateModel


def cells_of(
    captured: CapturedClients, title: str, attacks: Sequence[str], prior: str, device: str,
    update_model: UpdateModel = "unroll",
) -> list[CellSettings]:  # fmt: skip
    """One cell for each attack; what a client sends is read as it leaves the client, a gradient as the step leaves it.

    Args:
        title: what stands in the place of a dataset's name.
        attacks: names of attacks and suites.
        prior: what is public, ``none`` or what was named.
        update_model: of several local steps.

    Raises:
        UsageError: an unknown defense or attack, settings out of range, or a defense whose bound has moved by then.
    """
    record, update = captured.record, captured.of_update
    defense = record.defense or Declared(name="none")
    # What the federation does not say is as `evaluate` has it.
    facts = {"clients": record.clients, "clients_per_round": record.clients_per_round}
    known = {name: value for name, value in facts.items() if value is not None}
    cells = [
        cell_settings(
            dataset=title, model=record.model, defense=defense.name, defense_args=dict(defense.settings),
            attack=chosen.attack, attack_args=dict(chosen.arguments), suite=chosen.suite,
            tap=Tap.SENT if update else Tap.STEP, victims=captured.clients, batch_size=record.batch_size,
            learning_rate=record.learning_rate, local_steps=record.local_steps if update else 1,
            update_model=update_model if update and record.local_steps > 1 else "first", prior=prior, device=device,
            weights=AS_CAPTURED, weights_hash=captured.digest, round=record.round,
            batch_norm="hidden" if captured.normalised and not captured.running else None,
            rounds=max(record.rounds or 100, record.round + 1), **known,
        )
        for chosen in expanded([(name, {}) for name in attacks])
    ]  # fmt: skip
    if record.round and cells[0].build_defense().adapts():
        raise UsageError(
            f"defense {defense.name!r} goes by what the server remembers by round {record.round}, which a capture does "
            "not hold; capture round 0"
        )
    return cells


def context_of(captured: CapturedClients, settings: CellSettings) -> RoundContext:
    """The captured round, as its first client knows it."""
    model = RowModel(settings.model, captured.record.image_shape, captured.record.classes)
    return round_context(settings, model, ((settings.seeds[0], 0),), server_state(settings))


def steps_of(settings: CellSettings) -> int:
    """Local steps behind what was captured."""
    return settings.local_steps if settings.tap.of_update else 1


def noise_of(captured: CapturedClients, settings: CellSettings) -> Noise | None:
    """The noise that the declared defense puts on what was captured; None where there is none."""
    return noise_at(settings.build_defense(), settings.tap, context_of(captured, settings), steps_of(settings))
