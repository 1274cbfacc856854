"""Results as runs of MLflow (extra ``[mlflow]``): a run for the whole, and one below it for each attack at a place.

``MLFLOW_TRACKING_URI`` names the store and ``MLFLOW_EXPERIMENT_NAME`` the experiment, as for any program that tracks;
else these are ``sqlite:///mlflow.db``, a file in the current folder, and ``harness``.
"""

import importlib.util
import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.base.errors import UsageError, in_one_line
from harness.reports.html.outcome import Kept, Outcome, read_outcome
from harness.results import ResultDocument
from harness.results.files import MOST_OF_A_DOCUMENT, parse_json, read_stored
from harness.results.frontier import FrontierDocument
from harness.results.training import TrainDocument

log = logging.getLogger(__name__)

#: Where runs can be tracked.
TRACKERS = ("mlflow",)
STORE, EXPERIMENT = "sqlite:///mlflow.db", "harness"

#: A server that does not answer would hold up a finished run for minutes by MLflow's own rule, and it tells its makers
#: that it is used. What is set from outside wins.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
_LONGEST, _AT_ONCE = 500, 90


def require_tracker(name: str) -> None:
    """Raises UsageError where a run cannot be tracked there: before anything is computed."""
    if name not in TRACKERS:
        raise UsageError(f"unknown tracker {name!r}; choose {', '.join(TRACKERS)}")
    needed = ("mlflow", "sqlalchemy", "alembic") if _store().startswith("sqlite") else ("mlflow",)
    if missing := [one for one in needed if importlib.util.find_spec(one) is None]:
        raise UsageError(f"tracking needs {missing[0]}; pip install 'gradient-leakage-harness[mlflow]'")


def track(
    run: Outcome | TrainDocument | FrontierDocument | Mapping[str, Any], to: str = "mlflow", name: str | None = None
) -> str | None:
    """Write the results of :func:`harness.evaluate`, :func:`harness.train` or :func:`harness.judge` as a run of MLflow.

    Settings become parameters, numbers metrics (of a training one per round), verdicts tags. Results of an evaluation
    have a run below theirs for each attack at a place, a judgement without the truth one for each attack, and a
    frontier one for each level of noise.

    Args:
        run: the results; of a judgement its ``record()``. to: where; ``mlflow``. name: of the run; by default its
            folder's, or the defense's.

    Returns:
        The id of the run; None where the store did not take it, which a warning says.

    Raises:
        UsageError: another tracker, or its package is not installed.
    """
    require_tracker(to)
    with _quiet():
        try:
            from mlflow import MlflowClient

            made = _Runs(MlflowClient(_store()))
            if isinstance(run, TrainDocument):
                return made.training(run, name)
            if isinstance(run, FrontierDocument):
                return made.frontier(run, name or "frontier")
            if isinstance(run, Mapping):
                return made.judgement(run, name or "judge")
            return made.evaluation(run, name)
        except Exception as error:  # a server may fail in any way, and the results are there already
            log.warning("tracking by %s failed, the results are whole without it: %s", to, in_one_line(error)[:300])
            return None


def track_folder(folder: Path, command: str, to: str) -> str | None:
    """Write what ``command`` left in a folder, as :func:`track` does. Raises UsageError where there are no results of
    it."""
    return track(_READERS[command](folder), to, folder.resolve().name)


def _trained(folder: Path) -> TrainDocument:
    from harness.training import read_training

    return read_training(folder)


def _frontier(folder: Path) -> FrontierDocument:
    how = "make it again with harness frontier"
    return read_stored(folder / "frontier.json", FrontierDocument, parse_json, how, MOST_OF_A_DOCUMENT)


def _judged(folder: Path) -> dict[str, Any]:
    return parse_json((folder / "judged.json").read_bytes())


_READERS: dict[str, Callable[[Path], Any]] = {
    "evaluate": read_outcome, "train": _trained, "frontier": _frontier, "judge": _judged,
}  # fmt: skip


