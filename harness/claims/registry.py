"""The list of known filters, and what their answers share; modules of filters register theirs when imported."""

from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import Version

from harness.base.errors import UsageError
from harness.claims.answers import Answer, Asked, Facts, Filter, Line, positive

KNOWN: dict[str, Filter] = {}

#: The oldest and the newest release that was read and run, by framework.
READ = {"flower": ("1.12.0", "1.42.0"), "nvflare": ("2.7.2", "2.9.0"), "opacus": ("1.5.4", "1.6.0"),
        "pfl": ("0.6.0", "0.6.0"), "tff": ("0.87.0", "0.87.0"), "jax_privacy": ("2.0.0", "2.0.0"),
        "appfl": ("1.12.0", "1.12.0"), "fedml": ("0.9.6", "0.9.6")}  # fmt: skip
#: Guarantee tags, by the unit, of what is seen after sums and of the messages themselves.
_TAGS = {"client": ("client-DP central", "client-LDP"), "example": ("sample-DP", "sample-DP local view")}
# Arguments that multiply a filter's noise.
_NOISE = ("noise_multiplier", "relative_noise_stddev", "sensitivity", "dp_sensitivity")
_LONGEST = 60  # text of one argument
METRICS = "the number of examples and the metrics leave without noise"
NUMPY = "whoever knows numpy's random seed knows the noise"
RAW = "the server receives raw updates"


def register(name: str, acts: str, **said: Any) -> Callable[[Asked], Asked]:
    """Return what registers a function as the answer of a filter; ``said`` are fields of :class:`Filter`."""

    def registered(asked: Asked) -> Asked:
        KNOWN[name] = Filter(name, acts, asked=asked, **said)
        return asked

    return registered


def find_filter(name: str) -> Filter | None:
    """The filter of a name, an alias, or a class in a dotted path; None where none is known."""
    last = name.rpartition(".")[2].rpartition(":")[2]
    for one in KNOWN.values():
        if name == one.name or last in one.aliases:
            return one
    return None


def unread(name: str, version: str | None) -> str | None:
    """The condition that a version which was not read does what the nearest does that was; None where it was read.

    Raises:
        UsageError: it is of another major version, of which nothing is known.
    """
    framework = name.partition(":")[0]
    if version is None:
        return None
    if framework not in READ:
        return f"version {version} of {framework} does what the code does that was read"
    asked, (oldest, newest) = Version(version), READ[framework]
    if not Version(oldest).major <= asked.major <= Version(newest).major:
        raise UsageError(
            f"version {version} of {framework} is not known, {oldest} to {newest} are; add --framework-version {newest}"
        )
    if Version(oldest) <= asked <= Version(newest):
        return None
    nearest = oldest if asked < Version(oldest) else newest
    return f"{framework} {version}, which was not read, does what {nearest} does"


def line_of(unit: str, why: str, delta: float, view: str = "server", **settings: Any) -> Line:
    """Return a line without a number, for replacing one unit over one round."""
    return Line(view, unit, "replace", 1, None, delta, why, **settings)


def does_nothing(why: str, facts: Facts, unit: str = "client", claimed: float | None = None) -> Answer:
    """Return the answer that nothing is proven, and why."""
    answer = Answer()
    answer.nothing(line_of(unit, why, facts.delta or 1e-5, claimed=claimed), facts)
    return answer


def without_noise(one: Filter, arguments: Mapping[str, Any], facts: Facts) -> Answer | None:
    """The answer of a filter whose noise is set to 0; None where it has noise, or its noise is not set so."""
    said = {name: arguments.get(name) for name in _NOISE}
    zero = next((name for name, value in said.items() if type(value) in (int, float) and value == 0), None)
    if zero is None:
        return None
    claim = next((name for name in ("epsilon", "dp_epsilon") if arguments.get(name) is not None), None)
    claimed = None if claim is None else positive(arguments, claim)[0]
    unit = "example" if one.acts == "s2" else "client"
    return does_nothing(f"{zero} is 0: no noise is added", facts, unit, claimed)


def no_scalars(answer: Answer, facts: Facts, verb: str) -> None:
    """Add the condition that an update has no 0-d arrays, which arithmetic in place leaves as they are."""
    if facts.scalars is None:
        answer.unknown.append("the model has no 0-d arrays, such as BatchNorm's counters")
    elif facts.scalars:
        answer.fails.append(f"{facts.scalars} 0-d arrays {verb}, such as BatchNorm's counters")


def tag(unit: str, view: str) -> str:
    """Return the guarantee tag of a number for a view; who sees everything sees the messages."""
    return _TAGS[unit]["server" in view or "everybody" in view]


def schedule_of(one: Filter, arguments: Mapping[str, Any]) -> str:
    """Return the command with the arguments that are not the filter's own: noise is alike in every round."""
    said = ", ".join(
        f"{name}={_short(value)}"
        for name, value in arguments.items()
        if value is not None and value != one.settings.get(name)
    )
    return f"harness claims {one.name}{f' ({said})' if said else ''}"


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
