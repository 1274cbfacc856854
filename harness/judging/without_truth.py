"""Captured clients whose truth nobody keeps: an estimate of whether what the attack made is what they hold.

Stand-ins are clients simulated with public data, the captured weights and the declared defense. The attack's success
on them is known, and with it how near to what was sent a successful reconstruction comes; a control is what was sent
with its coordinates shuffled within each tensor, of which nothing can be reconstructed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from harness.attacks import Attack, Reconstruction, reconstructing
from harness.base.errors import UsageError
from harness.base.progress import progress
from harness.base.randomness import generator
from harness.evaluation import Run
from harness.evaluation.attacking import Engine, at_once, in_one_process
from harness.evaluation.reading import known_batches
from harness.evaluation.watching import AttackForecast
from harness.experiment import CellSettings
from harness.judging.explained import beyond_draws
from harness.judging.federation import CapturedClients
from harness.judging.stage import PublicSplit, SimulatedStage
from harness.judging.truths import unexplained
from harness.observation import Observation
from harness.results import CellResult, RunFolder, StoredCell

Estimate = Literal["plausibly reconstructed", "no", "could not tell"]
STAND_INS = 24
# Of successful stand-ins, as many come at most this near or nearer.
_QUANTILE = 0.95
# A share of stand-ins that is brought back now and then, even where a defense holds.
_FEW = 0.05
# Norms of clients who trained alike differ by less.
_TIMES = 2.0
_CHECK = "check learning_rate, loss_scale, the optimizer and its settings, and that values were sent and no codes"


@dataclass(frozen=True)
class Guess:
    """Result of one attack on the captured clients.

    Attributes:
        images: (V, n, C, H, W) and labels (V, n), what it made of each; None, as all figures, where it is impossible.
        left: (V,), how much of the matching loss is left, of texts what they leave unexplained; ``shuffled`` of the
            shuffled, ``usual`` the most that successful stand-ins have left, None where none succeeded.
        estimates: one for each client; ``reason`` says why.
        stand_ins: the cell of the stand-ins.
        group: which clients they are, where they are not all; empty where they are.
    """

    attack: str
    images: Tensor | None
    labels: Tensor | None
    left: np.ndarray | None
    shuffled: np.ndarray | None
    usual: float | None
    estimates: list[Estimate]
    reason: str
    stand_ins: StoredCell
    group: str = ""

    def undecided(self, why: str) -> "Guess":
        """Return the guess where stand-ins may not stand for the clients, so that nothing says "no".

        Args:
            why: the words that are added to its reason.
        """
        estimates: list[Estimate] = ["could not tell" if one == "no" else one for one in self.estimates]
        return replace(self, estimates=estimates, reason=f"{self.reason}; {why}")

    def record(self) -> dict[str, Any]:
        """The guess as plain JSON, without its images."""
        return {
            "attack": self.attack, "estimates": self.estimates, "reason": self.reason, "left": _listed(self.left),
            "left_shuffled": _listed(self.shuffled), "left_usually": self.usual, "labels": _listed(self.labels),
        } | ({"group": self.group} if self.group else {})  # fmt: skip


def _listed(values: np.ndarray | Tensor | None) -> list[Any] | None:
    return None if values is None else values.tolist()


def guess(
    captured: CapturedClients, settings: CellSettings, split: PublicSplit, data_root: Path, folder: RunFolder,
    chunk: int, resume: bool, engine: Engine = in_one_process,
) -> Guess:  # fmt: skip
    """Attacks the captured clients, stand-ins of theirs, and shuffled ones, and compares what is left of the loss."""
    captured = captured.first(settings.victims)
    doubles = stand_ins_of(captured, split)
    own = settings.model_copy(update={"victims": doubles.clients, "dataset": "stand-ins"})
    stage = SimulatedStage(data_root, chunk, doubles, own, split.look_alikes, split.public)
    stored = Run(data_root, folder, chunk, resume, stage=stage, engine=engine).cell(own)
    if stored.cell.not_applicable_reason:
        unknown: list[Estimate] = ["could not tell"] * captured.clients
        return Guess(settings.attack, None, None, None, None, None, unknown, stored.cell.not_applicable_reason, stored)
    scene = stage.set(own)
    attack = reconstructing(settings.build_attack())
    seen = observed(captured, scene.observation, settings).known_to(attack.tier)
    made = _attacked(seen, "what was captured", settings, chunk, engine)
    hidden = observed(replace(captured, target=shuffled(seen)), scene.observation, settings).known_to(attack.tier)
    made_of_shuffled = _attacked(hidden, "what was captured, shuffled", settings, chunk, engine)
    texts = attack.reads == "texts" or (attack.by_vectors and seen.model.vocabulary is not None)
    if texts:
        doubled = scene.observation.known_to(attack.tier)
        again = _attacked(doubled, "stand-ins", own, chunk, engine)
        left, left_of_shuffled = unexplained(seen, made.images), unexplained(hidden, made_of_shuffled.images)
        usual = _usual_of_texts(stored, unexplained(doubled, again.images), captured)
    else:
        left, left_of_shuffled, usual = _of(made, attack), _of(made_of_shuffled, attack), _usual(stored, attack)
    likeness = Likeness.of(captured.target, scene.observation.target)
    knows = _knows_defense(attack, scene.observation)
    bare = own.model_copy(update={"defense": "none", "defense_args": {}})
    protects = own.defense != "none" and not torch.equal(stage.set(bare).observation.target, scene.observation.target)
    estimates, reason = _estimates(
        stored.cell, left, left_of_shuffled, usual, likeness, knows, protects, texts or _is_share(attack)
    )
    if "no" in estimates:
        own = replace(captured, images=made.images.cpu(), labels=made.labels.cpu())
        estimates, reason = _explained_alone(estimates, reason, beyond_draws(own, settings, data_root, chunk))
        estimates, reason = _without_traces(stored.cell, estimates, reason)
    return Guess(settings.attack, made.images, made.labels, left, left_of_shuffled, usual, estimates, reason, stored)


def _attacked(seen: Observation, what: str, settings: CellSettings, chunk: int, engine: Engine) -> Reconstruction:
    attack = reconstructing(settings.build_attack())
    with progress(f"{settings.attack} on {what}", seen.rows, "clients", at_most=True) as bar:
        watched = AttackForecast(None, bar, seen.rows, attack, settings)
        return engine(attack, seen, at_once(attack, seen, chunk, settings), watched)


def with_stand_ins(cells: Sequence[CellSettings]) -> list[CellSettings]:
    """The cells with as many victims as are attacked at once at most, where the captured clients are fewer."""
    return [cell.model_copy(update={"victims": max(cell.victims, STAND_INS)}) for cell in cells]


def stand_ins_of(captured: CapturedClients, split: PublicSplit) -> CapturedClients:
    """Clients with examples of look-alikes and the captured clients' weights in turn; what they send is not set."""
    passes, known = captured.record.passes if captured.of_update else 1, len(split.look_alikes.labels)
    examples = captured.trained_on // passes
    count = min(STAND_INS, known // examples)
    if not count:
        raise UsageError(
            f"--prior leaves {known} look-alikes, fewer than the {examples} examples behind one capture; name data "
            "with more examples"
        )
    random = generator("stand-ins")
    chosen = torch.randperm(known, generator=random)[: count * examples].reshape(count, examples)
    orders = [torch.arange(examples)] * passes
    if captured.record.order != "same":
        orders[1:] = [torch.randperm(examples, generator=random) for _ in orders[1:]]
    chosen = chosen[:, torch.cat(orders)]
    if captured.of_update:
        chosen = chosen[:, captured.record.slots()]
    turns = torch.arange(count) % captured.clients
    return replace(
        captured, before=captured.before[turns], target=captured.target[turns],
        images=split.look_alikes.images[chosen], labels=split.look_alikes.labels[chosen],
        digest=f"{captured.digest} stand-ins", names=(),
    )  # fmt: skip


def observed(captured: CapturedClients, like: Observation, settings: CellSettings) -> Observation:
    """The captured clients as an attack is handed them, with all else as of their stand-ins."""
    keys = tuple((settings.seeds[0], number) for number in range(captured.clients))
    batches = known_batches(like.model, captured.running, settings)
    weights, target, reading = captured.before.to(like.weights), captured.target.to(like.target), like.reading
    trained, layout = like.trained, like.model.layout
    return replace(
        like, weights=weights, target=target, keys=keys, labels=None, correction=None,
        batches=batches and batches.to(target.device, target.dtype),
        certainty=None if like.certainty is None or reading is None else reading.certainty(target, weights),
        trained=None if trained is None else settings.build_defense().trained(weights, target, layout),
    )  # fmt: skip


def shuffled(seen: Observation) -> Tensor:
    """Return what was sent (V, P) with the coordinates of each tensor in another order."""
    parts = seen.target.split(seen.model.layout.sizes, dim=1)
    orders = [
        torch.randperm(part.shape[1], generator=generator("shuffled", number)) for number, part in enumerate(parts)
    ]
    return torch.cat([part[:, order.to(part.device)] for part, order in zip(parts, orders, strict=True)], 1)


def _left(loss: np.ndarray, first: np.ndarray, attack: Attack) -> np.ndarray:
    """Return how far what was made is from what was sent, as a share of the first loss.

    For attackers who know the noise it is a log-likelihood instead. Where no loss is descended it is the only loss.
    """
    return loss / np.maximum(first, 1e-30) if _is_share(attack) else loss


def _is_share(attack: Attack) -> bool:
    return attack.tier != "informed" and not attack.closed_form


def _of(made: Reconstruction, attack: Attack) -> np.ndarray:
    return _left(made.loss.double().cpu().numpy(), made.initial_loss.double().cpu().numpy(), attack)


def _usual(stored: StoredCell, attack: Attack) -> float | None:
    """Return what nearly all stand-ins that were brought back have left at most; None where none was."""
    known = [
        (victim.loss, victim.initial_loss) for victim in stored.victims
        if victim.outcome == "success" and victim.loss is not None and victim.initial_loss is not None
    ]  # fmt: skip
    if not known:
        return None
    loss, first = np.array(known).T
    return float(np.quantile(_left(loss, first, attack), _QUANTILE))


def _usual_of_texts(stored: StoredCell, left: np.ndarray, captured: CapturedClients) -> float | None:
    """Return what nearly all stand-ins whose texts all came back leave unexplained at most; None where there is none.

    It is at least what rounding of what was captured may leave.
    """
    failed = {victim.victim for victim in stored.victims if victim.outcome != "success"}
    back = [share for number, share in enumerate(left) if number not in failed]
    rounding = captured.grain * captured.target.shape[1] ** 0.5 / captured.target.double().norm(dim=1)
    return max(float(np.quantile(back, _QUANTILE)), float(rounding.max())) if back else None


@dataclass(frozen=True)
class Likeness:
    """Comparison of what was sent with what stand-ins send: ratios of norms, and cosines with the stand-ins' mean.

    Clients who trained otherwise than they declare differ here, be it in scale, in sign or coordinate by coordinate.
    """

    norms: np.ndarray
    cosines: np.ndarray

    @classmethod
    def of(cls, sent: Tensor, usual: Tensor) -> "Likeness":
        """Compare V clients' vectors (V, P) with those of stand-ins (S, P)."""
        ours, theirs = sent.double().cpu(), usual.double().cpu()
        norms = ours.norm(dim=1) / theirs.norm(dim=1).median().clamp_min(1e-30)
        cosines = torch.nn.functional.cosine_similarity(ours, theirs.mean(0)[None])
        return cls(norms.numpy(), cosines.numpy())

    @property
    def alike(self) -> bool:
        """Return whether all norms are such as stand-ins have, within a factor of two."""
        return bool(((self.norms > 1 / _TIMES) & (self.norms < _TIMES)).all())

    def __str__(self) -> str:
        """Return the comparison as a part of a sentence."""
        low, high = self.norms.min(), self.norms.max()
        return (
            f"norms are {low:.3g} to {high:.3g} times the stand-ins' median, cosines with their mean "
            f"{self.cosines.min():.2g} to {self.cosines.max():.2g}"
        )


def _knows_defense(attack: Attack, seen: Observation) -> bool:
    """Return whether an attack uses what is known of the defense, so that its failure says something of it."""
    if seen.coding is not None and seen.coding.bounds(seen.target[:1], seen.model.layout) is not None:
        return attack.reads_coding
    return attack.tier == "informed"


def _estimates(
    cell: CellResult, left: np.ndarray, shuffled: np.ndarray, usual: float | None, likeness: Likeness, knows: bool,
    protects: bool, share: bool = True,
) -> tuple[list[Estimate], str]:  # fmt: skip
    found, count = cell.outcomes.success, cell.victims
    under = "without a defense" if cell.defense == "none" else "under the declared defense"
    under = under if protects or cell.defense == "none" else f"{under}, of which nothing is on what clients send,"
    told = f"of {count} stand-ins {under} it brings {found} back"
    if failed := next((check for check in cell.controls if check.kind == "positive" and not check.held), None):
        return _all(left, "could not tell"), failed.detail or f"{failed.name} failed"
    if usual is None or found < _FEW * count:
        if not protects:  # nothing but that this attack cannot read them
            return _all(left, "could not tell"), f"{told}: it does not read such clients; use --attack auto, or another"
        if not knows:
            told += ", and it uses nothing that is known of the defense: attackers who do may read all"
            return _all(left, "could not tell"), f"{told}; use --attack auto"
        if likeness.alike:
            return _all(left, "no"), told
        return _all(left, "could not tell"), f"{told}, but they are other clients: {likeness}; {_CHECK}"
    if found < count / 2:
        return _all(left, "could not tell"), told
    if usual >= shuffled.min():
        return _all(left, "could not tell"), f"{told}, but what is shuffled is matched as well"
    near = left <= _between(usual, float(shuffled.min()))
    much = f"{usual:.3g} of the loss left" if share else f"a loss of {usual:.3g}"
    told += f"; they have {much} at most, what is shuffled {shuffled.min():.3g} at least"
    if not near.all():
        # The attack works on who trains as declared, so that these clients did not, or their data are of another kind.
        told += f", what was sent up to {left.max():.3g}: it is not what these settings send. {likeness}; {_CHECK}"
    return ["plausibly reconstructed" if one else "could not tell" for one in near], told


def _without_traces(cell: CellResult, estimates: Sequence[Estimate], reason: str) -> tuple[list[Estimate], str]:
    """The estimates with "no" only where stand-ins under the same defense leave no traces of their examples."""
    if cell.verdict != "leaks" or "no" not in estimates:
        return list(estimates), reason
    made: list[Estimate] = ["could not tell" if one == "no" else one for one in estimates]
    return made, f"{reason}, but stand-ins leave traces ({cell.verdict_reason})"


def _explained_alone(estimates: Sequence[Estimate], reason: str, beyond: np.ndarray) -> tuple[list[Estimate], str]:
    """The estimates with "no" only of clients who are seen to send what they declare.

    A clip makes norms alike, and noise of which little is there hides nothing: of who trained otherwise, an attack that
    is told so may read all. So what was made has to explain what was sent, up to what the declared defense draws.

    Args:
        beyond: of each client, the distance of what was sent, in units of the largest that draws have.
    """
    unseen = ~(beyond <= 1)  # also where a distance is no number
    if not unseen.any():
        return list(estimates), f"{reason}, and what it makes explains what was sent within the declared noise"
    told = (
        f"{reason}, but what it makes does not explain what {int(unseen.sum())} of {len(beyond)} clients sent: it is "
        f"off by up to {beyond.max():.3g} times what the declared defense draws at most. They may have trained "
        f"otherwise, and what another attack reads is not known; {_CHECK}; or use --attack auto"
    )
    pairs = zip(estimates, unseen, strict=True)
    return ["could not tell" if one == "no" and far else one for one, far in pairs], told


def _between(usual: float, shuffled: float) -> float:
    """Half-way from success to failure: of shares of a loss, which differ by orders of magnitude, by their ratio."""
    return (usual * shuffled) ** 0.5 if usual > 0 else (usual + shuffled) / 2


def _all(like: np.ndarray, estimate: Estimate) -> list[Estimate]:
    return [estimate] * len(like)
