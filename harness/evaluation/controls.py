"""The controls a verdict depends on (docs/verdicts.md): what must leak, and what must not."""

import math

from harness.attacks import Attacker, Identifier
from harness.datasets.public import NONE
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.observation import Observation
from harness.results import CellResult, Control
from harness.results.record import BLIND
from harness.scoring import negative_control_failed
from harness.scoring.success import brings_back
from harness.scoring.verdict import took_steps

CONTROL_VICTIMS = 24
NEGATIVE = ("swap", "noise_x100", BLIND)
_HIGH_NOISE = 50.0
#: What a control changes to be of one look: without noise that shows what many do.
ONE_LOOK = {"observations": 1, "rounds_seen": 1}
_STILL = "no optimizer step was taken"


def smaller(settings: CellSettings, **changes: object) -> CellSettings:
    """Return the same cell at the size of a control run, with some settings changed."""
    # The clients behind sums are those of a federation, all of which take part.
    victims = settings.victims if settings.separates else min(settings.victims, CONTROL_VICTIMS)
    return settings.model_copy(update={"victims": victims, "seeds": settings.seeds[:1], **changes})


def positive_control(settings: CellSettings) -> CellSettings:
    """The attack without any defense: it must leak, or its failure elsewhere means nothing."""
    # Without a defense nothing is clipped: what it would clip is the raw per-example gradient.
    tap = Tap.RAW if settings.tap in (Tap.CLIP, Tap.EXAMPLES) else settings.tap
    if tap.of_round and settings.together > 1:
        tap = Tap.SENT  # hiding among the others is no defense that is missing here
    one = {"tap": Tap.SENT, "same_data": "batch"} if settings.separates else {"tap": tap}
    # Nor is anything random: one look shows what many do.
    return smaller(
        settings, defense="none", defense_args={}, server_state=None, server_state_hash=None, noise_scale=1.0, **one,
        **ONE_LOOK,
    )  # fmt: skip


def without_noise(settings: CellSettings) -> CellSettings:
    """Return the place of a cell at the size of a control run without noise. What is read there is equal to what is
    read with noise where the place shows none."""
    return smaller(settings, noise_scale=0.0)


def noiseless_control(settings: CellSettings) -> CellSettings:
    """The defense without its noise: it must leak, or the objective is to blame and not the noise.

    Behind a secure sum it is one client's message, since hiding among the others is what the defense is for.
    """
    return smaller(settings, noise_scale=0.0, **({"tap": Tap.SENT} if settings.together > 1 else {}))


def high_noise_control(settings: CellSettings, times: float = 100.0, hidden: bool = False) -> CellSettings:
    """The defense with many times its noise, averaging included: it must not leak, or the pipeline is broken.

    ``hidden``: running statistics travel without noise beside what is read, and are left out here.
    """
    scale = times * math.sqrt(settings.observations * settings.rounds_seen) * settings.noise_scale
    return smaller(settings, noise_scale=scale, **({"batch_norm": "hidden"} if hidden else {}))


def hiding_factor(quiet: Observation, noisy: Observation) -> float:
    """Return the factor of the noise that leaves nothing to anybody: a hundred, and more where the noise is weak.

    The best that anyone can tell two gradients apart is by their difference over the noise's deviation: here at most
    2/50 of it is left.

    Args:
        quiet: the same victims without noise.
        noisy: as they are read.
    """
    noise = float((noisy.target - quiet.target).square().mean().sqrt())
    longest = float(quiet.target.norm(dim=1).max())
    return max(100.0, _HIGH_NOISE * longest / noise) if noise else 100.0


def is_hidden_by_more(noisy: Observation, attack: Attacker) -> bool:
    """Return whether enough of its noise hides everything from an attack: not where its level tells, nor where some
    coordinates have none."""
    if noisy.noise is not None and noisy.noise.leaves_some_bare:
        return False
    return noisy.level is None or not attack.reads_level


def blind_control(settings: CellSettings) -> CellSettings | None:
    """Return the cell whose victims are guessed from public data alone, without a gradient. None for an attack that
    makes no use of public data.

    It costs next to nothing, so that all victims of the cell are guessed.
    """
    attack = settings.build_attack()
    if attack.tier == "plain" or isinstance(attack, Identifier) or settings.prior == NONE or settings.attack == BLIND:
        return None
    rule = {name: value for name, value in attack.parameters().items() if name == "label_rule"}
    return settings.model_copy(update={"attack": BLIND, "attack_args": rule, "rounds_seen": 1})


def with_other_key(settings: CellSettings) -> CellSettings:
    """Return the settings with other random keys, to confirm a failed negative control."""
    return settings.model_copy(update={"seeds": tuple(seed + 1_000_003 for seed in settings.seeds)})


def judge_positive(name: str, cell: CellResult) -> Control:
    """A positive control holds when it leaks, or identifies where that is all that the attack does."""
    who = "undefended" if name == "positive" else "without noise"
    strict = cell.asr.get("strict")
    back = not cell.succeeds and strict is not None and brings_back(strict, cell.lineup.p_value)
    held, does = cell.succeeds or back, "leak" if cell.identified is None else "identify"
    shown = f"brings {cell.kind.many} back" if back else "leaks" if cell.identified is None else "identifies"
    detail = f"the attack {shown} {who}" if held else f"the attack does not {does} even {who}"
    if not held and not took_steps(cell):
        detail = _STILL
    return checked(name, held, detail, cell)


def judge_negative(name: str, p_values: list[float | None], *cells: CellResult) -> Control:
    """A negative control fails when every run of it, each with another key, shows a leak, or where none could."""
    if cells and not took_steps(cells[0]):
        return checked(name, False, _STILL, *cells)
    return _not_leaking(name, p_values, *cells)


def judge_blind(*cells: CellResult) -> Control:
    """The blind control fails as a negative one does, though it takes no step, or where no guess could be made."""
    if cells[0].not_applicable_reason:
        return checked(BLIND, False, cells[0].not_applicable_reason, *cells)
    control, guessed = _not_leaking(BLIND, [cell.lineup.p_value for cell in cells], *cells), cells[0].asr["strict"]
    detail = f"{control.detail}; {guessed.successes} of {guessed.n} {cells[0].kind.many} accurate by chance"
    return control.model_copy(update={"detail": detail, "by_luck": guessed})


def _not_leaking(name: str, p_values: list[float | None], *cells: CellResult) -> Control:
    failed = bool(p_values) and all(negative_control_failed(p) for p in p_values)
    shown = ", ".join("none" if p is None else f"{p:.2g}" for p in p_values)
    return checked(name, not failed, f"lineup p = {shown}", *cells)


def checked(name: str, held: bool, detail: str, *cells: CellResult) -> Control:
    """A control with the cells that were run for it."""
    return Control(name=name, held=held, detail=detail, cells=[cell.key for cell in cells if cell.key])
