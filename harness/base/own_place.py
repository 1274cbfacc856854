"""Where in somebody's own code an error came up: their mistake, told by its line and not as a fault of ours."""

import sysconfig
import traceback
from importlib.metadata import entry_points
from pathlib import Path

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
