"""Accuracies, rounds and times printed in Wei et al., "Securing Distributed SGD against Gradient Leakage Threats".

Tables II, VI, VII, VIII, IX, X and XI; the others are files of ``tables/``. ``DATA`` is the order of the
columns of every table over datasets.
"""

from dataclasses import dataclass

from harness.papers.grid import grid

DATA = ("mnist", "cifar10", "lfw", "adult", "cancer")


@dataclass(frozen=True)
class PaperFederation:
    """One column of Table II: n examples per client, batch size B, rounds T; L = n / B local steps per round."""

    examples: int
    batch_size: int
    rounds: int

    @property
    def local_steps(self) -> int:
        """L, one local epoch."""
        return self.examples // self.batch_size


TABLE_2 = {
    "mnist": PaperFederation(500, 5, 100), "cifar10": PaperFederation(400, 4, 100), "lfw": PaperFederation(300, 3, 60),
    "adult": PaperFederation(300, 3, 10), "cancer": PaperFederation(400, 4, 3),
}  # fmt: skip

# Table V by method, dataset and C; without a defense no C matters.
TABLE_5: dict[tuple[str, str, float], float] = {
    (method, row["data"], row["clip"]): value
    for row in grid("table5").printed()
    for method, value in zip(grid("table5").facts["methods"], row["printed"], strict=True)
}
# Table VI is Table V at C = 4.
TABLE_6_ACCURACY = {(method, data): value for (method, data, clip), value in TABLE_5.items() if clip == 4.0}
NON_PRIVATE = {data: TABLE_6_ACCURACY["non-private", data] for data in DATA}

# Table VIII: accuracy when the target epsilon is spent.
TABLE_8_ACCURACY: dict[tuple[str, str], float] = {
    (policy, data): accuracy
    for policy, row in {
        "linear": (0.981, 0.645, 0.683, 0.844, 0.986),
        "staircase": (0.982, 0.646, 0.683, 0.847, 0.993),
        "exponential": (0.983, 0.646, 0.684, 0.847, 0.993),
        "cyclic": (0.979, 0.645, 0.683, 0.844, 0.986),
    }.items()
    for data, accuracy in zip(DATA, row, strict=True)
}

# Table IX: seconds per local iteration and client.
TABLE_9: dict[str, tuple[float, ...]] = {
    "non-private": (0.0068, 0.0325, 0.0309, 0.0051, 0.0051),
    "Fed-SDP": (0.0069, 0.0338, 0.0313, 0.0052, 0.0051),
    "Fed-CDP": (0.0224, 0.1315, 0.1124, 0.0118, 0.0119),
    "Fed-αCDP": (0.0230, 0.1321, 0.1146, 0.0121, 0.0120),
    "Fed-αCDP[σ]": (0.0231, 0.1321, 0.1147, 0.0122, 0.0120),
}

# Table X: accuracy and seconds per local iteration by dataset, and whether the defense resists (type 2).
TABLE_10: dict[str, tuple[tuple[float, ...], tuple[float, ...], str]] = {
    "non-private": ((0.980, 0.674, 0.695, 0.843, 0.993), (0.0068, 0.0325, 0.0309, 0.0051, 0.0051), "N"),
    "Quantile": ((0.976, 0.631, 0.659, 0.836, 0.986), (0.0546, 0.2125, 0.199, 0.0192, 0.0189), "N"),
    "AdaClip": ((0.975, 0.627, 0.651, 0.833, 0.986), (0.0337, 0.1884, 0.1523, 0.0156, 0.0153), "N"),
    "Fed-αCDP[σ]": ((0.983, 0.646, 0.683, 0.847, 0.993), (0.023, 0.1321, 0.1128, 0.0123, 0.0125), "Y"),
}

#: In Table XI, fixed noise of the other method, whose epsilon the paper takes from Fed-CDP's.
FIXED_ALPHA = "fixed, Fed-αCDP"

# Table XI, MNIST: accuracy when each accountant's target is spent.
TABLE_11_ACCURACY: dict[tuple[str, str], float] = {
    (accountant, policy): accuracy
    for policy, row in {
        "fixed": (0.956, 0.956, 0.956, 0.956),
        FIXED_ALPHA: (0.979, 0.979, 0.979, 0.979),
        "linear": (0.984, 0.981, 0.981, 0.981),
        "staircase": (0.983, 0.982, 0.982, 0.982),
        "exponential": (0.986, 0.981, 0.983, 0.983),
        "cyclic": (0.982, 0.979, 0.981, 0.979),
    }.items()
    for accountant, accuracy in zip(("base", "advanced", "zcdp", "rdp"), row, strict=True)
}
