"""``harness judge``: what leaks from updates that clients of somebody's federation sent."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.building import typed
from harness.base.devices import choose_device, use_threads
from harness.base.errors import UsageError
from harness.base.progress import within
from harness.cli.app import DONE, INVALID, app, print_json, resumable
from harness.cli.console import Screen, tell
from harness.cli.grouping import Grouped
from harness.cli.options import (
    DataRootOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    OutOption,
    ResumeOption,
    ThreadsOption,
    at_least_one,
    chosen_jobs,
    split_lists,
    with_output,
    with_pictures_as,
    with_tracking,
)
from harness.cli.sketch import among
from harness.datasets import data_root as find_data_root
from harness.datasets.public import AUTO, NONE, choose_public
from harness.evaluation.watching import between
from harness.judging.beside import companions
from harness.judging.capture import Capture, read_capture
from harness.judging.declared import Group, groups_of
from harness.judging.evidence import Check
from harness.judging.federation import federations, names_of
from harness.judging.judgement import (
    Judgement,
    Work,
    as_taken,
    checks_of_groups,
    chosen_split,
    judge_captured,
    stated,
    without_covered,
)
from harness.judging.member_signals import REFERENCES
from harness.judging.members import final_of_files, finals_of_captures, read_sides
from harness.judging.membership import judge_members, judge_sites
from harness.judging.plan import (
    Line,
    Reading,
    Share,
    efforts_of,
    folders_of,
    lines_of,
    readings_of,
    said_in_all,
    seconds_in,
    shares_of,
    total_of,
    within_budget,
)
from harness.judging.series import SameData, chosen_data, over_rounds
from harness.judging.stage import PublicSplit
from harness.judging.without_truth import Guess, with_stand_ins
from harness.parallel.worker_pool import most_workers, suitable_workers, worker_pool
from harness.reports.cell_picture import save_cell_picture, save_guesses
from harness.reports.table import print_results
from harness.reports.text import claimed_and_proven
from harness.results import RunFolder, claimed, write_atomic
from harness.results.atomic import tell_replaced

# What is tried where nothing is public.
_WITHOUT_PRIOR = {"images": ("cpl",), "text": ("token_rows", "span")}
# Options that are a mode's own.
_OF_MEMBERS = ("--members", "--non-members", "--model", "--references", "--weights")
_OWN: dict[str, Sequence[str]] = {
    "--sites": (),
    "--members": _OF_MEMBERS,
    "--checks-only": ("--checks-only", "--truth", *_OF_MEMBERS),
}
_COLOURS = {"holds": "green", "violated": "red", "more than declared": "yellow", "cannot tell": "yellow"}

_Prior = Annotated[str | None, typer.Option(help="Data of the same kind that no client holds: a dataset, or FILE.npz.")]
_Attack = Annotated[
    list[str] | None,
    typer.Option(help="Comma-separated or repeated (auto with --prior; else cpl, for texts token_rows and span)."),
]
_UpdateModel = Annotated[
    str,
    typer.Option(
        help="How attacks model several local steps: avg, path or unroll.",
        autocompletion=among(("avg", "path", "unroll")),
    ),
]
_RoundsSeen = Annotated[
    int, typer.Option(callback=at_least_one, help="Rounds of each client that the attacker observes.")
]
_SameData = Annotated[
    str,
    typer.Option(
        help="With --rounds-seen. batch: the same examples in each round; client: other examples of the same client; "
        "cohorts: only sums over clients are observed.",
        autocompletion=among(("batch", "client", "cohorts")),
    ),
]
_Chunk = Annotated[
    int, typer.Option(callback=at_least_one, help="Clients attacked together at most; fewer if memory is short.")
]
_ChecksOnly = Annotated[
    bool,
    typer.Option(
        "--checks-only", help="Check only whether the declared defense is on. Takes seconds; no attack, no --prior."
    ),
]
_Plan = Annotated[
    bool, typer.Option("--plan", help="Print what would be read, which attacks would run, and for how long. No attack.")
]
_Budget = Annotated[str | None, typer.Option(help="Time limit, such as 90s, 10m or 2h; only what fits into it runs.")]
_Members = Annotated[
    Path | None,
    typer.Option(help="An .npz file of training examples: test membership inference, without other attacks."),
]
_NonMembers = Annotated[
    Path | None, typer.Option(help="With --members: examples of the same data that were not in the training.")
]
_Weights = Annotated[
    Path | None,
    typer.Option(help="With --members: file of the final weights; they follow the captured rounds, if any."),
]
_References = Annotated[
    int, typer.Option(help="With --members: reference models, trained on halves of the non-members.")
]
_Sites = Annotated[
    bool,
    typer.Option(
        "--sites", help="Test whether updates of several rounds reveal which client sent them. No other attack."
    ),
]


@app.command("judge", cls=Grouped)
@with_output
@with_pictures_as
@with_tracking("judge", not_with=("plan", "checks_only", "sites", "members", "non_members"))
def judge_command(
    captures: Annotated[list[Path] | None, typer.Argument(help="Folders of captures, one per client.")] = None,
    truth: Annotated[Path | None, typer.Option(help="An .npz file of one capture's true images and labels.")] = None,
    prior: _Prior = None, attack: _Attack = None, update_model: _UpdateModel = "unroll", rounds_seen: _RoundsSeen = 1,
    same_data: _SameData = "batch", device: DeviceOption = "auto", chunk: _Chunk = 128,
    out: OutOption = Path("runs"), data_root: DataRootOption = None, resume: ResumeOption = False,
    jobs: JobsOption = None, threads: ThreadsOption = None, checks_only: _ChecksOnly = False, plan: _Plan = False,
    budget: _Budget = None, members: _Members = None, non_members: _NonMembers = None,
    model: Annotated[str | None, typer.Option(help="With --members and no captures: the network.")] = None,
    weights: _Weights = None, references: _References = REFERENCES, sites: _Sites = False,
    as_json: JsonOption = False,
) -> int:  # fmt: skip
    """Test what leaks from captured updates, and whether the declared defense is on."""
    began = time.monotonic()
    mode = "--sites" if sites else "--members" if members or non_members else "--checks-only" if checks_only else None
    _require_none(mode, {
        "--attack": attack, "--prior": prior, "--resume": resume, "--plan": plan, "--budget": budget,
        "--rounds-seen": rounds_seen > 1, "--same-data": same_data != "batch", "--truth": truth,
        "--checks-only": checks_only, "--members": members, "--non-members": non_members, "--model": model,
        "--references": references != REFERENCES, "--weights": weights,
    })  # fmt: skip
    if sites:
        return judge_which_site(captures or [], as_json)
    if members or non_members:
        use_threads(threads)
        return judge_membership(captures or [], members, non_members, model, weights, references, device, as_json)
    if model is not None or weights is not None or references != REFERENCES:
        raise UsageError("--model, --weights and --references need --members; add it, or drop them")
    if not captures:
        raise UsageError("no capture named; add folders of captures")
    captures = folders_of(captures)
    if truth is not None and len(captures) > 1:
        raise UsageError("--truth works for one capture; put the truth of each into its folder, as truth.npz")
    if checks_only:
        return judge_checks([read_capture(path, truth) for path in captures], names_of(captures), as_json)
    most, public = None if budget is None else seconds_in(budget), chosen_public(prior)
    named = split_lists(attack or ([] if public == NONE else ["auto"]))
    if attack and not named:
        raise UsageError("--attack is empty; give it a value or leave it out")
    root, where = find_data_root(data_root), choose_device(device)
    asked = Asked(named, public, root, where, update_model, rounds_seen, chosen_data(same_data), chunk, most, began)
    if plan:
        readings, found = readings_of(captures, truth)
        return _planned(readings, partial(asked.lines, found, jobs, threads) if found else list, as_json)
    return _judged(asked, [read_capture(path, truth) for path in captures], jobs, threads, out, resume, as_json)


def _require_none(mode: str | None, given: Mapping[str, object]) -> None:
    """Refuses options of attacks, and of other modes, beside a mode that makes none."""
    found = [name for name, value in given.items() if value is not None and value is not False]
    if mode and (found := [name for name in found if name not in _OWN[mode]]):
        none = "no attack" if mode == "--checks-only" else "no other attack"
        raise UsageError(f"{mode} makes {none}; drop {' and '.join(found)}, or {mode}")


@dataclass(frozen=True)
class Asked:
    """Request for attacks on captures: attacks by name, what is public, and the most time that they may take (``most``
    seconds)."""

    attacks: Sequence[str]
    public: str
    root: Path
    device: str
    update_model: str
    rounds_seen: int
    same_data: SameData
    chunk: int
    most: float | None
    began: float

    def groups(self, found: Sequence[Capture]) -> tuple[list[Group], PublicSplit | None]:
        """The clients in groups, those beside them, and data of their kind."""
        clients = over_rounds(as_taken(federations(found), self.root), self.rounds_seen, self.same_data)
        attacks = self.attacks or list(_WITHOUT_PRIOR[found[0].record.data])
        title = names_of([one.folder for one in found])
        more = self.public, self.device, self.update_model, self.rounds_seen, self.same_data
        groups = groups_of(clients, title, attacks, *more)
        split = chosen_split(clients, self.public, self.root)
        return [*groups, *companions(groups, split, self.root)], split

    def shares(self, groups: Sequence[Group], split: PublicSplit | None, jobs: int) -> list[Share]:
        """Return how much of each attack runs."""
        return shares_of(efforts_of(groups, split, self.root, self.chunk, jobs), self.most, self.root, self.began)

    def lines(self, found: Sequence[Capture], jobs: int | None, threads: int | None) -> list[Line]:
        """Return in words how much of each attack runs, for a command that only plans."""
        groups, split = self.groups(found)
        return lines_of(self.shares(groups, split, _jobs_of(groups, jobs, threads)[0]))


def _judged(
    asked: Asked, captured: Sequence[Capture], jobs: int | None, threads: int | None, out: Path, resume: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Attacks the captured clients, writes what is found to the folder, and prints it."""
    groups, split = asked.groups(captured)
    jobs, threads = _jobs_of(groups, jobs, threads)
    shares = asked.shares(groups, split, jobs) if asked.most else []
    groups = within_budget(groups, shares) if shares else groups
    cells = [cell for group in groups for cell in group.cells]
    folder = RunFolder(out)
    drawn = partial(save_cell_picture, folder), partial(draw_guess, folder, split)
    with resumable(), claimed(out), within(), worker_pool(jobs, threads, cells) as everyone:
        work = Work(asked.root, folder, asked.chunk, resume, asked.most, lines_of(shares), *drawn, everyone.attack)
        judgement = judge_captured(groups, split, work)
        record = judgement.record()
        if not resume and (out / "judged.json").exists():
            tell_replaced(out)
        write_atomic(out / "judged.json", json.dumps(record, indent=1).encode())
    tell(record, as_json, lambda console: _print(judgement, out, console))
    return DONE if judgement.valid else INVALID


