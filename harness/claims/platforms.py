"""Filters of Opacus, OpenFL, APPFL and FedML. Of the last three: read at the commit beside each, and not run."""

import math
from typing import Any

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import (
    EXACT,
    LEAST,
    PURE,
    REQUIRED,
    Answer,
    Arguments,
    Facts,
    Line,
    agree,
    choice,
    flag,
    number,
    positive,
    share,
    whole,
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
        claimed_delta=delta,
    )  # fmt: skip
    answer.sampled(line, parts)
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


# --------------------------------------------------------------------------------------
# Opacus on a client: Gaussian noise on clipped gradients of examples, in Poisson samples or fixed batches.
#
# Source: opacus 1.6.0 and 1.5.4; docs/accounting.md for the numbers.


@register(
    "opacus:PrivacyEngine", "s2", source="opacus 1.6.0, privacy_engine.py and accountants/", ran=True,
    aliases=("PrivacyEngine", "make_private", "make_private_with_epsilon"),
    does="clips each example's gradient and adds Gaussian noise to the sum of a Poisson-sampled batch",
    claims="what its accountant reports",
    works="keep one engine for all rounds, Poisson sampling on, and the accountant prv or rdp",
    settings={
        "noise_multiplier": REQUIRED, "max_grad_norm": 1.0, "poisson_sampling": True, "clipping": "flat",
        "accountant": "prv", "history": None, "engine": "kept", "secure_mode": False, "sample_rate": None,
        "steps": None, "loss_reduction": "mean", "grad_sample_mode": "hooks", "module": None, "optimizer": None,
        "data_loader": None, "criterion": None, "noise_generator": None, "batch_first": True,
        "normalize_clipping": False, "rand_on_empty": False,
    },
)  # fmt: skip
def _opacus(arguments: Arguments, facts: Facts) -> Answer:
    delta, answer = facts.delta or 1e-5, Answer()
    accountant, clipping = _settings_of_opacus(arguments)
    answer.notes += ["whoever knows torch's random seed knows the noise"] * (not arguments["secure_mode"])
    if clipping == "adaptive":
        answer.fails.append("adaptive clipping divides by the private size of the batch, and its count is not centred")
    answer.nothing(
        line_of("client", "noise on sums of examples protects no client as a whole", delta, "everybody"), facts
    )
    rounds = facts.taking_part
    if arguments["history"] is not None:
        parts = _history(arguments["history"])
        if facts.examples and facts.batch_size:
            length = facts.batches or 1
            for rate in {rate for _, rate, _ in parts} - {1 / length, 1 / max(1, length - 1)}:  # by floating point
                agree("1/batches of --examples and --batch-size", 1 / length, "a rate of the history,", rate)
        if not arguments["poisson_sampling"]:
            alike = len(parts) == 1 and parts[0][2] % rounds == 0
            answer.notes += ["every round takes as many steps"] * (alike and rounds > 1)
            uses = [_uses_anew(rate, steps, rounds, alike) for _, rate, steps in parts]
            mu = math.sqrt(sum(used / sigma**2 for used, (sigma, _, _) in zip(uses, parts, strict=True)))
            _fixed_lines(answer, {rounds: (mu, parts)}, accountant, delta)
            return answer
        _sampled_lines(answer, {rounds: (parts, parts)}, accountant, delta)
        return answer
    if not arguments["poisson_sampling"]:
        return _fixed_batches(answer, arguments, facts, delta, accountant)
    sigma = positive(arguments, "noise_multiplier")[0]
    found = _steps(arguments, facts, answer)
    if found is None:
        return answer
    rate, counted, steps = found
    whole = {
        count: ([(sigma, rate, count * steps)], [(sigma, counted, (count if _kept(arguments) else 1) * steps)])
        for count in dict.fromkeys((1, rounds))
    }
    if not _kept(arguments) and rounds > 1:
        answer.notes.append("a new engine in every round forgets the rounds before it")
    _sampled_lines(answer, whole, accountant, delta)
    return answer


def _settings_of_opacus(arguments: Arguments) -> tuple[str, str]:
    """The accountant and the way of clipping, after a look at every setting that is a number, a flag or a word.

    Raises:
        UsageError: one is something else.
    """
    for name in ("poisson_sampling", "secure_mode", "batch_first", "normalize_clipping", "rand_on_empty"):
        flag(arguments, name)
    choice(arguments, "engine", "kept", "per-round")
    choice(arguments, "loss_reduction", "mean", "sum")
    bounds = arguments["max_grad_norm"]
    for bound in bounds if isinstance(bounds, list | tuple) and bounds else [bounds]:
        number({"max_grad_norm": bound}, "max_grad_norm", 0.0)
    clipping = choice(arguments, "clipping", "flat", "per_layer", "adaptive")
    return choice(arguments, "accountant", "prv", "rdp", "gdp"), clipping


def _kept(arguments: Arguments) -> bool:
    return arguments["engine"] != "per-round"


Parts = list[tuple[float, float, int]]
_MOST_KINDS = 1000  # of an accountant's parts, so that an answer takes seconds


def _history(history: Any) -> Parts:
    """An accountant's parts (sigma, rate, steps).

    Raises:
        UsageError: it is something else.
    """
    try:
        parts = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in history]
        assert all(int(steps) == steps for *_, steps in history)
        assert parts and all(
            1e-9 < sigma < 1e9 and 1e-12 < rate <= 1 and 0 < steps < 1e9 for sigma, rate, steps in parts
        )
    except (TypeError, ValueError, AssertionError):
        raise UsageError(
            'history must be a list of [sigma above 0, rate in (0, 1], steps above 0]; give "history": [[1.0, 0.01, 5]]'
        ) from None
    if (kinds := len(epsilons.merged(parts))) > _MOST_KINDS:
        raise UsageError(f"the history has {kinds} different sigmas and rates; ask about {_MOST_KINDS} at most")
    return parts


