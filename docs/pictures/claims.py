"""Draws the picture of docs/what-your-filter-proves.md and prints its tables; the page's test compares the tables.

    python docs/pictures/claims.py
    python docs/pictures/claims.py RUNS  # attacks every filter once more, into that folder, and keeps what leaked

Every line is what ``harness claims`` prints for the command that stands in it, for one client, over the rounds asked;
or what ``harness evaluate`` found by the command that stands in it, as ``claims.json`` keeps it.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from harness.claims.filters import FILTERS
from harness.cli import run

PICTURE, FOUND = Path(__file__).with_suffix(".png"), Path(__file__).with_suffix(".json")
_LOCAL = "flower:LocalDpMod --arg clipping_norm=1 --arg sensitivity={} --arg epsilon={} --arg delta=1e-5 --scalars 0"
_CENTRAL = "flower:{}FixedClipping --arg noise_multiplier={} --arg clipping_norm=10 --arg num_sampled_clients=20 "
_COHORT = "--rounds 3 --clients 100 --per-round 20"
_EXAMPLES = "--examples 500 --batch-size 32 --local-epochs 3 --rounds 20"
#: What is asked of each filter that draws noise, with a short name for the picture.
ASKED = {
    "Flower LocalDpMod, epsilon 1": _LOCAL.format(1, 1),
    "Flower LocalDpMod, epsilon 8": _LOCAL.format(2, 8),
    "Flower LocalDpMod, epsilon 10": _LOCAL.format(2, 10),
    "FLIP local_dp, as shipped": "flip:local_dp --scalars 0",
    "Flower fixed clipping": f"{_CENTRAL.format('ServerSide', 0.2)}{_COHORT} --weights equal",
    "Flower fixed clipping, weights by data": f"{_CENTRAL.format('ServerSide', 0.2)}{_COHORT}",
    "Flower fixed clipping by clients": f"{_CENTRAL.format('ClientSide', 1)}{_COHORT} --weights equal",
    "Flower adaptive clipping, 50 rounds": "flower:ServerSideAdaptiveClipping --arg noise_multiplier=1 --arg "
    "num_sampled_clients=100 --rounds 50 --clients 100 --per-round 100 --weights equal",
    "NVFlare SVTPrivacy, LeNet": "nvflare:SVTPrivacy --parameters 61706 --scalars 0",
    "Opacus, 20 rounds": f"opacus:PrivacyEngine --arg noise_multiplier=1 {_EXAMPLES}",
    "Opacus, no Poisson sampling": "opacus:PrivacyEngine --arg noise_multiplier=1 --arg poisson_sampling=false "
    f"{_EXAMPLES}",
    "pfl banded matrix, corrected": "pfl:BandedMatrixFactorization --arg num_iterations=2000 --arg cohort_size=5000 "
    "--arg population=1000000 --arg corrected=true",
}
#: More lines of the table, which the picture does not show.
MORE = (
    "pfl:BandedMatrixFactorization --arg num_iterations=2000 --arg cohort_size=5000 --arg population=1000000",
    "flower:ServerSideFixedClipping --arg noise_multiplier=1 --arg clipping_norm=1 --arg num_sampled_clients=20 --arg "
    "accountant=true --rounds 3",
    "openfl:GlobalDP1 --rounds 10 --buffers none",
    "openfl:GlobalDP2 --rounds 10 --buffers none",
    "appfl:dp --arg epsilon=1 --local-steps 100 --optimizer adam --buffers none",
    "appfl:dp --arg epsilon=10 --arg dp_mechanism=gaussian --arg clip_norm=2 --arg clip_grad=true --local-steps 10 "
    "--optimizer sgd --buffers none",
    "fedml:dp --arg dp_solution_type=nbafl --arg epsilon=0.5",
    "fedml:dp --arg dp_solution_type=ldp --arg epsilon=0.5",
    "pfl:GaussianMechanism --arg clipping_bound=1 --arg epsilon=2 --arg delta=1e-5",
    "pfl:CentralGaussian --arg num_compositions=1500 --arg cohort_size=50 --arg noise_cohort_size=1000 --arg "
    "population=10000000",
    "pfl:CentrallyAppliedPrivacyMechanism --arg relative_noise_stddev=1 --rounds 100 --weights equal",
    "pfl:AdaptiveClippingGaussianMechanism --arg relative_noise_stddev=1 --arg clipping_indicator_noise_stddev=5 "
    "--rounds 100 --weights equal",
    "tff:gaussian_fixed --arg noise_multiplier=1 --arg clients_per_round=100 --rounds 100",
    "tff:gaussian_adaptive --arg noise_multiplier=1 --arg clients_per_round=100 --rounds 100",
    "tff:dp_aggregator --arg noise_multiplier=1 --arg clients_per_round=100 --rounds 100",
    "tff:tree_aggregation --arg noise_multiplier=7 --rounds 1024 --delta 1e-6",
    "tff:tree_adaptive --arg noise_multiplier=7 --rounds 2176 --delta 1e-6",
    "jax_privacy:BufferedToeplitz --arg noise_multiplier=7 --arg buf_decay=[0.9] --arg output_scale=[0.1] --arg "
    "min_separation=100 --arg max_participations=10 --rounds 1000 --delta 1e-6",
    "jax_privacy:BandedToeplitz --arg noise_multiplier=4 --arg min_separation=8 --rounds 80",
    "jax_privacy:banded --arg noise_multiplier=3.745 --arg num_bands=48 --arg iterations=2000 --arg "
    "expected_batch_size=5000 --arg num_examples=1000000 --delta 1e-6",
)


def rows_of(command: str) -> list[dict[str, Any]]:
    """What ``harness claims`` says."""
    with redirect_stdout(StringIO()) as said:
        run(["claims", *shlex.split(command), "--fail-on", "none", "--json"])
    return json.loads(said.getvalue())["rows"]


def line_of(command: str) -> dict[str, Any]:
    """The row that a claim stands or falls by: of all rounds where something is claimed of them, else the largest."""
    rows = rows_of(command)
    rows = [one for one in rows if one["epsilon"] is not None or one["claimed_epsilon"] is not None] or rows
    claimed = [one for one in rows if one["claimed_epsilon"] is not None and one["holds"] is not None]
    return max(claimed or rows, key=lambda one: (one["rounds"], one["adjacency"] == "replace", one["epsilon"] or 0.0))


def number(value: float | None) -> str:
    """Three significant digits, or none."""
    return "none" if value is None else f"{value:.3g}" if value < 1e5 else f"{value:.2e}"


def table() -> Iterator[str]:
    """The lines of the table."""
    yield "| `harness claims ...` | relation, rounds | claimed | proven | to have a theorem |"
    yield "|---|---|---|---|---|"
    for command in (*ASKED.values(), *MORE):
        row, filter_ = line_of(command), FILTERS[command.split()[0]]
        where = f"{row['adjacency'] or 'any'}, {row['rounds']}"
        yield (f"| `{command}` | {where} | {number(row['claimed_epsilon'])} | {number(row['epsilon'])} | "
               f"{filter_.works} |")  # fmt: skip


def without_noise() -> Iterator[str]:
    """The lines of the filters that prove nothing at any arguments."""
    yield "| filter | what it does | instead |"
    yield "|---|---|---|"
    asked = {command.split()[0] for command in (*ASKED.values(), *MORE)} | {"flower:ClientSideAdaptiveClipping"}
    for one in FILTERS.values():
        if one.name not in asked:
            yield f"| `{one.name}` ({one.source.partition(',')[0]}) | {one.does} | {one.works} |"


def attacked() -> dict[str, str]:
    """The options by which each filter is attacked that is a defense of the same name, where it acts."""
    from harness.defenses import DEFENSES

    names = [name for name in FILTERS if name in DEFENSES]
    # A linear model is the easiest to attack; some filters act on what lies between two layers.
    model = dict.fromkeys(names, "logistic") | {"paper:PRECODE": "mlp2+precode", "paper:Soteria": "mlp2"}
    return {name: f"--surface {FILTERS[name].acts[1]} --model {model[name]}" for name in names}


def attack(folder: Path) -> None:
    """Attack every filter, and keep the verdict and the most that came back. It goes on where it was stopped."""
    found = {}
    for name, options in attacked().items():
        own = folder / name.replace(":", "-")
        told = f"--defense {name} {options} --attack auto --all-members --dataset digits --no-pictures --resume"
        if code := run(["evaluate", *shlex.split(told), "--out", str(own)]):
            raise SystemExit(f"harness evaluate {told}: exit code {code}")
        document = json.loads((own / "results.json").read_text())
        (row,) = document["summary"]
        rates = [one["asr"]["strict"] for one in document["cells"] if one["role"] == "cell" and one["asr"]]
        most = max((one for one in rates if one["rate"] is not None), key=lambda one: one["rate"])
        found[name] = {key: row[key] for key in ("verdict", "identifies", "strongest")} | {"success": most}
        FOUND.write_text(json.dumps(found, indent=1) + "\n")


def leaked() -> Iterator[str]:
    """The lines of what was attacked."""
    yield "| `--defense ...` | verdict | images back [95%] | strongest |"
    yield "|---|---|---|---|"
    found = json.loads(FOUND.read_text())
    for name, options in attacked().items():
        row = found[name]
        low, high = (f"{100 * one:.0f}" for one in row["success"]["ci95"])
        word = "identifies" if row["identifies"] and row["verdict"] != "leaks" else row["verdict"]
        rate = f"{row['success']['rate']:.0%} [{low}-{high}]"
        yield f"| `{name} {options}` | {word} | {rate} | {row['strongest'] or 'no attack works'} |"


def draw() -> None:
    """Draw what is claimed and what is proven of each, on a logarithmic axis."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, 5), constrained_layout=True)
    for place, command in enumerate(ASKED.values()):
        row = line_of(command)
        claimed, proven = row["claimed_epsilon"], row["epsilon"]
        colour = "#b3261e" if claimed and proven > claimed else "#1f5fa8"
        if claimed:
            axes.plot([claimed, proven], [place, place], color=colour, linewidth=1.5, zorder=2)
            axes.scatter(claimed, place, s=52, facecolor="white", edgecolor=colour, linewidth=1.5, zorder=3)
        axes.scatter(proven, place, s=52, color=colour, zorder=4 if proven != claimed else 2)
        axes.annotate(number(proven), (max(proven, claimed or 0), place), xytext=(8, -3.5), textcoords="offset points",
                      fontsize=9)  # fmt: skip
    axes.set(
        xscale="log", xlim=(0.5, 3e10), xlabel="epsilon: claimed (hollow) and proven (filled; red: above the claim)"
    )
    axes.set_yticks(range(len(ASKED)), list(ASKED), fontsize=9)
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.9", zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(PICTURE, dpi=150)


if __name__ == "__main__":
    for place in sys.argv[1:2]:
        attack(Path(place))
    print("\n".join((*table(), "", *without_noise(), "", *leaked())))
    draw()
