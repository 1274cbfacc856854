"""Results for other programs: the forms of ``harness export``, and the rows of numbers that several of them hold.

A row is an attack at a place, and each number in it is a field of the stored results. What cannot be had is null, an
empty field in CSV.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from harness.base.errors import UsageError
from harness.base.version import __version__
from harness.reports import columns, text
from harness.reports.html import table as tables
from harness.reports.html import wording
from harness.reports.html.facts import digest, versions_of
from harness.reports.html.places import Decided, Shown, decided_places, shown_cells
from harness.reports.html.run_data import RunData, UnreadableRun, inside
from harness.reports.html.table import Head, Table, Value, latex_words
from harness.reports.machines import Alert, Case, address, junit, sarif
from harness.results.record import Rate, Statement
from harness.scoring import METRICS
from harness.scoring.success import clopper_pearson

# --------------------------------------------------------------------------------------
# Formats of ``harness export`` for other programs: BibTeX, RO-Crate, Every Eval Ever, JUnit, SARIF, a registry.


# Export as BibTeX: the tool, and each run with the hash of its evidence.


def as_bibtex(runs: Sequence[RunData], by: str) -> bytes:
    """An entry for the tool and one per run; keys hold letters, digits and dashes only."""
    year = str(datetime.fromtimestamp(max(run.written or 0.0 for run in runs), UTC).year)
    tool = {
        "title": "harness: does a federated-learning defense really stop gradient leakage?",
        "author": "{The gradient-leakage-harness project}", "version": __version__, "year": year,
    }  # fmt: skip
    entries = [_bibtex_entry("software", "harness", tool)]
    for number, run in enumerate(runs, 1):
        places = decided_places([run])
        counts = {kind: sum(place.kind == kind for place in places) for kind in dict.fromkeys(p.kind for p in places)}
        found = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        facts = {
            "title": f"Gradient leakage of {latex_words(_what(run))}",
            "author": f"{{{latex_words(by or 'not stated')}}}",
            "year": str(datetime.fromtimestamp(run.written or 0.0, UTC).year),
            "howpublished": f"Run of harness {_made_by([run])}, commit {run.environment.get('git') or 'not stated'}",
            "note": f"Places: {found}. SHA-256 {digest(run)}",
        }  # fmt: skip
        entries.append(_bibtex_entry("misc", f"harness-run-{number}", facts))
    return "\n".join(entries).encode()


def _made_by(runs: Sequence[RunData]) -> str:
    """Return the versions that made the runs, which need not be the one that exports them."""
    return ", ".join(dict.fromkeys(text.safe(str(versions_of(run).get("harness", _UNTOLD)), 40) for run in runs))


def _what(run: RunData) -> str:
    rows = run.summary
    return ", ".join(dict.fromkeys(f"{row.defense} on {row.dataset}" for row in rows))


def _bibtex_entry(kind: str, key: str, facts: dict[str, str]) -> str:
    return f"@{kind}{{{key},\n" + "".join(f"  {name} = {{{value}}},\n" for name, value in facts.items()) + "}\n"


# --------------------------------------------------------------------------------------
# Export of runs as an RO-Crate: the files of the evidence, and the action that made them of a federation.
#
# Source: RO-Crate 1.1 (2020) and its profile Process Run Crate 0.5 (workflowhub.eu); written by the package
# ``rocrate``.


PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_FILES = {
    "results.json": "Results: verdicts, rates, controls and privacy statements",
    "victims.jsonl": "One record per attacked client and example",
    "judged.json": "Checks of the captured updates",
}


def as_crate(runs: list[RunData], system: str, by: str) -> bytes:
    """A zip archive that holds ``ro-crate-metadata.json`` beside the files of the runs.

    Raises:
        UsageError: the package ``rocrate`` is not installed.
    """
    try:
        from rocrate.model.contextentity import ContextEntity
        from rocrate.rocrate import ROCrate
    except ImportError as error:
        raise UsageError("this needs rocrate; pip install 'gradient-leakage-harness[crate]'") from error
    crate = ROCrate(version="1.1")

    def add(identifier: str, kind: str, **facts: Any) -> Any:
        return crate.add(ContextEntity(crate, identifier, {"@type": kind, **facts}))

    root = crate.root_dataset
    crate.name = f"Gradient leakage of {system or wording.join([run.name for run in runs])}"
    crate.description = "What attackers reconstruct from a federation's updates under a defense, with the controls."
    crate.datePublished = max(_time(run) for run in runs)
    crate.license = "not stated"
    root["conformsTo"] = add(PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
    tool = add("#harness", "SoftwareApplication", name="harness", version=_made_by(runs))
    agent = add("#tester", "Person", name=by) if by else None
    actions = []
    for number, run in enumerate(runs, 1):
        found = [_file(crate, run, name, number) for name in _FILES if _is_there(run, name)]
        federation = add(f"#federation-{number}", "CreativeWork", name=system or "the federation under test",
                         description=_federation(run))  # fmt: skip
        actions.append(
            add(f"#run-{number}", "CreateAction", name=f"Attacks of run {run.name}", instrument=tool,
                object=federation, result=found, endTime=_time(run),
                actionStatus="http://schema.org/CompletedActionStatus", **({"agent": agent} if agent else {}))
        )  # fmt: skip
    root["mentions"] = actions
    return b"".join(crate.stream_zip())


def _file(crate: Any, run: RunData, name: str, number: int) -> Any:
    kind = "application/jsonl" if name.endswith("l") else "application/json"
    facts = {"name": _FILES[name], "encodingFormat": kind}
    return crate.add_file(inside(run.folder, name), f"run{number}/{name}", properties=facts)


def _is_there(run: RunData, name: str) -> bool:
    try:
        return inside(run.folder, name).is_file()
    except UnreadableRun:
        return False


def _time(run: RunData) -> str:
    return datetime.fromtimestamp(run.written or 0.0, UTC).isoformat(timespec="seconds")


def _federation(run: RunData) -> str:
    """Return what was attacked, and whether it was captured or played by the harness."""
    row = run.summary[0]
    what = f"{text.safe(row.defense, 60)} on {wording.setting(row)}"
    if run.judged:
        return f"{what}; {run.judged.captured}"
    return f"{what}; the harness played the clients and the server, nothing was captured"


# --------------------------------------------------------------------------------------
# Export as a record of Every Eval Ever: each attack at each place is an evaluation of the defended system.
#
# Source: the schema ``eval.schema.json`` of every-eval-ever 0.3.0 (evalevalai.com, September 2026).


SCHEMA_VERSION = "0.3.0"
#: How intervals of rates are computed (docs/verdicts.md).
_EXACT, _CLUSTERED = "Clopper-Pearson", "Clopper-Pearson, trials as many as victims vary like (Korn and Graubard 1998)"


def as_evals(runs: Sequence[RunData], system: str, by: str) -> bytes:
    """One record of one system.

    Raises:
        UsageError: no attack has a rate: the schema has no place for what could not be measured.
    """
    cells = shown_cells(runs)
    results = [result for item in cells for result in _results(item)]
    if not results:
        raise UsageError("no attack of these runs has a rate, and this format holds only scores; export to json")
    row = runs[0].summary[0]
    defense = " ".join(filter(None, wording.label(row.defense, row.defense_args)))
    name = system or f"{row.model} under {defense}"
    written = max(run.written or 0.0 for run in runs)
    identifier = "/".join(("harness", _slug(row.model), _slug(row.defense)))
    document = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"gradient-leakage/{identifier}/{int(written)}",
        "evaluation_timestamp": datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
        "retrieved_timestamp": str(int(written)),
        "source_metadata": {
            "source_name": "harness", "source_type": "evaluation_run",
            "source_organization_name": by or "not stated", "evaluator_relationship": "other",
            "additional_details": {f"sha256 of {run.name}": digest(run) for run in runs}
            | {"attacks without a rate": str(sum(not any(_results(item)) for item in cells))},
        },
        "eval_library": {"name": "harness", "version": _made_by(runs)},
        "model_info": {
            "name": name, "id": identifier,
            "additional_details": {
                "deployment_type": "self_deployed", "model_availability": "unknown", "defense": defense,
            },
        },
        "evaluation_results": results,
    }  # fmt: skip
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _results(item: Shown) -> list[dict[str, Any]]:
    """The rates of a cell: records reconstructed, and records identified."""
    found, told = item.cell.asr.get("strict"), item.cell.identified
    rates = {"reconstructed": found, "identified": told and Rate(rate=told.rate, n=told.n, ci95=told.ci95)}
    return [_result(item, what, rate) for what, rate in rates.items() if rate is not None and rate.rate is not None]


def _result(item: Shown, what: str, rate: Rate) -> dict[str, Any]:
    cell = item.cell
    where = f"surface {columns.surface(cell)}{columns.circumstances(cell)}"
    spread: dict[str, Any] = {"num_samples": rate.n}
    if rate.ci95 and None not in rate.ci95:
        low, high = rate.ci95
        spread["confidence_interval"] = {
            "lower": low, "upper": high, "confidence_level": 0.95, "method": interval_of(rate),
        }  # fmt: skip
    return {
        "evaluation_result_id": f"{cell.key or cell.attack}/{what}",
        "evaluation_name": f"{columns.attacker(cell)} at {where}",
        "source_data": {"dataset_name": text.safe(cell.dataset, 80), "source_type": "other"},
        "metric_config": {
            "evaluation_description": f"Share of {cell.kind.many} that an attacker {what}",
            "metric_id": f"gradient_leakage_{what}", "metric_kind": "attack_success_rate", "metric_unit": "proportion",
            "lower_is_better": True, "score_type": "continuous", "min_score": 0.0, "max_score": 1.0,
        },
        "score_details": {
            "score": rate.rate, "uncertainty": spread,
            "details": {"verdict": item.kind, "why": cell.verdict_reason, "tier": cell.tier},
        },
    }  # fmt: skip


def interval_of(rate: Rate) -> str:
    """Return how the interval of a rate was computed: over its records, or over victims who hold several."""
    exact = clopper_pearson(round((rate.rate or 0.0) * rate.n), rate.n)
    pairs = zip(rate.ci95 or (), exact, strict=False)
    return _EXACT if all(abs((one or 0.0) - other) <= 1e-6 for one, other in pairs) else _CLUSTERED


def _slug(name: str) -> str:
    return "".join(mark if mark.isalnum() or mark in "-._" else "-" for mark in name)


# --------------------------------------------------------------------------------------
# Exports for build services and security pages: verdicts as test cases (JUnit), leaks as alerts (SARIF).


# A test that passes says that an attack was withstood, and nothing else may look as green as that.
_OUTCOMES: dict[str, Literal["passed", "failure", "error", "skipped"]] = {
    "leaks": "failure", "resilient": "passed", "inconclusive": "error", "impossible": "skipped", "skipped": "skipped",
    "invalid": "error",
}  # fmt: skip


def as_junit(runs: Sequence[RunData]) -> bytes:
    """A test case per attack at a place: a leak is a failure, what is undecided an error, what did not run skipped."""
    items = shown_cells(runs)
    return junit("harness export", [_case(item, name) for item, name in zip(items, _names(items), strict=True)])


def _names(items: Sequence[Shown]) -> list[str]:
    """Each attack at its place; with its setting, and the key of its cell, where others are called the same."""
    names = [
        f"{columns.attacker(one.cell)} at surface {columns.surface(one.cell)}{columns.circumstances(one.cell)}"
        for one in items
    ]
    for more in (lambda one: one.setting, lambda one: f"cell {one.cell.key}"):
        count = Counter((_group(one), name) for one, name in zip(items, names, strict=True))
        names = [
            f"{name} ({more(one)})" if count[_group(one), name] > 1 else name
            for one, name in zip(items, names, strict=True)
        ]
    return names


def _group(item: Shown) -> str:
    return ".".join(filter(None, (item.cell.dataset, item.cell.model, " ".join(filter(None, item.row)))))


def _case(item: Shown, name: str) -> Case:
    cell = item.cell
    outcome = "failure" if cell.identified and cell.identified.identifies else _OUTCOMES[item.kind]
    kind = "identifies" if outcome == "failure" and item.kind != "leaks" else item.kind
    numbers = (("success", columns.success_rate(cell)), ("identified", columns.identified(cell)),
               ("lineup p", columns.lineup(cell)))  # fmt: skip
    said = [f"{title} {value}" for title, value in numbers if value != text.MISSING]
    words = "; ".join([kind, cell.not_applicable_reason or cell.verdict_reason, *said, *cell.flags])
    return Case(_group(item), name, outcome, kind, words, cell.seconds)


def _alerts(places: Sequence[Decided]) -> Iterator[Alert]:
    for place in places:
        row, file = place.summary, address(Path(place.run.folder, "results.json"))
        named = " ".join(filter(None, (place.defense, place.arguments)))
        where = f"{named}, {wording.surface(row)}{columns.circumstances(row)} ({place.setting})"
        words = text.headed(row)
        if place.kind == "leaks" or row.identifies:
            rate = columns.success_rate(place.cell) if place.cell else text.MISSING
            more = f"; success of {row.strongest} {rate}" if row.strongest and rate != text.MISSING else ""
            yield Alert("leaks", "error", where, words + more, file)
        elif place.kind == "inconclusive":
            yield Alert("undecided", "note", where, words, file)


# --------------------------------------------------------------------------------------
# Export as a record of the Differential Privacy Deployments Registry, filled from the proven privacy statements.
#
# Source: ``schemas/deployments-schema.yaml`` of opendp/deployments-registry-data, commit 3e9c812 of 15 July 2026. What
# the harness cannot know, such as what the model is for, stays ``not stated`` for the curator to fill in.


_UNTOLD = "not stated"
#: The registry calls the view that its data product is published to; ours, from the weakest reader on.
_VIEWS = ("third party", "server", "client", "message")


def as_registry(runs: Sequence[RunData], system: str, by: str) -> bytes:
    """The record as YAML, as a draft of tier 2."""
    row = runs[0].summary[0]
    defense = " ".join(filter(None, wording.label(row.defense, row.defense_args)))
    day = datetime.fromtimestamp(max(run.written or 0.0 for run in runs), UTC).date().isoformat()
    statements = _statements(runs)
    told = next((one for view in _VIEWS for one in statements if one.view == view and one.epsilon is not None), None)
    deployment = {
        "basic": {
            "name": system or f"{row.model} trained on {row.dataset} under {defense}", "data_curators": [by or _UNTOLD],
            "description": f"A model ({row.model}) trained by federated learning on {row.dataset}; {defense}",
            "intended_use": _UNTOLD, "data_product_type": "Machine learning model", "data_product_region": _UNTOLD,
            "publication_date": day,
        },
        **({"dp_variant": {"variant_name": "Approximate DP" if told.delta else "Pure DP"}} if told else {}),
        "privacy_loss": _loss(told, statements),
        "deployment_model": {"model_name": "Federated", "model_name_details": _details(told),
                             "access_type": "Non-interactive"},
        "accounting": {"composition": _composition(told)},
        "implementation": {"mechanisms": f"{defense}; evaluated with harness {_made_by(runs)}"},
        "administrative": {"registry_authors": [by or _UNTOLD], "notes":
                           "Written by harness export. publication_date is the day of the results; replace it."},
    }  # fmt: skip
    record = {"url_slug": _model_slug(system or f"{row.model}_{row.defense}"), "status": "Draft", "tier": 2,
              "deployment": deployment}  # fmt: skip
    yaml = YAML()
    yaml.width, yaml.version = 120, None
    buffer = io.BytesIO()
    yaml.dump(record, buffer)
    return buffer.getvalue()


def _statements(runs: Sequence[RunData]) -> list[Statement]:
    """Each statement of the runs once, of the training of a run before those of its attacks."""
    trained = [one for run in runs if run.training for one in run.training.privacy]
    attacked = [one for run in runs for cell in run.cells if cell.role == "cell" for one in cell.privacy]
    return list(dict.fromkeys([*trained, *attacked]))


def _loss(told: Statement | None, statements: Sequence[Statement]) -> dict[str, Any]:
    every = "; ".join(dict.fromkeys(text.guarantee(one, name_view=True) for one in statements))
    if told is None:
        return {"privacy_parameters_details": f"No epsilon is proven for what ran. {every}".strip()}
    numbers = {"epsilon": told.epsilon} | ({"delta": told.delta} if told.delta else {})
    return {
        "privacy_unit": told.unit or _UNTOLD, "privacy_unit_details": f"adjacency: {told.adjacency or _UNTOLD}",
        "privacy_parameters": numbers, "privacy_parameters_details": every,
    }  # fmt: skip


def _details(told: Statement | None) -> str:
    return f"{told.guarantee}: towards the {told.view}; {told.notes}" if told else "no guarantee holds"


def _composition(told: Statement | None) -> str:
    if told is None:
        return _UNTOLD
    facts = (("conversion", told.conversion), ("sampler", told.sampler), ("noise schedule", told.schedule))
    return "; ".join(f"{name}: {value}" for name, value in facts if value) or _UNTOLD


def _model_slug(name: str) -> str:
    return "_".join("".join(mark if mark.isalnum() else " " for mark in name.lower()).split()) or "model"


# --------------------------------------------------------------------------------------
# The forms, and the rows of numbers.


Plain = str | int | float | bool | None
Row = dict[str, Plain]


@dataclass(frozen=True)
class Exported:
    """Runs that are exported, and what the operator states: the name of the system, and who tested it."""

    runs: Sequence[RunData]
    system: str = ""
    by: str = ""

    @property
    def cells(self) -> list[Shown]:
        """Every attack at every place, without the controls."""
        return shown_cells(self.runs)

    @property
    def places(self) -> list[Decided]:
        """Every verdict over all attacks."""
        return decided_places(self.runs)

    @property
    def written(self) -> datetime:
        """Time when the last of the runs was written, in UTC; the beginning of 1970 where no file says so."""
        return datetime.fromtimestamp(max(run.written or 0.0 for run in self.runs), UTC)


def _rate(name: str, of: Callable[[Shown], Rate | None]) -> dict[str, Callable[[Shown], Plain]]:
    """A rate with its 95% interval and what it is a share of."""

    def end(item: Shown, place: int) -> float | None:
        found = of(item)
        return found.ci95[place] if found and found.ci95 else None

    return {
        name: lambda item: getattr(of(item), "rate", None),
        f"{name}_low": lambda item: end(item, 0),
        f"{name}_high": lambda item: end(item, 1),
        f"{name}_of": lambda item: getattr(of(item), "n", None),
    }


def _identified(item: Shown) -> Rate | None:
    found = item.cell.identified
    return found and Rate(rate=found.rate, n=found.n, ci95=found.ci95)


def _metric(name: str, statistic: str) -> Callable[[Shown], Plain]:
    return lambda item: getattr(item.cell.metrics.get(name), statistic, None)


def _theorem(name: str, part: str) -> Callable[[Shown], Plain]:
    return lambda item: getattr(text.event_of(item.cell, name), part, None)


def proven(statements: Sequence[Statement]) -> list[Statement]:
    """Those that hold for what ran and are about what is read there, the smallest epsilon first."""
    about = [one for one in statements if one.epsilon is not None and one.covers is not False]
    return sorted(about, key=lambda one: one.epsilon or 0.0)


def _proven(part: str) -> Callable[[Shown], Plain]:
    return lambda item: getattr(next(iter(proven(item.cell.privacy)), None), part, None)


#: The columns of CSV and the names in JSON, each with where it is stored.
FIELDS: dict[str, Callable[[Shown], Plain]] = {
    "run": lambda item: item.run.name,
    "dataset": lambda item: item.cell.dataset,
    "model": lambda item: item.cell.model,
    "defense": lambda item: item.cell.defense,
    "arguments": lambda item: json.dumps(item.cell.defense_args, sort_keys=True),
    "attack": lambda item: item.cell.attack,
    "tier": lambda item: item.cell.tier,
    "suite": lambda item: item.cell.suite,
    "surface": lambda item: item.cell.surface,
    "tap": lambda item: item.cell.tap,
    "round": lambda item: item.cell.round,
    "batch_size": lambda item: item.cell.batch_size,
    "local_steps": lambda item: item.cell.local_steps,
    "observations": lambda item: item.cell.observations,
    "rounds_seen": lambda item: columns.rounds_seen(item.cell),
    "options": lambda item: "; ".join(columns.options_of(item.cell)) or None,
    "labels_known": lambda item: item.cell.labels == "known",
    "seeds": lambda item: json.dumps(item.cell.seeds),
    "victims": lambda item: item.cell.victims,
    "verdict": lambda item: item.kind,
    "why": lambda item: item.cell.not_applicable_reason or item.cell.verdict_reason or None,
    **_rate("success", lambda item: item.cell.asr.get("strict")),
    "success_ssim": lambda item: getattr(item.cell.asr.get("ssim"), "rate", None),
    "success_table3": lambda item: getattr(item.cell.asr.get("table3"), "rate", None),
    **_rate("identified", _identified),
    **{f"{one.name}_{one.shown}": _metric(one.name, one.shown) for one in METRICS.values() if one.title},
    "tau_mean": _metric("tau", "mean"),
    "labels": lambda item: item.cell.label.accuracy,
    "lineup_p": lambda item: item.cell.tested_p,
    "lineup_rank": lambda item: (item.cell.identified or item.cell.lineup).mean_rank,
    "first_in_lineup_at_most": _theorem("first in its lineup", "ceiling"),
    "success_at_most": _theorem("strict image", "ceiling"),
    "guarantee": _proven("guarantee"),
    "epsilon": _proven("epsilon"),
    "delta": _proven("delta"),
    "against": _proven("view"),
    "seconds": lambda item: item.cell.seconds,
    "cell": lambda item: item.cell.key,
}


def rows_of(cells: Sequence[Shown]) -> list[Row]:
    """Every attack as a row of plain values; numbers that an attack measures itself come last, as ``own_NAME``."""
    own = columns.own_measures(item.cell for item in cells)
    shows = FIELDS | {f"own_{name}": _metric(name, "mean") for name in own}
    return [{name: show(item) for name, show in shows.items()} for item in cells]


def as_csv(exported: Exported) -> bytes:
    """Numbers as they are stored, and empty fields for those that cannot be had; UTF-8 with its mark at the start."""
    rows = rows_of(exported.cells)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _entry(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue().encode("utf-8-sig")


def _entry(value: Plain) -> str:
    """A number in full; a word that a spreadsheet would run is quoted."""
    if value is None:
        return ""
    return tables.harmless(text.safe(value, 600)) if isinstance(value, str) else repr(value)


def as_json(exported: Exported) -> bytes:
    """Return the rows of :func:`rows_of` as JSON, and the runs that they are of, each with the hash of its evidence."""
    runs = [{"name": run.name, "environment": run.environment, "sha256": digest(run)} for run in exported.runs]
    document = {"kind": "harness export", "harness": __version__, "runs": runs, "rows": rows_of(exported.cells)}
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_latex(exported: Exported) -> bytes:
    """One table with booktabs' rules: each rate with its interval, each verdict beside its guarantee."""
    cells = [item.cell for item in exported.cells]
    shown = [column for column in columns.MEDIUM if any(map(column.concerns, cells))]
    heads = tuple(Head(column.title, number=column.right) for column in shown)
    rows = [tuple(Value("; ".join(column.render(cell).plain.splitlines())) for column in shown) for cell in cells]
    settings = [columns.setting(cell) for cell in cells]
    if len(set(settings)) > 1:  # else the caption of a paper's table says it once for all rows
        heads = (Head("setting"), *heads)
        rows = [(Value(own), *row) for own, row in zip(settings, rows, strict=True)]
    return tables.latex([Table("harness", "What leaks where, by attack", heads, tuple(rows))]).encode()


@dataclass(frozen=True)
class Format:
    """A form of export: how it is written, and how its files end. ``one``: whether it describes one system only."""

    write: Callable[[Exported], bytes]
    endings: tuple[str, ...]
    one: bool = False


#: Every form that results are exported in.
FORMATS: dict[str, Format] = {
    "csv": Format(as_csv, (".csv",)),
    "sarif": Format(lambda exported: sarif(list(_alerts(decided_places(exported.runs)))), (".sarif", ".sarif.json")),
    "latex": Format(as_latex, (".tex",)),
    "ro-crate": Format(lambda one: as_crate(list(one.runs), one.system, one.by), (".zip",)),
    "every-eval-ever": Format(lambda one: as_evals(one.runs, one.system, one.by), (".eval.json",), one=True),
    "dp-registry": Format(lambda one: as_registry(one.runs, one.system, one.by), (".yaml", ".yml"), one=True),
    "bibtex": Format(lambda one: as_bibtex(one.runs, one.by), (".bib",)),
    "junit": Format(lambda exported: as_junit(exported.runs), (".xml",)),
    # The last of those whose files end so.
    "json": Format(as_json, (".json",)),
}
