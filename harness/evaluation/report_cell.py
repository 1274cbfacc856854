"""Puts the numbers of a cell into the form of the result document, with what a failure of its attack is worth."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from harness.attacks import SUITES, reconstructing
from harness.base.vectors import Layout
from harness.datasets.prior import Prior
from harness.evaluation.observe import Scene
from harness.evaluation.played_round import round_context, server_state
from harness.evaluation.scores import Scored, Scores
from harness.experiment import AS_CAPTURED, CellSettings
from harness.federation.defense import FixedNoise
from harness.federation.knowledge import limit_at
from harness.federation.ordering import LENGTHENED, clips_before_sending
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Hook, Tap
from harness.models import RowModel
from harness.privacy import (
    Event,
    GaussianLimit,
    Limit,
    NoLimit,
    RunLimit,
    client_views,
    combined,
    example_views,
    lineup_p_value,
    strict_p_value,
    what_holds,
)
from harness.privacy.views import CHANCE, REPEATABLE
from harness.results import (
    Bound,
    Ceiling,
    CellResult,
    Control,
    Outcomes,
    Place,
    PublicData,
    Rate,
    Statement,
    VictimRecord,
)
from harness.results.record import Event as Hit
from harness.scoring import Verdict, blind_strict, rate_of, within_networks
from harness.scoring.images import draws_of

AT_CHANCE = 0.05
"""From this p-value on, inferred labels are no better than guesses."""
# Of fewer victims the labels of all, exchanged, are right too often for any p-value below that.
_FEWEST = 4
_FOREIGN, _ERRORS = 1.5, 2.0
# The attack that takes numbers in a coarser form for what they are.
_READER = "intervals"
_BLIND_TO_LABELS = "label inference at chance; --labels known shows what comes back where they are known"


def flags_of(scored: Scored, controls: Sequence[Control]) -> list[str]:
    """Return why the attack was not fit there, a sentence for each reason. A verdict of a suite looks at these
    sentences."""
    failed = [check for check in controls if check.kind == "positive" and not check.held]
    flags = [f"positive control failed: {check.detail or check.name}" for check in failed]
    if isinstance(scored.scores, Scores):
        searches = not reconstructing(scored.settings.build_attack()).closed_form
        flags += (_stalled(scored.scores) if searches else []) + _labels(scored)
    if known := scored.settings.build_attack().knows_of_examples:
        flags.append(f"the attack knows {known} beforehand; what it brings back need not come from the observation")
    return flags + _foreign(scored) + ([scored.scores.doubt] if scored.scores.doubt else [])


def needs_labels(cell: CellResult) -> bool:
    """Return whether the attack has to be tried with labels known too: it found nothing, and its labels were
    guesses."""
    return cell.verdict != "leaks" and _BLIND_TO_LABELS in cell.flags


def _coarse(scored: Scored, verdict: Verdict) -> list[str]:
    """An attack that knows the defense takes numbers in a coarser form for exact ones, and finds nothing."""
    attack, seen = scored.settings.build_attack(), scored.scene.observation
    # Nothing else is hidden where no noise is: the form is why it fails.
    if attack.tier == "plain" or attack.reads_coding or verdict.verdict == "leaks" or seen.noise is not None:
        return []
    if seen.coding is None or seen.coding.bounds(seen.target[:1], seen.model.layout) is None:
        return []
    fix = "" if _READER in SUITES.get(scored.settings.suite or "", ()) else f"; add --attack {_READER}"
    return [f"takes numbers in a coarser form for exact ones{fix}"]


def _stalled(scores: Scores) -> list[str]:
    """An outer iteration of L-BFGS is up to 20 steps: gradient evaluations say how many were taken."""
    if scores.stalled.sum() <= scores.victims / 2:
        return []
    return ["stalled: the loss of most victims never left its start"]


def _labels(scored: Scored) -> list[str]:
    attack = scored.settings.build_attack()
    if scored.settings.labels == "known" or not isinstance(scored.scores, Scores):
        return []
    if not reconstructing(attack).uses_labels:
        return []
    label = scored.scores.label
    if label.p_value is None or label.p_value < AT_CHANCE or label.accuracy == 1:
        return []
    if scored.scores.victims < _FEWEST and (label.accuracy or 0) > (label.chance or 0):
        return []
    return [_BLIND_TO_LABELS]


def _foreign(scored: Scored) -> list[str]:
    """Truths lie as far from the class means of public data of their own kind as those data do."""
    prior, truth = scored.scene.observation.prior, scored.scene.truth
    # A text is as far from another one whether or not it is of its kind.
    texts = scored.scene.dataset.words is not None
    if prior is None or texts or scored.settings.build_attack().tier == "plain":
        return []
    labels = truth.labels.flatten()
    distances = (truth.images.flatten(0, 1).flatten(1).to(prior.means) - prior.means[labels]).square().sum(1)
    farther = (distances / prior.spread()[labels]).double()
    times, error = float(farther.mean()), float(farther.std()) / len(farther) ** 0.5
    if len(farther) < 2 or times - _ERRORS * error <= _FOREIGN:
        return []
    return [f"prior foreign: victims are {times:.1f} times as far from its class means as public data"]


_FROM_A_FILE = "nobody says which records the weights of a file were trained on"
_OTHER_RUN = "the model may know its victims, and no theorem at hand covers its whole training"
_BOTH = "the model may know its victims, and only Gaussian noise is put together with its whole training"
_COPIES = "a client of the training holds a record up to {} times, and the noise is made for one"
_CORRELATED = "no theorem at hand covers noise that is correlated over rounds beside other noise"
_TWICE = "a record is there more than once, and the noise is made for one"
_ROWS = "how many rows of a table one guess is accurate for is not known here"
_KNOWS = "the attack knows {} beforehand, which no blind probability here counts"
_NO_LOOK_ALIKES = "no victim has unused examples of its class as decoys"


def cell_result(
    scored: Scored, key: str, control: str | None, controls: Sequence[Control], verdict: Verdict
) -> CellResult:
    """The result of an evaluated cell or control."""
    seen = scored.scene.observation
    noise, batches = seen.noise, seen.batches
    return CellResult(
        **settled(scored.settings, seen.prior)
        | {"batch_norm": batches and ("hidden" if batches.statistics is None else "sent")},
        **scored.scores.claims(),
        privacy=promised(scored.settings, seen.model.of_one_round.layout, scored.scene.uncovered)
        if scored.scene.stated is None
        else of_cell(scored.scene.stated, scored.settings, CAPTURED),
        key=key,
        role="control" if control else "cell",
        control=control,
        observation_id=seen.known_to("plain").fingerprint(),
        noise=noise and noise.law,
        verdict=verdict.verdict,
        verdict_reason=_reason(scored.settings, verdict),
        controls=list(controls),
        flags=[] if control else [*flags_of(scored, controls), *_coarse(scored, verdict)],
        bound=bound_of(scored),
        detectable=scored.scene.detectable,
        seconds=scored.seconds,
    )


def _reason(settings: CellSettings, verdict: Verdict) -> str:
    if not settings.shared_weights:
        return verdict.reason
    return within_networks(verdict.reason, verdict.verdict, len(settings.seeds))


def impossible_cell(
    settings: CellSettings, key: str, control: str | None, reason: str, prior: Prior | None
) -> CellResult:
    """The record of a cell whose combination of settings is impossible."""
    victims = settings.victims * len(settings.seeds)
    return CellResult(
        **settled(settings, prior),
        key=key,
        role="control" if control else "cell",
        control=control,
        verdict_reason="not applicable",
        outcomes=Outcomes(not_applicable=victims),
        not_applicable_reason=reason,
    )


def settled(settings: CellSettings, prior: Prior | None) -> dict[str, Any]:
    """Return what the settings of a cell alone say in its result."""
    attack = settings.build_attack()
    defense, own = settings.build_defense(), {*Place.model_fields, "attack"} & {*CellSettings.model_fields}
    return {name: getattr(settings, name) for name in own} | {
        "surface": settings.surface,
        "defense_args": defense.parameters() | {"noise_scale": settings.noise_scale},
        "attack_args": attack.parameters(),
        "tier": attack.tier,
        "suite": settings.suite,
        "labels": settings.labels,
        "several": attack.several,
        # Behind the rounds of a client that draws its batches are all that it holds.
        "examples": settings.distinct if settings.draws else settings.examples,
        "seeds": list(settings.seeds),
        "victims": settings.victims * len(settings.seeds),
        "prior": prior and PublicData(name=prior.name, size=prior.size),
        "cohort": asdict(settings.cohort()),
        "options": settings.beside(Place.model_fields),
        "units": defense.units(),
    }


def victim_records(scored: Scored, key: str, control: str | None) -> list[VictimRecord]:
    """One record per attacked image."""
    settings, truth = scored.settings, scored.scene.truth
    everyone = ((seed, number) for seed in settings.seeds for number in range(settings.victims))
    return [
        VictimRecord(
            cell=key, role="control" if control else "cell", dataset=settings.dataset, defense=settings.defense,
            attack=settings.attack, tap=settings.tap, seed=seed, victim=victim, image=image,
            dataset_index=int(truth.indices[row, image]), label=int(truth.labels[row, image]),
            **scored.scores.of_image(row, image),
        )
        for row, (seed, victim) in enumerate(everyone)
        for image in range(truth.labels.shape[1])
    ]  # fmt: skip


def bound_of(scored: Scored) -> Bound:
    """Return what a theorem says of a cell, and how that compares with what was measured."""
    limit = limit_of(scored.settings, scored.scene)
    theorem = limit if isinstance(limit, Limit) else None
    known = scored.settings.build_attack().knows_of_examples
    events = [
        _lineups(scored, theorem),
        *([_strict(scored.scene, scored.scores, theorem)] if isinstance(scored.scores, Scores) else []),
    ]
    return Bound(
        theorem=theorem and theorem.title,
        mu=limit.mu if isinstance(limit, GaussianLimit) else None,
        reason=limit.reason if isinstance(limit, NoLimit) else None,
        events=events
        if known is None
        else [Ceiling(event=one.event, measured=one.measured, reason=_KNOWS.format(known)) for one in events],
    )


def limit_of(settings: CellSettings, scene: Scene) -> Limit | NoLimit:
    """Return how much any attacker can win in a cell, its repeated looks and the model's own training counted."""
    model, indices = scene.observation.model.of_one_round, scene.truth.indices
    if uncovered := scene.uncovered:
        return NoLimit(uncovered)
    if any(len(row.unique()) < len(row) for row in indices):
        return NoLimit(_TWICE)
    operations = [one for _, one in settings.build_defense().flow()]
    if settings.sent_as and Hook.AGGREGATE in settings.tap.noised_by and clips_before_sending(operations):
        return NoLimit(LENGTHENED.format(settings.sent_as))
    limit = _of_rounds(settings, scene)
    if isinstance(limit, NoLimit) or settings.weights is None:
        return limit
    if settings.trained is None:
        return NoLimit(_FROM_A_FILE)
    if not isinstance(limit, GaussianLimit):
        return NoLimit(_BOTH)
    if settings.trained.copies > 1:
        return NoLimit(_COPIES.format(settings.trained.copies))
    facts = settings.trained.facts(model.layout)
    noise = settings.trained.settings.build_defense().fixed_noise(facts)
    return NoLimit(_OTHER_RUN) if noise is None else RunLimit(_whole_run(noise, facts)).beside(limit)