def judge_membership(
    captures: Sequence[Path], members: Path | None, others: Path | None, model: str | None, weights: Path | None,
    references: int, device: str, as_json: bool,
) -> int:  # fmt: skip
    """Tells how well members are told from non-members by a final model, and by those of several rounds.

    Raises:
        UsageError: a file, the network or its weights are not named, or do not fit each other.
    """
    if members is None or others is None:
        raise UsageError("membership is tested of two files; give --members FILE.npz and --non-members FILE.npz")
    sides = read_sides(members, others)
    if captures:
        if model is not None:
            raise UsageError("captures name their network; drop --model, or the captures")
        finals = finals_of_captures([read_capture(path) for path in folders_of(list(captures))], weights)
    elif model is None or weights is None:
        raise UsageError("whose members? name folders of captures, or --model NAME and --weights FILE")
    else:
        finals = [final_of_files(model, weights, sides)]
    with within():
        found = judge_members(finals, sides, references, device=choose_device(device))
    _show(found, as_json)
    return DONE if found.problem is None else INVALID


class _Finding(Protocol):
    """Findings of a test of captures or files."""

    def record(self) -> dict[str, Any]: ...

    def lines(self) -> Iterable[str]: ...


def _show(found: _Finding, as_json: bool) -> None:
    if as_json:
        print_json(found.record())
        return
    console = Screen()
    for line in found.lines():
        console.print(Text(line))


