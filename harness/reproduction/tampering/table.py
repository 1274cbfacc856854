"""``harness reproduce tampering``: servers that tamper, alone and behind secure sums, beside honest ones."""

from harness.frontier.request import Request
from harness.papers.comparison import Comparison
from harness.papers.data import at_hand
from harness.reproduction.tampering.papers import QUICK_VICTIMS, VICTIMS, beside_the_papers
from harness.reproduction.tampering.sums import (
    BATCH,
    BINS,
    PICTURE,
    attacks_of,
    judge_sums,
    noises,
    rounds_of,
)

_LEFT_OUT = (
    "quick: fewer victims, rounds and numbers of clients; of attacks that optimise only cpl and map, stopped after 15 "
    "and 10 iterations"
)


def tampering(request: Request) -> Comparison:
    """The papers' attacks beside their figures, then secure sums of 2 to 50 clients judged again."""
    rows = [*beside_the_papers(request), *judge_sums(request)]
    lines = [at_hand(name, request.data_root)[1] for name in ("mnist", "cifar10")]
    (_, noise), few = noises(), rounds_of(request, 2, "cpl")
    return Comparison(
        "Servers that tamper, and secure sums of their clients' gradients",
        [
            f"{request.count(VICTIMS, QUICK_VICTIMS)} victims per published attack, seeds {list(request.seeds)}",
            f"secure sums: {rounds_of(request, 2)} rounds of 2 clients to {rounds_of(request, 50)} of 50 ({few} to "
            f"{rounds_of(request, 50, 'cpl')} where an attack optimises), batches of {BATCH}, LeNet, {BINS} bins per "
            f"image that they tell apart, attacks {', '.join(attacks_of(request, 2))}",
            f"noise: {noise.name} on the sum, shared by all its clients, that of S000's Fashion-MNIST, one local step",
            *lines, *([_LEFT_OUT] if request.quick else []),
        ],
        rows,
        [
            "strict: images back within an RMSE of 0.1; blind: by guessing the class mean without a gradient",
            "first in lineup: nearest to their own truth among look-alikes; at most: by any attacker, by theorem",
            "s per victim: playing the round, attack and scoring, on this machine; of a sum, per round of clients",
            "agrees: as many images as were published, within the interval; behind noise, no more than blindly",
            "published: Fowl et al. 2022 (imprint, by their public code); abstracts of Zhao et al. 2023 (loki), of "
            "Boenisch et al. 2023 (trap_weights) and of Dimitrov et al. 2024 (spear)",
            "blind, ε: no more than blindly, and the epsilon of the sum in as many rounds as the configuration has",
            "published figures are of other data and networks; differences are left standing",
            f"picture: {PICTURE} in the output folder",
        ],
        against="what was published, or what noise promises",
    )  # fmt: skip
