"""Ours of the tables on Fed-αCDP's epsilons, with accuracies beside them.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", Tables VI, VII, VIII and XI. The
settings are those of its Table II and section 7: C = 4, sigma = 6, delta = 1e-5, N = 1000 clients, 10% of them per
round, L = 100 local steps.
"""

from collections.abc import Iterator
from functools import lru_cache

from harness.papers.accuracy import CODE_SIGMA, DATA, NON_PRIVATE, TABLE_2, TABLE_6_ACCURACY
from harness.papers.grid import Values
from harness.papers.measured import AGREES, DIFFERS, orders
from harness.papers.measures import Lines, Row
from harness.privacy import (
    Accountant,
    Composition,
    GaussianRelease,
    compose,
    effective_sigma,
    make_accountant,
    rounds_within,
)
from harness.privacy.rdp import Renyi
from harness.privacy.schedules import NoiseSchedule, Policy, Space

TOLERANCE = 1e-3
IRREPRODUCIBLE = "irreproducible"
DELTA, SIGMA, LOCAL_STEPS, CLIENT_RATE = 1e-5, 6.0, 100, 0.1
# The printed epsilons of all five datasets follow from this rate, B / n_i, and from no other.
EXAMPLE_RATE = 0.01
# Batch size B times clients per round over the size of the training set: the rate q1 as printed.
PRINTED_RATE = {
    "mnist": 5 * 100 / 60000, "cifar10": 4 * 100 / 50000, "lfw": 3 * 100 / 2267, "adult": 3 * 100 / 36631,
    "cancer": 4 * 100 / 426,
}  # fmt: skip
ROUNDS = {data: federation.rounds for data, federation in TABLE_2.items()}
# Weight tensors of the released networks, each clipped to C on its own: sigma is worth sigma / sqrt(3).
LAYERS = 3
METHODS = ("non-private", "Fed-SDP", "Fed-CDP", "Fed-αCDP")
#: In Table XI, fixed noise of the other method, whose epsilon the paper takes from Fed-CDP's.
FIXED_ALPHA = "fixed, Fed-αCDP"
_TOLD = {
    "convention": "epsilon: moments accountant, Mironov conversion, the released script's orders, Poisson sampling, "
    "add/remove, sigma as printed",
    "PLD": "PLD: the tight epsilon of the same releases (privacy loss distributions); RDP improved: today's conversion",
}


def moments_accountant() -> Accountant:
    """The accountant behind the paper's printed epsilons, every sigma computed exactly."""
    return Renyi("mironov", "paper", grid=None)


def local_steps(rounds: int, sigma: float = SIGMA, rate: float = EXAMPLE_RATE, layers: int = 1) -> GaussianRelease:
    """Fed-CDP: ``rounds`` rounds of L local steps on examples."""
    return GaussianRelease(effective_sigma(sigma, layers), rate, "poisson", count=rounds * LOCAL_STEPS)


def client_rounds(rounds: int, layers: int = 1) -> GaussianRelease:
    """Fed-SDP: ``rounds`` releases of the clients' sum."""
    return GaussianRelease(effective_sigma(SIGMA, layers), CLIENT_RATE, "poisson", count=rounds)


def decaying_rounds(policy: Policy, data: str, space: Space = "eps") -> tuple[Composition, ...]:
    """Fed-αCDP[σ]: one event per round of the dataset's T rounds, sigma_0 = 15, sigma_T = 4.85."""
    return _decaying(policy, ROUNDS[data], space)


@lru_cache(maxsize=64)
def _decaying(policy: Policy, rounds: int, space: Space) -> tuple[Composition, ...]:
    schedule = NoiseSchedule(policy, space, 15.0, 4.85, rounds, LOCAL_STEPS)
    return tuple(
        compose(GaussianRelease(schedule.sigma(number, step), EXAMPLE_RATE, "poisson") for step in range(LOCAL_STEPS))
        for number in range(rounds)
    )


def epsilon_of(accountant: Accountant, event: GaussianRelease | Composition) -> float:
    """Epsilon at the paper's delta."""
    return accountant.epsilon(event, DELTA).epsilon


def _three(event: GaussianRelease | Composition) -> Values:
    """Our numbers for an event: by the paper's convention, by today's conversion, and tight."""
    return {
        "ours": epsilon_of(moments_accountant(), event), "improved": epsilon_of(make_accountant("rdp"), event),
        "pld": epsilon_of(make_accountant("pld"), event),
    }  # fmt: skip


def _near(ours: float, paper: float, known: bool = False) -> str:
    """Return whether our number is the paper's; ``known`` marks a cell that no reading of the paper reproduces."""
    return AGREES if abs(ours - paper) < TOLERANCE else IRREPRODUCIBLE if known else DIFFERS


