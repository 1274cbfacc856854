"""Filters of OpenFL, APPFL and FedML: read at the commit that stands beside each, and not run."""

import math

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import (
    LEAST,
    PURE,
    REQUIRED,
    Answer,
    Arguments,
    Facts,
    Line,
    choice,
    flag,
    number,
    positive,
    share,
)
from harness.claims.epsilons import Relation
from harness.claims.registry import NUMPY, RAW, does_nothing, line_of, register

# OpenFL: a tutorial, in two implementations.

_OPENFL = {"noise_multiplier": 0.1, "clip_norm": 1.0, "clip_frequency": 1, "sample_rate": 0.5, "delta": 1e-5}


def _tutorial(arguments: Arguments, facts: Facts) -> Answer:
    """Noise on the sum of a Poisson sample of collaborators, divided by their expected number."""
    noise, _ = positive(arguments, "noise_multiplier", "clip_norm")
    rate, delta = share(arguments, "sample_rate"), number(arguments, "delta", 0.0, 1.0)
    asked, parts = facts.delta or delta, [(noise, rate, facts.rounds)]
    answer = Answer(unknown=["the model has no buffers: they leave without clip and noise"])
    if facts.buffers == "none" or facts.scalars == 0:
        answer.unknown = []
    elif facts.buffers or facts.scalars:
        answer.fails.append("buffers leave without clip and noise")
    answer.lines.append(Line("server", "client", "replace", facts.rounds, None, asked, RAW))
    line = Line(
        "third party, client", "client", "zero-out", facts.rounds, None, asked,
        "loss distribution of Poisson samples of collaborators", claimed=epsilons.renyi_epsilon(parts, delta),
        claimed_delta=delta, sampler="poisson",
    )  # fmt: skip
    relations: tuple[Relation, ...] = ("zero-out", "replace")
    for relation in relations:
        answer.lines.append(line.filled(
            lambda delta, of=relation: epsilons.sampled_epsilon(parts, delta, of), relation=relation,
            judged=relation == "zero-out", conversion=LEAST,
        ))  # fmt: skip
    return answer


_CLAIM = "(epsilon, delta) of a collaborator, by the accountant rdp of Opacus"


@register(
    "openfl:GlobalDP1", "s0", source="openfl 6aac83ae, openfl-tutorials/experimental/Global_DP (implementation 1)",
    does="averages the updates of those who came and adds noise that shrinks with their number", claims=_CLAIM,
    works="take implementation 2, with a multiplier of 1 or more", settings=_OPENFL,
)  # fmt: skip
def _tutorial_mean(arguments: Arguments, facts: Facts) -> Answer:
    answer = _tutorial(arguments, facts)
    answer.fails.append("the mean is over those who came and noise over those expected: with few, noise is too small")
    answer.fails.append("rounds without collaborators are skipped and not counted")
    return answer


@register(
    "openfl:GlobalDP2", "s0", source="openfl 6aac83ae, openfl-tutorials/experimental/Global_DP (implementation 2)",
    does="adds noise to the sum of clipped updates, divided by the expected number of collaborators", claims=_CLAIM,
    works="take a multiplier of 1 or more; the tutorial's 0.1 hides little", settings=_OPENFL,
)  # fmt: skip
def _tutorial_sum(arguments: Arguments, facts: Facts) -> Answer:
    return _tutorial(arguments, facts)


# APPFL.


