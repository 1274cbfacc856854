"""Which verdicts moved where one observation hides several examples: a table of place, old and new verdict, and why.

``python benchmarks/verdicts_moved.py OLD NEW`` compares two baselines of ``harness check``, or two folders of result
documents or cards; ``git show COMMIT:baselines/nightly.json`` gives an older baseline. ``--every`` takes places of one
example too, with their victims, and says how much the best attack brings back: what a stronger suite changed, from one
folder of each suite.

Documents say their verdicts. A baseline keeps three numbers of each victim, from which this says what they show:
``leaks`` where two images or more came back, or ranks are nearer than chance (p < 0.001 over the number of attacks,
two-sided); else ``inconclusive``, since fewer than 59 victims show no resilience.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from harness.attacks import ATTACKS, Identifier
from harness.defenses import DEFENSES
from harness.gate.cells import GateCell
from harness.gate.rule import read_baseline
from harness.gate.settings import named
from harness.scoring.strongest import leak_level
from harness.scoring.verdict import VICTIMS_NEEDED


class Row(NamedTuple):
    """The verdict at one place, and its reason."""

    verdict: str
    why: str


def clients_of(settings: Mapping[str, Any]) -> int:
    """Clients whose sum alone is read."""
    cohort = settings.get("cohort") or settings
    securely = any(DEFENSES[name]().sums_securely for name in settings["defense"].split("+") if name in DEFENSES)
    return int(cohort.get("clients_per_round", 1)) if securely and str(settings["tap"]).startswith("T0") else 1


def hidden(settings: Mapping[str, Any]) -> int:
    """Examples behind one observation of a row or a cell."""
    alone = settings["tap"] in ("T2.raw", "T2.clip", "T2.examples")
    return clients_of(settings) * (1 if alone else int(settings["batch_size"]) * int(settings["local_steps"]))


def title(settings: Mapping[str, Any], defense_args: Mapping[str, Any]) -> str:
    """The place in one line."""
    shape = [f"{settings['local_steps']} local steps"] if settings["local_steps"] > 1 else []
    shape += [f"a sum of {clients_of(settings)} clients"] if clients_of(settings) > 1 else []
    own = {f"defense.{name}": value for name, value in defense_args.items()}
    told = {"attack": "cpl", "defense": settings["defense"], "batch_size": settings["batch_size"]}
    defense = named(told | own)
    return ", ".join([settings["dataset"], settings["model"], defense, *shape, str(settings["tap"])])


def rows_of(path: Path, every: bool = False) -> dict[str, Row]:
    """Every row that hides several examples, by its place; of documents, ``every`` row at all."""
    return dict(_of_baseline(path) if path.is_file() else _of_documents(path, every))


def _of_documents(folder: Path, every: bool) -> Iterator[tuple[str, Row]]:
    for file in sorted(folder.rglob("*.json")):
        document = json.loads(file.read_text())
        rows = document.get("summary", [document["row"]] if "row" in document else []) if type(document) is dict else []
        cells = {cell.get("key"): cell for cell in document.get("cells", [])} if rows else {}
        for row in rows:
            if every:
                own = {name: value for name, value in row["defense_args"].items() if name != "noise_scale"}
                place = f"{title(row, own)}, {row['victims']} victims"
                yield place, Row(_in_full(row, cells), row["verdict_reason"])
            elif hidden(row) > 1:
                yield title(row, row["defense_args"]), Row(row["verdict"], row["verdict_reason"])


def _in_full(row: Mapping[str, Any], cells: Mapping[str, Any]) -> str:
    """A verdict, and how much the best attack brings back."""
    rates = [cells[one["cell"]].get("asr", {}).get("strict") for one in row["attacks"] if one["cell"] in cells]
    # Who only tells known examples apart brings none back, of none.
    back = max(((rate["successes"], rate["n"]) for rate in rates if rate and rate["n"]), default=None)
    return row["verdict"] if back is None else f"{row['verdict']}, {back[0]} of {back[1]} back"


def _of_baseline(path: Path) -> Iterator[tuple[str, Row]]:
    places: dict[str, dict[str, GateCell]] = defaultdict(dict)
    for cell in read_baseline(path).cells:
        settings: Mapping[str, Any] = cell.settings
        if hidden(settings) > 1 and cell.noise_scale == 1:
            own = {name[8:]: value for name, value in settings.items() if name.startswith("defense.")}
            places[title(settings, own)][settings["attack"]] = cell
    return ((place, _read_off(cells)) for place, cells in places.items())


def _read_off(cells: Mapping[str, GateCell]) -> Row:
    """What stored numbers show of one place, attack by attack."""
    leaks, told = [], []
    for attack, cell in cells.items():
        victims = list(cell.victims.values())
        assert len(victims) < VICTIMS_NEEDED, "so many victims may show resilience, which numbers alone do not say"
        images = hidden(cell.settings)
        back, ranks = round(sum(one.success for one in victims) * images), cell.ranks[~np.isnan(cell.ranks)]
        away = (0.5 - ranks.mean()) * np.sqrt(12 * images * len(ranks)) if len(ranks) else 0.0
        p_value = float(2 * norm.sf(away))
        identifies = issubclass(ATTACKS[attack], Identifier)
        if p_value < leak_level(len(cells)) or (back >= 2 and not identifies):
            (told if identifies else leaks).append(
                f"{attack} {'' if identifies else f'{back} back, '}p = {p_value:.1g}"
            )
    tried = f"of {len(cells)} attacks: {', '.join(sorted(cells))}"
    if leaks:
        return Row("leaks", "; ".join(leaks + told))
    return Row("inconclusive", f"identifies: {told[0]}" if told else f"nothing found by any {tried}")


def moved(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[str]:
    """The table in Markdown, those that moved first."""
    absent = Row("not there", "the row is not there")
    lines = []
    for place in sorted(old.keys() | new.keys()):
        before, after = old.get(place, absent), new.get(place, absent)
        why = after.why if place in new else before.why
        cells = [place, before.verdict, after.verdict, why]
        lines.append(
            (before.verdict == after.verdict, "| " + " | ".join(one.replace("|", "/") for one in cells) + " |")
        )
    lines.sort(key=lambda line: line[0])
    return ["| place | old | new | why |", "|---|---|---|---|", *(line for _, line in lines)]


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if one != "--every"]
    if len(given) != 2:
        sys.exit("two baselines or folders are needed: python benchmarks/verdicts_moved.py [--every] OLD NEW")
    print("\n".join(moved(*(rows_of(Path(one), len(given) < len(sys.argv) - 1) for one in given))))
