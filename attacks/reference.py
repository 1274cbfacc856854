"""The sequential reference engine: one victim after another with PyTorch's own optimizers and the plain network.

Slow on purpose and simple on purpose; tests prove that the batched engine computes the same.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.attacks.adam import Adam
from harness.attacks.attack import Attack, Dummy, labels_of_starts
from harness.attacks.engine import CAP, Observer, Progress, Reconstruction, StopRules, choose_restarts
from harness.attacks.lbfgs import LBFGS
from harness.attacks.stages import alike
from harness.base.errors import UsageError
from harness.base.vectors import clip
from harness.models import cross_entropy
from harness.observation import Observation


def run_reference(
    attack: Attack, observation: Observation, observer: Observer | None = None, progress: Progress | None = None
) -> Reconstruction:
    """Attacks the rows of an observation one by one; same arguments and result as the batched engine.

    Raises:
        UsageError: the attack or the observation uses something only the batched engine has.
    """
    _refuse_unsupported(attack, observation)
    labels = labels_of_starts(attack, observation)
    parts = []
    for victim in range(observation.rows):
        starts = []
        for restart in range(attack.starts):
            own = None if labels is None else labels[victim, restart][None]
            if own is not None and (own < 0).any():
                continue
            index = torch.tensor([victim], device=observation.target.device)
            row = observation.take(index)
            row = replace(row, keys=((*row.keys[0], restart),))
            starts.append(_OneStart(attack, row, own).run(victim, restart, observer))
        parts.append(choose_restarts(_joined(starts), len(starts)))
        if progress:
            progress(1)
    return _joined(parts)


def _joined(parts: list[Reconstruction]) -> Reconstruction:
    names = Reconstruction.__dataclass_fields__
    return Reconstruction(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _refuse_unsupported(attack: Attack, observation: Observation) -> None:
    if observation.by_steps:
        raise UsageError("the reference engine takes no local steps of its own; use --engine batched")
    if any(len(attack.stages(observation.take(rows))) > 1 for rows in alike(observation)):
        raise UsageError("the reference engine descends one loss, not one after the other; use --engine batched")
    if attack.read_as(observation) is not None:
        raise UsageError("the reference engine reads no texts by their vectors; use --engine batched")
    if attack.clips(observation) and (observation.examples > 1 or observation.local_steps > 1):
        raise UsageError("the reference engine clips one example's gradient only; use --engine batched")
    if attack.restarts > 1 and getattr(attack, "group", 0):
        raise UsageError("the reference engine runs starts one by one; set group=0 or use --engine batched")


class _OneStart:
    """One start against one victim."""

    def __init__(self, attack: Attack, observation: Observation, labels: Tensor | None) -> None:
        self.attack, self.observation, self.labels = attack, observation, labels
        self.module: nn.Module = observation.model.plain(observation.weights[0])
        self.parameters = list(self.module.parameters())
        self.position = attack.start(observation, list(observation.keys)).to(observation.target).requires_grad_(True)
        self.best = self.position.detach().nan_to_num(0.0, 0.0, 0.0)
        self.best_loss = self.position.new_full((1,), torch.inf)
        self.first_loss = self.last_loss = self.best_loss
        self.evaluations = attack.effort(observation)

    def run(self, victim: int, restart: int, observer: Observer | None) -> Reconstruction:
        settings = self.attack.optimizer()
        optimizer = self._optimizer(settings)
        rules = StopRules(self.attack, self.attack.stop_below(self.observation))
        code, only = CAP, torch.tensor([0])
        for iteration in range(1, self.attack.max_iterations + 1):
            if isinstance(settings, Adam) and isinstance(optimizer, torch.optim.Optimizer):
                optimizer.param_groups[0]["lr"] = settings.rate(iteration - 1)
            optimizer.step(self._closure)
            with torch.no_grad():
                self.position.copy_(self.attack.after_step(self.position, list(self.observation.keys), iteration))
            if observer:
                images = self._dummy(self.best).images.detach().clone()
                observer(torch.tensor([victim]), torch.tensor([restart]), iteration, images)
            code = int(rules.stopped(only, self.best_loss, self.first_loss, self.last_loss)[0])
            if code != CAP:
                break
        return self._result(code, iteration, restart)

    def _optimizer(self, settings: LBFGS | Adam) -> "torch.optim.Optimizer | _Descending":
        if isinstance(settings, Adam):
            return torch.optim.Adam([self.position], lr=settings.learning_rate, betas=settings.betas)
        if settings.descend:
            return _Descending(settings, self.position)
        return torch.optim.LBFGS(
            [self.position], lr=settings.learning_rate, max_iter=settings.inner_iterations,
            history_size=settings.history, tolerance_grad=settings.tolerance_gradient,
            tolerance_change=settings.tolerance_change,
        )  # fmt: skip

    def _dummy(self, position: Tensor) -> Dummy:
        return self.attack.dummy(self.observation, position, self.labels)

    def _closure(self) -> float:
        self.evaluations += 1
        dummy = self._dummy(self.position)
        matching = self._matching(dummy)
        total = matching + self.attack.penalty(self.observation, dummy, torch.zeros(1, dtype=torch.long))
        (self.position.grad,) = torch.autograd.grad(total.sum(), self.position)
        settings = self.attack.optimizer()
        if isinstance(settings, Adam) and settings.signed:
            self.position.grad = self.position.grad.sign()
        self._remember(matching.detach())
        return float(total.detach().sum())

    def _matching(self, dummy: Dummy) -> Tensor:
        if self.attack.closed_form:  # computed already: it says itself how well it fits, and nothing is descended
            return self.attack.matching(self.observation, dummy)
        loss = self._loss(dummy.shown[0], dummy.targets[0])
        gradients = torch.autograd.grad(loss, self.parameters, create_graph=True)
        candidate = torch.cat([gradient.reshape(-1) for gradient in gradients])[None]
        clipping = self.observation.clipping
        if self.attack.clips(self.observation) and clipping and clipping.bound is not None:
            candidate = clip(candidate, clipping.bound, self.observation.clipping_groups)
        return self.attack.mismatch(self.observation, candidate, dummy)

    def _loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Over all examples; where batches are normalised as a whole, each of them goes through the network alone."""
        batches = self.observation.batches
        size = len(images) if batches is None else batches.size
        parts = zip(images.split(size), targets.split(size), strict=True)
        with sdpa_kernel(SDPBackend.MATH):  # the only attention whose gradient has a derivative
            return torch.stack([cross_entropy(self.module, *part) for part in parts]).mean()

    def _remember(self, matching: Tensor) -> None:
        self.first_loss = matching if self.evaluations == 1 else self.first_loss
        self.last_loss = matching
        if matching.isfinite().all() and self.position.isfinite().all() and bool(matching < self.best_loss):
            self.best, self.best_loss = self.position.detach().clone(), matching

    def _result(self, code: int, iteration: int, restart: int) -> Reconstruction:
        dummy = self._dummy(self.best)
        targets = dummy.targets if dummy.targets.dim() == 2 else dummy.targets.argmax(-1)
        return Reconstruction(
            images=dummy.images.detach().cpu(), labels=targets.cpu(), loss=self.best_loss.cpu(),
            initial_loss=self.first_loss.cpu(), stop_reason=torch.tensor([code]),
            iterations=torch.tensor([iteration]), evaluations=torch.tensor([float(self.evaluations)]),
            restart=torch.tensor([restart]),
        )  # fmt: skip


class _Descending:
    """L-BFGS that never climbs, which PyTorch lacks: the batched one, on one row."""

    def __init__(self, settings: LBFGS, position: Tensor) -> None:
        self.leaf, self.state = position, settings.start(position.detach())

    def step(self, closure: Callable[[], float]) -> None:
        """One outer iteration; ``closure`` gives the loss and leaves the gradient in ``grad``."""

        def evaluate(position: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                self.leaf.copy_(position)
            loss = closure()
            assert self.leaf.grad is not None
            return position.new_tensor([loss]), self.leaf.grad.detach().clone()

        self.state.step(evaluate)
        with torch.no_grad():
            self.leaf.copy_(self.state.position)