def judge_which_site(captures: Sequence[Path], as_json: bool) -> int:
    """Tells whether updates of several rounds tell which client sent them."""
    if not captures:
        raise UsageError("which sites? name folders of captures, of two rounds or more")
    found = judge_sites([read_capture(path) for path in folders_of(list(captures))])
    _show(found, as_json)
    return DONE


def _jobs_of(groups: Sequence[Group], jobs: int | None, threads: int | None) -> tuple[int, int | None]:
    first, cells = groups[0].captured, [cell for group in groups for cell in group.cells]
    attacked = cells if first.images is not None else with_stand_ins(cells)
    shape, classes = first.record.shape, first.record.classes
    return chosen_jobs(jobs, threads, lambda: suitable_workers(attacked, shape, classes), most=most_workers(attacked))


def _planned(readings: Sequence[Reading], planned: Callable[[], list[Line]], as_json: bool) -> int:
    """Prints what would be done."""
    lines, problem = list[Line](), None
    try:
        lines = planned()
        if lines and not any(line.captures for line in lines):
            problem = lines[0].reason
    except UsageError as error:
        problem = str(error)
    document = {
        "captures": [asdict(one) for one in readings], "attacks": [line.record() for line in lines],
        "seconds": total_of(lines), "problem": problem,
    }  # fmt: skip
    tell(document, as_json, lambda console: _print_plan(readings, lines, console))
    unread = sum(one.problem is not None for one in readings)
    if problem or unread:
        why = f"{unread} of {len(readings)} captures cannot be judged; correct their files, or leave their names out"
        raise UsageError(problem or why)
    return DONE


