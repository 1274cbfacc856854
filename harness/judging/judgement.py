"""All findings about captured clients: checks of the declared defense, and what attacks make of what was sent."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from harness.attacks import Identifier
from harness.base.errors import UsageError
from harness.base.local_optimizer import LocalOptimizer
from harness.base.progress import counted
from harness.datasets.public import NONE
from harness.evaluation import Run, evaluate
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.played_round import Key
from harness.evaluation.reading import known_batches
from harness.evaluation.report_cell import described
from harness.evaluation.scores import Scored
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.judging.beside import WHO, Measured, measured
from harness.judging.checks import BUFFERS, SURE, buffers, checks_of, fits_loss
from harness.judging.declared import Group, groups_of
from harness.judging.evidence import ALARMS, LEVEL, Check, Evidence, among, bonferroni, pooled
from harness.judging.explained import NAME as EXPLAINED
from harness.judging.explained import TOGETHER, explained, explained_in_order
from harness.judging.federation import CapturedClients, update_reading
from harness.judging.noise_checks import (
    ANEW,
    BOUND,
    ENOUGH,
    FACTS,
    GIVE_SIZE,
    GIVE_STEP,
    anew_among,
    batch_levels,
    fits_facts,
    levels,
)
from harness.judging.plan import Line
from harness.judging.stage import CapturedStage, GroupsStage, PublicSplit, SimulatedStage, public_split
from harness.judging.without_truth import Guess, guess
from harness.models import RowModel
from harness.models.batch_norm import UNCOVERED, Buffers
from harness.privacy import what_holds
from harness.results import CellResult, ResultDocument, RunFolder, Statement, write_atomic
from harness.scoring.harms import is_accurate
from harness.scoring.summarise import summarise
from harness.scoring.verdict import OfExamples, of_examples

# Gradients that were kept behind what a step does to them first.

# Of a clip, what rounding leaves of the norm that it makes.
_ROUNDED = 1e-3


def as_taken(clients: Sequence[CapturedClients], data_root: Path) -> list[CapturedClients]:
    """Captured gradients without what the declared optimizer adds to one before it steps, as far as that is in them.

    ``clip_grad_norm_`` changes gradients where they stand, and a penalty in the loss is weight decay. Gradients of
    which the largest is just as large as the declared clip are those behind it, and read as steps of SGD that clips;
    weight decay is in them where they fit what is declared, or the truth, with it alone.
    """
    return [_as_taken(one, data_root) for one in clients]


def _as_taken(captured: CapturedClients, data_root: Path) -> CapturedClients:
    record, optimizer = captured.record, captured.record.local_optimizer
    if captured.of_update or optimizer is None or (record.defense is not None and record.defense.name != "none"):
        return captured
    decays = optimizer.weight_decay > 0 or any(decay for _, _, decay in optimizer.groups)
    both = (False, True) if decays and optimizer.name != "adamw" else (False,)
    ways = [_behind(captured, optimizer, decayed) for decayed in both]
    fitting = ways[0] if len(ways) == 1 else next((one for one in ways if _fits(one[0], data_root)), ways[0])
    if fitting[1]:
        sys.stderr.write(f"harness: gradients are taken to be those behind {' and '.join(fitting[1])}\n")
    return fitting[0]


def _behind(captured: CapturedClients, optimizer: LocalOptimizer, decayed: bool) -> tuple[CapturedClients, list[str]]:
    """Gradients as steps of an optimizer that decays, or does not, and clips where it seems that its clip acted; and
    the words for both."""
    record, bound = captured.record, optimizer.clip_grad_norm
    kept: dict[str, Any] = {name: getattr(optimizer, name) for name in ("loss_scale", "accumulate", "accumulate_sum")}
    if decayed:
        groups = tuple((count, 1.0, decay) for count, _, decay in optimizer.groups)
        kept |= {"weight_decay": optimizer.weight_decay, "groups": groups}

    def stepped(clip: float | None) -> CapturedClients:
        step = LocalOptimizer(clip_grad_norm=clip, **kept)
        own = record.model_copy(
            update={
                "optimizer": step.text, "local_steps": 1, "epochs": None, "examples": None, "schedule": None,
                "clip_grad_norm": clip, "groups": (), "fedprox": 0.0, "state": "new",
            }
        )  # fmt: skip
        reading, sent = update_reading(own, None), captured.target.double() * -record.rate * optimizer.gain
        target = reading.gradient(sent, captured.before.double())
        grain = captured.grain * record.rate * optimizer.gain / reading.rate
        return replace(captured, record=own, of_update=True, target=target.float(), grain=grain)

    made = stepped(None) if decayed else captured
    told = ["weight decay"] if decayed else []
    most = float(made.target.norm(dim=1).max()) * optimizer.gain
    if bound is None or abs(most / bound - 1) > _ROUNDED:
        return made, told
    return stepped(bound), [f"clip_grad_norm {bound:g}", *told]


def _fits(captured: CapturedClients, data_root: Path) -> bool:
    """Return whether updates alone contradict nothing that is declared, and the truth explains them where it is at
    hand."""
    (group,) = groups_of([captured], "gradients", ["cpl"], NONE, "cpu")
    found = checks_without_truth(group)
    if captured.images is not None:
        found.append(explained(captured, group.cell, data_root))
    return all(check.outcome == "holds" for check in found)


# Captured clients whose truth is at hand: everything that `evaluate` says of simulated ones.


def judge_with_truth(
    groups: Sequence[Group], checks: Sequence[Check], split: PublicSplit | None, data_root: Path, folder: RunFolder,
    chunk: int, resume: bool, draw: Callable[[Scored, CellResult], None] | None = None,
    engine: Engine = in_one_process, beside: Sequence[Group] = (),
) -> tuple[ResultDocument, list[OfExamples], list[Measured]]:  # fmt: skip
    """Attacks what was captured and scores it against the truth, with controls on the same clients simulated.

    Args:
        groups: clients with their truth. checks: of what they sent.
        split: look-alikes and public data; None where there are none, and then no verdict.
        engine: what attacks.
        beside: see :func:`harness.judging.beside.companions`.

    Raises:
        UsageError: every cell is impossible; the message is that of the first.
    """
    cells = [cell for group in groups for cell in group.cells]
    public = split.public if split and any(cell.prior != NONE for cell in cells) else None
    stages = {
        group.cell.dataset: CapturedStage(
            data_root,
            chunk,
            group.captured,
            group.cell,
            split and split.look_alikes,
            public,
            group.late,
            stated([group], checks),
        )
        for group in [*beside, *groups]
    }
    stage = GroupsStage(data_root, chunk, stages)
    run = Run(data_root, folder, chunk, resume, draw, stage=stage, engine=engine)
    late = [cell for group in groups for cell, _ in group.late]
    for cell in late:
        run.cell(cell)  # says why there is none, before anybody reckons with the time that it would take
    # Whether members are told decides over a place as much where nobody asked for it by name.
    tests = [cell for group in beside if group.name == WHO for cell in group.cells]
    document = evaluate([*cells, *tests, *late], run)
    return document, _of_examples(groups, run), measured(groups, beside, split, run) if split and beside else []


def _of_examples(groups: Sequence[Group], run: Run) -> list[OfExamples]:
    """Return what each attack brought back of all groups' clients, with labels as they are inferred."""
    found: dict[str, dict[object, dict[int, bool]]] = {}
    for group in groups:
        owners = group.captured.owners
        for cell in group.cells:
            for record in run.cell(cell).victims:
                if record.rmse is None or record.dataset_index is None:
                    continue
                owner = record.victim if owners is None else int(owners[record.victim])
                # A client's name is its own in all groups.
                own = group.captured.names[record.victim] or (cell.dataset, owner)
                held = found.setdefault(cell.attack, {}).setdefault(own, {})
                place = record.dataset_index
                held[place] = held.get(place, False) or is_accurate(record)
    return [
        of_examples(attack, [np.array(list(held.values())) for held in clients.values()])
        for attack, clients in found.items()
    ]


