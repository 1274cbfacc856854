"""Label inference from the gradient of the last linear layer (docs/attacks.md).

For cross-entropy d loss / d logit_c = p_c - [c is the label], so the gradient of bias c is negative for labels that
are present, and row c of the weight gradient is that times non-negative features.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.models import NextWord
from harness.observation import Observation

_OPEN = 6.0


def bias_rule(observation: Observation) -> Tensor:
    """One example per row: the class with the smallest bias gradient, (R, 1)."""
    return _bias_gradient(observation).argmin(1, keepdim=True)


def count_rule(observation: Observation) -> Tensor:
    """Batches with repeats: n_c = n * (mean probability of c - bias gradient of c), rounded to a total of n.

    Probabilities are estimated on random dummy images. Under clipping the scale of the bias gradient is lost, and
    with it the accuracy of the counts.
    """
    examples = observation.examples
    shape = (16, *observation.model.image_shape)
    dummies = [torch.rand(shape, generator=generator("label-dummies", *key)) for key in observation.keys]
    images = torch.stack(dummies).to(observation.weights)
    with torch.no_grad():
        probabilities = observation.model.logits(observation.weights, images).softmax(-1).mean(1)
    counts = examples * (probabilities - _bias_gradient(observation))
    return torch.stack([round_to_total(row, examples) for row in counts])


def round_to_total(counts: Tensor, total: int) -> Tensor:
    """Sorted labels (total,) whose counts are ``counts`` (K,) rounded by largest remainder.

    Counts that say nothing (not finite, or none positive, as under heavy noise) become equal ones.
    """
    counts = counts.double().nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    counts = counts if counts.sum() > 0 else torch.ones_like(counts)
    counts = counts * total / counts.sum()
    whole = counts.floor()
    missing = total - int(whole.sum())
    whole[(counts - whole).argsort(descending=True)[:missing]] += 1
    return torch.repeat_interleave(torch.arange(len(whole), device=counts.device), whole.long())[:total]


def open_labels(observation: Observation, count: int) -> Tensor:
    """One example per row: the most probable classes (R, count), the first that of the bias rule; -1 for no more.

    The bias gradient of class c is p_c, less one where c is the label: without noise no entry lies below the label's.
    With noise of deviation s one may, but hardly by 6 s, which is four deviations of the difference of two.
    A level that nobody publishes is at most the root mean square of what was read.
    """
    gradient, order = _bias_gradient(observation).sort(1)
    tried = order.where(gradient - gradient[:, :1] <= _OPEN * _deviation_of_bias(observation), -1)[:, :count]
    # Of equal ones the bias rule takes the first.
    tried[:, :1] = bias_rule(observation)
    return tried


def _deviation_of_bias(observation: Observation) -> Tensor:
    """Return the deviation of the known noise on the last layer's bias gradient, (1, 1) or (R, 1); 0 without noise."""
    noise, target = observation.noise, observation.target
    if noise is None:
        return target.new_zeros(1, 1)
    if noise.deviation is None:
        return target.square().mean(1, keepdim=True).sqrt()
    level = torch.as_tensor(noise.deviation).to(target)
    if level.dim() == 0:
        return level.reshape(1, 1)
    _, bias = observation.model.last_linear()
    assert bias is not None
    return observation.model.layout.mean_of(level, bias).amax().reshape(1, 1)


def _bias_gradient(observation: Observation) -> Tensor:
    _, bias = observation.model.last_linear()
    if bias is None:
        raise UsageError("the last layer has no bias; use --attack-arg label_rule=row_sum or --labels known")
    return observation.model.layout.mean_of(observation.target, bias)


def _weight_gradient(observation: Observation) -> Tensor:
    weight, _ = observation.model.last_linear()
    return observation.model.layout.mean_of(observation.target, weight)


LABEL_RULES: dict[str, Callable[[Observation], Tensor]] = {
    "bias": bias_rule,
    # One example per row: the smallest sum of its row of weight gradients (iDLG).
    "row_sum": lambda observation: _weight_gradient(observation).sum(2).argmin(1, keepdim=True),
    # Batches of distinct labels: by bias gradients, and by the smallest entry of its row (Yin et al.).
    "distinct": lambda observation: _bias_gradient(observation).argsort(1)[:, : observation.examples],
    "yin": lambda observation: _weight_gradient(observation).amin(2).argsort(1)[:, : observation.examples],
    "count": count_rule,
}


def _of_one_pass(observation: Observation, rule: str) -> Tensor:
    """Labels (R, n) of different examples; declared ones as the first pass has them."""
    assert observation.places is not None
    if observation.labels is None:
        return infer_labels(replace(observation, examples=observation.unknowns, places=None), rule)
    firsts = [observation.places.index(one) for one in range(observation.unknowns)]
    size = observation.examples // (observation.local_steps if observation.by_steps else 1)
    sizes = list(Counter(place // size for place in firsts).values())
    return torch.cat([part.sort(1).values for part in observation.labels[:, firsts].split(sizes, 1)], 1)


def infer_labels(observation: Observation, rule: str) -> Tensor:
    """Labels (R, n), sorted per row: the adversary's declared knowledge if it has it, else inferred by ``rule``.

    ``auto`` takes the bias rule for one example and the count rule for more, and falls back on the weight rows where
    the last layer has no bias. Where candidates are made step by step, declared labels are
    sorted within each step only.

    Raises:
        UsageError: the rule is unknown, or the network lacks the layer it reads.
    """
    if observation.places is not None:
        return observation.in_places(_of_one_pass(observation, rule))
    if observation.labels is not None:
        # Within a local step the order says nothing; which step an example belongs to does.
        steps = observation.local_steps if observation.by_steps else 1
        return observation.labels.unflatten(1, (steps, -1)).sort(2).values.flatten(1)
    if isinstance(observation.model.plain_module, NextWord):  # its only label, which says nothing
        shape = observation.rows, observation.examples
        return torch.zeros(shape, dtype=torch.long, device=observation.target.device)
    if rule == "auto":
        _, bias = observation.model.last_linear()
        single = observation.examples == 1
        rule = ("bias" if single else "count") if bias else ("row_sum" if single else "yin")
    if rule not in LABEL_RULES:
        raise UsageError(f"unknown label rule {rule!r}; known: auto, {', '.join(LABEL_RULES)}")
    if rule in ("bias", "row_sum") and observation.examples > 1:
        raise UsageError(f"label rule {rule!r} infers one label, the batch has more; use label_rule=count")
    if rule in ("distinct", "yin") and observation.examples > observation.model.classes:
        raise UsageError(f"label rule {rule!r} needs distinct labels, the batch is larger than the number of classes")
    return LABEL_RULES[rule](observation).sort(1).values
