"""Analytic: a fully connected first layer gives its input away in closed form.

One example x leaves the gradient e_r x in the weights of neuron r and e_r in its bias, so their quotient is x for every
neuron with an error e_r. Source: Phong et al., "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption"
(IEEE TIFS 2018), section III; Geiping et al. (NeurIPS 2020), proposition 3.1. They take one neuron; here all neurons
fit x by least squares, which is the same without a defense and does better under noise and pruning.
"""

import math
from typing import ClassVar

import torch
from pydantic import model_validator
from torch import Tensor, nn

from harness.attacks.attack import ATTACKS, Attack, Dummy, validated_attack
from harness.attacks.candidates import require_gradients
from harness.attacks.stages import Stage
from harness.base.errors import UsageError
from harness.models import RowModel
from harness.models.changes import draws_a_sample
from harness.models.feature_extractor import FeatureExtractor
from harness.observation import Observation


@ATTACKS.register("analytic")
@validated_attack
class Analytic(Attack):
    """Only the scale of the closed form is optimised: a clipping defense rescales weights and biases differently."""

    dealt: ClassVar[bool] = False
    uses_labels: ClassVar[bool] = False

    @model_validator(mode="after")
    def _has_no_box(self) -> "Analytic":
        if self.box:
            raise ValueError(f"{ATTACKS.name_of(type(self))} computes its images and has no box; drop box")
        return self

    def stages(self, observation: Observation) -> list[Stage]:
        """One: a scale is found from anywhere."""
        return [Stage(self.max_iterations)]

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        """The logarithm of the scale (R, 1), 0.

        Raises:
            UsageError: more than one example is hidden, or the first layer is not linear with a bias.
        """
        if observation.examples > 1:
            raise UsageError(
                f"attack 'analytic' reads one example per observation, not {observation.examples}; "
                "use --batch-size 1 and one local step, or --attack spear"
            )
        require_gradients(observation)
        first_linear(observation.model, "analytic")
        return observation.target.new_zeros(len(keys), 1)

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        assert labels is not None
        # By the loss of a network whose sample is not known no scale is better than another: 1 is exact without a clip.
        known = not draws_a_sample(observation.model.layout.names)
        images = closed_form(observation, self.masks(observation)) * (position * known).exp()
        return Dummy(images.reshape(len(position), 1, *observation.model.image_shape), labels)


def closed_form(observation: Observation, masked: bool) -> Tensor:
    """The inputs x (R, F) that minimise sum_r (dW_r - db_r x)^2; 0 where the gradient says nothing.

    Where ``masked``, weight gradients that are exactly zero are taken as left out and not as observed zeros.
    """
    layout, names = observation.model.layout, first_linear(observation.model, "analytic")
    weight, bias = (layout.split(observation.target)[name] for name in names)
    errors = bias[:, :, None]
    evidence = errors.square().where(weight != 0, 0.0) if masked else errors.square()
    told = errors * weight
    if observation.certainty is not None:
        # Both sides of dW_r = db_r x are known no better than the worse of them.
        each = (layout.split(observation.certainty)[name].double() for name in names)
        exact = torch.minimum(next(each), next(each)[:, :, None])
        exact = (exact / exact.amax((1, 2), keepdim=True)).square()
        told, evidence = told * exact, evidence * exact
    tiny = 1e-30
    solved = (told.sum(1) / evidence.sum(1).clamp_min(tiny)).to(weight)
    return solved.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def first_linear(model: RowModel, attack: str) -> tuple[str, str]:
    """Parameter names of the first layer's weight and bias.

    Raises:
        UsageError: it is not linear with a bias.
    """
    features = math.prod(model.image_shape)
    prefix, first = model.called_layers()[0]
    hidden = any(isinstance(layer, FeatureExtractor) for layer in model.plain_module.modules())
    names = f"{prefix}weight", f"{prefix}bias"
    linear = isinstance(first, nn.Linear) and set(names) <= set(model.layout.names)
    if hidden or not linear or first.in_features != features:
        raise UsageError(
            f"attack {attack!r} needs a first layer that is linear with a bias, which model {model.name!r} lacks; "
            "use --model mlp2 or another attack"
        )
    return names