# What running statistics that came back give away of clients' batches, whatever defends the weights beside them.


@dataclass(frozen=True)
class GivenAway:
    """Mean and variance of a client's batch, channel by channel.

    Attributes:
        layers: how many layers' inputs they are of; ``first`` is the nearest to the images.
        means, variances: there, (V, channels); of several local steps, their mean, weighted as momentum does.
        error: root mean square, over channels and clients, of what they are off the truth's, relative to that of the
            truth's; the larger of means and variances. None where no truth is at hand.
        apart: the same of the differences of clients from their mean; None of a single client.
    """

    layers: int
    first: str
    means: list[list[float]]
    variances: list[list[float]]
    error: float | None
    apart: float | None

    def __str__(self) -> str:
        """Return what is given away, as a sentence."""
        more = f", and of {self.layers - 1} more layers" if self.layers > 1 else ""
        said = f"each batch's mean and variance of {len(self.means[0])} channels at {self.first}{more}"
        truth = "" if self.error is None else f"; off the truth's by {self.error:.2g} of their size"
        apart = "" if self.apart is None else f"; clients differ by {self.apart:.2g}"
        return f"running statistics that came back give away {said}{truth}{apart}"


def given_away(captured: CapturedClients, settings: CellSettings, data_root: Path) -> GivenAway | None:
    """Return what came back beside the weights; None where nothing did.

    Args:
        settings: of the declared defense.
        data_root: where datasets lie.
    """
    if not captured.running:
        return None
    model = RowModel(settings.model, captured.record.shape, captured.record.classes)
    model.take_buffers(captured.buffers)
    found = _statistics(model, captured.running, settings)
    first = next(name for name in model.places if name in found)
    mean, variance = found[first]
    error = None
    if captured.images is not None:
        own = _statistics(model, _simulated(captured, settings, data_root), settings)[first]
        error = max(_share(made - true, true) for made, true in zip(found[first], own, strict=True))
    apart = max(_share(part - part.mean(0), part) for part in found[first]) if captured.clients > 1 else None
    return GivenAway(len(found), first, mean.tolist(), variance.tolist(), error, apart)


