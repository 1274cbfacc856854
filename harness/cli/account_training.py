"""``harness account --training``: Bayesian accounting of a run that took notes for it."""

import json
import sys
from pathlib import Path

import typer

from harness.base.errors import UsageError
from harness.cli.console import Screen
from harness.privacy.accountant import asked_delta, choice
from harness.privacy.bayesian import DIRECTIONS
from harness.reports.bayesian import print_bayesian
from harness.training import read_training, train_settings
from harness.training.bayesian import bayesian_of_run
from harness.training.norms import NormsFolder

_ITS_OWN = ("training", "direction", "delta", "as_json")
_WIDTH = 120


def refuse_other_options(context: typer.Context) -> None:
    """Noise and sampling are the run's own.

    Raises:
        UsageError: the command line names any of them.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in _ITS_OWN}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} does not go with --training, whose run has its own noise; leave one of them out")


def show_bayesian(folder: Path, delta: float | None, direction: str | None, as_json: bool) -> None:
    """Prints the Bayesian epsilons of a run beside the moments accountant's.

    Raises:
        UsageError: no run in the folder, one that took no notes, or a value out of range.
    """
    document = read_training(folder)
    settings = train_settings(**document.settings)
    norms, noise = NormsFolder(folder, settings).read(len(document.rounds))
    delta = settings.delta if delta is None else asked_delta(delta)
    directions = DIRECTIONS if direction is None else (choice(direction, DIRECTIONS, "direction"),)
    rows = [one.row() for one in bayesian_of_run(settings, noise, norms, document.overlap, delta, directions)]
    if as_json:
        sys.stdout.write(json.dumps({"settings": document.settings, "rows": rows}, indent=1) + "\n")
        return
    print_bayesian(rows, Screen(_WIDTH))
