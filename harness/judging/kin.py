"""Data of the same kind as the captured clients': a half are look-alikes and stand-ins, the other half is public."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from harness.datasets import Dataset, load_dataset
from harness.datasets.copies import among
from harness.datasets.parts import take_part
from harness.datasets.public import require_enough
from harness.errors import UsageError
from harness.judging.federation import CapturedClients


@dataclass(frozen=True, eq=False)
class Kin:
    """Two halves that share no example, neither with each other nor with the captured clients."""

    look_alikes: Dataset
    public: Dataset


def kin_of(captured: CapturedClients, choice: str, root: Path) -> Kin:
    """Divides a dataset, a registered one or an ``.npz`` file.

    Raises:
        UsageError: it is of another kind, or too small; a class that the clients hold has no example in it.
    """
    data, record = load_dataset(choice, root), captured.record
    mend = "use data of the same kind as the clients'"
    if data.image_shape != tuple(record.image_shape):
        raise UsageError(
            f"--prior {choice!r} has examples of shape {data.image_shape}, not {record.image_shape}; {mend}"
        )
    if data.num_classes > record.classes:
        raise UsageError(f"--prior {choice!r} has {data.num_classes} classes, the network {record.classes}; {mend}")
    names = data.class_names + tuple(str(label) for label in range(data.num_classes, record.classes))
    data = replace(data, class_names=names)
    if captured.images is not None and captured.labels is not None:
        truth = Dataset("captures", captured.images.flatten(0, 1), captured.labels.flatten(), names, "", data.columns)
        own = among(data, truth)
        data = data.take((~own).nonzero()[:, 0])
        if own.any():
            sys.stderr.write(
                f"harness: {int(own.sum())} example(s) of --prior {choice!r} are the clients' own and left out: the "
                "verdict is as if they were not public; name data that no client holds\n"
            )
        require_enough(truth, data, choice)
    look_alikes, public = (take_part(data, part, 0.5, purpose="kin of captures") for part in ("train", "test"))
    fresh = public.take((~among(public, look_alikes)).nonzero()[:, 0])
    require_enough(look_alikes, fresh, choice)
    return Kin(look_alikes, replace(fresh, name=f"{data.name}, public half"))
