"""``judge`` as a function: the checks of the command, and what it finds as an object."""

import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.base.building import typed
from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.progress import within
from harness.cli.judge import Asked, chosen_public, draw_guess
from harness.cli.options import split_lists
from harness.datasets import data_root as find_data_root
from harness.datasets.public import NONE
from harness.judging.capture import read_capture
from harness.judging.judgement import Judgement, Work, judge_captured
from harness.judging.plan import folders_of
from harness.judging.series import chosen_data
from harness.parallel.crew import crew
from harness.reports.cell_picture import save_cell_picture
from harness.results import RunFolder, claimed, write_atomic


@typed
def judge(
    captures: str | Path | Sequence[str | Path], *, truth: str | Path | None = None, prior: str | None = None,
    attack: str | Sequence[str] | None = None, update_model: str = "unroll", rounds_seen: int = 1,
    same_data: str = "batch", device: str = "auto", chunk: int = 128, out: str | Path | None = None,
    data_root: str | Path | None = None,
) -> Judgement:  # fmt: skip
    """Tests what leaks from updates that clients of a federation sent, and whether the declared defense is on.

    Args:
        captures: folders of captures, one per client, or a folder of such.
        truth: the true images and labels of a single capture (.npz); by default ``truth.npz`` in each folder.
        prior: data of the same kind that no client holds: a dataset, or a path.
        attack: names; by default ``auto`` with a prior, and else what works without one.
        update_model, rounds_seen, same_data, chunk: as ``harness judge --help`` says.
        out: folder for the files of the run; None writes nothing that stays.

    Returns:
        The judgement: ``checks``, ``document`` (None without the truth), ``guesses``, and ``record()``, which is the
        document of ``harness judge --json``.

    Raises:
        UsageError: captures that cannot be read or do not fit each other, unknown names, values out of range.
    """
    began = time.monotonic()
    if chunk < 1 or rounds_seen < 1:
        raise UsageError("chunk and rounds_seen must be at least 1")
    listed = [captures] if isinstance(captures, str | Path) else list(captures)
    if not listed:
        raise UsageError("no capture named; give folders of captures")
    paths = folders_of([Path(one) for one in listed])
    if truth is not None and len(paths) > 1:
        raise UsageError("truth is of one capture; put each capture's own into its folder as truth.npz")
    root, public = find_data_root(data_root), chosen_public(prior)
    asked_for = [attack] if isinstance(attack, str) else attack
    named = split_lists(asked_for or ([] if public == NONE else ["auto"]))
    how = choose_device(device), update_model, rounds_seen, chosen_data(same_data), chunk
    asked = Asked(named, public, root, *how, None, began)
    groups, kin = asked.groups([read_capture(path, Path(truth) if truth else None) for path in paths])
    cells = [cell for group in groups for cell in group.cells]
    with tempfile.TemporaryDirectory() as nowhere:
        folder = RunFolder(nowhere if out is None else out)
        drawn = () if out is None else (partial(save_cell_picture, folder), partial(draw_guess, folder, kin))
        with claimed(folder.path), within(), crew(1, None, cells) as everyone:
            work = Work(root, folder, chunk, False, None, (), *(drawn or (None, None)), everyone.attack)
            judgement = judge_captured(groups, kin, work)
            write_atomic(folder.path / "judged.json", json.dumps(judgement.record(), indent=1).encode())
    return judgement
