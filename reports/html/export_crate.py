"""Export of runs as an RO-Crate: the files of the evidence, and the action that made them of a federation.

Source: RO-Crate 1.1 (2020) and its profile Process Run Crate 0.5 (workflowhub.eu); written by the package ``rocrate``.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base.errors import UsageError
from harness.base.version import __version__
from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.run_data import RunData, UnreadableRun, inside

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
    tool = add("#harness", "SoftwareApplication", name="harness", version=__version__)
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
    with tempfile.TemporaryDirectory() as folder:
        return Path(crate.write_zip(Path(folder, "crate.zip"))).read_bytes()


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
    """What was attacked, and whether it was captured or played by the harness."""
    row = run.summary[0]
    what = f"{text.safe(row.defense, 60)} on {wording.setting(row)}"
    if run.judged:
        return f"{what}; {run.judged.captured}"
    return f"{what}; the harness played the clients and the server, nothing was captured"
