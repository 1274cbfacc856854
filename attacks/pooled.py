"""One client's examples from several rounds, of each of which nobody knows what the client took for it.

Each round is attacked by itself, and what comes back is pooled: an example that was in several rounds comes back again
and again, chance does not. Then it alternates. Which of the pool a round used is what explains its gradient best, and
from there the round is attacked once more: where most of its images are known, the others are easier to find. In the
end all rounds are explained together, by images that they share. It knows how many examples the client holds and how
many a round takes. The truth never gets here.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from harness.attacks.attack import Attack, Dummy
from harness.attacks.engine import Reconstruction
from harness.attacks.lbfgs import LBFGS
from harness.observation import Observation

NEAR = 0.15
"""Root mean square difference below which images of two rounds are taken for the same example."""
SWEEPS, STEPS = 2, 5
"""How often rounds are attacked again from the pool, and outer iterations of L-BFGS each time."""
_TINY, _ROUNDING = 1e-30, 1e-9

Matching = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions (R, D) to the losses (R,) that are descended, and those (R,) by which the best position is kept."""


def pooled(attack: Attack, observation: Observation, looks: Reconstruction, chunk: int = 128) -> Reconstruction:
    """The examples (V, n) that clients hold, from the reconstructions of V * T rounds.

    Args:
        attack: what made the ``looks``. One that cannot begin at given images is not run again.
        observation: V * T rows, see :attr:`Observation.client`.
        looks: of each round by itself.
        chunk: most rounds that are attacked together.
    """
    assert observation.client is not None
    rounds, held = observation.client
    images, labels, loss = looks.images.to(observation.target, copy=True), looks.labels.clone(), looks.loss.clone()
    enough = attack.stop_below(observation).to(loss)
    images = images.clamp(0.0, 1.0) if attack.closed_form else images
    evaluations = looks.evaluations.clone()
    again = rounds > 1 and attack.position(observation, images, labels.to(images.device)) is not None
    pool, kinds, own = _pool(images, labels, loss, rounds, held)
    for _ in range(SWEEPS if again else 0):
        own = _explained(observation, pool, kinds, own)
        open_to = (~(loss <= enough)).nonzero()[:, 0]
        if not len(open_to):
            break
        start, named = (_taken(values, own).flatten(0, 1)[open_to] for values in (pool, kinds))
        made, reached, taken = _rounds_again(attack, observation, open_to, start, named, chunk)
        evaluations[open_to] += taken
        better = reached < loss[open_to]
        images[open_to[better]], labels[open_to[better]] = made[better], named[better]
        loss[open_to[better]] = reached[better]
        pool, kinds, own = _pool(images, labels, loss, rounds, held)
    if again:
        own = _explained(observation, pool, kinds, own)
        pool, taken = _together(attack, observation, pool, kinds, own, chunk)
        evaluations = evaluations + taken.repeat_interleave(rounds)

    def of_client(values: Tensor) -> Tensor:
        return values.unflatten(0, (-1, rounds))

    return Reconstruction(
        images=pool.cpu(), labels=kinds, loss=of_client(loss).sum(1), initial_loss=of_client(looks.initial_loss).sum(1),
        stop_reason=of_client(looks.stop_reason).amax(1), iterations=of_client(looks.iterations).amax(1),
        evaluations=of_client(evaluations).sum(1), restart=torch.zeros(len(pool), dtype=torch.long),
    )  # fmt: skip


def _taken(values: Tensor, own: Tensor) -> Tensor:
    """Return the values (V, T, b, ...) of each round, taken from the values (V, n, ...) of a pool."""
    return values[torch.arange(len(own))[:, None, None], own]


# What comes back again and again.


