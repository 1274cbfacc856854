"""Truths that stand in their file otherwise than the network took them: the fix is named, and nobody is accused.

Labels may be counted from 1 or have gaps, and images may be bytes, scaled, mirrored or turned. Where what a client sent
fits such a reading of its truth, the client did what it declares, and its files say it wrongly.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from harness.base.normalising import BYTES, USUAL, name_of_scaling
from harness.judging.capture import FACTS
from harness.judging.federation import CapturedClients

Reading = tuple[str, CapturedClients]
"""How a truth has to be changed, in words, and the clients with the changed truth."""


def other_reading(
    captured: CapturedClients, sent: Tensor, made: Tensor, play: Callable[[CapturedClients], Tensor],
    fits: Callable[[CapturedClients, Tensor], bool],
) -> str | None:  # fmt: skip
    """Return how the truth has to be read to explain what clients sent, with the fix; None where nothing here helps.

    Args:
        sent, made: (V, P), what was sent, and what the truth gives as it stands.
        play: makes what clients send of their truth. fits: whether that is what was sent, for all clients.
    """
    ways, clients, plays = [""], [captured], [made]
    for words, other in _readings(captured):
        try:
            plays.append(play(other))
        except Exception:  # the user's own network may refuse such numbers, and then never took them
            continue
        ways.append(words)
        clients.append(other)
    nearest = torch.stack([(sent - one).norm(dim=1) for one in plays]).nan_to_num(torch.inf).argmin(0).tolist()
    if not any(nearest):
        return None
    rows, best = range(len(sent)), torch.stack([plays[way][row] for row, way in enumerate(nearest)])
    images, labels = (
        torch.stack([getattr(clients[way], name)[row] for row, way in enumerate(nearest)])
        for name in ("images", "labels")
    )
    if not fits(replace(captured, images=images, labels=labels), best):
        return None
    found = {way: [row for row in rows if nearest[row] == way] for way in dict.fromkeys(nearest) if way}
    return "; ".join(
        f"{ways[way]} ({len(own)} of {len(sent)} clients, such as client {own[0] + 1})" for way, own in found.items()
    )


def _readings(captured: CapturedClients) -> Iterator[Reading]:
    """Other readings of the clients' truth."""
    images, labels, record = captured.images, captured.labels, captured.record
    assert images is not None and labels is not None
    for words, numbered in _numberings(labels, record.classes):
        yield f"{words}; number labels in the truth as the client's loss took them", replace(captured, labels=numbered)
    if record.data != "images" or record.columns is not None:
        return
    for mean, deviation in (BYTES, *USUAL):
        if len(mean) in (1, images.shape[2]):
            middle, width = (torch.tensor(one).reshape(-1, 1, 1) for one in (mean, deviation))
            own = f'"model": "{record.model}+{name_of_scaling(mean, deviation)}"'
            what = f"images are scaled before the network takes them: in {FACTS} write {own}"
            yield what, replace(captured, images=(images - middle) / width)
    for words, turned in _turnings(images):
        yield (
            f"images are {words}: give them as they were trained on, behind any augmentation, or leave the truth out",
            replace(captured, images=turned),
        )


def _numberings(labels: Tensor, classes: int) -> Iterator[tuple[str, Tensor]]:
    """Labels as other ways of counting have them."""
    least, most, seen = int(labels.min()), int(labels.max()), labels.unique()
    if least > 0:
        yield "labels are counted from 1, and the network counts from 0", labels - 1
    if most + 1 < classes:
        yield "labels are counted from 0, and the network counts from 1", labels + 1
    if most >= len(seen):
        yield "labels have gaps, and the network numbers those that there are", torch.searchsorted(seen, labels)
    order = sorted(range(classes), key=str)
    if order != sorted(order):
        places = torch.tensor(order).argsort()
        yield "labels are numbers, and the network has them in the order of words (0, 1, 10, 2)", places[labels]


def _turnings(images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Images (V, n, C, H, W) as augmentation and other libraries have them."""
    if 0 < float(images.max()) < 1:
        yield "divided by their largest number", images / images.max()
    yield "mirrored", images.flip(-1)
    yield "upside down", images.flip(-2)
    yield "with black and white exchanged", 1 - images
    if images.shape[-1] == images.shape[-2]:
        yield "with rows and columns exchanged", images.transpose(-1, -2).contiguous()
    if images.shape[2] > 1:
        yield "with their channels in reverse order", images.flip(2)