def by_truth(check: Check, group: Group, data_root: Path) -> Check:
    """Return the check of what came back beside the weights, by what the truth makes of it without noise; any other
    check as it is.

    Whatever share of that a clip left, noise is beside it.
    """
    captured, cell, evidence = group.captured, group.cell, Evidence(group.captured, group.cell)
    known = captured.images is not None and captured.running and evidence.level
    if check.name != BUFFERS or check.outcome == "violated" or not known:
        return check
    ours, own = (
        torch.cat([(one[name].double() - captured.buffers[name]).flatten(1) for name in captured.running], 1)
        for one in (captured.running, _simulated(captured, cell, data_root))
    )
    share = (ours * own).sum(1, keepdim=True) / own.square().sum(1, keepdim=True).clamp_min(1e-30)
    unit = cell.update_reading.rate * cell.local_steps
    level, freedom = (evidence.level or 0.0) * unit, own.shape[1] - 1
    norms = (ours - share * own).norm(dim=1).numpy()
    after = torch.cat([values.flatten(1) for values in captured.running.values()], 1)
    coarse = torch.finfo(getattr(torch, captured.record.dtype or "float32"))
    rounding = coarse.eps * after.norm(dim=1).double().numpy()
    weaker = bonferroni(chi2.cdf(((norms + rounding) / level) ** 2, freedom))
    first = f"{next(iter(captured.running))}{' and others' if len(captured.running) > 1 else ''}"
    if weaker < LEVEL:
        said = f"{first} came back as the truth gives them, without noise of deviation {level:.3g}"
        return Check(
            BUFFERS, "violated", f"{said}: they tell each batch's mean and variance; keep them at the client", weaker
        )
    stronger = bonferroni(chi2.sf((np.clip(norms - rounding, 0, None) / level) ** 2, freedom))
    if min(weaker, stronger) < SURE:
        return check
    said = f"they came back with noise of deviation {float(np.sqrt(np.square(norms).mean() / freedom)):.3g} on what the"
    return Check(BUFFERS, "holds", f"{said} truth gives, declared is {level:.3g}", weaker)


