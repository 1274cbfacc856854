"""Tables on the privacy of whole clients: Bayesian against real differential privacy, and global DP stopped by delta.

What the papers leave open is chosen here, once for all cells.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.federation.defense import FixedNoise
from harness.papers.grid import Grid, Values, at_hand, number
from harness.papers.measured import AGREES, CHANCE, DIFFERS, NOT_AT_HAND, Measured, orders
from harness.papers.measures import Dealt, Row, said
from harness.privacy import GaussianRelease
from harness.privacy.bayesian import Level, moments_accountant
from harness.privacy.budget import sigma_for
from harness.study.runner import Request, TrainedRuns
from harness.training import TrainDocument, TrainSettings, train_settings
from harness.training.bayesian import bayesian_of_run
from harness.training.chance import chance_level
from harness.training.norms import NormsFolder, RoundNorms

LEARNING_RATE = 0.1
EXAMPLES, QUICK_EXAMPLES = {"mnist": 600, "retina": 350}, 60
# The paper retrains the last layer of a ResNet-50; random filters stand in for its pretrained features.
MODELS = {"retina": "frozen_linear"}
_WARM_UP = 0.1
ROUNDS, QUICK_ROUNDS = 300, 30
PER_ROUND = {100: 30, 1000: 100, 10000: 100}
QUICK_CLIENTS = 100
# Of global DP: the noise, the batch, and how many rounds there are at most and before the bound is known.
SIGMA, BATCH, MOST_ROUNDS = 1.2, 10, 600
WARM_UP_ROUNDS, QUICK_WARM_UP_ROUNDS = 5, 2

CHOSEN = (
    "not given by the paper and chosen once for all cells: learning rate "
    f"{LEARNING_RATE:g} and the cnn of the other tables (neither tuned); a full local gradient per round (FedSGD); "
    "exactly 30 of 100 clients per round, else 100; C the median update norm of the first tenth of the "
    "undefended run (read off private data, covered by no epsilon)"
)
BAYESIAN_NOTES = [
    "BDP is not differential privacy: it depends on the distribution of the data, covers typical clients or records "
    "only, and no outlier",
    "BDP epsilons: direction max (the paper's) and L; Student's confidence term, all estimates together fail with "
    "probability delta/10; no estimate counts more than clipping allows",
]
_TABLE_NOTES = [
    "agrees: the Bayesian epsilon (max) is below that of DP, and no private run is above the baseline; the "
    "paper's own parameters are unknown, so no equality is asked of any cell",
    *BAYESIAN_NOTES,
    "BDP ε: as the paper has it, max of both directions, for a mean over those who took part; (L): the exact "
    "direction alone; fixed n: for a sum over a fixed denominator, where updates' agreement is worth nothing",
    "DP ε: moments accountant, add/remove on a sum over a fixed denominator, every update as large as C, "
    "Poisson sampling of clients as the paper has it (exactly K were drawn, so it is nominal); towards who "
    "sees the models only, since the server gets updates without noise",
]
JOINT_CLIENTS, INSTANCE_EPSILON, INSTANCE_DELTA, CLIENT_DELTA = 100, 0.1, 1e-5, 1e-3
# Noise that changes no update, so that the pilot can take notes.
_NEXT_TO_NOTHING = 1e-6
_SEQUENTIAL: Level = "instance sequential"


class ClientRuns:
    """Trains what the tables ask for, each run once."""

    def __init__(self, request: Request) -> None:
        self.request, self.trained = request, TrainedRuns(request)

    def settings(self, data: str, **changes: Any) -> TrainSettings | None:
        """Training settings with one pass over a client's data per round; None where the data is not at hand."""
        name = at_hand(data, self.request.data_root)[0]
        if name is None:
            return None
        small = self.request.quick or name.endswith("-sample")
        examples = QUICK_EXAMPLES if small else EXAMPLES[data]
        values = {
            "dataset": name, "model": MODELS.get(data, "cnn"), "local_steps": 1, "batch_size": examples,
            "examples": examples, "client_sampling": "poisson", "learning_rate": LEARNING_RATE,
            "seed": self.request.seeds[0], "device": self.request.device,
        }  # fmt: skip
        return train_settings(**(values | changes))

    def run(self, title: str, settings: TrainSettings, bayesian: bool = False) -> TrainDocument | None:
        """The run; None where it diverged."""
        return self.trained.document(title, settings, bayesian=bayesian)

    def measured(self, settings: TrainSettings, document: TrainDocument | None, after: int | None = None) -> Measured:
        """Accuracy after so many rounds (all by default), and whether it needs no training."""
        curve = {one.round: one.accuracy for one in document.rounds if one.accuracy is not None} if document else {}
        last = after or max(curve, default=0)
        accuracy = curve.get(last, 0.0)
        level = chance_level(settings.dataset, settings.model, self.request.data_root)
        return Measured(accuracy, accuracy <= level, curve, settings.rounds)

    def data_line(self, data: str) -> str:
        """One line on the data that is used."""
        name, line = at_hand(data, self.request.data_root)
        if name is None and data == "retina":
            return "APTOS 2019 (retina): not at hand; put its images into one folder per class below retina/"
        return line

    def sizes(self) -> str:
        """Return in words how many examples a client holds."""
        full = ", ".join(f"{count} ({data})" for data, count in EXAMPLES.items())
        if self.request.quick:
            return f"scaled down by --quick: {QUICK_EXAMPLES} examples per client instead of {full}"
        return f"examples per client: {full}; {QUICK_EXAMPLES} where only a bundled sample is at hand"


