"""DLG: images and soft labels optimised together with L-BFGS. iDLG: labels are inferred first.

Sources: Zhu et al., "Deep Leakage from Gradients" (NeurIPS 2019); Zhao et al., "iDLG: Improved Deep Leakage from
Gradients" (2020).
"""

import torch
from pydantic import model_validator
from torch import Tensor

from harness.attacks.attack import ATTACKS, Attack, Dummy, pixel_count, validated_attack
from harness.base.randomness import generator
from harness.observation import Observation


@ATTACKS.register("dlg")
@validated_attack
class DLG(Attack):
    """Images and label logits start from N(0, 1); the loss uses softmax(logits) as soft labels."""

    init: str = "gauss"

    @model_validator(mode="after")
    def _has_no_box(self) -> "DLG":
        if self.box:
            raise ValueError("dlg optimises labels along with images and has no box; drop box")
        return self

    def labels(self, observation: Observation) -> Tensor | None:
        return None

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        images = Attack.start(self, observation, keys)
        count = observation.unknowns * observation.model.classes
        logits = [torch.randn(count, generator=generator("label-logits", *key)) for key in keys]
        return torch.cat([images, torch.stack(logits)], dim=1)

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        pixels = pixel_count(observation)
        images = position[:, :pixels].reshape(len(position), -1, *observation.model.image_shape)
        logits = position[:, pixels:].reshape(len(position), -1, observation.model.classes)
        return Dummy(observation.in_places(images), observation.in_places(logits.softmax(-1)))


@ATTACKS.register("idlg")
@validated_attack
class IDLG(Attack):
    """Every default of the common schema: labels inferred, images from N(0, 1), L-BFGS."""

    init: str = "gauss"
