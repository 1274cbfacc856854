"""Export as a record of the Differential Privacy Deployments Registry, filled from the proven privacy statements.

Source: ``schemas/deployments-schema.yaml`` of opendp/deployments-registry-data, commit 3e9c812 of 15 July 2026. What
the harness cannot know, such as what the model is for, stays ``not stated`` for the curator to fill in.
"""

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ruamel.yaml import YAML

from harness.base.version import __version__
from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.run_data import RunData
from harness.results.record import Statement

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
        "implementation": {"mechanisms": f"{defense}; evaluated with harness {__version__}"},
        "administrative": {"registry_authors": [by or _UNTOLD], "notes":
                           "Written by harness export. publication_date is the day of the results; replace it."},
    }  # fmt: skip
    record = {"url_slug": _slug(system or f"{row.model}_{row.defense}"), "status": "Draft", "tier": 2,
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


def _slug(name: str) -> str:
    return "_".join("".join(mark if mark.isalnum() else " " for mark in name.lower()).split()) or "model"