class _Accounted(Lines):
    """Rows whose epsilons are computed, and whose accuracies are trained beforehand."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield each row with its epsilons and accuracies; all runs are dealt first."""
        self.train(printed)
        self.request.require_whole()
        for row in printed:
            found = self.accounted(row)
            yield row | found | self.accuracy(row | found)

    def train(self, printed: list[Row]) -> None:
        """Train what the table needs."""
        for method, data in self.request.dealt(self.runs(printed), "run"):
            self.of(method, data)

    def runs(self, printed: list[Row]) -> list[tuple[str, str]]:
        """Methods and datasets of all runs."""
        raise NotImplementedError

    def accounted(self, row: Row) -> Values:
        """Epsilons of a row, and its verdict."""
        raise NotImplementedError

    def accuracy(self, row: Row) -> Values:
        """Accuracies of a row."""
        raise NotImplementedError

    def lines(self, name: str) -> list[str]:
        """Return what all tables on epsilons say."""
        return [_TOLD[name]] if name in _TOLD else super().lines(name)


class AfterAllRounds(_Accounted):
    """Table VI: epsilon and accuracy after all rounds."""

    def train(self, printed: list[Row]) -> None:
        """Train every method, and at the released scripts' noise those of the rows."""
        super().train(printed)
        for row in self.request.dealt(printed, "row"):
            self.of(row["method"], row["data"], defense_args={"sigma": CODE_SIGMA})

    def runs(self, printed: list[Row]) -> list[tuple[str, str]]:
        """Every method on every dataset."""
        return [(method, data) for data in DATA for method in METHODS]

    def accounted(self, row: Row) -> Values:
        """Fed-SDP is charged a round more; Fed-αCDP what Fed-CDP is."""
        data, at_client = row["data"], row["method"] == "Fed-SDP"
        rounds = ROUNDS[data] + 1 if at_client else ROUNDS[data]
        event = client_rounds(rounds) if at_client else local_steps(rounds)
        corrected = client_rounds(rounds, LAYERS) if at_client else local_steps(rounds, layers=LAYERS)
        found = _three(event)
        printed = None if at_client else epsilon_of(moments_accountant(), local_steps(rounds, rate=PRINTED_RATE[data]))
        return found | {
            "unit": "client" if at_client else "example", "q": CLIENT_RATE if at_client else EXAMPLE_RATE,
            "steps": event.count, "by_layer": epsilon_of(moments_accountant(), corrected), "printed_q": printed,
            "verdict": _near(found["ours"], row["paper"], known=data == "cancer"),
        }  # fmt: skip

    def accuracy(self, row: Row) -> Values:
        """Ours at both levels of noise, and the order of the methods on the dataset."""
        method, data = row["method"], row["data"]
        paper = {one: TABLE_6_ACCURACY[one, data] for one in METHODS}
        placed = orders(paper, {one: self.of(one, data) for one in METHODS})
        return {
            "accuracy": _shown(self.of(method, data)), "paper_accuracy": paper[method], "order": placed[method],
            "at_code_sigma": _shown(self.of(method, data, defense_args={"sigma": CODE_SIGMA})),
        }  # fmt: skip

    def lines(self, name: str) -> list[str]:
        """Runs without a defense, which have no row."""
        if name != "non-private":
            return super().lines(name)
        return [
            f"{data}: {name} {_shown(self.of(name, data))}, paper {paper:.3f}" for data, paper in NON_PRIVATE.items()
        ]


class AtEqualAccuracy(_Accounted):
    """Table VII: epsilon when Fed-SDP's accuracy is reached, at the paper's rounds and at ours."""

    def train(self, printed: list[Row]) -> None:
        """Train a row's method and Fed-SDP."""
        for row in self.request.dealt(printed, "row"):
            self.of("Fed-SDP", row["data"])
            self.of(row["method"], row["data"])

    def accounted(self, row: Row) -> Values:
        """At the paper's rounds, one more for Fed-SDP."""
        at_client = row["method"] == "Fed-SDP"
        event = client_rounds(row["rounds"] + 1) if at_client else local_steps(row["rounds"])
        found = _three(event)
        verdict = _near(found["ours"], row["paper"], known=at_client and row["data"] == "cancer")
        return found | {"steps": event.count, "verdict": verdict}

    def accuracy(self, row: Row) -> Values:
        """The first round at which ours reaches Fed-SDP's, and the epsilon there."""
        method, data = row["method"], row["data"]
        target, made = self.of("Fed-SDP", data), self.of(method, data)
        reached = None
        if target is not None and made is not None and not target.chance:
            reached = min((one for one, accuracy in made.curve.items() if accuracy >= target.accuracy), default=None)
            reached = made.rounds if method == "Fed-SDP" else reached
        event = None
        if reached is not None:
            event = client_rounds(reached + 1) if method == "Fed-SDP" else local_steps(reached)
        return {
            "accuracy": _shown(made), "paper_accuracy": TABLE_6_ACCURACY[method, data], "target": _shown(target),
            "reached": reached, "there": None if event is None else epsilon_of(moments_accountant(), event),
        }  # fmt: skip


