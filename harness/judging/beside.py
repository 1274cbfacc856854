"""Measurements beside images of captured clients of several steps or examples: labels, and who took part.

A client of one step on one example is measured too, with the same network and optimizer: where nothing comes back of it
either, an attack's failure on what was captured says nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.attacks import Identifier
from harness.attacks.labels import round_to_total
from harness.base.errors import UsageError
from harness.base.randomness import derive_seed
from harness.evaluation import Run
from harness.evaluation.played_round import Key
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.judging.declared import Group
from harness.judging.federation import CapturedClients, update_reading
from harness.judging.stage import PublicSplit, SimulatedStage
from harness.models import RowModel
from harness.results import CellResult, StoredCell
from harness.scoring.images import groups_of
from harness.scoring.strongest import NO_TIME
from harness.scoring.success import FEWEST_TOLD

MEMBERSHIP = "membership"
WHO = "who took part"
ALONE = "one step on one example"
# So many clients of one step that all leak have a lineup's p-value below any level.
_MOST = 8
_DRAWS = 9_999
# Look-alikes by which the network's mean answer is measured.
_PROBES = 64


@dataclass(frozen=True)
class Measured:
    """One line of what was measured beside the attacks that were asked for.

    Attributes:
        what: ``label counts``, ``membership``, or :data:`ALONE`. by: the attack, or what was read.
        found: of ``count`` examples; ``chance``: as many as guesses find. None where nothing can be read.
        p_value: of this or more by chance: of label counts, of as many right; of membership, of how far in front of
            their look-alikes examples stand, whether or not first; of :data:`ALONE`, of its lineups.
        held: whether its control holds, None where it has none; ``said``: all of it in a sentence.
    """

    what: str
    by: str
    said: str
    found: float | None = None
    count: int = 0
    chance: float | None = None
    p_value: float | None = None
    held: bool | None = None

    def record(self) -> dict[str, Any]:
        """Return the line as plain JSON."""
        return asdict(self)


def companions(groups: Sequence[Group], split: PublicSplit | None, data_root: Path) -> list[Group]:
    """Groups to be judged beside those that were asked for, by who takes part, and by clients of one step.

    None where the truth or look-alikes are missing, or one step on one example is what was captured.
    """
    several = any(group.captured.examples > 1 for group in groups)
    if split is None or groups[0].captured.images is None or not several:
        return []
    test = _test_of(groups)
    found = [
        replace(group, cells=[_asked(group.cell, test)], name=WHO) for group in groups
        if all(cell.attack != test for cell in group.cells)
    ]  # fmt: skip
    try:
        alone = _alone(groups[0].captured, groups[0].cell, data_root)
    except UsageError:
        return found  # such as BatchNorm, of which one example is no batch
    cell = groups[0].cell.model_copy(update=_facts(alone))
    images = [cell.model_copy(update={"attack": one.attack, "attack_args": one.attack_args})
              for one in groups[0].cells if _rebuilds(one)]  # fmt: skip
    return [*found, Group(alone, [_asked(cell, test), *images], name=ALONE)]


def _test_of(groups: Sequence[Group]) -> str:
    """The test of membership: the most powerful one where gradients add up."""
    return "identify" if all(group.captured.sums for group in groups) else MEMBERSHIP


def _rebuilds(cell: CellSettings) -> bool:
    """Return whether its attack makes images."""
    return not isinstance(cell.build_attack(), Identifier)


def _asked(cell: CellSettings, attack: str) -> CellSettings:
    return cell.model_copy(update={"attack": attack, "attack_args": {}, "suite": None})


def _facts(alone: CapturedClients) -> dict[str, Any]:
    """Return what differs in the settings of clients of one step."""
    record = alone.record
    return {
        "dataset": ALONE, "victims": alone.clients, "batch_size": 1, "local_steps": 1, "update_model": "first",
        "epochs": 1, "client_examples": None,
        "defense": "none", "defense_args": {}, "suite": None, "weights_hash": alone.digest, "batch_norm": None,
        "optimizer": record.optimizer if alone.of_update else "sgd", "learning_rate": record.learning_rate,
        "rounds_seen": 1, "same_data": "batch", "tap": Tap.SENT if alone.of_update else Tap.STEP,
    }  # fmt: skip


def distinct_places(captured: CapturedClients) -> list[int]:
    """Return where in (V, n) of the truth each example of the first pass stands first."""
    record = captured.record
    if not captured.of_update:
        return list(range(captured.examples))
    slots = record.slots()[: captured.examples // record.passes]
    return [slots.index(example) for example in dict.fromkeys(slots)]


def _alone(captured: CapturedClients, cell: CellSettings, data_root: Path) -> CapturedClients:
    """Some of their examples, each as a client of its own that takes one step on it, without a defense.

    Raises:
        UsageError: the network takes no single example.
    """
    assert captured.images is not None and captured.labels is not None
    places = [(client, place) for place in distinct_places(captured) for client in range(captured.clients)][:_MOST]
    clients, own = map(torch.tensor, zip(*places, strict=True))
    optimizer = captured.record.local_optimizer
    plain = optimizer and optimizer.model_copy(update={"schedule": None, "accumulate": 1, "accumulate_sum": False})
    record = captured.record.model_copy(
        update={
            "local_steps": 1, "batch_size": 1, "expected_batch_size": None, "examples": None, "epochs": None,
            "schedule": None, "accumulate": 1, "accumulate_sum": False, "defense": None,
            "learning_rate": captured.record.rate, "optimizer": plain.text if plain else captured.record.optimizer,
        }
    )  # fmt: skip
    before = captured.before[clients]
    alone = replace(
        captured, record=record, before=before, target=torch.zeros_like(before), moved_buffers={}, running={},
        images=captured.images[clients, own][:, None], labels=captured.labels[clients, own][:, None],
        grain=torch.zeros(len(before), dtype=torch.float64), digest=f"{captured.digest} alone", names=(),
        sampling="fixed", not_known=None, at=(), later=(), recovered=None,
    )  # fmt: skip
    settings = cell.model_copy(update=_facts(alone))
    stage = SimulatedStage(data_root, len(before), alone, settings, None, None)
    model = RowModel(settings.model, record.shape, record.classes)
    model.require_batch(1)
    keys: list[Key] = [(0, client) for client in range(len(before))]
    truth, weights = stage.choose(stage.dataset(""), len(before), settings), stage.start(model, settings, keys)
    return replace(alone, target=stage.look(model, weights, truth, keys, settings).gradients)


def measured(groups: Sequence[Group], beside: Sequence[Group], split: PublicSplit, run: Run) -> list[Measured]:
    """Label counts, membership with its control, and the first attack that reads a client of one step."""
    return [
        label_counts([group.captured for group in groups], split),
        _membership(groups, beside, run),
        *(_of_one_step(group, run) for group in beside if group.name == ALONE),
    ]


# Who took part.


def _membership(groups: Sequence[Group], beside: Sequence[Group], run: Run) -> Measured:
    test, alone = _test_of(groups), [group for group in beside if group.name == ALONE]
    where = [*groups, *(group for group in beside if group.name == WHO)]
    made = [run.cell(cell) for group in where for cell in group.cells if cell.attack == test]
    refused = next((one.cell.not_applicable_reason for one in made if one.is_impossible), None)
    if refused or not made:
        return Measured(MEMBERSHIP, test, f"{MEMBERSHIP}: not told: {refused or NO_TIME}")
    found, count, chance = (sum(numbers) for numbers in zip(*map(_told, made), strict=True))
    p_value = min(1.0, len(made) * min(_p_of(one) for one in made))
    said = (
        f"{MEMBERSHIP}: {test} tells {found} of {count} examples among look-alikes of their class, by chance "
        f"{chance:.3g} (p = {p_value:.2g}, of as many in front or of such ranks)"
    )
    controls = [run.cell(cell) for group in alone for cell in group.cells if cell.attack == test]
    if not controls or controls[0].is_impossible:
        return Measured(MEMBERSHIP, test, f"{said}; no control was made", found, count, chance, p_value)
    held, (shown, all_, _) = controls[0].cell.succeeds, _told(controls[0])
    follows = "as it must" if held else "so that nothing follows where it tells nobody"
    said += f"; its control, {ALONE}: {shown} of {all_} (p = {_p_of(controls[0]):.2g}), {follows}"
    return Measured(MEMBERSHIP, test, said, found, count, chance, p_value, held)


def _p_of(stored: StoredCell) -> float:
    found = stored.cell.identified
    return 1.0 if found is None or found.p_value is None else found.p_value


def _told(stored: StoredCell) -> tuple[int, int, float]:
    """Return how many distinct examples of a cell come first in their lineup, of how many, and how many by chance."""
    places = {
        (one.victim, one.dataset_index): (one.lineup_rank, one.lineup_size) for one in stored.victims
        if one.lineup_rank is not None and one.lineup_size is not None and one.lineup_size > 1
    }  # fmt: skip
    return sum(rank == 1 for rank, _ in places.values()), len(places), sum(1 / size for _, size in places.values())


# A client of one step on one example.


def _of_one_step(alone: Group, run: Run) -> Measured:
    tried = list[CellResult]()
    for cell in alone.cells:
        made = run.cell(cell).cell
        if made.identified is not None or made.not_applicable_reason is not None:
            continue
        tried.append(made)
        if made.succeeds:
            back, count, many = made.outcomes.success, made.victims, made.kind.many
            shown = f"{back} of {count} {many} come back" if back else f"what it makes is nearest to the true {many}"
            said = f"{ALONE} of the same job: {cell.attack} leaks, as it must: {shown} (p = {made.tested_p or 0:.2g})"
            return Measured(ALONE, cell.attack, said, back, count, None, made.tested_p, True)
    if not tried:
        asked = [cell for cell in [*alone.cells, *(cell for cell, _ in alone.late)] if _rebuilds(cell)]
        why = "no attack had the time" if asked else "no attack that reconstructs was asked for"
        return Measured(ALONE, "", f"{ALONE} of the same job: {why}", held=False if asked else None)
    return _untold(tried)


def _untold(tried: Sequence[CellResult]) -> Measured:
    """Return what is said where no attack leaks of clients of one step, or too few were attacked to tell."""
    most, names = max(tried, key=lambda one: one.outcomes.success), ", ".join(one.attack for one in tried)
    back, count = most.outcomes.success, most.victims
    if not back:
        said = f"{names} brings nothing back, so that their failure on what was captured says nothing"
        return Measured(ALONE, names, f"{ALONE} of the same job: {said}", 0, count, held=False)
    few = ", too few to test" if count < FEWEST_TOLD else ", no more than chance may bring"
    said = f"{most.attack} brings {back} of {count} {most.kind.many} back{few} (p = {most.tested_p or 1:.2g})"
    return Measured(ALONE, most.attack, f"{ALONE} of the same job: {said}", back, count, None, most.tested_p)


# How many examples of each class.


def label_counts(clients: Sequence[CapturedClients], split: PublicSplit) -> Measured:
    """Label counts by the bias of the last layer, held against the truth.

    For cross-entropy the gradient of a class's bias is the mean probability of the class, less the share of examples
    that have it. The probability is that of look-alikes, half-way between what the weights were and became.

    Source: A. Wainakh et al., "User-level label leakage from gradients in federated learning", PoPETs 2022.
    """
    what, parts = "label counts", list[_Counts]()
    for captured in clients:
        if not captured.sums:
            optimizer = captured.record.optimizer
            why = f"{captured.record.local_steps} step(s) of {optimizer} send no sum of gradients, which they add up in"
            return Measured(what, "", f"{what} cannot be read: {why}")
        try:
            parts.append(_counts(captured, split))
        except UsageError as problem:
            return Measured(what, "", f"{what} cannot be read: {problem}")
    shares = np.bincount(split.look_alikes.labels.numpy(), minlength=clients[0].record.classes)
    right = sum(np.minimum(one.inferred, one.true).sum() for one in parts)
    count, drawn = sum(int(one.inferred.sum()) for one in parts), _by_chance(parts, shares / shares.sum())
    p_value = float((1 + (drawn >= right - 1e-9).sum()) / (1 + _DRAWS))
    said = (
        f"{what}: {right:.3g} of {count} labels are right, read off the last layer's bias, by chance "
        f"{drawn.mean():.3g} (p = {p_value:.2g}, were labels drawn as look-alikes have them)"
    )
    return Measured(what, "the last layer's bias", said, float(right), count, float(drawn.mean()), p_value)


@dataclass(frozen=True, eq=False)
class _Counts:
    """Examples of each class, inferred and true (V, K), each once; and their images (V, n, C, H, W)."""

    inferred: np.ndarray
    true: np.ndarray
    images: Tensor


def _by_chance(parts: Sequence[_Counts], shares: np.ndarray) -> np.ndarray:
    """Return how many labels are right in each of many draws with these shares.

    Clients who share images share one draw. A client of them with more examples draws some more.
    """
    random, drawn = np.random.default_rng(derive_seed("label counts")), np.zeros(_DRAWS)
    inferred = [own for one in parts for own in one.inferred]
    clusters: dict[int, list[np.ndarray]] = {}
    for own, cluster in zip(inferred, _clusters(parts), strict=True):
        clusters.setdefault(cluster, []).append(own)
    for members in clusters.values():
        labels = np.zeros((_DRAWS, len(shares)), dtype=np.int64)
        had = 0
        for own in sorted(members, key=lambda one: one.sum()):
            labels, had = labels + random.multinomial(int(own.sum()) - had, shares, _DRAWS), int(own.sum())
            drawn += np.minimum(own, labels).sum(1)
    return drawn


def _clusters(parts: Sequence[_Counts]) -> list[int]:
    """The cluster of each client: those who share an image, directly or through others, are one."""
    known: dict[bytes, int] = {}
    held = [
        [known.setdefault(image.numpy().tobytes(), len(known)) for image in images]
        for one in parts for images in one.images
    ]  # fmt: skip
    most = max(map(len, held))
    groups = groups_of(np.array([own + own[:1] * (most - len(own)) for own in held]))
    return list(range(len(held))) if groups is None else groups.tolist()


def _counts(captured: CapturedClients, split: PublicSplit) -> _Counts:
    """Return what the last layer's bias tells; of a client in several rounds the first."""
    assert captured.labels is not None and captured.images is not None
    record, reading = captured.record, update_reading(captured.record, captured.record.defense)
    model = RowModel(record.model, record.shape, record.classes)
    model.take_buffers(captured.buffers)
    _, bias = model.last_linear()
    if bias is None:
        raise UsageError("the last layer has no bias")
    owners = captured.owners
    first = {int(owner): row for row, owner in reversed(list(enumerate(owners)))} if owners is not None else {}
    rows = torch.tensor(sorted(first.values()) or range(captured.clients))
    before, target = captured.before[rows], captured.target[rows]
    after = before + reading.update(target, before) if captured.of_update else before
    probes = split.look_alikes.images[:_PROBES].expand(len(rows), -1, *record.shape).to(before)
    with torch.no_grad():
        answers = [model.logits(at, probes).softmax(-1).mean(1) for at in (before, after.to(before))]
    shares = torch.stack(answers).mean(0) - model.layout.split(target)[bias]
    places = distinct_places(captured)
    labels = captured.labels[rows][:, places]
    inferred = torch.stack([round_to_total(row, len(places)) for row in shares])
    images = captured.images[rows][:, places]
    return _Counts(_per_class(inferred, record.classes), _per_class(labels, record.classes), images)


def _per_class(labels: Tensor, classes: int) -> np.ndarray:
    return torch.nn.functional.one_hot(labels, classes).sum(1).numpy()