def _statistics(model: RowModel, running: Buffers, settings: CellSettings) -> dict[str, tuple[Tensor, Tensor]]:
    batches = known_batches(model, running, settings)
    assert batches is not None and batches.statistics is not None
    return dict(batches.statistics)


def _simulated(captured: CapturedClients, settings: CellSettings, data_root: Path) -> Buffers:
    """Running statistics of the same clients, their local steps taken on the truth."""
    quiet = settings.model_copy(update={"noise_scale": 0.0, "prior": NONE, "suite": None})
    stage = SimulatedStage(data_root, captured.clients, captured, quiet, None, None)
    model = RowModel(settings.model, captured.record.shape, captured.record.classes)
    keys: list[Key] = [(0, client) for client in range(captured.clients)]
    truth, weights = stage.choose(stage.dataset(""), captured.clients, quiet), stage.start(model, quiet, keys)
    return stage.look(model, weights, truth, keys, quiet).running


def _share(values: Tensor, of: Tensor) -> float:
    """Root mean square relative to that of another tensor."""
    return float(values.square().mean().sqrt() / torch.clamp(of.square().mean().sqrt(), min=1e-30))


@dataclass(frozen=True)
class Work:
    """Settings by which captured clients are judged.

    Attributes:
        data_root: where datasets are.
        folder: where results go.
        chunk: most clients attacked together.
        resume: use what an earlier run left in the folder.
        budget, plan: seconds that judging may take, None where nobody says; and what of the attacks fits.
        draw_cell, draw_guess: draw what an attack made, with the truth beside it and without.
        engine: what attacks.
    """

    data_root: Path
    folder: RunFolder
    chunk: int
    resume: bool
    budget: float | None = None
    plan: Sequence[Line] = ()
    draw_cell: Callable[[Scored, CellResult], None] | None = None
    draw_guess: Callable[[Guess], None] | None = None
    engine: Engine = in_one_process


