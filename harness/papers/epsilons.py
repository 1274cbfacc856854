"""Ours of the tables of epsilons: DP-SCAFFOLD, and secure aggregation with several local steps."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from harness.papers.grid import Values, grid
from harness.papers.measures import Lines, Row, said
from harness.privacy import MechanismRelease, make_accountant, sigma_for, skellam_sum, steps_within
from harness.privacy.distributed_noise import SEVERAL_STEPS, DistributedNoise, Party
from harness.privacy.rdp import Renyi
from harness.privacy.scaffold import Mode, Scaffold, scaffold_accountant, scaffold_epsilon, scaffold_event
from harness.secagg import SkellamGrid

DELTA = 1e-5


class _Epsilons(Lines):
    """Rows that train and attack nothing."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield each row with ours."""
        for row in printed:
            found = self._row(row)
            yield row | found | {"verdict": said(self.agrees(row | found))}

    def _row(self, row: Row) -> Values:
        raise NotImplementedError


class ScaffoldEpsilons(_Epsilons):
    """Epsilon of DP-SCAFFOLD and DP-FedAvg towards a third party and the server."""

    def _row(self, row: Row) -> Values:
        users, records, sigma = self.table.facts["data"][row["data"]]
        run = Scaffold(sigma, users, records, row["K"], row["T"])
        modes: dict[str, Mode] = {"ours": "paper", "tight": "tight", "proven": "proven"}
        return {"sigma": sigma} | {name: scaffold_epsilon(run, row["view"], mode) for name, mode in modes.items()}


class ScaffoldRounds(_Epsilons):
    """The most rounds that keep to a target epsilon, by local steps."""

    def _row(self, row: Row) -> Values:
        facts, target = self.table.facts, row["target"]
        users, records, _ = grid("dp-scaffold-accounting").facts["data"]["synthetic"]
        runs = [Scaffold(row["sigma"], users, records, steps, 1, facts["user_rate"]) for steps in facts["steps"]]
        return {"ours": [most_rounds(run, target) for run in runs], "proven": most_rounds(runs[-1], target, "proven")}


def most_rounds(run: Scaffold, target: float, mode: Mode = "paper") -> int:
    """Return the last round of such a run at which a third party's epsilon is within the target."""
    return steps_within(
        scaffold_accountant(mode),
        lambda rounds: scaffold_event(replace(run, rounds=rounds), "third party", mode),
        target,
        run.delta,
        "filter",
    ).rounds


class Configuration(NamedTuple):
    """One released configuration of secure aggregation with local steps; ``sigma``: each client's noise multiplier.

    ``rate``: share of a client's examples in a local step; ``parameters``: of the model; then the clipping bound C,
    and learning rate and momentum of the clients and of the server.
    """

    clients: int
    rate: float
    rounds: int
    steps: int
    sigma: float
    parameters: int
    clip: float
    learning_rate: float
    momentum: float
    server_rate: float
    server_momentum: float


@lru_cache
def configurations() -> dict[str, Configuration]:
    """Return the released configurations by name."""
    return {row["run"]: _configuration(row) for row in grid("secagg-accounting").printed()}


def _configuration(row: Row) -> Configuration:
    own = {name: row[name] for name in Configuration._fields if name != "rate"}
    return Configuration(rate=row["batch"] / row["examples"], **own)


def secagg_accountant() -> Renyi:
    """Return the released script's accountant: Renyi orders 2 to 255, Mironov conversion."""
    return Renyi("mironov", tuple(range(2, 256)))


class SumEpsilons(_Epsilons):
    """Epsilon of the released configurations, which all target the same."""

    def _row(self, row: Row) -> Values:
        one, target = _configuration(row), self.table.facts["target"]
        parties = (Party(one.sigma, rate=one.rate, steps=one.steps),) * one.clients
        skellam = SkellamGrid(one.parameters, 1.0, one.sigma, one.clients)
        integers, gaussian = DistributedNoise(parties, one.rounds, grid=skellam), DistributedNoise(parties, one.rounds)
        accountant = secagg_accountant()

        def epsilon(event: Any) -> float:
            return accountant.epsilon(event, DELTA).epsilon

        return {
            "rate": one.rate, "all_steps": one.rounds * one.steps, "ours": epsilon(integers.sum_event()),
            "mark": "†" if integers.notes else "", "paper": target, "gaussian": epsilon(gaussian.sum_event()),
            "tight": make_accountant("pld").epsilon(gaussian.sum_event(), DELTA).epsilon,
            "own_noise": epsilon(integers.fallback_event()),
        }  # fmt: skip

    def lines(self, name: str) -> list[str]:
        """The note on several local steps."""
        return [f"†: {SEVERAL_STEPS}"] if name == "several steps" else super().lines(name)


class AverageEpsilons(_Epsilons):
    """Epsilon of the average of models that parties trained apart."""

    def _row(self, row: Row) -> Values:
        accountant, facts = secagg_accountant(), self.table.facts

        def event(sigma: float, parties: int = 1) -> MechanismRelease:
            skellam = SkellamGrid(facts["parameters"], 1.0, sigma, parties)
            return MechanismRelease(skellam_sum(skellam), facts["rate"], "poisson", count=row["steps"])

        sigma = sigma_for(accountant, event, row["target"], DELTA)
        ours = [accountant.epsilon(event(sigma, parties), DELTA).epsilon for parties in facts["parties"]]
        return {"sigma": sigma, "ours": ours}