@register(
    "appfl:dp", "s1", source="appfl 1.12.0, privacy/dp.py and algorithm/trainer/vanilla_trainer.py", ran=True,
    does="adds Laplace or Gaussian noise to the weights after training, for a sensitivity of one clipped step",
    claims="epsilon for every reply (delta 1e-5 with Gaussian noise)",
    works="set clip_grad, train one step with plain SGD, and use a model without buffers",
    settings={"use_dp": True, "dp_mechanism": "laplace", "epsilon": REQUIRED, "clip_grad": False, "clip_value": 1.0,
              "clip_norm": 1, "use_secure_agg": False},
)  # fmt: skip
def _appfl(arguments: Arguments, facts: Facts) -> Answer:
    if not flag(arguments, "use_dp"):
        return does_nothing("use_dp is false: the weights leave as they are", facts)
    kind = choice(arguments, "dp_mechanism", "laplace", "gaussian", "opacus")
    if kind == "opacus":
        return does_nothing("with Opacus ask about opacus:PrivacyEngine; one engine counts all rounds", facts)
    epsilon, _ = positive(arguments, "epsilon", "clip_value")
    steps, order = _local_steps(facts), number(arguments, "clip_norm")
    if steps is None:
        return does_nothing("the local steps are not known; add --local-steps", facts, claimed=epsilon)
    if order not in (1, 2):
        return does_nothing("clip_norm is the order of the norm, and only 1 and 2 are counted", facts, claimed=epsilon)
    answer = Answer(notes=["noise is sized for one step, and the clip is of a batch's gradient", NUMPY])
    _trained_plainly(answer, arguments, facts)
    if flag(arguments, "use_secure_agg"):
        answer.fails.append("with use_secure_agg masks go on the update before its noise, which is not sent")
    if kind == "gaussian":
        mu = steps * epsilon / math.sqrt(2 * math.log(1.25 / 1e-5))
        line = line_of("client", f"exact Gaussian; {steps} local steps", facts.delta or 1e-5, claimed=epsilon,
                       claimed_delta=1e-5)  # fmt: skip
        answer.gaussian(line, {"replace": mu, "zero-out": mu / 2}, facts)
        return answer
    if order == 2 and facts.numbers is None:
        return does_nothing("an L2 clip bounds Laplace noise by the size; add --parameters", facts, claimed=epsilon)
    pure = steps * epsilon * (1.0 if order == 1 else math.sqrt(facts.numbers or 1))
    scales: dict[Relation, float] = {"replace": 1.0, "zero-out": 0.5}
    for relation, scale in scales.items():
        for rounds in dict.fromkeys((1, facts.taking_part)):
            answer.lines.append(Line(
                "server", "client", relation, rounds, rounds * scale * pure, 0.0, f"Laplace; {steps} local steps",
                claimed=epsilon if rounds == 1 else None, claimed_delta=0.0, judged=relation == "replace",
                conversion=PURE,
            ))  # fmt: skip
    return answer


def _local_steps(facts: Facts) -> int | None:
    if facts.local_steps is not None or facts.batches is None:
        return facts.local_steps
    return (facts.local_epochs or 1) * facts.batches


def _trained_plainly(answer: Answer, arguments: Arguments, facts: Facts) -> None:
    """The conditions under which clipped gradients bound what the weights can move by."""
    if not flag(arguments, "clip_grad"):
        answer.fails.append("clip_grad is off, so that nothing is clipped")
    if facts.optimizer is None:
        answer.unknown.append("clients train with plain SGD, without momentum")
    elif facts.optimizer != "sgd":
        answer.fails.append(f"{facts.optimizer} moves weights by more than the clipped gradient")
    if facts.buffers in ("float", "int") or facts.scalars:
        answer.fails.append("buffers leave without noise")
    elif facts.buffers is None:
        answer.unknown.append("the model has no buffers: they leave without noise")


# FedML.


@register(
    "fedml:dp", "s1", source="fedml 0.9.6, core/dp/ and core/alg_frame/", ran=True,
    does="ldp and cdp add noise to weights that nothing clips; nbafl and dp_clip are accepted and never act",
    claims="(epsilon, delta)",
    works="none: use a filter that clips the update",
    settings={"enable_dp": True, "dp_solution_type": REQUIRED, "epsilon": None, "delta": None, "sensitivity": 1.0,
              "mechanism_type": "gaussian", "C": None, "clipping_norm": None, "noise_multiplier": None,
              "max_grad_norm": None, "train_data_num_in_total": None, "rdp_alpha": None, "enable_rdp_accountant": None,
              "accountant_type": None, "privacy_budget": None},
)  # fmt: skip
def _fedml(arguments: Arguments, facts: Facts) -> Answer:
    kind = str(arguments["dp_solution_type"]).strip()
    if not flag(arguments, "enable_dp"):
        return does_nothing("enable_dp is false: the weights leave as they are", facts)
    reasons = {
        "nbafl": "dp_solution_type nbafl does not act: noise is added for ldp and cdp only",
        "dp_clip": "dp_solution_type dp_clip does not act: noise is added for ldp and cdp only",
        "ldp": "noise is added to all weights of a client, which nothing clips",
        "cdp": "noise is added to the mean of weights, and no update is clipped",
    }
    if kind not in reasons:
        raise UsageError(f"unknown dp_solution_type {kind!r} of FedML; set one of {', '.join(reasons)}")
    claimed = None if arguments["epsilon"] is None else positive(arguments, "epsilon")[0]
    answer = does_nothing(reasons[kind], facts, claimed=claimed)
    if kind in ("ldp", "cdp"):
        answer.notes.append("max_grad_norm, where it is given, cuts weights and not their change")
    return answer