def _print_plan(readings: Sequence[Reading], lines: Sequence[Line], console: Console) -> None:
    read = [one for one in readings if one.problem is None]
    shared = (
        {name: value for name, value in read[0].facts.items() if all(_same(one, name, value) for one in read)}
        if read
        else {}
    )
    if shared:
        console.print(Text("facts of all captures: " + _told(shared)))
    table = Table(title="What is read", title_justify="left")
    for name in ("capture", "file", "values sent", "true examples", "other facts"):
        table.add_column(name, overflow="fold")
    for one in readings:
        own = {name: value for name, value in one.facts.items() if name not in shared}
        known = "not known" if one.truth is None else str(one.truth)
        what = [one.sent or "", f"{one.numbers:,}", known, _told(own)]
        table.add_row(Text(one.folder), *map(Text, what if one.problem is None else ["", "", "", one.problem]))
    console.print(table)
    if not lines:
        return
    table = Table(title="Which attacks run", title_justify="left")
    for name in ("attack", "captures", "time here", "why not all"):
        table.add_column(name, overflow="fold")
    for line in lines:
        name = f"{line.attack}, {line.group}" if line.group else line.attack
        takes = between(*line.seconds) if line.captures else ""
        table.add_row(*map(Text, (name, f"{line.captures} of {line.of}", takes, line.reason or "")))
    console.print(table)
    console.print(Text(said_in_all(lines)))


def _same(reading: Reading, name: str, value: Any) -> bool:
    return reading.facts.get(name) == value


def _told(facts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {json.dumps(value) if isinstance(value, dict | list) else value}" for name, value in facts.items()
    )


def chosen_public(prior: str | None) -> str:
    public = NONE if prior is None else choose_public(prior)
    if public == AUTO:
        raise UsageError(
            "--prior auto works in harness evaluate only, where the dataset is known; name data of the same kind with "
            "--prior NAME or --prior FILE.npz"
        )
    return public


def draw_guess(folder: RunFolder, split: PublicSplit | None, made: Guess) -> None:
    assert made.images is not None and split is not None
    captions = [one for one in made.estimates for _ in range(made.images.shape[1])]
    group = "".join(f"_{word}" for word in made.group.split())
    save_guesses(
        folder.pictures / f"judged_{made.attack}{group}.png", made.images.flatten(0, 1).cpu().numpy(), captions,
        f"{made.attack}: what it makes of the captured clients (no truth known)", split.look_alikes.words,
    )  # fmt: skip


