"""Which data a reproduction runs on: the full dataset where it is at hand, else the bundled sample, or a surrogate."""

from pathlib import Path

from harness.datasets import dataset_status

#: The bundled sample of a dataset.
SAMPLES = {"mnist": "mnist-sample", "cifar10": "cifar10-sample"}
# Another dataset of the same shape and size, to run an experiment on at all; its numbers are not the paper's.
_SURROGATES = {"fashion-mnist": "mnist", "emnist": "emnist-bymerge"}


def at_hand(name: str, root: Path) -> tuple[str | None, str]:
    """The dataset to use for the paper's ``name`` (None if there is none), and a line that says so."""
    available = {status.name for status in dataset_status(root) if status.available}
    if name in available:
        return name, f"{name}: full training split"
    sample = SAMPLES.get(name)
    if sample:
        return sample, f"{name}: bundled sample only (harness data fetch {name} gets the full split)"
    if name in _SURROGATES:
        used, line = at_hand(_SURROGATES[name], root)
        return used, f"{name}: surrogate data, {line}; the real one: harness data fetch {name}"
    return None, f"{name}: not at hand (get it with: harness data fetch {name})"