@dataclass(frozen=True)
class Judgement:
    """Findings about captured clients.

    Attributes:
        groups: of clients whose batches are of the same sizes, with what was asked for.
        checks: of the declared defense, and of the truth where it is at hand.
        document: with the truth, what ``evaluate`` says of simulated clients; None without it.
        guesses: without the truth, one per attack and group.
        split: look-alikes and public data; None where there are none, and then no verdict.
        beside: of each group, what running statistics give away; None where they do not travel.
        budget, plan: as in :class:`Work`.
        examples: with the truth, what each attack that reconstructs brought back of distinct examples.
        measured: with the truth, of clients of several steps or examples, what was measured beside.
    """

    groups: Sequence[Group]
    checks: list[Check]
    document: ResultDocument | None
    guesses: Sequence[Guess]
    split: PublicSplit | None
    beside: Sequence[GivenAway | None]
    budget: float | None = None
    plan: Sequence[Line] = ()
    examples: Sequence[OfExamples] = ()
    measured: Sequence[Measured] = ()

    @property
    def doubt(self) -> str | None:
        """Reason why no verdict and no estimate here is worth anything; None where they may be.

        Controls and stand-ins are simulated as it is declared: where that is violated they say nothing of who sent
        something else.
        """
        return _violated(self.checks)

    @property
    def stated(self) -> list[Statement]:
        """Return what the declared defense states of all clients."""
        return stated(self.groups, self.checks)

    @property
    def valid(self) -> bool:
        """Return whether its verdicts may be read."""
        return self.doubt is None and (self.document is None or self.document.valid)

    @property
    def _clients(self) -> set[object]:
        """Return who sent something; each capture without a name is of a client of its own."""
        return {
            name or (number, place)
            for number, group in enumerate(self.groups)
            for place, name in enumerate(group.captured.names or [None] * group.captured.clients)
        }

    @property
    def of_all(self) -> str | None:
        """Over all groups, of how many captures, or clients of several rounds, each attack brings an image back, and on
        how many it did not run; None of a single group."""
        if self.document is None or len(self.groups) == 1:
            return None
        counts, many = dict[str, list[int]](), self.groups[0].captured.record.kind.many
        for cell in self.document.cells:
            if cell.role == "cell" and cell.identified is None:
                found = counts.setdefault(cell.attack, [0, 0, 0])
                ran = cell.not_applicable_reason is None
                own = (cell.outcomes.success, cell.victims, 0) if ran else (0, 0, cell.victims)
                found[:] = [so_far + more for so_far, more in zip(found, own, strict=True)]
        said = [
            f"{attack} brings {many} of {found} of {count} back" + (f" and did not run on {more}" if more else "")
            for attack, (found, count, more) in counts.items() if count
        ]  # fmt: skip
        whom = "clients" if any(group.captured.later for group in self.groups) else "captures"
        return f"all {whom} together: {', '.join(said)}" if said else None

    def record(self) -> dict[str, Any]:
        """The judgement as plain JSON."""
        first, cell = self.groups[0].captured, self.groups[0].cell
        document = {
            "valid": self.valid, "prior": cell.prior, "update_model": cell.update_model,
            "captures": sum(one.captured.clients for group in self.groups for _, one in _rounds_of(group)),
            "clients": len(self._clients), "examples_each": sorted({group.captured.distinct for group in self.groups}),
            "images_each": first.trained_on,
            "record": first.record.model_dump(mode="json"), "checks": [asdict(check) for check in self.checks],
            "estimates": [made.record() for made in self.guesses],
            "privacy": [asdict(one) for one in self.stated],
            "results": self.document and json.loads(self.document.model_dump_json()),
        }  # fmt: skip
        if len(self.groups) > 1:
            document["groups"] = [
                {
                    "captures": sum(seen.captured.clients for _, seen in _rounds_of(one)),
                    "images_each": one.captured.trained_on,
                    "batches": one.sizes,
                }
                for one in self.groups
            ]
        if self.examples:
            document["examples"] = [asdict(one) | {"said": one.said} for one in self.examples]
        if self.measured:
            document["measured"] = [one.record() for one in self.measured]
        if self.budget is not None:
            document["budget"] = {"seconds": self.budget, "attacks": [line.record() for line in self.plan]}
        known = [asdict(one) for one in self.beside if one]
        return document | ({"running_statistics": known if len(self.groups) > 1 else known[0]} if known else {})


def chosen_split(clients: Sequence[CapturedClients], public: str, data_root: Path) -> PublicSplit | None:
    """Look-alikes and public data; None where ``public`` is ``none``.

    Raises:
        UsageError: they do not fit the clients; or there are none, and no truth either.
    """
    if public != NONE:
        return public_split(clients, public, data_root)
    if clients[0].images is None:
        raise UsageError(
            "without the truth it takes data of the same kind, to see what a success looks like; add --prior NAME or "
            "--prior FILE.npz, or the truth as truth.npz"
        )
    return None


def judge_captured(groups: Sequence[Group], split: PublicSplit | None, work: Work) -> Judgement:
    """Checks what clients sent against what they declare, and attacks it.

    Args:
        groups: of captured clients, with cells of the declared defense, one for each attack; and those beside them.
        split: look-alikes and public data; None where there are none, and then the truth is at hand.

    Raises:
        UsageError: every attack is impossible.
    """
    companions, groups = [one for one in groups if one.name], [one for one in groups if not one.name]
    checks, found = checked(groups, work.data_root)
    groups = [without_covered(group, made) for group, made in zip(groups, found, strict=True)]
    beside = [given_away(group.captured, group.cell, work.data_root) for group in groups]
    if groups[0].captured.images is None:
        assert split is not None
        _tell_facts(checks)
        named = [group.sizes if len(groups) > 1 else "" for group in groups]
        guesses = [
            made
            for group, own, words in zip(groups, found, named, strict=True)
            for made in _guessed(group, own, words, split, work)
        ]
        return Judgement(groups, checks, None, guesses, split, beside, work.budget, work.plan)
    rounds = [(words, one.captured, one.cell) for group in groups for words, one in _rounds_of(group)]
    each = explained_in_order(rounds, work.data_root, work.chunk)
    if any(group.captured.later and not group.cell.draws for group in groups):
        require_one_batch(each, any(group.captured.recovered for group in groups))
    _tell_facts(checks)
    checks = [*checks, *pooled([(words, [check]) for words, check in each])]
    document, examples, lines = judge_with_truth(
        groups, checks, split, work.data_root, work.folder, work.chunk, work.resume, work.draw_cell, work.engine,
        companions,
    )  # fmt: skip
    if not document.valid and (document.valid_reason or "").startswith("negative control swap"):
        sys.stderr.write(f"harness: {_UNLIKE_PRIOR}\n")
    if why := next(filter(None, [*map(_not_known, groups), _unsure([check for _, check in each])]), None):
        document = _undecided(document, why, work.folder)
    if doubt := _violated(checks):
        document = _withdrawn(document, doubt, work.folder)
    return Judgement(groups, checks, document, [], split, beside, work.budget, work.plan, examples, lines)


