"""Check of what was sent against the truth: the same clients are played on it, and what is left is looked at."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2, norm
from scipy.stats import t as student
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import Stream, generator
from harness.base.words import PAD, tokens_of
from harness.datasets.public import NONE
from harness.evaluation.controls import with_other_key
from harness.experiment import CellSettings
from harness.judging.capture import FACTS
from harness.judging.evidence import LEVEL, Check, Evidence, bonferroni, level_of
from harness.judging.federation import CapturedClients
from harness.judging.noise_checks import GIVE_SIZE, GIVE_STEP, batch_levels, drawn_levels, levels, noise_alone
from harness.judging.plays import (
    HIDES,
    NEARER,
    PLAYS,
    UNFIT,
    UNLIKE,
    Drawn,
    Played,
    cannot,
    check_of_draws,
    other_reading,
    other_trainings,
    shortened,
    without_noise,
)
from harness.judging.series import along_the_way
from harness.judging.stage import SimulatedStage
from harness.models.batch_norm import Buffers

NAME = "the truth explains what was sent"
_TIMES = "times what the truth gives"
_BY_ORDER = f"and {PLAYS} other orders of its examples give as much"
# Of what the truth gives, the noise from which on nobody sees how much of it was sent.
_SEEN = 0.1
# Of what fewer empty places change, what others may change at most.
_FEWER = 3.0


@dataclass(frozen=True, eq=False)
class _Left:
    """Check of what is left (V, P) of what was sent, when what the truth gives is taken away.

    Attributes:
        made: what the truth gives (V, P). grain: (V,), what rounding of what was sent may leave, as a norm.
        level: the declared noise's deviation; None where none is declared.
        unit: of a declared deviation. factor: words on what a clip counts, or nothing.
    """

    made: Tensor
    grain: np.ndarray
    level: float | None
    unit: float
    factor: str

    def check(self, apart: Tensor, allowed: Tensor | None = None) -> Check:
        """The check of what is left, where so much (V, P) of each coordinate is the rounding of the client's steps."""
        if self.level is None:
            return self._quiet(apart, torch.zeros_like(apart) if allowed is None else allowed)
        found, along = float(apart.square().mean().sqrt()) * self.unit, self._along(apart, allowed)
        said = f"what is left is noise of deviation {found:.3g}, declared is {self.level * self.unit:.3g}{self.factor}"
        p_value = min(1.0, 2 * min(self._p_value(apart, allowed), along))
        if p_value >= LEVEL:
            return Check(NAME, "holds", said, p_value)
        more = ", and more or less of what the truth gives than noise hides" if along < LEVEL else ""
        return Check(NAME, "violated", f"{said}{more}", p_value)

    def fits(self, left: Tensor, allowed: Tensor | None) -> bool:
        """Return whether this is as small or as noisy as it must be, once two numbers of each client were fitted to
        it."""
        if self.level is None:
            return self.check(left, allowed).outcome != "violated"
        return self._p_value(left, allowed, fitted=2) >= LEVEL

    def _p_value(self, apart: Tensor, allowed: Tensor | None, fitted: int = 0) -> float:
        """The p-value of what is left as noise of this level, by its norm."""
        assert self.level is not None
        norms, freedom = apart.norm(dim=1).numpy(), apart.shape[1] - fitted
        rounding = self.grain + (0.0 if allowed is None else allowed.norm(dim=1).numpy())
        least, most = (np.square(np.clip(norms + side * rounding, 0, None) / self.level) for side in (-1, 1))
        return bonferroni(np.minimum(1, 2 * np.minimum(chi2.cdf(most, freedom), chi2.sf(least, freedom))))

    def _along(self, apart: Tensor, allowed: Tensor | None) -> float:
        """The p-value of how far each goes, and all go together, in the direction of what the truth gives, where noise
        is one normal number."""
        assert self.level is not None
        made = self.made / self.made.norm(dim=1, keepdim=True).clamp_min(1e-30)
        rounding = self.grain + (0.0 if allowed is None else allowed.norm(dim=1).numpy())
        along = (apart * made).sum(1).numpy()
        each, count = np.clip(np.abs(along) - rounding, 0, None) / self.level, len(along)
        together = max(0.0, abs(along.sum()) - rounding.sum()) / self.level / count**0.5
        return min(1.0, 2 * min(bonferroni(2 * norm.sf(each)), float(2 * norm.sf(together))))

    def _quiet(self, apart: Tensor, allowed: Tensor) -> Check:
        """Without noise what is left is rounding, whose width is known."""
        norms = self.made.norm(dim=1).clamp_min(1e-30).numpy()
        worst = float((apart.norm(dim=1).numpy() / norms).max())
        beyond = (apart.abs() - allowed).clamp_min(0).norm(dim=1).numpy()
        beyond = float((np.clip(beyond - self.grain, 0, None) / norms).max())
        said, width = f"they differ by at most {worst:.2g} of its norm", float((self.grain / norms).max())
        if worst < UNLIKE:
            return Check(NAME, "holds", f"{said}{self.factor}")
        if beyond < UNLIKE:
            said = f"{said}, the rounding of the floats that were sent by up to {width:.2g}"
            return Check(NAME, "cannot tell", said, undecided=worst >= HIDES)
        fix = (
            "check learning_rate, schedule, loss_scale, accumulate, clip_grad_norm, fedprox, the optimizer and its "
            "state, each layer's mode, whether the model ends in logits, whether the truth has the order, the scale "
            "and the augmentation of what was trained on, and whether the loss has label smoothing or class weights"
        )
        return Check(NAME, "violated", f"{said}; {fix}")


