"""``harness view``: all runs in one page with a table to filter, as files, or served on this machine."""

import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, app
from harness.cli.console import note
from harness.reports.html import read_runs, without_collecting
from harness.reports.html.page import BEGINNING
from harness.reports.html.site import make_view
from harness.results import require_own, require_writable, write_atomic

_OF_RUNS = ("results.json", "judged.json", "training.json")


@app.command("view")
@without_collecting()
def view_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain such folders.")],
    out: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("view"),
    serve: Annotated[bool, typer.Option("--serve", help="Serve the pages on this machine until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="Port of --serve; 0 takes a free one.", min=0, max=65535)] = 0,
) -> int:
    """Show all runs in one page: a table to filter, how verdicts changed, and the report of each run."""
    index = out / "index.html"
    require_writable(index)
    require_own(index, BEGINNING)
    read = read_runs(_folders(runs))
    for run in read:
        for line in (*run.told, *run.left_out):
            note(f"harness: {run.name}: {line}")
    found = [run for run in read if run.summary]
    if found and len(found) < len(read):
        note(f"harness: left out, since they have no verdict: {', '.join(run.name for run in read if not run.summary)}")
    if not found:
        raise UsageError("no run has a verdict; give folders of harness evaluate or judge")
    for name, content in make_view(found).items():
        write_atomic(out / name, content)
    note(f"{index}: {len(found)} run{'s' * (len(found) > 1)}")
    if serve:
        _serve(out, port)
    return DONE


def _folders(paths: list[Path]) -> list[Path]:
    """The runs that are named, and those that lie in a folder that is named and is none itself."""
    found: list[Path] = []
    for path in paths:
        if not os.path.isdir(path) or any((path / name).exists() for name in _OF_RUNS):
            found.append(path)
        else:
            inside = sorted(one for one in path.iterdir() if any((one / name).exists() for name in _OF_RUNS))
            found += inside or [path]
    return found


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _serve(folder: Path, port: int) -> None:
    """Serve a folder on the loopback address only. Raises UsageError where the port is taken."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    except OSError as error:
        raise UsageError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from error
    with server:
        note(f"http://127.0.0.1:{server.server_address[1]}/ until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            note("stopped")