_UNLIKE_PRIOR = (
    "another client's examples stand out among look-alikes as a client's own do, as where clients hold other data than "
    "--prior (one writer, scanner or site): name data of the same source that no client holds"
)


def _tell_facts(checks: Sequence[Check]) -> None:
    """Says before the attacks, which may take hours, that what was sent does not fit what is declared."""
    for fits in checks:
        if fits.name == FACTS and fits.outcome == "violated":
            sys.stderr.write(f"harness: {fits.name}: {fits.outcome}, {fits.detail}\n")


def _rounds_of(group: Group) -> list[tuple[str, Group]]:
    """Return what was captured in each round, as a group of its own with words for it."""
    captured, rounds = group.captured, group.captured.later
    if not rounds:
        return [(group.sizes, group)]
    if not captured.recovered:
        rounds = (replace(captured, later=()), *rounds)
    return [
        (f"{group.sizes}, round {number + 1} of {len(rounds)}", _alone(group, one)) for number, one in enumerate(rounds)
    ]


def require_one_batch(each: Sequence[tuple[str, Check]], behind_sums: bool) -> None:
    """Rounds that are declared to be of the same examples are: what explains one of them explains all.

    Args:
        each: words for each round, and its check. behind_sums: whether sums alone are seen, where to look at clients
            by themselves is no way out.

    Raises:
        UsageError: updates of one round contradict it.
    """
    shared = [among(check, words, len(each)) for words, check in each]
    odd = next((check.detail for check in shared if check.outcome == "violated"), None)
    if odd is None or all(check.outcome != "holds" for check in shared):
        return
    if odd.startswith(f"{TOGETHER}: "):
        raise UsageError(f"rounds do not follow each other: {odd}, or leave --rounds-seen out")
    other = "" if behind_sums else ", or use --same-data client if clients trained on other examples there"
    raise UsageError(
        f"the truth explains other rounds and not {odd}; correct its truth or its number, or leave that round out"
        f"{other}"
    )


def _alone(group: Group, captured: CapturedClients) -> Group:
    """Clients in one round, with all that each of them sent."""
    sent = {"tap": Tap.SENT} if group.captured.recovered else {}
    cells = [
        cell.in_round(0).model_copy(update=sent | {"victims": captured.clients}) for cell in [*group.cells, group.cell]
    ]
    return replace(group, captured=captured, cells=cells[:-1], declared=cells[-1], late=())


def checked(groups: Sequence[Group], data_root: Path) -> tuple[list[Check], list[list[Check]]]:
    """Return the checks of all groups and rounds together, and those of each group's first round; where the truth tells
    of what came back beside the weights, by it, in every round."""
    each = [_rounds_of(group) for group in groups]
    beside = [[(words, _beside_weights(one, data_root)) for words, one in rounds] for rounds in each]
    found = [
        _replaced(checks_without_truth(rounds[0][1]), pooled(own)) for rounds, own in zip(each, beside, strict=True)
    ]
    return _replaced(checks_of_groups(list(chain(*each))), pooled(list(chain(*beside)))), found