def explained(captured: CapturedClients, settings: CellSettings, data_root: Path, chunk: int = 128) -> Check:
    """Return whether what was sent is what the network, the settings and the truth give, up to the declared noise.

    A capture of which this does not hold is of another client than the one that controls simulate.
    """
    noise = Evidence(captured, settings).noise
    level = level_of(noise)
    quiet = _quiet(settings)

    def play(clients: CapturedClients, cell: CellSettings = quiet) -> Tensor:
        stage = SimulatedStage(data_root, chunk, clients, quiet, None, None)
        return _as_steps(settings, stage.set(cell).observation.target.cpu())

    made, again = play(captured), play(captured, with_other_key(quiet))
    if (noise is not None and level is None) or not torch.equal(made, again):
        # What is drawn but for the noise may be next to nothing, such as the rounding of integers.
        alike = bool(((made - again).norm(dim=1) <= UNLIKE * made.norm(dim=1)).all())
        return _by_draws(captured, settings, made if alike else None, lambda cell: play(captured, cell))
    sent, (shrunk, factor) = _as_steps(settings, captured.target), _shrunk(captured, settings, made, level)
    grain, evidence = captured.grain.numpy() * sent.shape[1] ** 0.5, Evidence(captured, settings)
    left = _Left(shrunk, grain, level, evidence.unit, factor)
    check = _of_known_noise(evidence, sent, made, left, play)
    if check.outcome == "violated" or _BY_ORDER in check.detail:
        check = _with_training(check, evidence, sent, left, quiet, data_root, chunk)
    return check if check.outcome == "violated" or not level else _unlike_noise(evidence, sent - made) or check


TOGETHER = "all rounds"
"""The words for what no round shows by itself."""

Round = tuple[str, CapturedClients, CellSettings]
"""The words for some clients, what they sent in one round or in several, and a cell of the declared defense."""


def explained_in_order(rounds: Sequence[Round], data_root: Path, chunk: int = 128) -> list[tuple[str, Check]]:
    """Return the checks of rounds, each with its words, in the order in which clients played them.

    Where the declared defense lets clients remember earlier rounds, each is played with what its client remembers: of
    the first round nothing, of a later one what the truth of the round before gives. Where that is not captured, or is
    drawn by chance, the check cannot tell.
    """
    parts = [part for one in rounds for part in _apart_by_round(*one)]
    kept, found = dict[str, tuple[int, Buffers]](), list[tuple[str, Check]]()
    for words, captured, settings in sorted(parts, key=lambda part: part[1].at[:1]):
        if not _remember(settings):
            found.append((words, explained(captured, settings, data_root, chunk)))
            continue
        known, unknown = _with_memory(captured, kept)
        if known is not None:
            own = settings.model_copy(update={"victims": known.clients})
            found.append((words, explained(known, own, data_root, chunk)))
            kept |= _kept_after(known, own, data_root, chunk)
        if unknown:
            first = parts[0][1].number(min(one.at[0] for _, one, _ in parts))
            found.append((words, cannot(NAME, _not_remembered(captured, unknown[0], settings.defense, first))))
    ahead = None if any(check.outcome == "violated" for _, check in found) else _ahead(rounds, data_root, chunk)
    return found if ahead is None else [*found, (TOGETHER, ahead)]


