"""NVFlare's SVTPrivacy: values are chosen by a noisy threshold, and released with Laplace noise.

Of n values, cut to +-gamma, magnitudes get Laplace noise of scale 2 c gamma/epsilon_query and are compared with a
threshold whose noise has scale gamma/epsilon_threshold. Passes go on until c = ceil(fraction n) are accepted; none
stops at c. What one client costs:

* **Whatever the number of passes, at delta 0.** As in Lyu, Su, Li 2017, Theorem 2: where the other neighbor's
  threshold is higher by gamma, every magnitude that stayed below stays below, which costs epsilon_threshold once; each
  accepted one costs 2 gamma over its scale, and no value is accepted twice: epsilon_threshold + n epsilon_query/c.
  Against a client whose values are 0 all magnitudes move one way, and each costs half of that.
* **One pass.** Each magnitude is compared once, and moves by gamma: n epsilon_query/(2 c). That one pass suffices is
  seen in what is sent, so that a probability of b that it does not is a delta of b.

Tests write out all outcomes of small n, and compare.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import LOSSES, PURE, Answer, Arguments, Facts, Line, flag, number, positive, share
from harness.claims.epsilons import Relation
from harness.claims.registry import KNOWN, NUMPY, does_nothing, no_scalars, register

#: Of a round in which one pass does not suffice, where that is called sure.
SECOND_PASS = 1e-9
_SHORT = SECOND_PASS / 10  # of it: that the threshold is higher than reckoned, and that too few are accepted


@dataclass(frozen=True)
class Budget:
    """The budgets of one call on n ``values``, of which ``count`` are chosen.

    Attributes:
        threshold, query, release: epsilons of the threshold, of all queries, and of all values that are released.
        tau: the threshold without noise, in units of gamma.
    """

    values: int
    count: int
    threshold: float
    query: float
    release: float
    tau: float

    def choice(self, relation: Relation) -> float:
        """Return epsilon of the choice at delta 0, whatever the number of passes."""
        each = self.query / self.count * (1.0 if relation == "replace" else 0.5)
        return self.threshold + self.values * each

    @property
    def one_pass(self) -> float:
        """Return epsilon of the choice where one pass suffices."""
        return self.values * self.query / (2 * self.count)

    @property
    def suffices(self) -> bool:
        """Return whether one pass suffices but for a probability of ``SECOND_PASS``.

        A value of 0 is accepted least often; of the threshold's noise the largest is taken. Source: Hoeffding 1963.
        """
        highest = self.tau + math.log(0.5 / _SHORT) / self.threshold
        distance = highest * self.query / (2 * self.count)
        accepted = math.exp(-distance) / 2 if distance > 0 else 1 - math.exp(distance) / 2
        spare = accepted - self.count / self.values
        return spare > 0 and math.exp(-2 * self.values * spare**2) < _SHORT


def budget_of(arguments: Arguments, values: int) -> Budget:
    """The budgets as NVFlare splits them.

    Raises:
        UsageError: it would refuse them.
    """
    epsilon, gamma = positive(arguments, "epsilon", "gamma")
    count = min(math.ceil(share(arguments, "fraction") * values), values)
    given = {part: positive(arguments, f"epsilon_{part}")[0] for part in ("threshold", "query", "release")
             if arguments[f"epsilon_{part}"] is not None}  # fmt: skip
    first = epsilon / (1 + (2 * count) ** (2 / 3))
    threshold = given.get("threshold", epsilon - given["query"] if "query" in given else first)
    query = given.get("query", epsilon - threshold)
    if min(threshold, query) <= 0 or not math.isclose(threshold + query, epsilon, rel_tol=1e-5, abs_tol=1e-8):
        raise UsageError(
            f"epsilon_threshold {threshold:g} and epsilon_query {query:g} must be above 0 and add up to epsilon "
            f"{epsilon:g}, as NVFlare itself demands; leave one of them out"
        )
    release = given.get("release") or count * positive(arguments, "noise_var")[0]
    return Budget(values, count, threshold, query, release, number(arguments, "tau") / gamma)


@register(
    "nvflare:SVTPrivacy", "s1", source="nvflare 2.9.0, app_common/filters/svt_privacy.py", ran=True,
    aliases=("SVTPrivacy",), since="2.8",
    does="sends a noisy choice of fraction of all values, cut to gamma per local step, with Laplace noise",
    claims="a ledger: epsilon + ceil(fraction n) noise_var for every call, delta 0",
    works="use 2.8.0 or newer and a model without 0-d arrays; add (1/fraction - 1) epsilon a call to the ledger, which "
    "is not small",
    settings={"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5, "tau": 1e-6, "data_kinds": None,
              "replace": True, "epsilon_threshold": None, "epsilon_query": None, "epsilon_release": None},
)  # fmt: skip
def _svt(arguments: Arguments, facts: Facts) -> Answer:
    flag(arguments, "replace")
    budget = budget_of(arguments, facts.numbers or 1000)
    epsilon = positive(arguments, "epsilon")[0]
    if facts.older_than(KNOWN["nvflare:SVTPrivacy"].since):
        return does_nothing("before 2.8.0 values get their noise first and are cut after it: nothing bounds them",
                            facts, claimed=epsilon)  # fmt: skip
    if facts.numbers is None:
        return does_nothing("the cost grows with the number of values; add --parameters 61706, or --model resnet18",
                            facts, claimed=epsilon)  # fmt: skip
    answer = Answer(notes=["the number of local steps leaves in clear", NUMPY])
    no_scalars(answer, facts, "leave as they are")
    if not budget.suffices:
        answer.notes.append("several passes over the values may be needed; the numbers hold for any number of them")
    relations: tuple[Relation, ...] = ("replace", "zero-out")
    for relation in relations:
        for rounds in dict.fromkeys((1, facts.taking_part)):
            answer.lines += _lines(budget, epsilon, relation, rounds, facts.delta or 1e-5)
    return answer


def _lines(budget: Budget, epsilon: float, relation: Relation, rounds: int, delta: float) -> Iterator[Line]:
    """The pure epsilon, that of one pass at its own delta, and that of composed releases at the delta asked for."""
    # Without the client its values are 0: half as far off as another's.
    each = budget.release / budget.count * (1.0 if relation == "replace" else 0.5)
    summed, always, once = rounds * budget.count * each, rounds * budget.choice(relation), rounds * budget.one_pass
    releases = f"{budget.count} Laplace releases"
    pure = Line(
        "server", "client", relation, rounds, summed + always, 0.0,
        f"sparse vector theorem: {budget.choice(relation):.4g} for the choice, whatever the number of passes, and "
        f"{releases}", claimed=rounds * (epsilon + budget.release), claimed_delta=0.0,
        judged=relation == "replace", conversion=PURE,
    )  # fmt: skip
    yield pure
    lost = rounds * SECOND_PASS
    chosen, spent, rest = budget.choice(relation), always, delta
    if budget.suffices and lost < delta / 2:
        of_one = f"{budget.one_pass:.4g} for the choice in one pass, but for a probability of {SECOND_PASS:g} a round"
        yield replace(pure, epsilon=summed + once, delta=lost, why=f"{of_one}, and {releases}", claimed=None,
                      claimed_delta=None, judged=False)  # fmt: skip
        chosen, spent, rest = budget.one_pass, once, delta - lost
    yield replace(
        pure, epsilon=epsilons.laplace_epsilon(each, rounds * budget.count, rest) + spent, delta=delta, claimed=None,
        claimed_delta=None, judged=False, conversion=LOSSES,
        why=f"the same releases, composed by their loss distribution, and {chosen:.4g} for the choice",
    )  # fmt: skip