def _of_rounds(settings: CellSettings, scene: Scene) -> Limit | NoLimit:
    """That of all rounds that are seen; of noise which is correlated over them, by what makes it independent."""
    model = scene.observation.model.of_one_round
    limits = [_limit_of_round(settings.in_round(number), model) for number in range(settings.rounds_seen)]
    if len(limits) == 1 or not settings.tap.of_round or not settings.build_defense().replays:
        return combined(limits)
    noise, known = scene.observation.noise, [one for one in limits if isinstance(one, GaussianLimit)]
    if noise is None or noise.whitening is None or len(known) < len(limits):
        return next((one for one in limits if isinstance(one, NoLimit)), NoLimit(_CORRELATED))
    each = (
        torch.as_tensor(noise.deviation).expand(len(scene.observation.target[0])).unflatten(0, (len(known), -1))[:, 0]
    )
    moved = torch.tensor([one.mu for one in known]).double() * each.double()
    # The farthest that two candidates can be apart after whitening: no round's directions cancel another's.
    return GaussianLimit(float((noise.whitening.double().abs() @ moved).norm()))


def _limit_of_round(settings: CellSettings, model: RowModel) -> Limit | NoLimit:
    context = round_context(settings, model, ((settings.seeds[0], 0),), server_state(settings))
    steps = settings.local_steps if settings.tap.of_update else 1
    return limit_at(settings.build_defense(), settings.tap, context, steps, settings.observations)


