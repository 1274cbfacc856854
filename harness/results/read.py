"""Reading a result document that may come from anywhere."""

from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from harness import SCHEMA_VERSION
from harness.errors import UsageError
from harness.results.schema import ResultDocument


def read_results(path: Path | str) -> ResultDocument:
    """The document of a run folder or of a ``results.json`` file.

    Raises:
        UsageError: there is none, it cannot be read, is half-written, of another schema or not ours.
    """
    file = Path(path)
    file = file / "results.json" if file.is_dir() else file
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
        return ResultDocument.model_validate(document)
    except ValidationError as error:
        raise _wrong(file, f"breaks the result schema: {_first(error)}", "run harness evaluate again") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _wrong(file, "does not exist", "give the folder a finished harness evaluate wrote with --out") from error
    except OSError as error:
        raise _wrong(file, f"cannot be read ({error.strerror})", "check its permissions") from error


def _parse(file: Path, content: bytes) -> object:
    try:
        return from_json(content)
    except ValueError as error:
        raise _wrong(
            file, "is not complete JSON", "run harness evaluate again; --resume keeps the finished cells"
        ) from error


def _first(error: ValidationError) -> str:
    """The first problem in one line; its place is quoted because it may hold names from the file."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place[:80]!r}: {problem['msg']}"


def _wrong(file: Path, problem: str, mend: str) -> UsageError:
    return UsageError(f"{str(file)!r} {problem}; {mend}")
