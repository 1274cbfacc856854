"""Which of the known changes of images a client made before it computed gradients."""

import torch
from torch import Tensor

from harness.attacks.candidates import drawn_of_class, dummy_gradient
from harness.attacks.residual import improbability, knows_clip
from harness.observation import Observation

EXAMPLES_OF_FORMS = 16


def likely_disguises(observation: Observation, labels: Tensor) -> Tensor:
    """The places (R, W) of the changes of images that are known, the most likely first.

    The likelihood of a change is the mean of that of images drawn from what public data say of the class (R,). Rows
    are looked at one by one, so that none depends on the others.
    """
    shape = (EXAMPLES_OF_FORMS, 1, *observation.model.image_shape)
    found = []
    for row, label in enumerate(labels.tolist()):
        seen = observation.take(torch.full((EXAMPLES_OF_FORMS,), row, device=observation.target.device))
        images = drawn_of_class(observation, label, EXAMPLES_OF_FORMS, "disguised").to(seen.target).reshape(shape)
        classes = torch.full(shape[:2], label, device=seen.target.device)
        made = (
            dummy_gradient(seen, way(images), classes, knows_clip(seen), differentiable=False)
            for way in observation.disguises
        )
        found.append(torch.stack([torch.logsumexp(-improbability(seen, one), 0) for one in made]).cpu())
    return torch.stack(found).argsort(1, descending=True)