def _beside_weights(group: Group, data_root: Path) -> list[Check]:
    check = buffers(Evidence(group.captured, group.cell)) if group.captured.record.defense else None
    return [by_truth(check, group, data_root)] if check else []


def _replaced(checks: Sequence[Check], others: Sequence[Check]) -> list[Check]:
    return [next((other for other in others if other.name == one.name), one) for one in checks]


def checks_of_groups(groups: Sequence[tuple[str, Group]]) -> list[Check]:
    """Return all checks, by updates alone, of groups of clients or rounds and of two groups together.

    Args:
        groups: each with words for it.
    """
    checks = pooled([(words, checks_without_truth(one)) for words, one in groups])
    if len(groups) == 1 or not groups[0][1].captured.record.defense:
        return checks
    evidence = [(words, Evidence(one.captured, one.cell)) for words, one in groups]
    least = [(words, replace(one, times=min((1.0, *levels(one))))) for words, one in evidence]
    shared = anew_among(least)
    return [shared if shared and check.name == ANEW and check.outcome not in ALARMS else check for check in checks]


def checks_without_truth(group: Group) -> list[Check]:
    """Return all checks, by updates alone, of what is declared."""
    captured, cell = group.captured, group.cell
    # What Adam sends is no sum of gradients, whose ranks are known.
    evidence = Evidence(captured, cell)
    fits = [fits_facts(evidence) if captured.sums else None, fits_loss(evidence)]
    return [*(one for one in fits if one), *(checks_of(captured, cell) if captured.record.defense else [])]


def _violated(checks: Sequence[Check]) -> str | None:
    """Return the first violated check and what was seen; None where none is."""
    return next((f"{one.name}: violated, {one.detail}" for one in checks if one.outcome == "violated"), None)


def stated(groups: Sequence[Group], checks: Sequence[Check]) -> list[Statement]:
    """Return what the declared defense states of all clients: of each view, what it states of those it protects least.

    Of clients that send something else than they declare nothing is proven. Where neither the updates nor the truth
    show the clip or the noise, the notes say that they are only declared.
    """
    bare = (f"{one.name}: cannot tell" for one in checks if (one.name, one.outcome) == (BUFFERS, "cannot tell"))
    uncovered = next(bare, UNCOVERED)
    each = zip(*(_stated(group, uncovered) for group in groups), strict=True)
    worst = [max(one, key=lambda of: math.inf if of.epsilon is None else of.epsilon) for one in each]
    made = what_holds(worst, uncovered=_violated(checks))
    found = {check.name: check.outcome for check in checks}
    unseen = [what for name, what in ((BOUND, "clip"), (ENOUGH, "noise")) if found.get(name) == "cannot tell"]
    if not unseen or found.get(EXPLAINED) == "holds":
        return made
    note = f"rests on the declared {' and '.join(unseen)}: that it is there was not seen in what clients sent"
    return [one if one.guarantee == "none" else replace(one, notes=f"{note}; {one.notes}") for one in made]


def _stated(group: Group, uncovered: str) -> list[Statement]:
    """Return what the declared defense states of clients that send what was captured, over the rounds of its record.

    Of running statistics beside it that may be without noise, nothing is covered, for the reason ``uncovered``.
    Poisson batches are those that the record has an expected size of; of others, a pass has each example once.
    """
    cell, captured, record = group.cell, group.captured, group.captured.record
    counts = sum(one.shape[1] == 1 for one in captured.counted.values())
    facts = described(cell, captured.layout)
    scalars, counted = len(captured.layout.scalars) + counts, record.clients_per_round is not None
    linear = facts.linear and record.state == "new"  # of what a client carried over, others' new noise hides nothing
    facts = replace(facts, scalars=scalars, counted=counted, linear=linear)
    if record.expected_batch_size and record.examples:
        rate = min(1.0, record.expected_batch_size / record.examples)
        facts = replace(facts, example_sampler="poisson", rate=rate)
    elif record.epochs and not record.expected_batch_size:
        facts = replace(facts, rate=min(1.0, record.epochs / cell.local_steps))
    return what_holds(cell.build_defense().statements(facts), uncovered=uncovered if captured.running else None)


