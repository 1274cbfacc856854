"""Reading a result document that may come from anywhere."""

import os
from pathlib import Path

from harness.base.errors import UsageError
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, read_bytes
from harness.results.schema import ResultDocument
from harness.results.stored import Damaged, checked, parse_json
from harness.version import SCHEMA_VERSION


def read_results(path: Path | str) -> ResultDocument:
    """The document of a run folder or of a ``results.json`` file.

    Raises:
        UsageError: there is none, it cannot be read, is half-written, of another schema or not ours.
    """
    file = Path(path)
    file = file / "results.json" if os.path.isdir(file) else file
    document = _parse(file, _read(file))
    if not isinstance(document, dict) or not {"schema_version", "cells"} <= document.keys():
        raise _wrong(file, "is not a result of harness evaluate", "give a run folder or its results.json")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        found = version if isinstance(version, int) and abs(version) < 10**6 else "unknown"
        raise _wrong(
            file,
            f"has result schema {found}, this harness reads {SCHEMA_VERSION}",
            "run harness evaluate again or use the harness that wrote it",
        )
    try:
        return checked(ResultDocument, document)
    except Damaged as problem:
        raise _wrong(file, str(problem), "run harness evaluate again") from problem


def _read(file: Path) -> bytes:
    try:
        return read_bytes(file, MOST_OF_A_DOCUMENT)
    except Absent as error:
        done = len(list((file.parent / "cells").glob("*.json")))
        if done:
            said = f"does not exist: the run is unfinished, {done} cells and controls are done"
            raise _wrong(file, said, "add --resume to the command that began it") from error
        raise _wrong(file, "does not exist", "give the folder a finished harness evaluate wrote with --out") from error


def _parse(file: Path, content: bytes) -> object:
    try:
        return parse_json(content)
    except Damaged as problem:
        raise _wrong(file, str(problem), "run harness evaluate again; --resume keeps the finished cells") from problem


def _wrong(file: Path, problem: str, mend: str) -> UsageError:
    return UsageError(f"{str(file)!r} {problem}; {mend}")
