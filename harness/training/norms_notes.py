"""Takes the notes of a run that is trained with ``--bayesian``."""

from pathlib import Path
from typing import Any

from harness.base.errors import UsageError
from harness.training.bayesian import bayesian_of_run
from harness.training.norms_files import NormsFolder
from harness.training.norms_reading import levels_of
from harness.training.norms_watch import Watch
from harness.training.rounds import Training


class Notes:
    """Watches a run and writes down the norms of every round.

    Raises:
        UsageError: the model, the data's scales or the defense's noise or bound are not fixed, or one of the ``done``
            rounds has no notes.
    """

    def __init__(self, run: Training, folder: Path, done: int) -> None:
        if run.holdings.uncovered:
            raise UsageError(
                f"Bayesian accounting would not cover this run ({run.holdings.uncovered}); "
                f"use another {'--model' if run.model.uncovered else '--dataset'}"
            )
        noise = run.defense.fixed_noise(run.settings.facts(run.model.layout, run.settings.rounds))
        if noise is None:
            raise UsageError(
                f"{run.settings.defense} as set adds no Gaussian noise of a fixed scale to vectors clipped to a fixed "
                "bound, so Bayesian accounting does not apply; take global_dp, fed_sdp, fed_cdp or dp_local with noise"
            )
        levels = levels_of(run.settings, noise)
        if not levels:
            raise UsageError(
                "Bayesian accounting of noise on a client's whole message needs one plain local step per round; "
                "set --local-steps 1, or take a defense with noise in every step or at the server"
            )
        self._noise, self._run = noise, run
        self._folder = NormsFolder(folder, run.settings.model_copy(update={"model": run.model_name}))
        if done:
            self._folder.read(done)
        self._watch = Watch(noise.place, "client mean" in levels)
        run.recorders = [self._watch]

    def write(self, number: int) -> None:
        """Writes what was measured in a round, counted from 1."""
        self._folder.write(number, self._watch.take(), self._noise)

    def statements(self, rounds: int) -> list[dict[str, Any]]:
        """Rows of the Bayesian accounting of so many rounds."""
        norms, noise = self._folder.read(rounds)
        return [one.row() for one in bayesian_of_run(self._run.settings, noise, norms, self._run.overlap)]
