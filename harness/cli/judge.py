"""``harness judge``: what leaks from updates that clients of somebody's federation sent."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from harness.attacks import Identifier
from harness.capture.reading import read_capture
from harness.cli.app import DONE, INVALID, app, resumable
from harness.cli.checks_table import judge_suite, print_checks
from harness.cli.options import split_lists
from harness.datasets import data_root as find_data_root
from harness.datasets.public import NONE, choose_public
from harness.errors import UsageError
from harness.experiment import CellSettings
from harness.judging.checks import checks_of, explained
from harness.judging.declared import cells_of
from harness.judging.evidence import Check
from harness.judging.federation import CapturedClients, gathered, names_of
from harness.judging.given_away import given_away
from harness.judging.kin import Kin, kin_of
from harness.judging.with_truth import judge_with_truth
from harness.judging.without_truth import Guess, guess
from harness.progress import counted, within
from harness.reports.cell_picture import save_cell_picture
from harness.reports.guesses import save_guesses
from harness.reports.table import print_results
from harness.results import ResultDocument, RunFolder, claimed, write_atomic
from harness.settings.devices import choose_device


@app.command("judge")
def judge_command(
    captures: Annotated[list[Path] | None, typer.Argument(help="Folders of captures, one per client.")] = None,
    truth: Annotated[Path | None, typer.Option(help="An .npz file of one capture's true images and labels.")] = None,
    prior: Annotated[
        str | None, typer.Option(help="Data of the same kind that no client holds: a dataset, or FILE.npz.")
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="Comma-separated or repeated (auto with --prior, else cpl).")
    ] = None,
    update_model: Annotated[str, typer.Option(help="Of several local steps: avg or unroll.")] = "unroll",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    chunk: Annotated[int, typer.Option(help="Most clients attacked together; fewer where memory is short.")] = 128,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    data_root: Annotated[Path | None, typer.Option(help="Folder of datasets.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Use what an earlier run left in the folder.")] = False,
    suite: Annotated[
        bool, typer.Option("--suite", help="Checks the checks: honest clients and planted mistakes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Say what leaks from captured updates, and whether the declared defense is on."""
    if suite:
        if captures:
            raise UsageError("--suite brings its own clients; drop the captures or --suite")
        return judge_suite(find_data_root(data_root), as_json)
    if not captures:
        raise UsageError("no capture named; add folders of captures, or --suite")
    if chunk < 1:
        raise UsageError("--chunk must be at least 1")
    if truth is not None and len(captures) > 1:
        raise UsageError("--truth is of one capture; put each capture's own into its folder as truth.npz")
    root, where = find_data_root(data_root), choose_device(device)
    captured = gathered([read_capture(folder, truth) for folder in captures])
    public = choose_public(prior) if prior and prior != NONE else NONE
    kin = kin_of(captured, public, root) if public != NONE else None
    named = split_lists(attack or (["auto"] if kin else ["cpl"]))
    cells = cells_of(captured, names_of(captures), named, public, where, update_model)  # type: ignore[arg-type]
    folder, checks = RunFolder(out), checks_of(captured, cells[0]) if captured.record.defense else []
    told = explained(captured, cells[0], root, chunk) if captured.images is not None else None
    checks += [told] if told else []
    beside = given_away(captured, cells[0], root)
    # Controls on another client than the captured one say nothing of it.
    stands = told is None or told.outcome != "violated"
    with resumable(), claimed(out), within():
        document, guesses = None, list[Guess]()
        if captured.images is not None:
            draw = partial(save_cell_picture, folder)
            document = judge_with_truth(captured, cells, kin, root, folder, chunk, resume, draw)
        else:
            guesses = _guessed(captured, cells, kin, root, folder, chunk, resume)
        judged = {"valid": stands and (document is None or document.valid)}
        judged |= {"prior": cells[0].prior, "update_model": cells[0].update_model}
        judged |= _document(captured, checks, document, guesses)
        judged |= {"running_statistics": asdict(beside)} if beside else {}
        write_atomic(out / "judged.json", json.dumps(judged, indent=1).encode())
    if as_json:
        sys.stdout.write(json.dumps(judged, indent=1) + "\n")
    else:
        _print(checks, document, guesses, out)
        if beside:
            print(beside)
        if document is not None and kin is None:
            print("no verdict without look-alikes: add --prior NAME or --prior FILE.npz, data that no client holds")
        if told and not stands:
            print(f"no verdict here is worth anything: the truth does not explain what was sent ({told.detail})")
    return DONE if judged["valid"] else INVALID


def _guessed(
    captured: CapturedClients, cells: list[CellSettings], kin: Kin | None, root: Path, folder: RunFolder, chunk: int,
    resume: bool,
) -> list[Guess]:  # fmt: skip
    if kin is None:
        raise UsageError(
            "without the truth it takes data of the same kind, to see what a success looks like; add --prior NAME or "
            "--prior FILE.npz, or the truth as truth.npz"
        )
    able = [cell for cell in cells if not isinstance(cell.build_attack(), Identifier)]
    if not able:
        raise UsageError(f"attack {cells[0].attack!r} tells known images apart, so needs the truth; use --attack cpl")
    found = []
    for cell in counted(able, "attack"):
        made = guess(captured, cell, kin, root, folder, chunk, resume)
        found.append(made)
        if made.images is not None:
            captions = [one for one in made.estimates for _ in range(made.images.shape[1])]
            save_guesses(
                folder.pictures / f"judged_{cell.attack}.png", made.images.flatten(0, 1).cpu().numpy(), captions,
                f"{cell.attack}: what it makes of the captured clients (no truth known)",
            )  # fmt: skip
    return found


def _document(
    captured: CapturedClients, checks: list[Check], document: ResultDocument | None, guesses: list[Guess]
) -> dict[str, Any]:
    return {
        "captures": captured.clients, "images_each": captured.examples,
        "record": captured.record.model_dump(mode="json"), "checks": [asdict(check) for check in checks],
        "estimates": [
            {
                "attack": made.attack, "estimates": made.estimates, "reason": made.reason, "left": _listed(made.left),
                "left_shuffled": _listed(made.shuffled), "left_usually": made.usual, "labels": _listed(made.labels),
            }
            for made in guesses
        ],
        "results": document and json.loads(document.model_dump_json()),
    }  # fmt: skip


def _listed(values: Any) -> Any:
    return None if values is None else values.tolist()


def _print(checks: list[Check], document: ResultDocument | None, guesses: list[Guess], out: Path) -> None:
    console = Console()
    if document is not None:
        print_results(document, console, out)
    for made in guesses:
        counted = {one: made.estimates.count(one) for one in dict.fromkeys(made.estimates)}
        said = ", ".join(f"{one}: {count} of {len(made.estimates)}" for one, count in counted.items())
        console.print(Text(f"{made.attack} (an estimate, no truth known): {said} ({made.reason})"))
    if guesses:
        console.print(Text(f"pictures: {out / 'pictures'}"))
    if checks:
        print_checks(checks, console)
