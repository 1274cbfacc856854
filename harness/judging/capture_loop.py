"""A capture around a training loop of one's own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.errors import UsageError
from harness.judging.capture_record import CaptureRecord
from harness.judging.capture_writing import write_capture

if TYPE_CHECKING:
    from torch import Tensor, nn


# Parts of the names that peft, transformers and their like give the weights of adapters.
_ADAPTERS = {"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "adapter", "adapters", "prompt_encoder"}


class Watched:
    """The round that is being captured."""

    def __init__(self) -> None:
        self.images: list[Tensor] = []
        self.labels: list[Tensor] = []

    def batch(self, images: "Tensor", labels: "Tensor") -> None:
        """Keep what a step trains on, (B, C, H, W) in [0, 1] and (B,), as the operator's own truth."""
        self.images.append(images.detach().cpu().clone())
        self.labels.append(labels.detach().cpu().clone())


@contextmanager
def captured(network: "nn.Module", folder: Path | str, **facts: Any) -> Iterator[Watched]:
    """Context of a client's local training: keeps the network before and after it, unless the training fails.

    ::

        with captured(network, "captures/3", model="my_network:make", image_shape=(1, 28, 28), classes=10,
                      learning_rate=0.05, batch_size=4) as capture:
            for images, labels in loader:
                ...
                capture.batch(images, labels)  # only where the truth may be kept

    Args:
        facts: the fields of :class:`CaptureRecord`; ``frozen`` is read from the network where it is not given.

    Raises:
        UsageError: the network computes in bfloat16, or the folder cannot be written.
        ValidationError: a fact is missing or out of range.
    """
    still = tuple(name for name, one in network.named_parameters() if not one.requires_grad)
    known: dict[str, Any] = {"frozen": still} | facts
    record, watched = CaptureRecord(**known), Watched()
    before = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
    _require_known_numbers(before)
    _tell_of_adapters(network)
    yield watched
    truth: dict[str, Any] = {}
    if watched.images:
        import torch

        truth = {"images": torch.cat(watched.images), "labels": torch.cat(watched.labels)}
    write_capture(folder, record, before, after=network.state_dict(), **truth)


def _require_known_numbers(state: "dict[str, Tensor]") -> None:
    """Before the training, which would be lost: arrays on disk know no bfloat16."""
    coarse = [name for name, value in state.items() if str(value.dtype) == "torch.bfloat16"]
    if coarse:
        raise UsageError(f"{coarse[0]!r} is in bfloat16, which a capture cannot hold; train this client in float32")


def _tell_of_adapters(network: "nn.Module") -> None:
    """Before the training: a library puts them into a network, and perhaps no factory of it builds them again."""
    named = [name for name, one in network.named_parameters() if one.requires_grad and _ADAPTERS & set(name.split("."))]
    if named:
        sys.stderr.write(
            f"harness: {named[0]!r} is an adapter's weight: judge --checks-only reads it as it is; to attack it too, "
            "let the factory that model names put the adapters in\n"
        )
