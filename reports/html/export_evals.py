"""Export as a record of Every Eval Ever: each attack at each place is an evaluation of the defended system.

Source: the schema ``eval.schema.json`` of every-eval-ever 0.3.0 (evalevalai.com, September 2026).
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from harness.base.errors import UsageError
from harness.base.version import __version__
from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.facts import digest
from harness.reports.html.places import Shown, shown_cells
from harness.reports.html.run_data import RunData
from harness.results.record import Rate

SCHEMA_VERSION = "0.3.0"
#: How intervals of rates are computed (docs/verdicts.md).
_INTERVAL = "Clopper-Pearson"


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
        "eval_library": {"name": "harness", "version": __version__},
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
            "lower": low, "upper": high, "confidence_level": 0.95, "method": _INTERVAL,
        }  # fmt: skip
    return {
        "evaluation_result_id": f"{cell.key or cell.attack}/{what}",
        "evaluation_name": f"{text.safe(cell.attack, 40)} at {where}",
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


def _slug(name: str) -> str:
    return "".join(mark if mark.isalnum() or mark in "-._" else "-" for mark in name)