def _ahead(rounds: Sequence[Round], data_root: Path, chunk: int) -> Check | None:
    """The violation where a model holds noise that its client drew in a round with a later number; None without.

    Noise is independent of all models before it, so that how far it goes along the way from the model of its own round
    to one with a smaller number is one normal number. A step that came first goes against it.
    """
    drawn = defaultdict[str, list[tuple[int, Tensor, Tensor]]](list)
    for _, captured, settings in rounds:
        level, reading = level_of(Evidence(captured, settings).noise), settings.update_reading
        if not level or reading.adaptive is not None or _remember(settings):
            continue
        stage = SimulatedStage(data_root, chunk, captured, settings, None, None)
        noise = (captured.target.double() - stage.set(_quiet(settings)).observation.target.cpu()) / level
        for name, at, model, own in zip(captured.names, captured.at, captured.before.double(), noise, strict=True):
            if name is not None:
                drawn[name].append((at, model, own))
    found = [(*_farthest(sorted(own, key=lambda one: one[0])), name) for name, own in drawn.items() if len(own) > 1]
    pairs = sum(len(own) * (len(own) - 1) // 2 for own in drawn.values())
    if not found or (p_value := min(1.0, pairs * float(norm.cdf(min(found)[0])))) >= LEVEL:
        return None
    _, earlier, later, name = min(found)
    number = rounds[0][1].number
    said = f"noise that client {name!r} drew in round {number(later)} is in its model of round {number(earlier)}"
    return Check(NAME, "violated", f'{said}; correct "round" in {FACTS}', p_value)


def _farthest(own: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[float, int, int]:
    """Return the normal number that is farthest below 0, and the rounds of its model and of its noise.

    Args:
        own: a client's rounds, models and noise of deviation 1, in order.
    """
    models, noise = torch.stack([model for _, model, _ in own]), torch.stack([drawn for *_, drawn in own])
    along = along_the_way(models, noise).triu(1)
    earlier, later = divmod(int(along.argmin()), len(own))
    return float(along[earlier, later]), own[earlier][0], own[later][0]


def _remember(settings: CellSettings) -> bool:
    """Return whether what clients send depends on what they remember of earlier rounds."""
    return bool(settings.build_defense().clients_remember(settings.tap))


def _apart_by_round(words: str, captured: CapturedClients, settings: CellSettings) -> list[Round]:
    """Captures of several rounds as those of each, where clients remember what came before."""
    numbers = sorted(set(captured.at))
    if len(numbers) < 2 or not _remember(settings):
        return [(words, captured, settings)]
    rows = {number: [row for row, at in enumerate(captured.at) if at == number] for number in numbers}
    return [(f"{words}, round {number + 1}", captured.take(rows[number]), settings) for number in numbers]


def _with_memory(
    captured: CapturedClients, kept: Mapping[str, tuple[int, Buffers]]
) -> tuple[CapturedClients | None, list[int]]:
    """The clients of a round with what they remember, None where that is known of none; and the rows of the others."""
    at, unknown = captured.at[0], list[int]()
    if at:
        known = {name for name, (last, _) in kept.items() if last == at - 1}
        unknown = [row for row, name in enumerate(captured.names) if name not in known]
    rows = [row for row in range(captured.clients) if row not in unknown]
    found = captured.take(rows) if rows else None
    if found is None or not at:
        return found, unknown
    own = [kept[name][1] for name in found.names if name is not None]
    return replace(found, remembered={name: torch.stack([one[name] for one in own]) for name in own[0]}), unknown


def _kept_after(
    captured: CapturedClients, settings: CellSettings, data_root: Path, chunk: int
) -> dict[str, tuple[int, Buffers]]:
    """Return what each named client remembers after a round that it played on the truth; {} where that is drawn by
    chance."""
    cell, plays = _alone(settings), list[Mapping[str, Tensor]]()
    for one in (cell, with_other_key(cell)):
        stage = SimulatedStage(data_root, chunk, captured, one, None, None)
        stage.set(one)
        plays.append(stage.kept)
    first, again = plays
    # A step alone is not all that a client does in a round.
    if not settings.tap.of_update or any(not torch.equal(first[name], again[name]) for name in first):
        return {}
    named = enumerate(zip(captured.names, captured.at, strict=True))
    return {
        name: (at, {own: values[row].cpu() for own, values in first.items()})
        for row, (name, at) in named if name is not None
    }  # fmt: skip


def _not_remembered(captured: CapturedClients, row: int, defense: str, first: int) -> str:
    """Return why nobody knows what a client remembers. ``first``: the number of the first round that was captured."""
    name, at = captured.names[row], captured.at[row]
    if name is None:
        return (
            f'clients of {defense!r} remember earlier rounds; add "client" to capture.json, to know which are its own'
        )
    return (
        f"clients of {defense!r} remember earlier rounds, and what client {name!r} remembers after {at} round(s) does "
        f"not follow from its captures{captured.record.first_is_missing(first - 1)}; capture all its rounds from the "
        "first on, or the first alone"
    )


def _unlike_noise(evidence: Evidence, apart: Tensor) -> Check | None:
    """The violation where what the truth does not give (V, P) is no noise of its own in each tensor and client, as it
    is declared; None where it may be. What is in it beside the noise excuses nothing: these checks hold for any data.
    """
    times = min((1.0, *levels(evidence)))
    found = noise_alone(Evidence(replace(evidence.captured, target=apart), evidence.settings, times))
    return None if found is None else replace(found, name=NAME, detail=f"without what the truth gives, {found.detail}")


def _of_known_noise(
    evidence: Evidence, sent: Tensor, made: Tensor, left: _Left, play: Callable[[CapturedClients], Tensor]
) -> Check:
    """The check where nothing is drawn but noise of one known level, or nothing at all."""
    captured, shrunk = evidence.captured, left.made
    check, allowed = left.check(sent - shrunk), None
    if (still := _unchanged(evidence, sent, made)) is not None:
        said = f"{still} came back as it was: name it in frozen, or call requires_grad_(False) in the factory"
        return replace(check, outcome="violated", detail=f"{check.detail}; {said}")
    if check.outcome == "violated" and _as_drawn(evidence, sent, left):
        said = f"{check.detail}, as a Poisson batch may have it: {GIVE_SIZE}"
        return replace(check, outcome="cannot tell", detail=said, undecided=True)
    if check.outcome == "violated" and left.level and any(
        replace(left, level=left.level * times).check(sent - shrunk).outcome != "violated"
        for times in batch_levels(evidence)
    ):  # fmt: skip
        said = f"{check.detail}, as noise on each batch of a step is; {GIVE_STEP}"
        return replace(check, outcome="cannot tell", detail=said, undecided=True)
    if check.outcome == "violated" and not captured.sums:
        allowed = moved_by_rounding(captured, made, SINGLE, play)
        if by_rounding := _by_rounding(check, left, sent, allowed, captured.record.optimizer):
            return by_rounding
    check = _with_reason(check, captured, sent, left, allowed)
    if check.outcome != "violated":
        return check
    if (otherwise := _read_otherwise(check, captured, sent, made, left, play)) is not None:
        return otherwise
    if left.level is None and (unknown := _by_padding(check, captured, sent, made, play)) is not None:
        return unknown
    # A multiple of what these very steps give are no other steps.
    if _TIMES not in check.detail and (other := _by_steps(check, captured, sent, play)) is not None:
        return other
    if (half := captured.record.computed_in) is not None:
        said = f"{check.detail}; the client computes in half precision ({half}), which may send it: capture one without"
        return replace(check, outcome="cannot tell", detail=said, undecided=True)
    coarse = moved_by_rounding(captured, made, HALF, play)
    if left.check(sent - shrunk, coarse if allowed is None else coarse.maximum(allowed)).outcome == "violated":
        return check
    said = f"{check.detail}; or the client computes in half precision, which may send it: capture one without"
    return replace(check, outcome="cannot tell", detail=said, undecided=True)


def _read_otherwise(
    check: Check, captured: CapturedClients, sent: Tensor, made: Tensor, left: _Left,
    play: Callable[[CapturedClients], Tensor],
) -> Check | None:  # fmt: skip
    """The check where the truth fits if it is read otherwise; None where it does not.

    Raises:
        UsageError: it has to be read otherwise, and no noise hides how well it then fits.
    """

    def fits(readings: Sequence[Played]) -> bool:
        own, wide = torch.empty_like(made), torch.empty_like(made)
        for _, played, rows in readings:
            own[rows] = played[rows]
        other = replace(left, made=own)
        found = other.check(sent - own)
        if found.outcome != "violated" or captured.sums:
            return found.outcome != "violated"
        for clients, played, rows in readings:
            wide[rows] = moved_by_rounding(clients, played, SINGLE, play)[rows]
        return _by_rounding(found, other, sent, wide, captured.record.optimizer) is not None

    if (words := other_reading(captured, sent, made, play, fits, left.level is not None)) is None:
        return None
    if left.level is None:
        raise UsageError(f"{NAME} only if it is read otherwise than it stands there: {words}")
    return replace(check, detail=f"{check.detail}; it fits better where {words}")


def _by_padding(
    check: Check, captured: CapturedClients, sent: Tensor, made: Tensor, play: Callable[[CapturedClients], Tensor]
) -> Check | None:
    """The check where empty places behind texts count, and batches of several steps had nobody knows how many; None
    where they do not, or what is left is more than they make."""
    record, images = captured.record, captured.images
    if record.data != "text" or images is None or record.truths == record.batch_size:
        return None
    made_by, least, still = torch.zeros(len(made)), UNLIKE * made.norm(dim=1), made == 0
    for longest, texts in shortened(images):
        try:
            played = play(replace(captured, images=texts))
        except Exception:  # the user's own network may need all places
            return None
        moved, still = (played - made).norm(dim=1), still & (played == 0)
        whole = (tokens_of(images)[..., longest:] == PAD).flatten(1).all(1)
        made_by = made_by.maximum(moved.where(whole, torch.zeros(())))
    if bool(((sent - made).norm(dim=1) > least.maximum(_FEWER * made_by)).any()) or bool((made_by < least).all()):
        return None
    if bool(((sent * still).norm(dim=1) > least).any()):  # such as rows of words that no text holds
        return None
    said = (
        f"{check.detail.partition(';')[0]}; the network counts empty places behind texts, and of several batches "
        "nobody knows how many there were: pad texts to all places in the captured round, or mask them"
    )
    return cannot(NAME, said)


def _by_draws(
    captured: CapturedClients, settings: CellSettings, middle: Tensor | None, play: Callable[[CellSettings], Tensor]
) -> Check:
    """The check where the defense draws more than noise of one known level, such as coordinates.

    ``middle``: what it sends without noise, where that is not drawn.
    """
    evidence, keys = Evidence(captured, settings), [_alone(settings)]
    for _ in range(PLAYS):
        keys.append(with_other_key(keys[-1]))
    keys.pop(0)  # of clients that this tool played
    chosen = evidence.defense.chosen_at(settings.tap, captured.layout)
    by_chance = chosen is not None and chosen.choice == "chance"
    separate = evidence.defense.coding_at(settings.tap) is not None and not evidence.defense.changes_before_gradients
    drawn = Drawn(lambda number: play(keys[number]), by_chance, None if by_chance else middle, separate)
    noisy = evidence.noise is not None and evidence.noise.law != "unknown"
    sent = _as_steps(settings, captured.target)
    if (quiet := without_noise(NAME, sent, captured.grain, drawn)) is not None:
        return quiet
    check = check_of_draws(NAME, sent, captured.grain, drawn, noisy)
    if check.outcome == "violated" and batch_levels(evidence):
        return cannot(NAME, f"{check.detail}; noise on each batch of a step may explain it: {GIVE_STEP}")
    return check if check.outcome == "holds" else _with_other(check, sent, drawn.mean)


def beyond_draws(captured: CapturedClients, settings: CellSettings, data_root: Path, chunk: int = 128) -> np.ndarray:
    """Return how far what each client sent (V,) is from what the declared defense makes of the given examples.

    The examples in ``captured`` are an attacker's, not the truth: fitted to what was sent, so that being nearer than a
    draw says nothing against them. The unit is the largest distance of a draw, of all of it or in the examples' own
    direction, so that more than 1 means that these examples under this declaration do not explain what was sent.
    """
    stage, cells = SimulatedStage(data_root, chunk, captured, settings, None, None), [_alone(settings)]
    for _ in range(PLAYS):
        cells.append(with_other_key(cells[-1]))
    chosen = Evidence(captured, settings).defense.chosen_at(settings.tap, captured.layout)

    def play(number: int) -> Tensor:
        return _as_steps(settings, stage.set(cells[number + 1]).observation.target.cpu())

    drawn = Drawn(play, chosen is not None and chosen.choice == "chance", None)
    spread, along, _ = drawn.usual()
    found, beyond, norm = drawn.apart(_as_steps(settings, captured.target))
    most = student.isf(UNFIT / captured.clients / 2, PLAYS - 1) * (1 + 1 / PLAYS) ** 0.5
    slack = UNLIKE * norm + captured.grain
    far = found / (spread.mean(0) + most * spread.std(0) + slack).clamp_min(1e-300)
    # Noise that hides the distance may still show that nothing of these examples is in it.
    short = (along.mean(0) - beyond) / (most * along.std(0) + slack).clamp_min(1e-300)
    return far.maximum(short).where(norm > 0, math.inf).numpy()


def _quiet(settings: CellSettings) -> CellSettings:
    """Return the cell of clients without noise that nobody attacks with public data."""
    return _alone(settings).model_copy(update={"noise_scale": 0.0})


def _alone(settings: CellSettings) -> CellSettings:
    """The cell of clients that nobody attacks with public data."""
    return settings.model_copy(update={"prior": NONE, "suite": None})


def _as_steps(settings: CellSettings, target: Tensor) -> Tensor:
    """Return ``target`` in float64 as it was sent.

    What is read of Adam's step in large coordinates is next to nothing but rounding.
    """
    adaptive = settings.update_reading.adaptive
    return target.double() if adaptive is None else adaptive.step(target.double())


def _as_drawn(evidence: Evidence, sent: Tensor, left: _Left) -> bool:
    """Return whether a batch of another size, which nobody gave, explains what was sent: it multiplies what the truth
    gives and the noise alike."""
    if not (drawn := drawn_levels(evidence)):
        return False
    low, high = drawn
    if left.level:
        return any(
            replace(left, made=left.made * times, level=left.level * times).check(sent - left.made * times).outcome
            != "violated"
            for times in _multiples(sent, left.made, left.level) if low <= times <= high
        )  # fmt: skip
    times = (sent * left.made).sum(1) / left.made.square().sum(1).clamp_min(1e-30)
    alike = left.fits(sent - times[:, None] * left.made, None)
    return alike and bool(((times >= low) & (times <= high)).all())


def _with_training(
    check: Check, evidence: Evidence, sent: Tensor, left: _Left, quiet: CellSettings, data_root: Path, chunk: int
) -> Check:
    """The check with what clients did otherwise than declared, where one usual mistake explains all that was sent."""
    captured, declared, clipping = evidence.captured, evidence.settings.update_reading, evidence.clipping
    if _TIMES in check.detail or left.check(sent - left.made).outcome != "violated":
        return check

    def retrained(clients: CapturedClients, cell: CellSettings) -> Tensor:
        """Return what clients of another training send, (V, P), read as that of the declared one."""
        stage = SimulatedStage(data_root, chunk, clients, cell, None, None)
        made, before = _as_steps(cell, stage.set(cell).observation.target.cpu()), clients.before.double()
        update = replace(cell.update_reading, adaptive=None).update(made, before)
        return replace(declared, adaptive=None).gradient(update, before)

    def apart(rows: Sequence[int], clients: CapturedClients, cell: CellSettings) -> tuple[Tensor, Tensor]:
        made = retrained(clients.take(rows), cell.model_copy(update={"victims": len(rows)}))
        return sent[rows] - made, made

    bound = None if clipping is None or clipping.unit == "update" else clipping.bound
    first, found = float((sent - left.made)[0].norm()), list[tuple[float, str, CapturedClients, CellSettings]]()
    for words, clients, cell in other_trainings(captured, quiet, bound):
        # One client is quick, and shows of most mistakes that they are not made.
        with suppress(Exception):  # the user's own network may refuse such batches
            found.append((float(apart([0], clients, cell)[0].norm()), words, clients, cell))
    if not found:
        return check
    nearest, words, clients, cell = min(found, key=lambda one: one[0])
    if not nearest < NEARER * first:  # as where noise hides what was done
        return check
    rest, made = apart(range(clients.clients), clients, cell)
    if replace(left, made=made).check(rest).outcome == "violated":
        return check
    said = f"{re.split('[:;]', check.detail)[0]}; all of it fits with {words}: correct the client, or {FACTS}"
    return replace(check, outcome="violated", detail=said, undecided=False)


def _multiples(sent: Tensor, made: Tensor, level: float) -> list[float]:
    """The multiples t for which sent - t made has the square norm of noise of deviation t level, or comes nearest."""
    square = float(made.square().sum()) - level**2 * made.numel()
    both, whole = float((sent * made).sum()), float(sent.square().sum())
    root = math.sqrt(max(0.0, both**2 - square * whole))
    return [(both + side * root) / square for side in (-1, 1)] if square else []


def _by_steps(
    check: Check, captured: CapturedClients, sent: Tensor, play: Callable[[CapturedClients], Tensor]
) -> Check | None:  # fmt: skip
    """The check where nobody says all that later steps depend on: weights that stay at the client, or the order of the
    examples; None where that explains nothing."""
    if not captured.unsent or captured.record.local_steps == 1:
        return _by_order(check, captured, sent, play)
    first, *more = captured.unsent
    said = (
        f"{check.detail.partition(';')[0]}; {first}{f' and {len(more)} more' if more else ''} did not leave the client "
        "and may have been trained all the same, which changes the steps after the first: name them in frozen if they "
        "were not, or capture a round of one step"
    )
    return cannot(NAME, said)


def _by_order(
    check: Check, captured: CapturedClients, sent: Tensor, play: Callable[[CapturedClients], Tensor]
) -> Check | None:
    """The check where what is left is no more than an order of the examples makes that nobody says; None where it is
    more, there is noise, or the order is known."""
    record, images, labels = captured.record, captured.images, captured.labels
    if record.local_steps == 1 or not captured.of_update or images is None or labels is None:
        return None
    alike = record.passes == 1 or torch.equal(*(images.unflatten(1, (record.passes, -1))[:, one] for one in (0, -1)))
    if record.order == "same" or not alike:
        return None
    slots, each = record.slots(), record.truths // record.passes
    first = torch.tensor([slots.index(one) for one in range(record.truths)])
    random = [Stream("order", number) for number in range(PLAYS)]

    def in_order(number: int) -> Tensor:
        passes = [random[number].permutation(each) + start for start in range(0, record.truths, each)]
        places = first[torch.cat(passes)][slots]
        return play(replace(captured, images=images[:, places], labels=labels[:, places]))

    plays = [in_order(number) for number in range(PLAYS)]
    # However much the order hides: nothing is called resilient by what cannot tell.
    if check_of_draws(NAME, sent, captured.grain, Drawn(plays.__getitem__, False, None), True).outcome != "holds":
        return None
    found = check.detail.partition(";")[0]
    fix = "check the optimizer, fedprox, and whether the loss has label smoothing or class weights"
    said = f"{found}, {_BY_ORDER}: give them in the order of the training; if they are, {fix}"
    return cannot(NAME, said)


def _by_rounding(check: Check, left: _Left, sent: Tensor, allowed: Tensor, optimizer: str) -> Check | None:
    """The check where rounding in the client's steps explains what is left; None where it does not."""
    if left.check(sent - left.made, allowed).outcome == "violated":
        return None
    width = float((allowed.norm(dim=1) / left.made.norm(dim=1).clamp_min(1e-30)).max())
    found = check.detail.partition(";")[0]
    said = f"{found}, in coordinates of steps of {optimizer} whose gradient is next to 0: rounding decides {width:.2g}"
    hidden = width >= HIDES
    return replace(check, outcome="cannot tell" if hidden else "holds", detail=said, undecided=hidden)


def _with_reason(check: Check, captured: CapturedClients, sent: Tensor, left: _Left, allowed: Tensor | None) -> Check:
    """A violation is no proof where weight decay explains it, and may have a reason that can be named.

    Weight decay adds a multiple of the weights to a gradient, of which a clip then keeps a smaller part. What a factor
    alone explains, such as another learning rate, is no weight decay.
    """
    if check.outcome != "violated":
        return check
    # Beside what the truth gives, all that a clip leaves may be little.
    beside = replace(left, made=sent)
    apart, columns = sent - left.made, torch.stack([left.made, captured.before.double()], 2)
    scaled, both = (torch.linalg.lstsq(one, apart[..., None]).solution for one in (columns[..., :1], columns))
    shrunk = both[:, 1, 0]
    alone, rest = apart - (columns[..., :1] @ scaled)[..., 0], apart - (columns @ both)[..., 0]
    lost = shrunk * captured.record.rate * captured.record.local_steps  # of all weights; no weight decay takes half
    fix = _other_file(1 + both[:, 0, 0], lost) if captured.of_update else None
    decays = bool(((lost > 0) & (lost <= 0.5)).all())
    if fix is not None and beside.fits(rest, allowed):
        return replace(check, detail=f"{check.detail}; the file holds {fix}")
    if decays and beside.fits(rest, allowed) and not beside.fits(alone, allowed):
        size = f"{float(shrunk.mean()):.2g}" + ("" if captured.record.defense is None else ", or more behind a clip")
        said = f"the update also shrinks the weights, as weight decay does (weight_decay about {size})"
        said = f"{check.detail}; {said}; none is declared"
        return replace(check, outcome="cannot tell", detail=said, undecided=True)
    times = 1 + scaled[:, 0, 0]
    told = dict.fromkeys(f"{float(one):.4g}" for one in (times.min(), times.max()))
    said = f"it is {' to '.join(told)} {_TIMES}"
    if beside.fits(alone, allowed) and bool((times < 0).all()):
        # A gradient is divided by minus the learning rate where it is taken for a change.
        whole = captured.of_update and bool(((-times * captured.record.rate - 1).abs() < UNLIKE).all())
        fix = "call it gradient.npz" if whole else "an update is after less before, a gradient goes uphill"
        return replace(check, detail=f"{check.detail}; {said}: {fix}")
    if beside.fits(alone, allowed) and bool((times > 0).all()):
        defended = captured.record.defense is not None and captured.record.defense.name != "none"
        clipped = ", clip_grad_norm" if bool((times < 1).all()) else ", a clip that is off" if defended else ""
        clipped += ", an update weighted by its examples" if len(told) > 1 else ""
        said = f"{said}: a loss that is summed or divided (loss_scale){clipped}, or another learning_rate"
        return replace(check, detail=f"{check.detail}; {said}")
    if left.level is None and (said := _by_tensor(captured, sent, left, lambda rest: beside.fits(rest, allowed))):
        return replace(check, detail=f"{check.detail.partition(';')[0]}; {said}")
    return _with_other(check, sent, left.made)


def _other_file(times: Tensor, lost: Tensor) -> str | None:
    """Return what a file holds in the place of weights or of their change, with the fix; None where it is neither.

    Args:
        times: (V,), what the change is multiplied by. lost: (V,), the share of all weights that went.
    """
    weighted, first = bool(((times - 1).abs() > UNLIKE).any()), f"{float(times[0]):.3g} times the"
    forms = {
        f"{first} weights (of client 1): weights are captured before they are weighted" * weighted: times + lost - 1,
        f"{first} weights (of client 1): call it after.npz, without the factor" if weighted
        else "weights: call it after.npz": times + lost,
        "the change and no weights: call it update.npz": lost - 1,
    }  # fmt: skip
    near = UNLIKE * times.abs().clamp_max(1)
    return next((fix for fix, apart in forms.items() if fix and bool((apart.abs() < near).all())), None)


def _by_tensor(captured: CapturedClients, sent: Tensor, left: _Left, fits: Callable[[Tensor], bool]) -> str | None:
    """Return what is said where each tensor is a multiple of its own of what the truth gives; None where not."""
    layout = captured.layout
    pairs = list(zip(*(one.split(layout.sizes, 1) for one in (sent, left.made)), strict=True))
    times = torch.stack([(own * made).sum(1) / made.square().sum(1).clamp_min(1e-30) for own, made in pairs], 1)
    rest = torch.cat([own - one[:, None] * made for one, (own, made) in zip(times.T, pairs, strict=True)], 1)
    if len(pairs) < 2 or not bool((times > 0).all()) or not fits(rest):
        return None
    mean = times.mean(0)
    ends = (
        f"{float(mean[place]):.3g} times of {layout.names[place]}" for place in (int(mean.argmin()), int(mean.argmax()))
    )
    fix = "a clip of tensors and not of the whole, groups with a learning_rate of their own, or parts without a clip"
    return f"each tensor is what the truth gives times a number of its own, from {' to '.join(ends)}: {fix}"


def _unchanged(evidence: Evidence, sent: Tensor, made: Tensor) -> str | None:
    """The name of a tensor that no client changed, however little of the norm it has, and that the truth changes by
    more than half precision loses."""
    layout, captured = evidence.captured.layout, evidence.captured
    if captured.record.computed_in is not None or evidence.defense.sparse_at(evidence.settings.tap):
        return None
    seen = made.abs() > (2 * captured.grain[:, None]).clamp_min(torch.finfo(torch.float16).tiny)
    parts = zip(layout.names, *(one.split(layout.sizes, 1) for one in (sent, seen)), strict=True)
    return next((name for name, own, moved in parts if not own.any() and moved.any()), None)


def _with_other(check: Check, sent: Tensor, made: Tensor) -> Check:
    """Return the check, with words on a truth of another client that fits much better, if there is one."""
    apart = torch.cdist(sent, made, compute_mode="donot_use_mm_for_euclid_dist")
    nearest, own = apart.min(1), apart.diagonal()
    rows = (nearest.values < own / 2).nonzero()[:, 0].tolist()
    if not rows:
        return check
    said = f"what client {rows[0] + 1} sent fits the truth of client {int(nearest.indices[rows[0]]) + 1} better"
    return replace(check, detail=f"{check.detail}; {said}: are their truths exchanged?")


def _shrunk(
    captured: CapturedClients, settings: CellSettings, made: Tensor, level: float | None
) -> tuple[Tensor, str]:  # fmt: skip
    """Return what the truth gives, shrunk as much as a clip does that counts what is sent beside the weights too, and
    words.

    Such a clip protects more than the declared one, so that what it does is explained and not accused.
    """
    clipping = settings.build_defense().clipping_at(settings.tap, settings.learning_rate)
    if not captured.moved_buffers or clipping is None or clipping.unit != "update" or clipping.grouping != "whole":
        return made, ""
    own = made.double()
    factors = ((captured.target.double() * own).sum(1) / own.square().sum(1).clamp_min(1e-30)).clamp(0, 1)
    least = float(factors.min())
    if least > 1 - UNLIKE:
        return made, ""
    how = f"shrinks the weights to {least:.3g}"
    if level and bool((level > _SEEN * own.norm(dim=1)).any()):
        how = "noise hides by how much it shrinks the weights"
    return own * factors[:, None], f"; the clip counts running statistics too, and {how}"


# --------------------------------------------------------------------------------------
# What rounding inside a client can make of its steps, coordinate by coordinate.
#
# A step of Adam has the size of the learning rate however small the gradient is, so that where a gradient is next to 0
# the rounding of floats decides it. How far that goes is seen by playing the same clients again, from weights that are
# moved by as little as rounding moves what is computed of them.


# Relative to a weight: some times what single precision rounds by, and what half precision does (bfloat16, TF32).
SINGLE, HALF = 2.0**-20, 2.0**-6
# Of coordinates whose gradient is nothing but rounding, one in 2^16 has the same sign in all of them.
_REPLAYS = 16


def moved_by_rounding(
    captured: CapturedClients, made: Tensor, level: float, play: Callable[[CapturedClients], Tensor]
) -> Tensor:
    """Return how far each coordinate of what clients send (V, P) may move when weights move by a share ``level``.

    Args:
        made: what they send without that. play: makes it of clients.
    """
    random = generator("rounding")
    most = torch.zeros_like(made)
    for _ in range(_REPLAYS):
        signs = 2 * torch.randint(2, captured.before.shape, generator=random).to(captured.before) - 1
        moved = play(replace(captured, before=captured.before * (1 + level * signs)))
        most = most.maximum((moved - made).abs())
    return 2 * most  # the largest of so few is easily passed by one more