def _pool(images: Tensor, labels: Tensor, loss: Tensor, rounds: int, held: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images (V, n, ...) and labels (V, n) of the clients, and which of them each round's images are (V, T, b)."""
    of_clients = zip(*(one.unflatten(0, (-1, rounds)) for one in (images, labels, loss)), strict=True)
    made = [_of_client(shown, named, lost, held) for shown, named, lost in of_clients]
    pool, kinds, own = (torch.stack(parts) for parts in zip(*made, strict=True))
    return pool, kinds, own


def _of_client(images: Tensor, labels: Tensor, loss: Tensor, held: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of :func:`_pool` for one client, from images (T, b, ...), labels (T, b) and losses (T,) of its
    rounds.

    Groups of images that are near each other, each of another round, count by how many they are, then by how well
    their best round is explained. That round's image stands for the group. Places that are left hold the mean.
    """
    batch = labels.shape[1]
    flat = images.flatten(2).flatten(0, 1).clamp(0.0, 1.0).double()
    apart = torch.cdist(flat, flat).cpu() / flat.shape[1] ** 0.5
    order = loss.cpu().nan_to_num(nan=torch.inf).repeat_interleave(batch).argsort(stable=True).tolist()
    groups: list[list[int]] = []
    for one in order:
        open_to = [group for group in groups if all(other // batch != one // batch for other in group)]
        nearest = min(open_to, key=lambda group: float(apart[one, group[0]]), default=None)
        if nearest is not None and float(apart[one, nearest[0]]) <= NEAR:
            nearest.append(one)
        else:
            groups.append([one])
    first = [group[0] for group in sorted(groups, key=len, reverse=True)[:held]]
    cost = apart[:, first]
    places = [torch.from_numpy(linear_sum_assignment(part.numpy())[1]) for part in cost.split(batch)]
    pool, kinds = images.flatten(0, 1)[first], labels.flatten()[first]
    lacking = held - len(first)
    blank = pool.mean(0, keepdim=True).expand(lacking, *pool.shape[1:])
    return torch.cat([pool, blank]), torch.cat([kinds, kinds.new_zeros(lacking)]), torch.stack(places)


# Which of the pool a round used.


def _explained(observation: Observation, pool: Tensor, kinds: Tensor, own: Tensor) -> Tensor:
    """Return which images of the pool explain each round's gradient best (V, T, b). They are found by swaps from
    ``own``, one image at a time."""
    rounds = own.shape[1]
    found = [
        _of_round(observation.take(torch.tensor([row])), pool[row // rounds], kinds[row // rounds], start)
        for row, start in enumerate(own.flatten(0, 1))
    ]
    return torch.stack(found).view_as(own)


def _of_round(seen: Observation, pool: Tensor, kinds: Tensor, start: Tensor) -> Tensor:
    """Return which images (b,) of the pool explain the gradient of one round best. Use inner products of the gradients
    of the pool, and of these with what was read."""
    with torch.no_grad():
        made = seen.model.per_example_gradients(seen.weights, pool[None], kinds[None].to(pool.device))[0].double()
    target, free = seen.target[0].double(), seen.clipping is not None
    gram, shown, length = (made @ made.T).cpu(), (made @ target).cpu(), target.square().sum().cpu()
    now, best = start, _left(gram, shown, length, start[None], free)[0]
    while True:
        others = torch.tensor([one for one in range(len(pool)) if one not in now.tolist()], dtype=torch.long)
        tried = now.repeat(len(now) * len(others), 1)
        rows = torch.arange(len(tried))
        tried[rows, rows % len(now)] = others[rows // len(now)]
        left = _left(gram, shown, length, tried, free)
        if not len(tried) or not left.min() < best * (1 - _ROUNDING):
            return now
        best, now = left.min(), tried[left.argmin()]


def _left(gram: Tensor, towards: Tensor, length: Tensor, tried: Tensor, free: bool) -> Tensor:
    """Return what sets (S, b) of the pool leave of a squared gradient, from inner products; at the best scale if
    ``free``."""
    shown = towards[tried].mean(1)
    squared = gram[tried[:, :, None], tried[:, None, :]].mean((1, 2))
    if free:
        return length - shown.clamp_min(0.0).square() / squared.clamp_min(_TINY)
    return length - 2 * shown + squared


# Descents from what is known.


def _rounds_again(
    attack: Attack, observation: Observation, which: Tensor, start: Tensor, labels: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Some rounds (R,), each by itself from images (R, b, ...) of labels (R, b): images, losses (R,), evaluations."""
    parts = []
    for rows in torch.arange(len(start)).split(max(2, chunk)):
        index = rows.repeat(2) if len(rows) == 1 else rows  # one row alone takes other kernels
        seen, named = observation.take(which[index].to(start.device)), labels[index].to(start.device)

        def matching(position: Tensor, seen: Observation = seen, named: Tensor = named) -> tuple[Tensor, Tensor]:
            dummy = attack.dummy(seen, position, named)
            found = attack.matching(seen, dummy)
            return found + attack.penalty(seen, dummy, torch.arange(len(position))), found

        begin = attack.position(seen, start[index], named)
        assert begin is not None
        position, loss, evaluations = _descended(attack, matching, begin, attack.stop_below(seen))
        made = attack.dummy(seen, position, named).images, loss, evaluations
        parts.append([one[: len(rows)] for one in made])
    images, loss, evaluations = (torch.cat(one) for one in zip(*parts, strict=True))
    return images, loss.cpu(), evaluations.cpu()


def _together(
    attack: Attack, observation: Observation, pool: Tensor, kinds: Tensor, own: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """All rounds of a client at once by the images that they share: (V, n, ...), and evaluations (V,).

    Logarithms of the rounds' losses are added up: how exactly a round can be explained is not known, and one that took
    an example that is not in the pool must not bend the others'. Losses that may be negative are log-likelihoods.
    """
    (_, rounds, _), made = own.shape, []
    for victims in torch.arange(len(pool)).split(max(1, chunk // rounds)):
        index = (victims[:, None] * rounds + torch.arange(rounds)).flatten()
        seen, part = observation.take(index.to(pool.device)), own[victims]
        named = _taken(kinds[victims], part).flatten(0, 1).to(pool.device)

        def matching(
            position: Tensor, seen: Observation = seen, named: Tensor = named, part: Tensor = part
        ) -> tuple[Tensor, Tensor]:
            placed = _taken(position.unflatten(1, (pool.shape[1], -1)), part).flatten(0, 1).flatten(1)
            dummy: Dummy = attack.dummy(seen, placed, named)
            found = attack.matching(seen, dummy)
            enough = attack.stop_below(seen)
            loss = torch.where(enough.isfinite(), (found + enough).clamp_min(_TINY).log(), found)
            loss = loss + attack.penalty(seen, dummy, torch.arange(len(placed)))
            total = loss.unflatten(0, (-1, part.shape[1])).sum(1)
            return total, total

        first = observation.take((victims * rounds).to(pool.device))
        whole, kind = replace(first, examples=pool.shape[1]), kinds[victims].to(pool.device)
        begin = attack.position(whole, pool[victims], kind)
        assert begin is not None
        position, _, evaluations = _descended(attack, matching, begin, None)
        made.append((attack.dummy(whole, position, kind).images, evaluations))
    images, evaluations = (torch.cat(one) for one in zip(*made, strict=True))
    return images, evaluations.cpu()


def _descended(
    attack: Attack, matching: Matching, start: Tensor, enough: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The best positions (R, D) by their matching loss (R,), and how many gradients (R,) it took.

    It ends where all are below ``enough`` (R,), or none moves.
    """
    best, least = start.clone(), start.new_full((len(start),), torch.inf)

    def evaluate(position: Tensor) -> tuple[Tensor, Tensor]:
        leaf = position.detach().requires_grad_(True)
        with torch.enable_grad():
            loss, found = matching(leaf)
            (slope,) = torch.autograd.grad(loss.sum(), leaf)
        found = found.detach()
        better = found.isfinite() & (found < least) & position.isfinite().all(1)
        best[better], least[better] = position[better], found[better]
        return loss.detach(), slope

    state, evaluations = LBFGS(descend=True).start(start), start.new_zeros(len(start))
    for _ in range(STEPS):
        taken = state.step(evaluate)
        evaluations += taken
        if bool((taken <= 1).all()) or (enough is not None and bool((least <= enough).all())):
            break
    return best.clamp(0.0, 1.0) if attack.box else best, least, evaluations