def _whole_run(noise: FixedNoise, facts: PrivacyFacts) -> Event:
    """Return what the server, who knows who takes part, is told of one record, or one client, by a whole training."""
    sigma = noise.deviation / noise.bound
    if noise.place == "step":
        views = example_views(facts.examples(sigma, "whole"))
        return next(view.event for view in views if view.name == "server")
    if noise.place == "message":
        views = client_views(facts.clients(sigma, "whole"), "client")
        return next(view.event for view in views if view.name == "server")
    everybody = replace(facts, client_sampler="none")
    return client_views(everybody.clients(sigma, "whole"))[0].event


def _lineups(scored: Scored, limit: Limit | None) -> Ceiling:
    ranking, labels = scored.scores.ranking, scored.scene.truth.labels.cpu().numpy()
    there = ranking.sizes > 1
    if not there.any():
        return Ceiling(event="first in its lineup", reason=_NO_LOOK_ALIKES)
    kappa = float((1 / ranking.sizes[there]).mean())
    groups = scored.scores.groups
    # The test counts victims as independent draws.
    tested = None if groups is not None else limit
    p_value = None if tested is None else lineup_p_value(ranking.first, ranking.sizes, labels, tested)
    return _ceiling("first in its lineup", scored.scores.lineups, p_value, limit, kappa)


