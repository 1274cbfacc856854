"""Noise of the clients alone, accounted for instances and, jointly, for clients: Bayesian DP, Table IV."""

from pathlib import Path

from harness.federation.defense import FixedNoise
from harness.papers.clients import ClientRuns, ClientTables, clipping_bound
from harness.papers.comparison import number
from harness.papers.grid import Values
from harness.papers.measured import AGREES, CHANCE, DIFFERS, NOT_AT_HAND, Measured
from harness.papers.measures import Row
from harness.privacy import GaussianRelease
from harness.privacy.bayesian import Level, moments_accountant
from harness.privacy.budget import sigma_for
from harness.training import TrainDocument, TrainSettings
from harness.training.bayesian import bayesian_of_run
from harness.training.norms import NormsFolder, RoundNorms

JOINT_CLIENTS, INSTANCE_EPSILON, INSTANCE_DELTA, CLIENT_DELTA = 100, 0.1, 1e-5, 1e-3
# Noise that changes no update, so that the pilot can take notes.
_NEXT_TO_NOTHING = 1e-6
_SEQUENTIAL: Level = "instance sequential"


class JointLevels(ClientTables):
    """Joint accounting at 100 clients."""

    def _row(self, row: Row) -> Values:
        runs = self.runs
        plain = self.federation(row["data"], row["split"], JOINT_CLIENTS, delta=INSTANCE_DELTA)
        baseline = plain and runs.run(f"{row['data']} without a defense", plain)
        if plain is None or baseline is None:
            return {"verdict": NOT_AT_HAND if plain is None else DIFFERS}
        bound, first = clipping_bound(baseline), runs.measured(plain, baseline)
        by_moments = _noised(plain, bound, _moments_sigma(plain))
        dp = runs.measured(by_moments, runs.run(f"{row['data']} under DP", by_moments))
        by_notes = _noised(plain, bound, _bayesian_sigma(runs, plain, bound, baseline))
        document = runs.run(f"{row['data']} under BDP", by_notes, bayesian=True)
        kept, epsilons = _budget(by_notes, document, runs.trained.folder(by_notes), row["client"])
        bdp = runs.measured(by_notes, document, kept) if kept else None
        return {
            "without": str(first), "dp_run": f"{dp}, σ={by_moments.defense_args['sigma']:.3g}",
            "bdp_run": f"{bdp or 'untrained'}, σ={by_notes.defense_args['sigma']:.3g}", "kept": str(kept),
            **{f"{name}_spent": value for name, value in epsilons.items()}, "verdict": _verdict(dp, bdp),
        }  # fmt: skip

    def lines(self, name: str) -> list[str]:
        """The other dataset's line too."""
        return [self.runs.data_line("mnist")] if name == "mnist" else super().lines(name)


def _verdict(dp: Measured, bdp: Measured | None) -> str:
    if bdp is None or bdp.chance:
        return CHANCE if dp.chance else DIFFERS
    return AGREES if bdp.accuracy > dp.accuracy else DIFFERS


def _noised(plain: TrainSettings, bound: float, sigma: float) -> TrainSettings:
    arguments = {"noise_at": "client", "clipping": "whole", "clip": bound, "sigma": sigma}
    return plain.model_copy(update={"defense": "fed_sdp", "defense_args": arguments})


def _moments_sigma(plain: TrainSettings) -> float:
    """Over C, per client: K releases in each of T rounds, at the rate of one client's data in all."""
    rate, count = 1 / plain.clients, plain.clients_per_round * plain.rounds
    return 2 * sigma_for(
        moments_accountant(), lambda value: GaussianRelease(value, rate, "poisson", count=count), INSTANCE_EPSILON,
        INSTANCE_DELTA,
    )  # fmt: skip


def _bayesian_sigma(runs: ClientRuns, plain: TrainSettings, bound: float, baseline: TrainDocument) -> float:
    """Over C, per client, by bisection on the norms of a pilot without noise to speak of."""
    pilot = _noised(plain, bound, _NEXT_TO_NOTHING).model_copy(update={"rounds": max(plain.rounds // 10, 1)})
    if runs.run(f"{plain.dataset}: pilot", pilot, bayesian=True) is None:
        return _moments_sigma(plain)
    seen = _norms(pilot, runs.trained.folder(pilot), pilot.rounds)
    rounds = [seen[number % len(seen)] for number in range(plain.rounds)]

    def spent(sigma: float) -> float:
        noise = FixedNoise("message", sigma * bound, bound)
        (one,) = bayesian_of_run(plain, noise, rounds, 1.0, INSTANCE_DELTA, ("max",), (_SEQUENTIAL,))
        return one.found.epsilon

    low, high = 1e-4, 1.0
    while spent(high) > INSTANCE_EPSILON:
        low, high = high, 2 * high
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if spent(middle) <= INSTANCE_EPSILON else (middle, high)
    return high


def _norms(settings: TrainSettings, folder: Path, rounds: int) -> list[RoundNorms]:
    return NormsFolder(folder, settings).read(rounds)[0]


def _budget(
    settings: TrainSettings, document: TrainDocument | None, folder: Path, client: float
) -> tuple[int, dict[str, str]]:
    """Rounds that keep to both budgets, and what is spent by then."""
    if document is None:
        return 0, {}
    norms, noise = NormsFolder(folder, settings).read(len(document.rounds))
    budgets: dict[Level, float] = {_SEQUENTIAL: INSTANCE_DELTA, "joint": CLIENT_DELTA}
    by_round = {
        level: bayesian_of_run(settings, noise, norms, document.overlap, delta, ("max",), (level,))[0].found.by_round
        for level, delta in budgets.items()
    }
    within = [one <= INSTANCE_EPSILON and two <= client for one, two in zip(*by_round.values(), strict=True)]
    kept = sum(within)  # epsilon never falls
    spent = {level: number(values[kept - 1] if kept else values[0], 3) for level, values in by_round.items()}
    return kept, {"instance": spent[_SEQUENTIAL], "client": spent["joint"]}
