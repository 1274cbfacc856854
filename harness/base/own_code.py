"""Running what users bring along, own networks and plugins, without letting it disturb the run."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """Around an import or a call of somebody's own code, which sees the current folder's modules.

    What it prints goes to standard error, where a document on standard output stays whole, and so does what programs
    that it starts print; torch's default precision and device are put back.

    Raises:
        RuntimeError: it ended the program, which would have looked like success.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last: no file of theirs hides an installed module
    try:
        with contextlib.redirect_stdout(sys.stderr), _descriptor_too(), _torchs_defaults():
            yield
    except SystemExit as end:
        raise RuntimeError(f"it calls sys.exit({end.code!r})") from end


@contextlib.contextmanager
def installed(module: str) -> Iterator[None]:
    """Around the import of an installed module, for which a mere folder of its name here is not taken.

    Python takes any folder on its path for a package, and asks only then where an editable installation lies, such as
    that of the very project in this folder.
    """
    top, whole = module.partition(".")[0], list(sys.path)
    if top not in sys.modules and _is_mere_folder(top):
        sys.path[:] = [place for place in whole if os.path.abspath(place) != os.getcwd()]
    try:
        yield
    finally:
        sys.path[:] = whole


def _is_mere_folder(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is None


@contextlib.contextmanager
def _descriptor_too() -> Iterator[None]:
    """Programs and compiled code write to the descriptor, which Python's redirection leaves as it is."""
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output, as under some servers
        yield
        return
    try:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _torchs_defaults() -> Iterator[None]:
    import torch  # here, since a registry is no reason to load it

    precision, device, gradients = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(precision)
        if torch.get_default_device() != device:
            # None, as it was, and not the CPU by name, which would go through every call.
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(gradients)
