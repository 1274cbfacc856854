"""The one exception for mistakes a person can mend."""


class UsageError(Exception):
    """Bad input from the user. The message is one line that says what is wrong and how to mend it.

    The command line prints it without a traceback and ends with exit code 2.
    """


class OutputError(UsageError):
    """The output folder cannot be written. It ends a run, where an impossible cell is only recorded."""


def in_one_line(error: BaseException) -> str:
    """What went wrong in somebody else's code, short enough to stand in a message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")[:200]


def lacks_memory(error: BaseException) -> bool:
    """Whether that is what went wrong; libraries say it with types of their own."""
    words = ("allocate memory", "out of memory", "Unable to allocate")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