def without_covered(group: Group, checks: Sequence[Check]) -> Group:
    """Running statistics with noise on them tell nobody a batch's mean and variance."""
    covered = any(check.name == BUFFERS and check.outcome == "holds" for check in checks)
    if not (covered and group.captured.running):
        return group
    cells, declared = list(group.cells), group.cell
    hidden = [cell.model_copy(update={"batch_norm": "hidden"}) for cell in [*cells, declared]]
    late = [(cell.model_copy(update={"batch_norm": "hidden"}), reason) for cell, reason in group.late]
    return replace(
        group, captured=replace(group.captured, running={}), cells=hidden[:-1], declared=hidden[-1], late=late
    )


def _not_known(group: Group) -> str | None:
    """Return why nothing can be called resilient, whatever the attacks found; None where it can."""
    name = group.captured.not_known
    return name and f"defense {name!r} is declared, not known, so that no attack knew it; declare what it does"


def _remembered(group: Group) -> str | None:
    """Return why stand-ins, who begin anew, are not like clients who remember earlier rounds; None where they are."""
    if not max(group.captured.at, default=0) or not group.cell.build_defense().clients_remember(group.cell.tap):
        return None
    return f"clients of {group.cell.defense!r} remember earlier rounds and stand-ins do not; capture the first round"


def _unsure(checks: Sequence[Check]) -> str | None:
    """Return why nothing can be called resilient, where the truth could not be checked; None where it could.

    What was sent may then be of another client than the one that controls play.
    """
    return next((f"the truth could not be checked: {one.detail}" for one in checks if one.undecided), None)


def _undecided(document: ResultDocument, why: str, folder: RunFolder) -> ResultDocument:
    """The results with nothing called resilient, in the folder too."""
    said = {"verdict": "inconclusive", "verdict_reason": why, "warnings": [why]}
    cells = [cell.model_copy(update=said if cell.verdict == "resilient" else {}) for cell in document.cells]
    rows = [
        row.model_copy(
            update={"verdict_reason": why if row.verdict != was.verdict and not row.identifies else row.verdict_reason}
        )
        for row, was in zip(summarise(cells), document.summary, strict=True)
    ]
    told = document.model_copy(update={"cells": cells, "summary": rows})
    write_atomic(folder.path / "results.json", told.model_dump_json(indent=1).encode())
    return told


def _withdrawn(document: ResultDocument, doubt: str, folder: RunFolder) -> ResultDocument:
    """The results without their validity, in the folder too: whoever reads them there may not see the checks."""
    withdrawn = document.model_copy(update={"valid": False, "valid_reason": doubt})
    write_atomic(folder.path / "results.json", withdrawn.model_dump_json(indent=1).encode())
    return withdrawn


def _guessed(group: Group, checks: Sequence[Check], words: str, split: PublicSplit, work: Work) -> list[Guess]:
    able = [cell for cell in group.cells if not isinstance(cell.build_attack(), Identifier)]
    if not able:
        other = "span" if group.captured.record.data == "text" else "cpl"
        raise UsageError(
            f"attack {group.cell.attack!r} tells known examples apart, so needs the truth; use --attack {other}"
        )
    drawn = group.captured.sampling == "poisson" or any(GIVE_SIZE in check.detail for check in checks)
    violated = next((f"{check.name}: violated" for check in checks if check.outcome == "violated"), None)
    each = batch_levels(Evidence(group.captured, group.cell))
    doubt = _not_known(group) or _remembered(group) or (GIVE_SIZE if drawn else GIVE_STEP if each else violated)
    found = []
    for cell in counted(able, "attack"):
        made = guess(group.captured, cell, split, work.data_root, work.folder, work.chunk, work.resume, work.engine)
        made = replace(made.undecided(doubt) if doubt else made, group=words)
        found.append(made)
        if made.images is not None and work.draw_guess:
            work.draw_guess(made)
    return found