def _print(judgement: Judgement, out: Path, console: Console) -> None:
    if judgement.document is not None:
        print_results(judgement.document, console, out)
    for made in judgement.guesses:
        counts = {one: made.estimates.count(one) for one in dict.fromkeys(made.estimates)}
        said = ", ".join(f"{one}: {count} of {len(made.estimates)}" for one, count in counts.items())
        of = f", {made.group}" if made.group else ""
        console.print(Text(f"{made.attack} (an estimate, no truth known{of}): {said} ({made.reason})"))
    if judgement.guesses:
        console.print(Text(f"pictures: {out / 'pictures'}"))
    if judgement.checks:
        print_checks(judgement.checks, console)
    for line in claimed_and_proven(judgement.stated) if judgement.document is None else ():
        console.print(Text(line))
    for line in judgement.plan:
        if line.reason:
            console.print(Text(f"by the budget: {line.said}"))
    for one in [*judgement.measured, *judgement.examples]:
        console.print(Text(one.said))
    for beside in judgement.beside:
        if beside:
            console.print(Text(str(beside)), soft_wrap=True)
    if judgement.of_all:
        console.print(Text(str(judgement.of_all)), soft_wrap=True)
    if judgement.document is not None and judgement.split is None:
        lacking = "no verdict without look-alikes: add --prior NAME or --prior FILE.npz, data that no client holds"
        console.print(lacking, soft_wrap=True)
    if judgement.guesses and judgement.doubt is not None:
        console.print(Text(f"do not use the estimates of this run: {judgement.doubt}"))


def print_checks(checks: list[Check], console: Console) -> None:
    """One row per check."""
    table = Table(title="Do the updates match what is declared?", title_justify="left")
    for name in ("check", "outcome", "evidence"):
        table.add_column(name, overflow="fold")
    for check in checks:
        table.add_row(check.name, Text(check.outcome, style=_COLOURS[check.outcome]), Text(check.detail))
    console.print(table)


def _print_checked(checks: list[Check], lines: Sequence[str], console: Console) -> None:
    print_checks(checks, console)
    for line in lines:
        console.print(Text(line))


def judge_checks(captures: Sequence[Capture], title: str, as_json: bool) -> int:
    """Checks the declared defense of captured clients, and nothing else.

    Raises:
        UsageError: none is declared.
    """
    clients = federations(captures, attacked=False)
    if clients[0].record.defense is None:
        raise UsageError(
            "no defense is declared, so there is nothing to check; name it in capture.json, such as "
            '"defense": {"name": "LocalDpMod", "settings": {"clipping_norm": 1, ...}}, or drop --checks-only'
        )
    if clients[0].foreign:
        sys.stderr.write(
            f"harness: {clients[0].record.model!r} has not all that was sent, such as adapters: checked as they stand "
            "in the files, without what needs the network's layers\n"
        )
    groups = groups_of(clients, title, ["cpl"], NONE, "cpu")
    checks = checks_of_groups([(group.sizes, group) for group in groups])
    violated = any(check.outcome == "violated" for check in checks)
    promises = stated([without_covered(group, checks) for group in groups], checks)
    document = {
        "valid": not violated, "captures": sum(one.clients for one in clients),
        "record": clients[0].record.model_dump(mode="json"), "checks": [asdict(check) for check in checks],
        "privacy": [asdict(one) for one in promises],
    }  # fmt: skip
    tell(document, as_json, lambda console: _print_checked(checks, claimed_and_proven(promises), console))
    return INVALID if violated else DONE


# --------------------------------------------------------------------------------------
# ``judge`` as a function: the checks of the command, and what it finds as an object.


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
    for name, value in (("chunk", chunk), ("rounds_seen", rounds_seen)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1")
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
    groups, split = asked.groups([read_capture(path, Path(truth) if truth else None) for path in paths])
    cells = [cell for group in groups for cell in group.cells]
    with tempfile.TemporaryDirectory() as nowhere:
        folder = RunFolder(nowhere if out is None else out)
        drawn = () if out is None else (partial(save_cell_picture, folder), partial(draw_guess, folder, split))
        with claimed(folder.path), within(), worker_pool(1, None, cells) as everyone:
            work = Work(root, folder, chunk, False, None, (), *(drawn or (None, None)), everyone.attack)
            judgement = judge_captured(groups, split, work)
            write_atomic(folder.path / "judged.json", json.dumps(judgement.record(), indent=1).encode())
    return judgement
