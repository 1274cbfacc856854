"""S001: global differential privacy on MNIST, stopped by the delta of a fixed epsilon."""

from typing import Any

from harness.reproduction.chance import CHANCE_NOTE
from harness.reproduction.client_level.paper import GEYER_EPSILON, GEYER_TABLE, Geyer
from harness.reproduction.client_level.runs import LEARNING_RATE, ClientRuns, clipping_bound
from harness.reproduction.comparison import Comparison, Request
from harness.reproduction.measured import Measured
from harness.reproduction.ordering import orders
from harness.training import TrainDocument, TrainSettings

SIGMA = 1.2
BATCH = 10
MOST_ROUNDS = 600
WARM_UP_ROUNDS, QUICK_WARM_UP_ROUNDS = 5, 2
QUICK_CLIENTS = (100, 1000)


def s001(request: Request) -> Comparison:
    """Geyer's table; ``--quick`` leaves 10,000 clients out."""
    runs = ClientRuns(request)
    wanted = [row for row in GEYER_TABLE if not request.quick or row.clients in QUICK_CLIENTS]
    made = {printed.clients: _trained(runs, printed) for printed in request.dealt(wanted, "row")}
    request.require_whole()
    verdicts = orders(
        {str(row.clients): row.accuracy for row in wanted}, {str(row.clients): made[row.clients][1] for row in wanted}
    )
    return Comparison(
        f"S001: global DP on MNIST at epsilon {GEYER_EPSILON:g}, stopped by delta (ours beside Geyer et al.'s)",
        [
            runs.data_line("mnist"),
            runs.sizes(),
            *(["left out by --quick: N=10000"] if request.quick else []),
            f"not given and chosen once for all cells: sigma {SIGMA:g} (the recalled rounds need 1.1 to 1.4), one "
            f"local epoch in batches of {BATCH}, learning rate {LEARNING_RATE:g}, the cnn of the other tables, shards "
            "of one class; S the median update norm of an undefended warm-up (private data, covered by no epsilon)",
            "clients per round K: on average; the recalled communication costs over the recalled rounds; drawn by "
            "Poisson sampling, as the accountant assumes",
        ],
        [_row(printed, *made[printed.clients], verdicts[str(printed.clients)]) for printed in wanted],
        [
            "S001 prints no numbers: those beside ours are Geyer et al.'s as recalled",
            "agrees: the accuracy stands among those of the other N as theirs does",
            "rounds: the last whose delta at the fixed epsilon keeps to the threshold (Renyi, improved conversion)",
            CHANCE_NOTE,
        ],
    )


def _trained(runs: ClientRuns, printed: Geyer) -> tuple[TrainDocument | None, Measured]:
    """The private run of a row, whose bound comes from a warm-up without a defense."""
    warm_up = _federation(runs, printed, QUICK_WARM_UP_ROUNDS if runs.request.quick else WARM_UP_ROUNDS)
    undefended = runs.run(f"N={printed.clients}: warm-up", warm_up)
    if undefended is None:
        return None, runs.measured(warm_up, None)
    arguments = {
        "clip": clipping_bound(undefended), "sigma": SIGMA, "epsilon": GEYER_EPSILON, "max_delta": printed.max_delta,
    }  # fmt: skip
    private = _federation(runs, printed, MOST_ROUNDS, defense="global_dp", defense_args=arguments)
    document = runs.run(f"N={printed.clients} under global DP", private)
    return document, runs.measured(private, document)


def _federation(runs: ClientRuns, printed: Geyer, rounds: int, **changes: Any) -> TrainSettings:
    plain = runs.settings("mnist", clients=printed.clients, clients_per_round=printed.per_round, rounds=rounds)
    assert plain is not None  # MNIST has a bundled sample
    local = {"batch_size": BATCH, "local_steps": plain.client_examples // BATCH, "delta": printed.max_delta}
    return plain.model_copy(update=local | changes)


def _row(printed: Geyer, document: TrainDocument | None, measured: Measured, verdict: str) -> dict[str, Any]:
    bound = document.settings["defense_args"]["clip"] if document else None
    return {
        "N": printed.clients, "K": printed.per_round, "δ ≤": f"{printed.max_delta:g}",
        "S": "-" if bound is None else f"{bound:.3g}", "rounds": len(document.rounds) if document else "-",
        "theirs": printed.rounds, "accuracy": str(measured), "their accuracy": f"{printed.accuracy:.2f}",
        "stopped by": (document.stopped or f"the most rounds, {MOST_ROUNDS}") if document else "-",
        "verdict": verdict,
    }  # fmt: skip
