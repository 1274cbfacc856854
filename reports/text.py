"""Values of a result document as short, plain words. What a document holds is data, never markup or control codes."""

import math

from harness.results import MetricSummary, PrivacyStatement, RateSummary

MISSING = "n/a"
_CHIEF_ARGUMENTS = (
    "sigma", "clip", "convention", "noise_at", "noise_split", "s_mode", "policy", "unit", "threshold", "share",
    "epsilon", "amount", "param", "distribution", "applies_to",
)  # fmt: skip
_STAND_ALONE = ("convention", "s_mode", "policy", "unit", "param", "distribution", "applies_to")


def safe(text: str, longest: int = 120) -> str:
    """One line without control characters, cut to ``longest`` characters; terminals obey escape codes in names."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= longest else printable[: longest - 3] + "..."


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` decimals; many more places than that switch to scientific notation."""
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if abs(value) < 10_000 else f"{value:.1e}"


def percent(value: float | None) -> str:
    """A share in [0, 1] as a percentage with at most one decimal."""
    return MISSING if value is None else f"{100 * value:.1f}".removesuffix(".0") + "%"


def rate(summary: RateSummary | None) -> str:
    """A rate with its 95% interval, such as ``12.5% [5.6-23.2]``."""
    if summary is None or summary.rate is None:
        return MISSING
    if summary.ci95 is None:
        return percent(summary.rate)
    low, high = (percent(end).removesuffix("%") for end in summary.ci95)
    return f"{percent(summary.rate)} [{low}-{high}]"


def mean(summary: MetricSummary | None, digits: int = 3) -> str:
    """The mean of a metric."""
    return MISSING if summary is None else number(summary.mean, digits)


def p_value(value: float | None) -> str:
    """A p-value; the permutation test resolves none below 0.0001."""
    if value is None:
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def arguments(values: dict[str, object]) -> str:
    """The arguments that matter most, as ``sigma=6 clip=4 sum``; the result document has all of them."""
    # In a stack, settings are called part.setting.
    given = [(key.rpartition(".")[2], value) for key, value in values.items() if value is not None]
    chief = [entry for entry in given if entry[0] in _CHIEF_ARGUMENTS]
    shown = [_argument(*entry) for entry in sorted(chief, key=lambda entry: _CHIEF_ARGUMENTS.index(entry[0]))]
    scale = values.get("noise_scale", 1)
    return " ".join(shown + ([] if scale == 1 else [_argument("noise", scale)]))


def _argument(name: str, value: object) -> str:
    if name in _STAND_ALONE and isinstance(value, str):
        return safe(value, 24)
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return safe(f"{name} x{shown}" if name == "noise" else f"{name}={shown}", 40)


def guarantee(statement: PrivacyStatement, name_view: bool = False) -> str:
    """The guarantee tag and its epsilon, with the claimed one beside it where the two differ by more than 1%."""
    text = safe(statement.guarantee, 40)
    if statement.epsilon is not None:
        text += f", epsilon {statement.epsilon:.3g}"
    claimed = statement.claimed_epsilon
    if claimed is not None and not math.isclose(claimed, statement.epsilon or 0.0, rel_tol=0.01):
        text += f" (claimed {claimed:.3g})"
    return f"{safe(statement.view, 20)}: {text}" if name_view else text