def _steps(arguments: Arguments, facts: Facts, answer: Answer) -> tuple[float, float, int] | None:
    """The sampling rate, the rate that Opacus counts, and the steps of a round; None where they are not known."""
    steps = facts.local_steps
    if arguments["steps"] is not None:
        steps = whole(arguments, "steps")
        agree("--local-steps", facts.local_steps, "steps", steps)
    given = arguments["sample_rate"]
    if given is not None:
        given = share(arguments, "sample_rate")
        if facts.examples is None or facts.batch_size is None:
            batches = round(1 / given, 9)
            return given, given, steps or math.ceil(batches) * (facts.local_epochs or 1)
    if facts.examples is None or facts.batch_size is None:
        answer.nothing(line_of("example", "the sampling rate is not known; add --examples and --batch-size",
                             facts.delta or 1e-5, "everybody", claimed=math.inf), facts)  # fmt: skip
        return None
    length = facts.batches or 1
    if facts.batch_size > facts.examples:
        answer.warnings.append(
            f"the batch size {facts.batch_size} is above the {facts.examples} examples: Opacus takes all of them in "
            "every step (rate 1), so that no sampling hides an example; the noise is averaged over "
            f"{facts.examples}, and not over {facts.batch_size}"
        )
    if given is not None:
        agree("1/batches of --examples and --batch-size", 1 / length, "sample_rate", given)
    per_epoch = int(1 / (1 / length))  # one less than the length where floating point says so
    steps = steps or per_epoch * (facts.local_epochs or 1)
    changes = (facts.examples % facts.batch_size in (0, 1)) or int(facts.examples / length) != int(
        (facts.examples - 1) / length
    )
    if changes:
        answer.notes.append("strictly adding or removing an example changes the divisor that every coordinate shows")
    return 1 / length, 1 / per_epoch, steps


def _reported(parts: Parts, accountant: str, delta: float) -> float:
    """Return what an accountant of Opacus prints, to its own error: prv adds 0.01, gdp is an estimate that is too
    small."""
    if accountant == "rdp":
        return epsilons.renyi_epsilon(parts, delta)
    if accountant == "gdp":
        mu = math.sqrt(sum(steps * rate**2 * math.expm1(min(sigma**-2, 600.0)) for sigma, rate, steps in parts))
        return epsilons.gaussian_epsilon(mu, delta)
    return epsilons.sampled_epsilon(parts, delta) + 0.01


def _sampled_lines(answer: Answer, whole: dict[int, tuple[Parts, Parts]], accountant: str, delta: float) -> None:
    relations: tuple[Relation, ...] = ("zero-out", "replace")
    for relation in relations:
        for rounds, (true, counted) in whole.items():
            claimed = _reported(counted, accountant, delta)
            answer.lines.append(Line(
                "everybody", "example", relation, rounds, epsilons.sampled_epsilon(true, delta, relation), delta,
                "loss distribution of Poisson samples over all steps", claimed=claimed, claimed_delta=delta,
                judged=relation == "zero-out", sampler="poisson", conversion=LEAST,
            ))  # fmt: skip


def _fixed_batches(answer: Answer, arguments: Arguments, facts: Facts, delta: float, accountant: str) -> Answer:
    """Batches of a fixed partition: every example once in every epoch, in every round anew, and no amplification."""
    sigma = positive(arguments, "noise_multiplier")[0]
    found = _steps(arguments, facts, answer)
    if found is None:
        return answer
    rate, counted, steps = found
    uses = max(_uses(rate, steps), 0 if facts.local_steps else facts.local_epochs or 1)
    answer.notes.append(f"an example is used up to {uses} times a round")
    whole = {
        rounds: (math.sqrt(rounds * uses) / sigma, [(sigma, counted, (rounds if _kept(arguments) else 1) * steps)])
        for rounds in dict.fromkeys((1, facts.taking_part))
    }
    _fixed_lines(answer, whole, accountant, delta)
    return answer


def _uses(rate: float, steps: int) -> int:
    """Return how many of so many batches of a fixed partition contain one example at most, but for floating point."""
    return math.ceil(steps * rate * (1 - 1e-12))


def _uses_anew(rate: float, steps: int, rounds: int, alike: bool) -> int:
    """Return how many of ``steps`` batches in so many rounds contain one example at most. Each round begins a new
    partition; ``alike``: all rounds have as many steps.

    The sum of all rounds' shares, each rounded up, is below the share of all steps and one for each round.
    """
    return rounds * _uses(rate, steps // rounds) if alike else min(steps, _uses(rate, steps) + rounds - 1)


def _fixed_lines(answer: Answer, whole: dict[int, tuple[float, Parts]], accountant: str, delta: float) -> None:
    """Adds the lines of fixed batches, by rounds: mu of leaving an example out, and what the accountant counts."""
    answer.notes.append("without Poisson sampling the accountant still counts as if there were")
    factors: dict[Relation, float] = {"zero-out": 1.0, "replace": 2.0}
    for relation, factor in factors.items():
        for rounds, (mu, counted) in whole.items():
            answer.lines.append(Line(
                "everybody", "example", relation, rounds, epsilons.gaussian_epsilon(factor * mu, delta), delta,
                "exact Gaussian: each example once in every epoch", factor * mu, _reported(counted, accountant, delta),
                delta, relation == "zero-out", conversion=EXACT,
            ))  # fmt: skip
