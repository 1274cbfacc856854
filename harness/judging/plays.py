"""Messages that clients may have sent, played on their truth: a defense's draws, other readings, other trainings.

A defense that draws more than noise of one known level is played several times. What was sent and what a play sends are
draws of one law where the truth is right. So their distance from the mean of the other plays, and how far they go in
its direction, are alike. Where only the coordinates that are sent are drawn, those that were sent have to be equal.
Source: the two-sided t-test for one more observation (Student 1908), of sums over many coordinates.

A truth may stand in its file otherwise than the network took it: labels counted from 1 or with gaps, images as bytes,
scaled, mirrored or turned, texts padded otherwise. Where such a reading explains what was sent, the fix is named, and
nobody is accused. Where the training was another than declared, in one of the usual ways, that way is named.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from scipy.stats import binom
from scipy.stats import t as student
from torch import Tensor

from harness.base.local_optimizer import PLAIN, LocalOptimizer
from harness.base.normalising import BYTES, USUAL, name_of_scaling
from harness.base.words import PAD, tokens_of
from harness.experiment import CellSettings
from harness.judging.capture import FACTS
from harness.judging.evidence import LEVEL, Check
from harness.judging.federation import CapturedClients

#: How often a defense is played.
PLAYS = 16
# Of a norm: what says nothing against a truth, and from which on a spread may hide that it is another client's.
UNLIKE, HIDES = 0.02, 0.5
# Of the distance of the farthest draw: so far no draw goes of which many coordinates are drawn, each for itself.
FAR = 5.0
#: The chance that a draw is called too far to be explained, where that accuses nobody and only withholds an estimate.
UNFIT = 1e-3


@dataclass(frozen=True, eq=False)
class Drawn:
    """Results of a defense on V clients' truth, over several plays.

    Attributes:
        play: makes one, (V, P), by its number; always the same one, so that none is kept.
        leaves_out: whether zeros are coordinates that were not sent.
        middle: (V, P), the mean where it is known; None where it is that of the plays.
        separate: whether each coordinate is drawn for itself, so that all draws go about as far.
    """

    play: Callable[[int], Tensor]
    leaves_out: bool
    middle: Tensor | None
    separate: bool = False

    @cached_property
    def _halves(self) -> list[tuple[Tensor, Tensor]]:
        """Sums of the first half of all plays and of the second, each with how many are known of each coordinate."""
        found = []
        for first in (0, PLAYS // 2):
            total = counts = torch.zeros(())
            for number in range(first, first + PLAYS // 2):
                made = self.play(number)
                total, counts = total + made, counts + self._known(made)
            found.append((total, counts))
        return found

    def _known(self, values: Tensor) -> Tensor:
        return (values != 0 if self.leaves_out else torch.ones_like(values)).to(values.dtype)

    def _mean(self, without: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean of all plays, or all but one, and of how many it is."""
        if self.middle is not None:
            return self.middle, torch.ones_like(self.middle)
        total, counts = (one + two for one, two in zip(*self._halves, strict=True))
        if without is not None:
            total, counts = total - without, counts - self._known(without)
        return total / counts.clamp_min(1), counts

    @property
    def mean(self) -> Tensor:
        """(V, P), of all plays."""
        return self._mean(None)[0]

    def apart(self, sent: Tensor, among: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return three numbers on what was sent, each per coordinate that is compared.

        They are the distance from the mean (V,), how far it goes beyond the mean in its direction (V,), and the mean's
        norm there (V,).

        Args:
            among: whether what was sent is one of the plays.
        """
        mean, counts = self._mean(sent if among else None)
        known = (counts > 0) * self._known(sent)
        left, mean = (sent - mean) * known, mean * known
        count, norm = known.sum(1).clamp_min(1) ** 0.5, mean.norm(dim=1)
        return left.norm(dim=1) / count, (left * mean).sum(1) / norm.clamp_min(1e-30) / count, norm / count

    def usual(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three numbers of :meth:`apart` (R, V) for every play and the mean of the others."""
        others = [self.apart(self.play(number), among=True) for number in range(PLAYS)]
        spread, along, norm = (torch.stack(one) for one in zip(*others, strict=True))
        return spread, along, norm

    def farthest(self, sent: Tensor, grain: Tensor) -> Tensor:
        """Chances (V,) that what was sent is the farthest draw in so many coordinates, each being drawn for itself.

        Where one draw is farther from the mean of all than the others are, each of them is that one as probably.
        """
        middle = (sum(total for total, _ in self._halves) + sent) / (PLAYS + 1)
        own, grain = (sent - middle).abs(), grain[:, None]
        first = second = torch.zeros_like(own)
        for number in range(PLAYS):
            away = (self.play(number) - middle).abs()
            first, second = first.maximum(away), second.maximum(first.minimum(away))
        mine, others = own > first + grain, first > second.maximum(own) + grain
        return torch.from_numpy(binom.sf(mine.sum(1) - 1, (mine | others).sum(1), 1 / (PLAYS + 1)))

    def signal(self, sent: Tensor) -> Tensor:
        """The squared norm (V,) of the mean on what is compared, without that of chance: two halves share none."""
        if self.middle is not None:
            return self.middle.square().mean(1)
        (one, known), (two, too) = self._halves
        both = (known > 0) * (too > 0) * self._known(sent)
        product = one / known.clamp_min(1) * (two / too.clamp_min(1)) * both
        return product.sum(1) / both.sum(1).clamp_min(1)


def check_of_draws(name: str, sent: Tensor, grain: Tensor, drawn: Drawn, noisy: bool) -> Check:
    """Return the check of what V clients sent (V, P).

    Args:
        grain: (V,), by how much a coordinate may be off by rounding.
        noisy: whether noise of a known law is declared, under which nobody sees more than this check does.
    """
    spread, along, norms = drawn.usual()
    found, beyond, norm = drawn.apart(sent)
    if not bool((norm > 0).all()):
        return cannot(name, "no coordinate that was sent is among those that the defense drew on it")
    most = student.isf(LEVEL / (4 * len(sent) + 2), PLAYS - 1) * (1 + 1 / PLAYS) ** 0.5
    slack = UNLIKE * norm + grain
    if drawn.middle is not None and bool((along.mean(0).abs() > most * along.std(0) + slack).any()):
        return check_of_draws(name, sent, grain, replace(drawn, middle=None), noisy)  # it is not their mean
    wide, far = most * spread.std(0) + slack, most * along.std(0) + slack
    distant = (found - spread.mean(0)).abs() > wide
    like = ~distant & ((beyond - along.mean(0)).abs() <= far)
    # All clients together, whose noise is their own, as attackers of many see them.
    each, all_of_them = (along / norms.clamp_min(1e-30)).mean(1), (beyond / norm).mean()
    like &= (all_of_them - each.mean()).abs() <= most * each.std() + (slack / norm).mean()
    worst = float((found / norm).max())
    said = f"what was sent differs from the mean of {PLAYS} draws of the defense on it by {worst:.2g} of its norm"
    usual = f"draws by {float((spread / norm).mean()):.2g}"
    if not bool(like.all()):
        usual += "" if bool(distant.any()) else ", and goes less or more in its direction than they do"
        accused = (spread.amax(0) <= slack).all().expand_as(found)
        if drawn.separate:  # of few coordinates one may go far that never did in the plays
            accused = accused | (found > FAR * spread.amax(0) + slack)
            accused = accused & (drawn.farthest(sent, grain) < LEVEL / len(sent)) if bool(accused.any()) else accused
        if bool(accused.any()):
            fix = "check learning_rate, loss_scale, the optimizer, the truth's order and scale, each layer's mode"
            return Check(name, "violated", f"{said}, {usual}; {fix}")
        return cannot(name, f"{said}, {usual}")
    # So much less than a draw of the truth goes one of images that have nothing to do with it.
    if not noisy and bool((far > HIDES * drawn.signal(sent) / norm).any()):
        return cannot(name, f"{said}, {usual}: other examples may do so too")
    return Check(name, "holds", f"{said}, {usual}")


def without_noise(name: str, sent: Tensor, grain: Tensor, drawn: Drawn) -> Check | None:
    """The violation where a client sent what its truth gives without noise, from which all draws of the defense are
    far; None where none did, or that is not known. Arguments as of :func:`check_of_draws`."""
    found, _, norm = drawn.apart(sent)
    near = found <= UNLIKE * norm + grain
    if drawn.middle is None or not bool((near & (norm > 0)).any()):
        return None
    spread, *_ = drawn.usual()
    most = student.isf(LEVEL / len(sent), PLAYS - 1) * (1 + 1 / PLAYS) ** 0.5
    far = (spread.amin(0) > HIDES * norm) & (spread.mean(0) - found > most * spread.std(0))
    if not bool((near & far).any()):
        return None
    row = int((near & far).nonzero()[0])
    share, usual = float((found / norm)[row]), float((spread / norm)[:, row].mean())
    said = f"what client {row + 1} sent differs from what the truth gives without noise by {share:.2g} of its norm"
    return Check(name, "violated", f"{said}, {PLAYS} draws of the defense on it by {usual:.2g}: the noise is off")


def cannot(name: str, said: str) -> Check:
    """Return a check that cannot tell, so that nothing may be called resilient."""
    return Check(name, "cannot tell", said, undecided=True)


# Other readings of the truth.

# Of the distance of the truth as it stands: so near comes what it has to be read as.
NEARER = 0.25


_AS_TRAINED = "give them as they were trained on, behind any augmentation, or leave the truth out"

Reading = tuple[str, CapturedClients]
"""How a truth has to be changed, in words, and the clients with the changed truth."""

Played = tuple[CapturedClients, Tensor, list[int]]
"""Clients with a truth that is read in one way, what they send of it (V, P), and the rows of those of whom it is."""


def other_reading(
    captured: CapturedClients, sent: Tensor, made: Tensor, play: Callable[[CapturedClients], Tensor],
    fits: Callable[[Sequence[Played]], bool], noisy: bool,
) -> str | None:  # fmt: skip
    """Return how the truth has to be read to explain what clients sent, with the fix; None where nothing here helps.

    Args:
        sent, made: (V, P), what was sent, and what the truth gives as it stands.
        play: makes what clients send of their truth. fits: whether that is what was sent, each client by its reading.
        noisy: whether noise is in what was sent, beside which readings that have to be searched are not found.
    """
    ways, clients, plays = [""], [captured], [made]
    for readings in (_readings(captured), () if noisy else _searched(captured, sent, made, play)):
        for words, other in readings:
            try:
                plays.append(play(other))
            except Exception:  # the user's own network may refuse such numbers, and then never took them
                continue
            ways.append(words)
            clients.append(other)
        apart = torch.stack([(sent - one).norm(dim=1) for one in plays]).nan_to_num(torch.inf)
        if not noisy:  # where rounding hides much, what is a little nearer is so by chance
            apart[0] *= NEARER
        nearest = apart.argmin(0).tolist()
        found = {way: [row for row, own in enumerate(nearest) if own == way] for way in dict.fromkeys(nearest)}
        if any(nearest) and fits([(clients[way], plays[way], own) for way, own in found.items()]):
            return "; ".join(
                f"{ways[way]} ({len(own)} of {len(sent)} clients, such as client {own[0] + 1})"
                for way, own in found.items() if way
            )  # fmt: skip
    return None


def _readings(captured: CapturedClients) -> Iterator[Reading]:
    """Other readings of the clients' truth."""
    images, labels, record = captured.images, captured.labels, captured.record
    assert images is not None and labels is not None
    for words, numbered in _numberings(labels, record.classes):
        yield f"{words}; number labels in the truth as the client's loss took them", replace(captured, labels=numbered)
    if record.data == "text":
        for words, padded in _paddings(images):
            yield words, replace(captured, images=padded)
    if record.data != "images" or record.columns is not None:
        return
    for mean, deviation in (BYTES, *USUAL):
        if len(mean) in (1, images.shape[2]):
            middle, width = (torch.tensor(one).reshape(-1, 1, 1) for one in (mean, deviation))
            own = f'"model": "{record.model}+{name_of_scaling(mean, deviation)}"'
            what = f"images are scaled before the network takes them: in {FACTS} write {own}"
            yield what, replace(captured, images=(images - middle) / width)
    for correction in (0, 1):
        width, middle = torch.std_mean(images, (-3, -2, -1), correction=correction, keepdim=True)
        what = "images are each scaled by their own mean and deviation: let the network of the factory do so"
        yield what, replace(captured, images=(images - middle) / width.clamp_min(1e-6))
    for words, turned in _turnings(images):
        yield f"images are {words}: {_AS_TRAINED}", replace(captured, images=turned)


def shortened(texts: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield texts (V, n, 1, BITS, T) with fewer places, as many as the longest text of each client has."""
    there = (tokens_of(texts) != PAD).sum(-1)
    for longest in there.amax(1).unique().tolist()[-_WIDTHS:]:
        if longest < texts.shape[-1]:
            yield longest, texts[..., :longest]


def _paddings(texts: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield texts (V, n, 1, BITS, T) with fewer empty places behind them, or with these in front, in words."""
    for longest, cut in shortened(texts):
        words = f"texts were padded to the longest of their batch, {longest} places: let the network of the factory cut"
        yield f"{words} them to as many, or pad to all places in training", cut
    empty = texts.shape[-1] - (tokens_of(texts) != PAD).sum(-1)[..., None]
    if bool(empty.any()):
        moved = (torch.arange(texts.shape[-1]) - empty) % texts.shape[-1]
        moved = texts.gather(-1, moved[..., None, None, :].expand_as(texts))
        yield "texts were padded in front: let the network of the factory move them to the last places", moved


# Of clients' longest texts, so many lengths are tried; of examples, no more than so many are turned one by one.
_WIDTHS, _TURNED = 16, 16
# Steps of a search for a scaling, and the digits that are kept of it.
_STEPS, _KEPT = 8, 4


def _searched(
    captured: CapturedClients, sent: Tensor, made: Tensor, play: Callable[[CapturedClients], Tensor]
) -> Iterator[Reading]:
    """Readings of images that have to be searched: of each, whether it is mirrored, and any scaling of channels."""
    images, record = captured.images, captured.record
    assert images is not None
    if record.data != "images" or record.columns is not None:
        return
    if 1 < images.shape[1] <= _TURNED and (some := _some_mirrored(captured, images, sent, made, play)) is not None:
        yield f"some images are mirrored: {_AS_TRAINED}", replace(captured, images=some)
    found = _scaling(captured, images, sent, play)
    if found is not None:
        mean, deviation = found
        own = f'"model": "{record.model}+{name_of_scaling(mean.flatten().tolist(), deviation.flatten().tolist())}"'
        what = f"images are scaled before the network takes them: in {FACTS} write {own}"
        yield what, replace(captured, images=(images - mean) / deviation)


def _some_mirrored(
    captured: CapturedClients, images: Tensor, sent: Tensor, made: Tensor, play: Callable[[CapturedClients], Tensor]
) -> Tensor | None:  # fmt: skip
    """Images (V, n, C, H, W), each mirrored where that is nearer to what was sent; None where none is."""
    first = best = (sent - made).norm(dim=1)
    some = images
    for _ in range(2):
        for place in range(images.shape[1]):
            other = some.clone()
            other[:, place] = some[:, place].flip(-1)
            apart = (sent - play(replace(captured, images=other))).norm(dim=1)
            some = torch.where((apart < best)[:, None, None, None, None], other, some)
            best = best.minimum(apart)
        if bool((best > first / 2).any()):
            break  # of other images some are nearer by chance
    return None if torch.equal(some, images) else some


def _scaling(
    captured: CapturedClients, images: Tensor, sent: Tensor, play: Callable[[CapturedClients], Tensor]
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """The mean and deviation (C, 1, 1) of a scaling of images that comes nearest to what was sent, searched from those
    of the images themselves; None where it is none.

    Source: Levenberg-Marquardt, with differences in the place of derivatives.
    """
    width, middle = torch.std_mean(images, (0, 1, 3, 4), correction=0)
    found, damping = torch.stack([1 / width.clamp_min(1e-3), -middle / width.clamp_min(1e-3)]).double(), 1e-3

    def left(how: Tensor) -> Tensor:
        factor, more = how.to(images)[..., None, None]
        return (sent - play(replace(captured, images=images * factor + more))).flatten()

    try:
        here = left(found)
        for _ in range(_STEPS):
            ways = torch.eye(found.numel(), dtype=found.dtype).reshape(-1, *found.shape) * 1e-3
            slopes = torch.stack([(left(found + way) - here) / 1e-3 for way in ways], 1)
            square = slopes.T @ slopes
            step = torch.linalg.solve(square + damping * square.diagonal().diag(), slopes.T @ here)
            other = left(found - step.reshape(found.shape))
            if not other.norm() < here.norm():
                damping *= 10
                continue
            found, here, damping = found - step.reshape(found.shape), other, damping / 10
    except Exception:  # the user's own network may refuse such numbers; or nothing depends on them
        return None
    if not bool((found[0] > 0).all()):
        return None
    exact = torch.stack([-found[1] / found[0], 1 / found[0]])
    tens = 10 ** (_KEPT - 1 - exact.abs().clamp_min(0.1).log10().floor())
    mean, deviation = ((exact * tens).round() / tens + 0.0).to(images)[..., None, None]
    return (mean, deviation) if bool((deviation > 0).all()) else None


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


# Other trainings than the declared one.

Training = tuple[str, CapturedClients, CellSettings]
"""What clients did otherwise, in words, with the clients and the cell of clients who do so."""

# What loops usually have of SGD's momentum, of FedProx's mu and of bounds of clip_grad_norm_.
_MOMENTA, _PULLS = (0.0, 0.9, 0.5, 0.99, 0.95), (0.0, 0.01, 0.1, 1.0)
_BOUNDS = (None, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Passes, and slips of a learning rate.
_PASSES, _SLIPS = (2, 3, 5), (0.01, 0.1, 0.5, 2.0, 10.0, 100.0)
# Of gradients that no step clears.
_NEVER_CLEARED = 1 - 1e-9
_GROUPINGS = {"layer": "whole", "whole": "layer"}


def other_trainings(captured: CapturedClients, cell: CellSettings, bound: float | None) -> Iterator[Training]:
    """Yield the mistakes that are usual in what a capture says of the training, each as it would be right.

    Args:
        cell: without noise. bound: of the declared clip of examples; None where there is none.
    """
    if cell.defense != "none":
        off = cell.model_copy(update={"defense": "none", "defense_args": {}})
        yield f"defense {cell.defense} off", captured, off
        if bound is not None and captured.of_update:
            words = f"the mean gradient of each batch clipped to {bound:g}, and no example's"
            yield words, captured, _by_optimizer(off, captured, {"clip_grad_norm": bound})
        if (own := _GROUPINGS.get(cell.defense_args.get("clipping", ""))) is not None:
            args = {**cell.defense_args, "clipping": own}
            yield (
                f'defense {cell.defense} with clipping "{own}"',
                captured,
                cell.model_copy(update={"defense_args": args}),
            )
    if captured.of_update:
        yield from _of_optimizers(captured, cell)
        yield from _of_steps(captured, cell)


def _of_optimizers(captured: CapturedClients, cell: CellSettings) -> Iterator[Training]:
    """Trainings with another optimizer, or with more or less around it."""
    steps, declared = cell.local_steps, captured.record.local_optimizer or PLAIN
    changes: list[Mapping[str, Any]] = [{"name": name} for name in ("sgd", "adam", "adamw", "rmsprop")]
    if declared.accumulate > 1:
        changes.append({"accumulate_sum": not declared.accumulate_sum})
    if steps > 1:
        changes += [{"fedprox": one} for one in _PULLS] + [{"clip_grad_norm": one} for one in _BOUNDS]
        linear = [1 - step / steps for step in range(steps)]
        cosine = [(1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]
        courses = [[round(cell.learning_rate * one, 6) for one in course] for course in (linear, cosine, linear[::-1])]
        changes += [{"schedule": None}, *({"schedule": tuple(one)} for one in courses if all(one))]
        # As a gradient scaler has it, whose first scale is too large; and of a term without its half.
        changes.append({"schedule": (0.0, *[cell.learning_rate] * (steps - 1))})
        changes += [{"fedprox": declared.fedprox * times} for times in (0.5, 2.0) if declared.fedprox]
    if steps > 1 and declared.name == "sgd":
        changes += [{"momentum": one, "nesterov": own} for own in (False, True) for one in _MOMENTA if one or not own]
        words = "gradients that add up from step to step, as without zero_grad()"
        yield words, captured, _by_optimizer(cell, captured, {"momentum": _NEVER_CLEARED, "nesterov": False})
    for change in changes:
        if any(getattr(declared, name) != value for name, value in change.items()):
            try:
                other = _by_optimizer(cell, captured, change)
            except ValueError:  # no optimizer has both
                continue
            yield f"optimizer {other.optimizer}", captured, other
    for times in (*_SLIPS, *(cell.batch_size, 1 / cell.batch_size) * (cell.batch_size > 1)):
        rate = cell.learning_rate * times
        yield (
            f"learning_rate {rate:g}, or loss_scale {times:g}",
            captured,
            cell.model_copy(update={"learning_rate": rate}),
        )


def _by_optimizer(cell: CellSettings, captured: CapturedClients, change: Mapping[str, Any]) -> CellSettings:
    declared = (captured.record.local_optimizer or PLAIN).model_dump()
    named = change.get("name", declared["name"])
    # Of another class, what both have counts.
    kept = (
        declared
        if named == declared["name"]
        else {
            name: declared[name] for name in ("weight_decay", "clip_grad_norm", "schedule", "accumulate", "loss_scale")
        }
    )
    return cell.model_copy(update={"optimizer": LocalOptimizer(**{**kept, **change}).text})


def _of_steps(captured: CapturedClients, cell: CellSettings) -> Iterator[Training]:
    """Trainings on the same examples in other batches, or in more or fewer passes."""
    record, images, labels = captured.record, captured.images, captured.labels
    if (
        images is None
        or labels is None
        or record.schedule
        or record.accumulate > 1
        or len(set(record.step_sizes())) > 1
    ):
        return
    count, passes, steps = record.truths // record.passes, record.passes, record.local_steps // record.passes

    def of(batches: int, times: int) -> Training:
        """So many batches, taken so many times."""
        own: dict[str, Any] = {"batch_size": count // batches, "local_steps": batches * times, "epochs": times}
        seen = {name: one[:, :count].repeat(1, times, *[1] * (one.dim() - 2)) for name, one in known}
        other = replace(captured, record=record.model_copy(update={**own, "examples": count}), **seen)
        return ", ".join(f"{name} {value}" for name, value in own.items()), other, cell.model_copy(update=own)

    known = ("images", images), ("labels", labels)
    for batches in sorted({count, 1, 2 * steps, steps // 2} - {0, steps}):
        if count % batches == 0:
            yield of(batches, passes)
    for times in (1, *_PASSES):
        if times != passes:
            yield of(steps, times)
