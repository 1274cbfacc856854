"""``harness compare``: what differs between two runs, or two defenses, with intervals."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, app
from harness.cli.console import tell
from harness.cli.options import JsonOption, split_lists, with_output
from harness.defenses import DEFENSES
from harness.gate import GateCell, read_runs
from harness.gate.contrast import Contrast, contrast_defenses, contrast_runs
from harness.reports.gate import print_contrasts

_WIDTH = 140


@app.command("compare")
@with_output
def compare_command(
    a: Annotated[Path, typer.Argument(help="Folder of a run.")],
    b: Annotated[
        Path | None, typer.Argument(help="Folder of another run; by default A, for two defenses of one run.")
    ] = None,
    defense: Annotated[list[str] | None, typer.Option(help="Two defenses, as X,Y: compare X in A with Y in B.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show paired differences, B minus A, of success rate, lineup rank and log RMSE with 95% intervals."""
    if b is None and not defense:
        raise UsageError("one run has nothing to be compared with; name another run, or --defense X,Y")
    first, _, problems = read_runs([a])
    second, _, more = read_runs([b]) if b else (first, None, [])
    problems = list(dict.fromkeys([*problems, *more]))
    if problems and not (first and (second or b is None)):
        raise UsageError(f"nothing can be compared: {problems[0]}; run harness evaluate again")
    try:
        contrasts, alone = _contrasts(first, second, defense)
    except UsageError as error:
        raise (UsageError(f"{error} ({problems[0]})") if problems else error) from error
    document = {"contrasts": [asdict(one) for one in contrasts], "only_in_one": alone, "problems": problems}
    tell(document, as_json, lambda console: print_contrasts(contrasts, alone, problems, console), _WIDTH)
    return DONE


def _contrasts(
    first: list[GateCell], second: list[GateCell], defense: list[str] | None
) -> tuple[list[Contrast], list[str]]:
    if defense:
        names = [DEFENSES.resolve(name) for name in split_lists(defense)]
        if len(names) != 2:
            given = ",".join(defense)
            raise UsageError(f"--defense takes two names that differ, got {given!r}; write for example none,fed_cdp")
        return contrast_defenses(first, second, (names[0], names[1]))
    return contrast_runs(first, second)
