"""Defenses as objects of Flower, Opacus and NVFlare, read for their settings: nothing of them is called."""

from typing import Any

from harness.base.errors import UsageError

_FIXED = ("noise_multiplier", "clipping_norm", "num_sampled_clients")
#: What an object is here, and its attributes that are arguments there, by the name of its class.
_READ: dict[str, tuple[str, tuple[str, ...]]] = {
    "DifferentialPrivacyServerSideFixedClipping": ("flower:ServerSideFixedClipping", _FIXED),
    "DifferentialPrivacyClientSideFixedClipping": ("flower:ClientSideFixedClipping", _FIXED),
    "LocalDpMod": ("flower:LocalDpMod", ("clipping_norm", "sensitivity", "epsilon", "delta")),
    "PercentilePrivacy": ("nvflare:PercentilePrivacy", ("percentile", "gamma")),
    "DPOptimizer": ("opacus:PrivacyEngine", ("noise_multiplier", "max_grad_norm")),
}
#: Objects that no longer hold what they were given, and what to give instead.
_UNREADABLE = {
    "PrivacyEngine": "it holds neither noise nor bound; give the optimizer that make_private returns",
    "SVTPrivacy": "its order depends on NVFlare's version; name nvflare:SVTPrivacy with defense_args",
    "DPPerLayerOptimizer": "its bounds are combined; name opacus:PrivacyEngine with defense_args",
    "DifferentialPrivacyServerSideAdaptiveClipping":
        "it keeps another noise_multiplier than it was given; name flower:ServerSideAdaptiveClipping with defense_args",
    "DifferentialPrivacyClientSideAdaptiveClipping":
        "it keeps another noise_multiplier than it was given; name flower:ClientSideAdaptiveClipping with defense_args",
}  # fmt: skip


def read_defense(one: object) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of a framework's object here; None where it is none that is known.

    Args:
        one: a mod or a strategy of Flower, an optimizer of Opacus, a filter of NVFlare.

    Raises:
        UsageError: it cannot be read.
    """
    kind = type(one).__name__
    if kind in _UNREADABLE:
        raise UsageError(f"defense: {kind} cannot be read: {_UNREADABLE[kind]}")
    if kind in _READ:
        name, settings = _READ[kind]
        if lacking := [each for each in settings if not hasattr(one, each)]:
            raise UsageError(f"defense: this {kind} has no {lacking[0]}; name {name} with defense_args")
        return name, {each: getattr(one, each) for each in settings}
    return None
