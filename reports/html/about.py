"""What the page is about, in words: which data, which network, whose runs, and when."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from harness.base.registry import Registry
from harness.datasets import DATASETS
from harness.models import MODELS
from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.run_data import RunData

_MOST = 3


@dataclass(frozen=True)
class About:
    """``title`` of the document; ``facts``: (what, in words)."""

    title: str
    facts: tuple[tuple[str, str], ...]


def about(runs: Sequence[RunData]) -> About:
    """Data and networks are explained where they are known here."""
    asked = [cell for run in runs for cell in run.cells if cell.role == "cell"]
    trained = [run.training.settings for run in runs if run.training is not None]
    data = _named([cell.dataset for cell in asked], trained, "dataset")
    networks = _named([cell.model for cell in asked], trained, "model")
    dates = [date for run in runs if (date := _date(run.written))]
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""
    facts = [
        *(("captured", run.judged.captured) for run in runs[:_MOST] if run.judged),
        ("data", _explained(DATASETS, data)), ("network", _explained(MODELS, networks)),
        ("run", ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")),
        ("written", when),
    ]  # fmt: skip
    title = ["What leaks", *filter(None, (_listed(data), _listed(networks), when))]
    return About(" · ".join(title), tuple((what, words) for what, words in facts if words))


def _named(attacked: Sequence[str], trained: Sequence[dict], setting: str) -> list[str]:
    found = [*attacked, *(str(settings[setting]) for settings in trained if settings.get(setting) is not None)]
    return [text.safe(name, 60) for name in dict.fromkeys(found)]


def _listed(names: Sequence[str]) -> str:
    return wording.join([*names[:_MOST], *([f"{len(names) - _MOST} more"] if len(names) > _MOST else [])])


def _explained(registry: Registry, names: Sequence[str]) -> str:
    known = set(registry)
    lines = []
    for name in names[:_MOST]:
        meaning = (registry[name].__doc__ or "").strip().partition("\n")[0] if name in known else ""
        lines.append(f"{name}: {text.safe(meaning, 200)}" if meaning else name)
    return " ".join(lines) + (f" And {len(names) - _MOST} more." if len(names) > _MOST else "")


def _date(written: float | None) -> str:
    """In words, such as ``22 November 2026``; of the moment in universal time."""
    if written is None:
        return ""
    day = datetime.fromtimestamp(written, UTC)
    return f"{day.day} {day:%B %Y}"
