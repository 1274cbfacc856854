"""The one exception for mistakes that a person can fix, and how a line says what went wrong."""

import errno
import json


class UsageError(Exception):
    """Bad input from the user. The message is one line that says what is wrong and how to fix it.

    The command line prints it without a traceback and ends with exit code 2.
    """


class OutputError(UsageError):
    """The output folder cannot be written. It ends a run, where an impossible cell is only recorded."""


def in_one_line(error: BaseException) -> str:
    """What went wrong in somebody else's code, short enough to stand in a message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")[:200]


def printable(message: str) -> str:
    """A message as one line, in which nothing steers a terminal."""
    return escaped(" ".join(message.split()))


def escaped(text: str) -> str:
    """Text whose lines and tabs stay; what else would steer a terminal, such as its escapes, is written out as in JSON.

    So a document in JSON stays the same document.
    """
    return "\n".join(line if line.isprintable() else _spelled(line) for line in text.split("\n"))


def _spelled(line: str) -> str:
    return "".join(one if one.isprintable() or one == "\t" else json.dumps(one)[1:-1] for one in line)


def lacks_files(error: BaseException | None) -> bool:
    """Whether the system lets the process open no more files, whatever was made of that."""
    while error is not None:
        # A library that cannot be loaded for it says so in words alone.
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "Too many open files" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def lacks_memory(error: BaseException) -> bool:
    """Whether that is what went wrong; libraries say it with types of their own."""
    words = ("allocate memory", "out of memory", "Unable to allocate")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