def _strict(scene: Scene, scores: Scores, limit: Limit | None) -> Ceiling:
    strict = scores.success["strict"].reshape(scores.victims, -1)
    measured = rate_of(*draws_of(strict, scores.clusters, scores.groups, scores.repeats))
    if scene.dataset.columns is not None:
        return Ceiling(event="strict image", measured=measured, reason=_ROWS)
    one_guess = blind_strict(scene.dataset.images, scene.dataset.labels, scene.truth.labels).numpy()
    # As many guesses as there are images in a batch, the nearest of which is counted.
    blind = np.minimum(1.0, one_guess * strict.shape[1])
    p_value = None if limit is None or scores.groups is not None else strict_p_value(strict, blind, limit)
    return _ceiling("strict image", measured, p_value, limit, float(blind.mean()))


def _ceiling(event: Hit, measured: Rate, p_value: float | None, limit: Limit | None, kappa: float) -> Ceiling:
    most = None if limit is None else limit.ceiling(kappa)
    return Ceiling(
        event=event, measured=measured, p_value=p_value, kappa=kappa, ceiling=most,
        says_little=most is not None and most > 0.5,
    )  # fmt: skip


# --------------------------------------------------------------------------------------
# What was promised for a cell, and whether that is about what was read there.


REPEATED = "epsilon counts one pass of training; seeing the same record {0} times costs {0} compositions"
HYPOTHETICAL = "of a whole training with clients and examples sampled as stated; one round was played here"
#: Of captured clients, whose noise is not of a seed that is known here.
CAPTURED = "of a whole training with clients and examples as declared; only captured rounds were seen"
OTHER_DEFENSE = "of the run whose model is attacked, had it been trained under this defense"

# Where what a guarantee speaks of leaves the client or the clients' sum; other guarantees are of published models.
_RELEASED_BY = {
    "sample-DP local view": Hook.CLIENT_STEP, "client-LDP": Hook.CLIENT_MESSAGE, "sample-DDP": Hook.SUM_SECURELY,
}  # fmt: skip