class _Runs:
    """Writes runs by a client of MLflow."""

    def __init__(self, client: Any) -> None:
        self._client = client
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = client.get_experiment_by_name(title)
        self._experiment = known.experiment_id if known else client.create_experiment(title)

    def evaluation(self, run: Outcome, name: str | None) -> str:
        title = name or (run.folder.resolve().name if run.folder else "evaluate")
        tags = {"harness.verdict": run.verdict, "harness.valid": str(run.valid).lower()}
        with self._run(title, tags | _machine(run.environment)) as whole:
            for row in run.rows:
                self._attack(whole, row)
            self._client.log_text(whole, run.document.model_dump_json(indent=1), "results.json")
        return whole

    def training(self, run: TrainDocument, name: str | None) -> str:
        with self._run(name or f"train {run.settings.get('defense')}", _machine(run.environment)) as whole:
            self._log(whole, {key: str(value) for key, value in run.settings.items() if value is not None})
            for record in run.rounds:
                self._log(whole, record.model_dump(exclude={"round"}), record.round)
            self._client.log_text(whole, run.model_dump_json(indent=1), "training.json")
        return whole

    def frontier(self, run: FrontierDocument, name: str) -> str:
        tags = {"harness.valid": str(run.valid).lower()} | _machine(run.environment)
        with self._run(name, tags) as whole:
            self._log(whole, {key: _flat(value) for key, value in run.settings.items()})
            for at, answer in enumerate(run.answers):
                self._client.set_tag(whole, f"harness.answer.{at + 1}", answer)
            for point in run.points:
                below = {"mlflow.parentRunId": whole, "harness.verdict": point.shown}
                level = "" if point.level is None else f" {point.setting} {point.level:g}"
                with self._run(f"{point.defense}{level} / {point.dataset} / {point.tap}", below) as part:
                    facts = point.model_dump(mode="json", exclude={"stated", "success", "defense_args"})
                    own = {f"defense.{key}": _flat(value) for key, value in point.defense_args.items()}
                    self._log(part, facts | own | {"success": point.success.rate})
            self._client.log_text(whole, run.model_dump_json(indent=1), "frontier.json")
        return whole

    def judgement(self, run: Mapping[str, Any], name: str) -> str:
        """Checks are tags; attacks are runs below, scored where the truth was known, and guessed at where not."""
        results = run.get("results") and Kept().outcome(ResultDocument.model_validate(run["results"]), [], None)
        tags = {"harness.valid": str(run["valid"]).lower()}
        tags |= {f"harness.check.{_tame(one['name'])}": one["outcome"] for one in run["checks"]}
        tags |= {"harness.verdict": results.verdict, **_machine(results.environment)} if results else {}
        with self._run(name, tags) as whole:
            facts = {key: run.get(key) for key in ("captures", "images_each", "prior", "update_model")}
            self._log(whole, {key: _flat(value) for key, value in (run["record"] | facts).items()})
            for row in results.rows if results else ():
                self._attack(whole, row)
            for made in run.get("estimates", ()):
                said = made["estimates"]
                with self._run(f"{made['attack']} (an estimate)", {"mlflow.parentRunId": whole}) as part:
                    shares = {f"share {_tame(one)}": said.count(one) / len(said) for one in dict.fromkeys(said)}
                    self._log(part, shares | {"attack": made["attack"], "captures": str(len(said))})
            self._client.log_text(whole, json.dumps(run, indent=1), "judged.json")
        return whole

    def _attack(self, whole: str, row: Mapping[str, Any]) -> None:
        """One attack at a place, as a run below."""
        below = {"mlflow.parentRunId": whole, "harness.verdict": str(row.get("verdict") or "")}
        with self._run(f"{row.get('defense')} / {row.get('attack')} / {row.get('tap')}", below) as part:
            self._log(part, row)

    @contextmanager
    def _run(self, title: str, tags: Mapping[str, str]) -> Iterator[str]:
        made = self._client.create_run(self._experiment, run_name=title, tags=dict(tags)).info.run_id
        status = "FAILED"
        try:
            yield made
            status = "FINISHED"
        finally:
            self._client.set_terminated(made, status)

    def _log(self, run: str, values: Mapping[str, Any], step: int | None = None) -> None:
        """Numbers that were measured as metrics, all else as parameters; nothing of what cannot be had."""
        from mlflow.entities import Metric, Param

        now, metrics, params = int(time.time() * 1000), [], []
        for key, value in values.items():
            if (isinstance(value, float) and math.isfinite(value)) or (step is not None and isinstance(value, int)):
                metrics.append(Metric(key, float(value), now, step or 0))
            elif value is not None and step is None:
                params.append(Param(key, str(value)[:_LONGEST]))
        for start in range(0, max(len(metrics), len(params)), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            self._client.log_batch(run, metrics[part], params[part])


def _flat(value: Any) -> str | None:
    """A setting in words; what is nested as JSON."""
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _tame(name: str) -> str:
    """A name without the letters that MLflow refuses."""
    return re.sub(r"[^\w ./:-]", "", name)[:200]


def _store() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or STORE


def _machine(environment: Mapping[str, Any]) -> dict[str, str]:
    """Versions, as tags."""
    return {f"harness.{key}": str(value)[:_LONGEST] for key, value in environment.items() if isinstance(value, str)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the block MLflow gives up soon, and says nothing of its tables and of its libraries' plans."""
    own = {key: value for key, value in _PATIENCE.items() if key not in os.environ}
    os.environ.update(own)
    loggers = {logging.getLogger(name): logging.getLogger(name).level for name in ("mlflow", "alembic", "urllib3")}
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in loggers.items():
            one.setLevel(level)
        for key in own:
            os.environ.pop(key, None)
