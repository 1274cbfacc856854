"""S003, Table IV: noise of the clients alone, read at the level of instances and, jointly, at that of clients."""

from pathlib import Path
from typing import Any

from harness.bayesian.levels import Level, moments_accountant
from harness.bayesian.norms_files import NormsFolder
from harness.bayesian.of_run import bayesian_of_run
from harness.bayesian.watch import RoundNorms
from harness.federation.defense import FixedNoise
from harness.privacy import GaussianRelease
from harness.privacy.budget import sigma_for
from harness.reproduction.chance import CHANCE_NOTE
from harness.reproduction.client_level.clients import BAYESIAN_NOTES, QUICK_ROUNDS, ROUNDS, federation, header
from harness.reproduction.client_level.paper import (
    CLIENT_DELTA,
    INSTANCE_DELTA,
    INSTANCE_EPSILON,
    JOINT_CLIENTS,
    JOINT_TABLE,
    JointLevel,
)
from harness.reproduction.client_level.runs import ClientRuns, clipping_bound
from harness.reproduction.comparison import Comparison, Request, number
from harness.reproduction.measured import Measured
from harness.reproduction.ordering import AGREES, CHANCE, DIFFERS, NOT_AT_HAND
from harness.training import TrainDocument, TrainSettings

# Noise that changes no update, so that the pilot can take notes.
_NEXT_TO_NOTHING = 1e-6
_SEQUENTIAL: Level = "instance sequential"


def s003_table4(request: Request) -> Comparison:
    """Table IV, joint accounting at 100 clients."""
    runs, rounds = ClientRuns(request), QUICK_ROUNDS if request.quick else ROUNDS
    rows = [_row(runs, printed) for printed in request.dealt(JOINT_TABLE, "row")]
    request.require_whole()
    return Comparison(
        "S003, Table IV: joint accounting of instances and clients, 100 clients (ours beside the paper's)",
        [
            *header(runs, "retina", rounds),
            runs.data_line("mnist"),
            "each client clips its whole update to C and adds noise to it (the paper does not clip per example)",
            f"sigma, DP: the moments accountant reaches instance epsilon {INSTANCE_EPSILON:g} in the last round, two "
            f"updates being 2 C apart at worst; BDP: the smallest at which the norms of an undefended tenth of the run "
            f"have instance BDP epsilon {INSTANCE_EPSILON:g} (max)",
            "BDP stops before the round in which instances, or clients by joint accounting (max), exceed what the "
            "paper prints",
        ],
        rows,
        [
            "agrees: BDP's run learns more than DP's; chance: neither learned",
            "instances: sequential accounting, at the rate of one local gradient among all clients' data; that no "
            "batch is drawn from all of it is ignored, by the paper and here, so DP's epsilon is nominal too",
            "clients: joint accounting counts the other clients' noise as if it never left with them",
            *BAYESIAN_NOTES,
            CHANCE_NOTE,
        ],
    )


def _row(runs: ClientRuns, printed: JointLevel) -> dict[str, Any]:
    plain = federation(runs, printed.data, printed.split, JOINT_CLIENTS, delta=INSTANCE_DELTA)
    baseline = plain and runs.run(f"{printed.data} without a defense", plain)
    if plain is None or baseline is None:
        return _cells(printed, {}, "-", NOT_AT_HAND if plain is None else DIFFERS)
    bound, first = clipping_bound(baseline), runs.measured(plain, baseline)
    by_moments = _noised(plain, bound, _moments_sigma(plain))
    dp = runs.measured(by_moments, runs.run(f"{printed.data} under DP", by_moments))
    by_notes = _noised(plain, bound, _bayesian_sigma(runs, plain, bound, baseline))
    document = runs.run(f"{printed.data} under BDP", by_notes, bayesian=True)
    kept, epsilons = _budget(by_notes, document, runs.trained.folder(by_notes), printed.client)
    bdp = runs.measured(by_notes, document, kept) if kept else None
    shown = {
        "baseline": first, "DP": f"{dp}, σ={by_moments.defense_args['sigma']:.3g}",
        "BDP": f"{bdp or 'untrained'}, σ={by_notes.defense_args['sigma']:.3g}", "rounds": kept, **epsilons,
    }  # fmt: skip
    return _cells(printed, shown, "-", _verdict(dp, bdp))


def _verdict(dp: Measured, bdp: Measured | None) -> str:
    if bdp is None or bdp.chance:
        return CHANCE if dp.chance else DIFFERS
    return AGREES if bdp.accuracy > dp.accuracy else DIFFERS


def _cells(printed: JointLevel, shown: dict[str, Any], missing: str, verdict: str) -> dict[str, Any]:
    def of(name: str) -> str:
        return str(shown.get(name, missing))

    return {
        "data": printed.data, "split": printed.split, "baseline": of("baseline"), "paper's": f"{printed.baseline}%",
        "DP": of("DP"), "paper's DP": f"{printed.dp}%", "BDP": of("BDP"), "paper's BDP": f"{printed.bdp}%",
        "rounds": of("rounds"), "client ε": of("client"), "paper's client ε": printed.client,
        "instance ε": of("instance"), "paper's instance ε": INSTANCE_EPSILON, "verdict": verdict,
    }  # fmt: skip


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
