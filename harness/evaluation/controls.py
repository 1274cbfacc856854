"""The controls a verdict depends on (spec: attacks, section 9.3): what must leak, and what must not."""

import math

from harness.experiment import CellSettings
from harness.results import CellResult
from harness.scoring import Control, negative_control_failed

CONTROL_VICTIMS = 24
NEGATIVE = ("swap", "noise_x100")


def smaller(settings: CellSettings, **changes: object) -> CellSettings:
    """The same cell at the size of a control run, with some settings changed."""
    victims = min(settings.victims, CONTROL_VICTIMS)
    return settings.model_copy(update={"victims": victims, "seeds": settings.seeds[:1], **changes})


def positive_control(settings: CellSettings) -> CellSettings:
    """The attack without any defense: it must leak, or its failure elsewhere means nothing."""
    # Without a defense nothing is clipped: what it would clip is the raw per-example gradient.
    tap = "T2.raw" if settings.tap in ("T2.clip", "T2.examples") else settings.tap
    # Nor is anything random: one look shows what many do.
    return smaller(
        settings, defense="none", defense_args={}, server_state=None, server_state_hash=None, tap=tap, noise_scale=1.0,
        observations=1,
    )  # fmt: skip


def without_noise(settings: CellSettings) -> CellSettings:
    """The same place at the size of a control run without noise; equal to it where it shows none."""
    return smaller(settings, noise_scale=0.0)


def noiseless_control(settings: CellSettings) -> CellSettings:
    """The defense without its noise: it must leak, or the objective is to blame and not the noise.

    Behind a secure sum it is one client's message, since hiding among the others is what the defense is for.
    """
    return smaller(settings, noise_scale=0.0, **({"tap": "T1.out"} if settings.together > 1 else {}))


def drowned_control(settings: CellSettings) -> CellSettings:
    """The defense with a hundred times its noise, averaging included: it must not leak, or the pipeline is broken."""
    return smaller(settings, noise_scale=100.0 * math.sqrt(settings.observations) * settings.noise_scale)


def with_other_key(settings: CellSettings) -> CellSettings:
    """The same settings with other random keys, to confirm a failed negative control."""
    return settings.model_copy(update={"seeds": tuple(seed + 1_000_003 for seed in settings.seeds)})


def took_steps(cell: CellResult) -> bool:
    """Whether any optimizer moved: the first gradient evaluation only looks."""
    evaluations = cell.metrics.get("gradient_evaluations")
    return evaluations is not None and evaluations.mean is not None and evaluations.mean > 1


def judge_positive(name: str, cell: CellResult) -> Control:
    """A positive control holds when it leaks."""
    who = "undefended" if name == "positive" else "without noise"
    held = cell.verdict == "leaks"
    if not held and not took_steps(cell):
        return Control(name, False, "no optimizer step was taken")
    return Control(name, held, f"the attack leaks {who}" if held else f"the attack does not leak even {who}")


def judge_negative(name: str, p_values: list[float | None]) -> Control:
    """A negative control fails when every run of it, each with another key, shows a leak."""
    failed = bool(p_values) and all(negative_control_failed(p) for p in p_values)
    shown = ", ".join("none" if p is None else f"{p:.2g}" for p in p_values)
    return Control(name, not failed, f"lineup p = {shown}")
