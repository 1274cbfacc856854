"""What was promised for a cell, and whether that is about what was read there."""

from dataclasses import replace

from harness.evaluation.scores import Scored
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Hook, Tap
from harness.privacy import repeatable, what_holds
from harness.results import Statement

REPEATED = "epsilon counts one pass of training; seeing the same record {0} times costs {0} compositions"
HYPOTHETICAL = "of a whole training with clients and examples sampled as stated; one round was played here"
OTHER_DEFENSE = "of the run whose model is attacked, had it been trained under this defense"

# Where what a guarantee speaks of leaves the client or the clients' sum; other guarantees are of published models.
_RELEASED_BY = {
    "sample-DP local view": Hook.CLIENT_STEP, "client-LDP": Hook.CLIENT_MESSAGE, "sample-DDP": Hook.SUM_SECURELY,
}  # fmt: skip


def covers(statement: Statement, tap: Tap) -> bool | None:
    """Whether what is read at a tap is nothing but what the statement's guarantee lets out; None where it has none.

    Noise on each of several examples is counted as it adds up in their step, so a look at each alone is not covered.
    A statement about one client's message is not about the sum of several.
    """
    if statement.guarantee == "none":
        return None
    if tap.unit == "example" or (statement.view == "message" and tap.at_server):
        return False
    return _RELEASED_BY.get(statement.guarantee, Hook.AGGREGATE) in tap.noised_by


def promised(scored: Scored) -> list[Statement]:
    """The defense's statements for the whole training behind the attacked round, examples and clients sampled.

    That is the run whose model is attacked, or else a training as the settings describe it. An epsilon counts every
    release of that training once. Repeated looks come on top and cannot be counted as more rounds: a schedule would
    run on, and sampling would be credited to looks that all show the same record.
    """
    settings, model = scored.settings, scored.scene.observation.model.of_one_round
    defense, run = settings.build_defense(), settings.trained
    uncovered = scored.scene.uncovered
    if run:
        hypothetical = None if defense == run.settings.build_defense() else OTHER_DEFENSE
        made = what_holds(defense.statements(run.facts(model.layout)), run.copies, uncovered)
    else:
        hypothetical = HYPOTHETICAL
        facts = PrivacyFacts(
            settings.cohort(), len(model.layout.sizes), rate=settings.rate, parameters=model.layout.total,
            own_state=settings.variates is not None, scalars=len(model.layout.scalars),
        )  # fmt: skip
        made = what_holds(defense.statements(facts), uncovered=uncovered)
    if settings.noise_scale != 1:
        made = what_holds(made, uncovered=f"a control with {settings.noise_scale:g} times the noise")
    if hypothetical:
        made = [one if one.guarantee == "none" else replace(one, notes=f"{one.notes}; {hypothetical}") for one in made]
    looks = settings.observations * settings.rounds_seen
    if looks > 1:
        repeated = REPEATED.format(looks)
        made = [one if one.epsilon is None else replace(one, notes=f"{one.notes}; {repeated}") for one in made]
    return [replace(one, covers=covers(one, settings.tap)) for one in repeatable(made)]
