"""Defenses as frameworks declare them, by class and arguments, in this project's terms.

A framework's defense is the one here that has its name: Flower's ``LocalDpMod`` and ``fixedclipping_mod``
(``defenses/flower.py``), NVFlare's filters (``defenses/nvflare.py``) and ``PrivacyEngine.make_private`` of Opacus
(``defenses/opacus.py``).
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator, validate_call

from harness.base.errors import UsageError
from harness.base.ranges import Clip, Count, Delta, Finite, NonNegative, Positive
from harness.defenses import DEFENSES


class Declared(BaseModel):
    """The defense that the client is said to train under, as ``--defense`` and ``--defense-arg`` name it, or as a
    framework does: a class with its arguments (:mod:`harness.judging.framework_defenses`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    settings: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _settings_apart(cls, given: Any) -> Any:
        """A name alone is a defense with its usual settings; those beside the name are told where they belong."""
        if isinstance(given, str):
            return {"name": given}
        beside = [] if not isinstance(given, Mapping) else sorted(map(str, given.keys() - cls.model_fields.keys()))
        if beside:
            raise ValueError(f'{beside[0]} belongs into settings: {{"name": ..., "settings": {{"{beside[0]}": ...}}}}')
        return given


def _local_dp(clipping_norm: Clip, sensitivity: NonNegative, epsilon: Positive, delta: Delta) -> Declared:
    """The classical Gaussian mechanism, whatever it proves."""
    settings = {"clipping_norm": clipping_norm, "sensitivity": sensitivity, "epsilon": epsilon, "delta": delta}
    return Declared(name="flower:LocalDpMod", settings=settings)


def _flip(
    dp_clipping_norm: Clip = 1.0, dp_sensitivity: NonNegative = 1e-4, dp_epsilon: Positive = 10.0,
    dp_delta: Delta = 1e-5, dp_enabled: bool = True,
) -> Declared:  # fmt: skip
    """FLIP's filter of NVFlare, and its mod of Flower."""
    settings = {
        "dp_clipping_norm": dp_clipping_norm, "dp_sensitivity": dp_sensitivity, "dp_epsilon": dp_epsilon,
        "dp_delta": dp_delta, "dp_enabled": dp_enabled,
    }  # fmt: skip
    return Declared(name="flip:local_dp", settings=settings)


def _fixed_clipping(clipping_norm: Clip) -> Declared:
    """The clip alone: its noise is the server's."""
    settings = {"clipping_norm": clipping_norm, "noise_multiplier": 0.0}
    return Declared(name="flower:ClientSideFixedClipping", settings=settings)


def _percentile(percentile: Finite = 10.0, gamma: Finite = 0.01, steps: Count = 1) -> Declared:
    """``steps``: the local steps that the trainer reports to NVFlare."""
    settings = {"percentile": percentile, "gamma": gamma, "steps": steps}
    return Declared(name="nvflare:PercentilePrivacy", settings=settings)


def _sparse_vector(
    fraction: Positive = 0.1, epsilon: Positive = 0.1, noise_var: Positive = 0.1, gamma: Positive = 1e-5,
    tau: NonNegative = 1e-6, replace: bool = True, steps: Count = 1, version: str = "2.9.0",
) -> Declared:  # fmt: skip
    """``version``: of NVFlare; before 2.8.0 the order was another."""
    settings = {
        "fraction": fraction, "epsilon": epsilon, "noise_var": noise_var, "gamma": gamma, "tau": tau,
        "replace": replace, "steps": steps, "version": version,
    }  # fmt: skip
    return Declared(name="nvflare:SVTPrivacy", settings=settings)


def _exclude(exclude_vars: str | Sequence[str] = "") -> Declared:
    names = exclude_vars if isinstance(exclude_vars, str) else list(exclude_vars)
    return Declared(name="nvflare:ExcludeVars", settings={"exclude_vars": names})


def _make_private(
    noise_multiplier: NonNegative, max_grad_norm: Clip | Sequence[Clip],
    clipping: Literal["flat", "per_layer"] = "flat", loss_reduction: Literal["mean"] = "mean",
    poisson_sampling: bool = True,
) -> Declared:  # fmt: skip
    """Noise is scaled by the norm of all bounds together."""
    bounds = [max_grad_norm] if isinstance(max_grad_norm, int | float) else list(max_grad_norm)
    if len(set(bounds)) != 1 or (clipping == "flat") != isinstance(max_grad_norm, int | float):
        raise UsageError(
            "make_private is read with one max_grad_norm for clipping='flat', or a list of one equal bound for each "
            "tensor for 'per_layer'; declare fed_cdp with the settings that are meant"
        )
    settings = {
        "noise_multiplier": noise_multiplier, "max_grad_norm": bounds[0] if clipping == "flat" else bounds,
        "clipping": clipping, "poisson_sampling": poisson_sampling,
    }  # fmt: skip
    return Declared(name="opacus:PrivacyEngine", settings=settings)


def _secure_sum() -> Declared:
    """Return what one client adds to the sum is as it trained it; the server sees the sum alone."""
    return Declared(name="none")


#: What a framework's defense is here, by the last part of its name.
_TABLE: dict[str, Callable[..., Declared]] = {
    "LocalDpMod": validate_call(_local_dp),
    "fixedclipping_mod": validate_call(_fixed_clipping),
    # Its bound is another in each round.
    "adaptiveclipping_mod": validate_call(_fixed_clipping),
    "secaggplus_mod": validate_call(_secure_sum),
    "make_private": validate_call(_make_private),
    "PrivacyEngine": validate_call(_make_private),
    "LocalDP": validate_call(_flip),
    "PercentilePrivacy": validate_call(_percentile),
    "SVTPrivacy": validate_call(_sparse_vector),
    "ExcludeVars": validate_call(_exclude),
}
# Attributes under which NVFlare 2.9 keeps arguments that have other names.
_KEPT_AS = {"SVTPrivacy": {"frac": "fraction", "eps_1": "epsilon", "eps_3": "noise_var"}}
# Flower's mods that leave a model as it is.
_HARMLESS = {"arrays_size_mod", "message_size_mod"}
# Between the names of several defenses, whose settings then stand under their names.
_AND = " + "


def declared_beside(pieces: Iterable[Any], config: Mapping[str, Any] | None = None) -> Declared | None:
    """Return what the pieces of a framework that change a client's update declare; None where none does.

    Args:
        pieces: functions, or objects whose attributes are their arguments.
        config: what the server sends with a task, in which arguments of functions stand.
    """
    made = [_declared(one, config or {}) for one in pieces]
    found = [one for one in made if one.name.rpartition(".")[2] not in _HARMLESS]
    if len(found) < 2:
        return found[0] if found else None
    return Declared(name=_AND.join(one.name for one in found), settings={one.name: one.settings for one in found})


def _declared(piece: Any, config: Mapping[str, Any]) -> Declared:
    bound = getattr(piece, "keywords", {})
    piece = getattr(piece, "func", piece)  # of functools.partial
    kind = piece if inspect.isroutine(piece) else type(piece)
    told = {} if kind is piece else {name: one for name, one in vars(piece).items() if not name.startswith("_")}
    kept_as = _KEPT_AS.get(kind.__name__, {})
    told = {kept_as.get(name, name): one for name, one in told.items()}
    told = {name: one for name, one in (told | bound).items() if isinstance(one, bool | int | float | str)}
    known = _TABLE.get(kind.__name__)
    if known is not None:
        takes = inspect.signature(known).parameters
        told = {name: one for name, one in ({**config} | told).items() if name in takes}
    return Declared(name=f"{kind.__module__}.{kind.__qualname__}", settings=told)


def draws_batches(defense: Declared | None) -> bool | None:
    """Return whether a framework's defense is declared with Poisson sampling, whose batches are of any size; None where
    it does not say."""
    if defense is None or defense.name.rpartition(".")[2] not in ("make_private", "PrivacyEngine"):
        return None
    return bool(defense.settings.get("poisson_sampling", True))


def translated(defense: Declared | None) -> Declared | None:
    """A declared defense in this project's terms; one that is none of a framework's as it is.

    Raises:
        UsageError: an argument is missing, unknown or out of range.
    """
    if defense is None:
        return None
    if _AND in defense.name:
        return _translated_together(defense)
    known = _TABLE.get(defense.name.rpartition(".")[2])
    if known is None:
        _require_no_slip(defense.name)
        return _as_not_known(defense)
    try:
        return known(**defense.settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"defense {defense.name!r}: {where}: {first['msg']}; give the arguments of the class as settings"
        ) from error


def _require_no_slip(name: str) -> None:
    """Raises UsageError: a name that no defense has, without dots, and nearly a framework's."""
    own = name.lower()
    meant = next((one for one in _TABLE if own.startswith(one.lower())), None)
    if meant is not None and "." not in name and name not in DEFENSES:
        raise UsageError(f"unknown defense {name!r}; did you mean {meant!r}? Give the arguments of {meant} as settings")


def is_known(defense: Declared | None) -> bool:
    """Return whether attacks and checks play a declared defense; not a framework's class that nobody here knows."""
    translated(defense)
    return defense is None or defense.name not in _TOLD


def _translated_together(defense: Declared) -> Declared:
    """Return the one of several defenses that changes an update; ``none`` where none of them does.

    Where two of them do, or one is not known, nobody knows what they do one after the other. Then the result is that of
    :func:`_as_not_known`.
    """
    parts = [Declared(name=name, settings=defense.settings.get(name, {})) for name in defense.name.split(_AND)]
    known = [one for one in parts if one.name.rpartition(".")[2] in _TABLE]
    changing = [one for one in map(translated, known) if one is not None and one.name != "none"]
    if len(known) == len(parts) and len(changing) < 2:
        return changing[0] if changing else Declared(name="none")
    return _as_not_known(defense)


def _as_not_known(defense: Declared) -> Declared:
    """A framework's class, which has dots in its name, in the place of a defense of this project's."""
    if "." not in defense.name or ":" in defense.name:
        return defense
    if defense.name not in _TOLD:
        _TOLD.add(defense.name)
        sys.stderr.write(
            f"harness: defense {defense.name!r} is declared, not known: attacks and checks take what was sent as if it "
            "had none\n"
        )
    return Declared(name="none")


# Not known, and told.
_TOLD: set[str] = set()
