"""The one exception for mistakes that a person can fix, and how a line says what went wrong."""

import errno
import json
import re
import sysconfig
import traceback
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path


class UsageError(Exception):
    """Bad input from the user. The message is one line that says what is wrong and how to fix it.

    The command line prints it without a traceback and ends with exit code 2.
    """


class OutputError(UsageError):
    """The output folder cannot be written. It ends a run, where an impossible cell is only recorded."""


def in_one_line(error: BaseException) -> str:
    """Return what went wrong in somebody else's code, short enough to stand in a message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")[:200]


def as_written(message: str, names: Mapping[str, str]) -> str:
    """A message in which each setting has the name that its reader writes.

    Args:
        names: this name of each setting, such as ``--batch-size`` of ``batch_size``. A setting is recognised as an
            option, in front of a colon, behind a verb of advice, or by its underscore.
    """
    some = "|".join(sorted(names, key=len, reverse=True)) or "(?!)"
    forms = (
        rf"(?<![\w-])--(?:{some.replace('_', '-')})(?![\w-])",
        rf"^(?:{some})(?=: )",
        rf"(?<=\braise |\blower |\bleave )(?!out\b)(?:{some})(?:(?:, | or )(?:{some}))*(?![\w-])",
        rf"(?<=\bgive )(?:{some})(?=[,;]|$)",
        rf"(?<![\w.'\"/=-])(?=[a-z]+_)(?:{some})(?![\w.(/'\"=-]| =)",
    )
    return re.sub(
        "|".join(forms),
        lambda found: re.sub(r"[\w-]+", lambda one: names.get(as_setting(one[0]), one[0]), found[0]),
        message,
    )


def as_setting(option: str) -> str:
    """The name of a setting in Python, of its option: ``batch_size`` of ``--batch-size``."""
    return option.removeprefix("--").replace("-", "_")


def printable(message: str) -> str:
    """A message as one line, in which nothing steers a terminal."""
    return escaped(" ".join(message.split()))


def safe(text: str, longest: int = 120) -> str:
    """One line without control characters, cut to ``longest`` characters; terminals obey escape codes in names.

    A sentence is cut after a word.
    """
    printable = text
    if not text.isprintable():
        printable = "".join(character if character.isprintable() else "?" for character in text)
    if len(printable) <= longest:
        return printable
    kept = printable[: longest - 3]
    whole = kept if printable[longest - 3] == " " else kept.rpartition(" ")[0]
    return (whole.rstrip(" ,;:(") if len(whole) > longest / 2 else kept) + "..."


def escaped(text: str) -> str:
    """Text whose lines and tabs stay; what else would steer a terminal, such as its escapes, is written out as in JSON.

    So a document in JSON stays the same document.
    """
    return "\n".join(line if line.isprintable() else _spelled(line) for line in text.split("\n"))


def in_a_row(text: str) -> str:
    """Text as one row of a table, which keeps its spaces: nothing in a name ends the row or steers a terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def _spelled(line: str) -> str:
    return "".join(one if one.isprintable() or one == "\t" else json.dumps(one)[1:-1] for one in line)


def lacks_files(error: BaseException | None) -> bool:
    """Return whether the system lets the process open no more files, whatever was made of that."""
    while error is not None:
        # A library that cannot be loaded for it says so in words alone.
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "Too many open files" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def lacks_room(error: BaseException) -> bool:
    """Return whether a disk is full, or a file may not become longer."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def lacks_memory(error: BaseException) -> bool:
    """Return whether that is what went wrong; libraries say it with types of their own."""
    words = ("allocate memory", "out of memory", "Unable to allocate")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


# Where in somebody's own code an error came up: their mistake, told by its line and not as a fault of ours.

_KINDS = ("attacks", "defenses", "datasets")


def own_place(error: BaseException) -> str | None:
    """The innermost line of own code on the way to an error, as ``file.py, line 3, in client_message``; None where it
    took no such way.

    Own is what is neither this package's, nor Python's, nor installed, and of what is installed the plugins.
    """
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_own(str(frame.f_globals.get("__name__") or ""), frame.f_code.co_filename):
            found = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
    return found


def _is_own(module: str, file: str) -> bool:
    top = module.partition(".")[0]
    if top in ("harness", "__main__", ""):
        return False
    if any(top == point.module.partition(".")[0] for kind in _KINDS for point in entry_points(group=f"harness.{kind}")):
        return True
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):  # of another environment that this one sees
        return False
    theirs = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return path.is_file() and not any(path.is_relative_to(one) for one in theirs)