def clipping_bound(document: TrainDocument) -> float:
    """The median, over the first tenth of a run's rounds, of the mean norm of an update."""
    first = document.rounds[: max(round(_WARM_UP * len(document.rounds)), 1)]
    return statistics.median(record.update_norm for record in first if record.update_norm is not None)


class ClientTables(Dealt):
    """Common part of tables on clients: their runs, and a row that is trained alone."""

    def __init__(self, table: Grid, request: Request) -> None:
        super().__init__(table, request)
        self.runs = ClientRuns(request)

    def federation(self, data: str, split: str, clients: int, **changes: Any) -> TrainSettings | None:
        """A cell's training settings without a defense; None where the data is not at hand."""
        return self.runs.settings(
            data, split=split, clients=clients, clients_per_round=PER_ROUND[clients], rounds=self.rounds,
            algorithm="fedsgd", client_sampling="fixed", **changes,
        )  # fmt: skip

    @property
    def rounds(self) -> int:
        """T."""
        return QUICK_ROUNDS if self.request.quick else ROUNDS

    def lines(self, name: str) -> list[str]:
        """Return what was run, what was scaled down, and what was chosen."""
        if name == "federation":
            scaled = (
                f"T={self.rounds} rounds instead of {ROUNDS}, which leave less time to learn and need less noise per "
                f"round; only N={QUICK_CLIENTS}"
                if self.request.quick
                else f"T={self.rounds} rounds"
            )
            return [self.runs.data_line(self.data[0]), self.runs.sizes(), scaled, CHOSEN]
        own = {"Bayesian notes": BAYESIAN_NOTES, "table notes": _TABLE_NOTES, "sizes": [self.runs.sizes()]}
        return own[name] if name in own else super().lines(name)


class BayesianClients(ClientTables):
    """Bayesian against real differential privacy of clients, on the same run."""

    def _row(self, row: Row) -> Values:
        data, absent = self.table.facts["data"], {"without": "-", "private": "-"}
        plain = self.federation(data, self.table.facts["split"], row["clients"], delta=row["delta"])
        baseline = plain and self.runs.run(f"{data} without a defense", plain)
        if plain is None or baseline is None:
            return absent | {"verdict": NOT_AT_HAND if plain is None else DIFFERS}
        rate, bound = plain.clients_per_round / plain.clients, clipping_bound(baseline)
        sigma = sigma_for(
            moments_accountant(), lambda value: GaussianRelease(value, rate, "poisson", count=plain.rounds),
            row["epsilon"], row["delta"],
        )  # fmt: skip
        private = plain.model_copy(update={"defense": "global_dp", "defense_args": {"clip": bound, "sigma": sigma}})
        document = self.runs.run(f"{data} under global DP", private, bayesian=True)
        first, second = self.runs.measured(plain, baseline), self.runs.measured(private, document)
        found = {(one["level"], one["direction"]): one for one in document.bayesian} if document else {}
        values = {"without": str(first), "private": str(second)}
        if not found:
            return values | {"verdict": DIFFERS}
        mean, client = found["client mean", "max"]["epsilon"], found["client", "max"]
        agrees = mean < client["moments_epsilon"] and second.accuracy <= first.accuracy
        return values | {
            "dp_epsilon": client["moments_epsilon"], "bdp": mean, "bdp_l": found["client mean", "L"]["epsilon"],
            "bdp_fixed": client["epsilon"], "verdict": said(agrees),
        }  # fmt: skip


class GlobalDP(ClientTables):
    """Global differential privacy, stopped by the delta of a fixed epsilon; its order over numbers of clients."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield each row with ours, and its place in the order of accuracies."""
        made = {row["clients"]: self._trained(row) for row in self.request.dealt(printed, "row")}
        self.request.require_whole()
        verdicts = orders(
            {str(row["clients"]): row["accuracy"] for row in printed},
            {str(clients): measured for clients, (_, measured) in made.items()},
        )
        for row in printed:
            document, measured = made[row["clients"]]
            found = {"ours": str(measured), "verdict": verdicts[str(row["clients"])]}
            if document:
                found |= {
                    "bound": document.settings["defense_args"]["clip"], "made": len(document.rounds),
                    "stopped": document.stopped or f"the most rounds, {MOST_ROUNDS}",
                }  # fmt: skip
            yield row | found

    def _trained(self, row: Row) -> tuple[TrainDocument | None, Measured]:
        """The private run of a row, whose bound comes from a warm-up without a defense."""
        warm_up = self._federation(row, QUICK_WARM_UP_ROUNDS if self.request.quick else WARM_UP_ROUNDS)
        undefended = self.runs.run(f"N={row['clients']}: warm-up", warm_up)
        if undefended is None:
            return None, self.runs.measured(warm_up, None)
        arguments = {
            "clip": clipping_bound(undefended), "sigma": SIGMA, "epsilon": self.table.facts["epsilon"],
            "max_delta": row["max_delta"],
        }  # fmt: skip
        private = self._federation(row, MOST_ROUNDS, defense="global_dp", defense_args=arguments)
        document = self.runs.run(f"N={row['clients']} under global DP", private)
        return document, self.runs.measured(private, document)

    def _federation(self, row: Row, rounds: int, **changes: Any) -> TrainSettings:
        plain = self.runs.settings(
            "mnist", clients=row["clients"], clients_per_round=row["per_round"], rounds=rounds
        )  # fmt: skip
        assert plain is not None  # MNIST has a bundled sample
        local = {"batch_size": BATCH, "local_steps": plain.client_examples // BATCH, "delta": row["max_delta"]}
        return plain.model_copy(update=local | changes)


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
        by_notes = _noised(plain, bound, _bayesian_sigma(runs, plain, bound))
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


def _bayesian_sigma(runs: ClientRuns, plain: TrainSettings, bound: float) -> float:
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