class UnderDecay(_Accounted):
    """Table VIII: rounds until a decaying noise scale has spent the fixed one's epsilon, and the accuracy by then."""

    def runs(self, printed: list[Row]) -> list[tuple[str, str]]:
        """The rows', and fixed noise beside them."""
        decaying = [(_method(row["policy"]), row["data"]) for row in printed]
        return decaying + [(fixed, data) for fixed in ("Fed-CDP", "Fed-αCDP") for data in DATA]

    def accounted(self, row: Row) -> Values:
        """By the script's schedule; beside it the printed formulas on sigma."""
        rounds, target = decaying_rounds(row["policy"], row["data"]), self.table.facts["target"][row["data"]]
        stop = rounds_within(moments_accountant(), rounds, target, DELTA)
        printed = epsilon_of(moments_accountant(), compose(decaying_rounds(row["policy"], row["data"], "sigma")))
        most = ROUNDS[row["data"]]
        return {
            "target": target, "T": most, "rounds": stop.rounds if stop.exceeded else f">{most}",
            "filter": stop.rounds - stop.exceeded, "ours": stop.epsilon,
            "pld": epsilon_of(make_accountant("pld"), compose(rounds[: stop.rounds])), "printed_sigma": printed,
            "verdict": AGREES if stop.exceeded and stop.rounds == row["paper"] else IRREPRODUCIBLE,
        }  # fmt: skip

    def accuracy(self, row: Row) -> Values:
        """Return the accuracy after the same share of our rounds, and beside it that of fixed noise after all of
        them."""
        made = self.of(_method(row["policy"]), row["data"], share=row["filter"] / row["T"])
        fixed = {"cdp": _shown(self.of("Fed-CDP", row["data"])), "acdp": _shown(self.of("Fed-αCDP", row["data"]))}
        return {"accuracy": _shown(made)} | fixed


class ByAccountant(_Accounted):
    """Table XI: four accountants on MNIST, fixed and decaying noise, and the accuracy when each target is spent."""

    def runs(self, printed: list[Row]) -> list[tuple[str, str]]:
        """One per kind of noise."""
        return [(_method(noise), "mnist") for noise in dict.fromkeys(row["noise"] for row in printed)]

    def accounted(self, row: Row) -> Values:
        """Fixed noise gives the target; decaying noise the rounds at which it is spent."""
        noise = row["noise"]
        return self._fixed(row) if noise in ("fixed", FIXED_ALPHA) else self._rounds(row)

    def _fixed(self, row: Row) -> Values:
        name = row["accountant"]
        accountant = moments_accountant() if name == "rdp" else make_accountant(name, e0="rounded", formula="drv")
        ours = epsilon_of(accountant, local_steps(ROUNDS["mnist"]))
        # The paper accounts for both alike: a second verdict would count the same epsilon twice.
        verdict = "-" if row["noise"] == FIXED_ALPHA else _near(ours, row["target"])
        tight = epsilon_of(make_accountant("pld"), local_steps(ROUNDS["mnist"]))
        return {
            "formula": accountant.conversion, "ours": ours, "rounds": ROUNDS["mnist"], "pld": tight, "remark": "",
            "verdict": verdict,
        }  # fmt: skip

    def _rounds(self, row: Row) -> Values:
        name, policy, target = row["accountant"], row["noise"], row["target"]
        rounds = decaying_rounds(policy, "mnist")
        accountant = moments_accountant() if name == "rdp" else make_accountant(name, formula="kov")
        stop = rounds_within(accountant, rounds, target, DELTA)
        same = stop.exceeded and stop.rounds == row["paper"]
        by_drv = name == "advanced" and policy != "cyclic"
        return {
            "formula": accountant.conversion, "ours": stop.epsilon,
            "rounds": stop.rounds if stop.exceeded else f">{ROUNDS['mnist']}",
            "pld": epsilon_of(make_accountant("pld"), compose(rounds[: stop.rounds])),
            "remark": f"drv: {rounds_within(make_accountant('advanced'), rounds, target, DELTA).rounds}" * by_drv,
            "verdict": AGREES if same else (IRREPRODUCIBLE if policy == "cyclic" else DIFFERS),
        }  # fmt: skip

    def accuracy(self, row: Row) -> Values:
        """Return the accuracy after the same share of our rounds; after all of them where the target is never spent."""
        rounds = row["rounds"]
        spent = rounds / ROUNDS["mnist"] if isinstance(rounds, int) else 1.0
        return {"accuracy": _shown(self.of(_method(row["noise"]), "mnist", share=spent))}


def _method(noise: str) -> str:
    """The name under which a kind of noise is trained."""
    return {"fixed": "Fed-CDP", FIXED_ALPHA: "Fed-αCDP"}.get(noise, f"Fed-αCDP[σ] {noise}")


def _shown(made: object) -> str:
    return "-" if made is None else str(made)
