"""Defenses as frameworks have them, by class and arguments, in this project's terms.

Sources: Flower's ``LocalDpMod`` and ``fixedclipping_mod`` (flwr 1.2x, ``clientapp/mod``), which act on the update as a
whole; Opacus 1.5's ``PrivacyEngine.make_private``, which acts on the gradients of a step.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import ValidationError, validate_call

from harness.base.errors import UsageError
from harness.base.ranges import Clip, Delta, NonNegative, Positive
from harness.judging.capture import Declared


def _local_dp(clipping_norm: Clip, sensitivity: NonNegative, epsilon: Positive, delta: Delta) -> Declared:
    """The classical Gaussian mechanism, whatever it proves."""
    deviation = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    settings = {"clip": clipping_norm, "sigma": deviation / clipping_norm, "clipping": "whole", "noise_at": "client"}
    return Declared(name="fed_sdp", settings=settings)


def _fixed_clipping(clipping_norm: Clip) -> Declared:
    """The clip alone: its noise is the server's."""
    return Declared(
        name="fed_sdp", settings={"clip": clipping_norm, "sigma": 0.0, "clipping": "whole", "noise_at": "client"}
    )


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
    sigma = noise_multiplier * math.sqrt(len(bounds))
    layered = "whole" if clipping == "flat" else "layer"
    return Declared(name="fed_cdp", settings={"clip": bounds[0], "sigma": sigma, "clipping": layered})


#: What a framework's defense is here, by the last part of its name.
_TABLE: dict[str, Callable[..., Declared]] = {
    "LocalDpMod": validate_call(_local_dp),
    "fixedclipping_mod": validate_call(_fixed_clipping),
    "make_private": validate_call(_make_private),
}


def draws_batches(defense: Declared | None) -> bool:
    """Whether a framework's defense is declared with Poisson sampling, whose batches are of any size."""
    if defense is None or defense.name.rpartition(".")[2] != "make_private":
        return False
    return bool(defense.settings.get("poisson_sampling", True))


def translated(defense: Declared | None) -> Declared | None:
    """A declared defense in this project's terms; one that is none of a framework's as it is.

    Raises:
        UsageError: an argument is missing, unknown or out of range.
    """
    known = defense and _TABLE.get(defense.name.rpartition(".")[2])
    if defense is None or known is None:
        return defense
    try:
        return known(**defense.settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"defense {defense.name!r}: {where}: {first['msg']}; give the arguments of the class as settings"
        ) from error
