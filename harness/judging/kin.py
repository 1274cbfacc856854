"""Data of the same kind as the captured clients': a half are look-alikes and stand-ins, the other half is public."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.base.errors import UsageError
from harness.datasets import Dataset, load_dataset
from harness.datasets.copies import among
from harness.datasets.parts import take_part
from harness.datasets.public import require_enough
from harness.judging.federation import CapturedClients


@dataclass(frozen=True, eq=False)
class Kin:
    """Two halves that share no example, neither with each other nor with the captured clients."""

    look_alikes: Dataset
    public: Dataset


def kin_of(clients: Sequence[CapturedClients], choice: str, root: Path) -> Kin:
    """Divides a dataset, a registered one or an ``.npz`` file.

    Args:
        clients: groups of clients of one network; what any of them holds is left out.

    Raises:
        UsageError: it is of another kind, or too small; a class that the clients hold has no example in it.
    """
    data, record = load_dataset(choice, root), clients[0].record
    mend = "use data of the same kind as the clients'"
    if data.image_shape != tuple(record.image_shape):
        raise UsageError(
            f"--prior {choice!r} has examples of shape {data.image_shape}, not {record.image_shape}; {mend}"
        )
    if data.num_classes > record.classes:
        raise UsageError(f"--prior {choice!r} has {data.num_classes} classes, the network {record.classes}; {mend}")
    names = data.class_names + tuple(str(label) for label in range(data.num_classes, record.classes))
    data = replace(data, class_names=names)
    known = [(one.images, one.labels) for one in clients if one.images is not None and one.labels is not None]
    if known:
        images, labels = (torch.cat([values.flatten(0, 1) for values in part]) for part in zip(*known, strict=True))
        truth = Dataset("captures", images, labels, names, "", data.columns)
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
