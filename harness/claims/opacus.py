"""Opacus on a client: Gaussian noise on clipped gradients of examples, in Poisson samples or fixed batches.

Source: opacus 1.6.0 and 1.5.4; docs/accounting.md for the numbers.
"""

import math
from typing import Any

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import (
    EXACT,
    LEAST,
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
from harness.claims.registry import line_of, register


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
            mu = math.sqrt(sum(_uses(rate, steps) / sigma**2 for sigma, rate, steps in parts))
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
    """What an accountant of Opacus prints, to its own error: prv adds 0.01, gdp is an estimate that is too small."""
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
    """How many of so many batches of a fixed partition one example is in at most, but for floating point."""
    return math.ceil(steps * rate * (1 - 1e-12))


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