def covers(statement: Statement, tap: Tap) -> bool | None:
    """Return whether what is read at a tap is nothing but what the statement's guarantee lets out; None where it has
    none.

    Noise on each of several examples is counted as it adds up in their step, so a look at each alone is not covered.
    A statement about one client's message is not about the sum of several.
    """
    if statement.guarantee == "none":
        return None
    if tap.unit == "example" or (statement.view == "message" and tap.at_server):
        return False
    return _RELEASED_BY.get(statement.guarantee, Hook.AGGREGATE) in tap.noised_by


def described(settings: CellSettings, layout: Layout) -> PrivacyFacts:
    """The training that settings describe.

    Clients and examples are sampled by Poisson, where nothing says how they are. A client that passes over its own
    examples has each in one batch of a pass, at worst the smallest, which noise on a mean hides least. Drawn for a
    round of one step, they are a sample without replacement; of more steps, an example is in one at most. Of captured
    clients nobody knows a sampling: one takes part in every round, and its examples are in every step.
    """
    steps, cohort = settings.local_steps, settings.cohort()
    cohort = replace(cohort, batch_size=min(settings.step_sizes, default=cohort.batch_size))
    facts = PrivacyFacts(
        cohort, len(layout.sizes), rate=settings.rate, parameters=layout.total,
        own_state=settings.variates is not None, scalars=len(layout.scalars),
        linear=settings.build_optimizer().is_linear, sent_as=settings.sent_as,
    )  # fmt: skip
    captured, own = settings.weights == AS_CAPTURED, settings.client_examples
    if captured:
        facts = replace(facts, cohort=replace(cohort, steps_per_round=steps), client_sampler="none")
    if settings.draws and own and steps == 1:
        return replace(facts, example_sampler="without-replacement", rate=settings.batch_size / own)
    if own or settings.epochs > 1 or captured:
        passes = settings.epochs if own or settings.epochs > 1 else steps
        return replace(facts, example_sampler="none", rate=passes / steps)
    return facts


def promised(settings: CellSettings, layout: Layout, uncovered: str | None) -> list[Statement]:
    """The defense's statements for the whole training behind the attacked round, examples and clients sampled.

    That is the run whose model is attacked, or else a training as the settings describe it. An epsilon counts every
    release of that training once. Repeated looks come on top and cannot be counted as more rounds: a schedule would
    run on, and sampling would be credited to looks that all show the same record. So it does not cover them.

    Args:
        settings: of the cell.
        layout: of the network that a round trains.
        uncovered: see :attr:`harness.evaluation.observe.Scene.uncovered`.
    """
    defense, run = settings.build_defense(), settings.trained
    if run:
        hypothetical = None if defense == run.settings.build_defense() else OTHER_DEFENSE
        made = what_holds(defense.statements(run.facts(layout)), run.copies, uncovered)
    else:
        hypothetical = HYPOTHETICAL
        made = what_holds(defense.statements(described(settings, layout)), uncovered=uncovered)
    if settings.noise_scale != 1:
        made = what_holds(made, uncovered=f"a control with {settings.noise_scale:g} times the noise")
    return of_cell(made, settings, f"{hypothetical}; {REPEATABLE}" if hypothetical else REPEATABLE)


def of_cell(made: Sequence[Statement], settings: CellSettings, note: str) -> list[Statement]:
    """Statements with a note on what they are of, and whether they cover what is read in a cell."""
    noted = [one if one.guarantee == "none" else replace(one, notes=f"{one.notes}; {note}") for one in made]
    return [_of_looks(replace(one, covers=covers(one, settings.tap)), settings) for one in noted]


def _of_looks(one: Statement, settings: CellSettings) -> Statement:
    """A statement covers several looks at the same record only where no chance to be left out is credited to it."""
    looks = settings.observations * settings.rounds_seen
    left_out = CHANCE in one.notes or not (settings.draws or one.sampler in (None, "none"))
    in_all = settings.observations == 1 and not left_out
    if looks == 1 or in_all or one.epsilon is None:
        return one
    return replace(one, covers=one.covers and False, notes=f"{one.notes}; {REPEATED.format(looks)}")
