"""Accuracies, rounds and times printed in Wei et al., "Securing Distributed SGD against Gradient Leakage Threats".

Tables II, IV, V, VI, VII, VIII, IX, X and XI. ``DATA`` is the order of the columns of every table over datasets.
"""

from dataclasses import dataclass

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

# Table IV: MNIST; number of clients N, then accuracy at 5, 10, 20 and 50% of them per round.
SHARES_4 = (0.05, 0.1, 0.2, 0.5)
TABLE_4: dict[tuple[str, int], tuple[float, ...]] = {
    ("non-private", 100): (0.924, 0.954, 0.959, 0.965),
    ("Fed-SDP", 100): (0.803, 0.823, 0.834, 0.872),
    ("Fed-CDP", 100): (0.815, 0.831, 0.858, 0.903),
    ("Fed-αCDP", 100): (0.854, 0.861, 0.892, 0.921),
    ("non-private", 1000): (0.977, 0.980, 0.978, 0.978),
    ("Fed-SDP", 1000): (0.925, 0.928, 0.934, 0.937),
    ("Fed-CDP", 1000): (0.951, 0.956, 0.960, 0.964),
    ("Fed-αCDP", 1000): (0.965, 0.979, 0.977, 0.976),
    ("non-private", 10000): (0.979, 0.980, 0.980, 0.979),
    ("Fed-SDP", 10000): (0.935, 0.939, 0.941, 0.944),
    ("Fed-CDP", 10000): (0.966, 0.963, 0.968, 0.966),
    ("Fed-αCDP", 10000): (0.975, 0.978, 0.979, 0.980),
}

# Table V: accuracy by clipping bound C.
BOUNDS_5 = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
NON_PRIVATE: dict[str, float] = dict(zip(DATA, (0.980, 0.674, 0.695, 0.843, 0.993), strict=True))
TABLE_5: dict[tuple[str, str], tuple[float, ...]] = {
    ("Fed-SDP", "mnist"): (0.883, 0.909, 0.944, 0.940, 0.928, 0.911, 0.656, 0.214),
    ("Fed-CDP", "mnist"): (0.885, 0.914, 0.934, 0.943, 0.956, 0.923, 0.695, 0.248),
    ("Fed-αCDP", "mnist"): (0.886, 0.917, 0.945, 0.965, 0.979, 0.975, 0.976, 0.976),
    ("Fed-SDP", "cifar10"): (0.275, 0.430, 0.546, 0.609, 0.627, 0.466, 0.269, 0.189),
    ("Fed-CDP", "cifar10"): (0.272, 0.408, 0.568, 0.619, 0.633, 0.611, 0.326, 0.189),
    ("Fed-αCDP", "cifar10"): (0.286, 0.439, 0.576, 0.628, 0.645, 0.643, 0.649, 0.647),
    ("Fed-SDP", "lfw"): (0.248, 0.592, 0.601, 0.635, 0.635, 0.534, 0.257, 0.117),
    ("Fed-CDP", "lfw"): (0.237, 0.582, 0.594, 0.619, 0.649, 0.601, 0.295, 0.104),
    ("Fed-αCDP", "lfw"): (0.251, 0.594, 0.603, 0.642, 0.683, 0.671, 0.668, 0.654),
    ("Fed-SDP", "adult"): (0.751, 0.797, 0.822, 0.819, 0.813, 0.808, 0.755, 0.740),
    ("Fed-CDP", "adult"): (0.752, 0.810, 0.822, 0.825, 0.824, 0.761, 0.757, 0.755),
    ("Fed-αCDP", "adult"): (0.755, 0.825, 0.832, 0.838, 0.838, 0.830, 0.831, 0.834),
    ("Fed-SDP", "cancer"): (0.958, 0.972, 0.972, 0.972, 0.979, 0.944, 0.937, 0.923),
    ("Fed-CDP", "cancer"): (0.958, 0.965, 0.972, 0.979, 0.979, 0.972, 0.965, 0.951),
    ("Fed-αCDP", "cancer"): (0.965, 0.972, 0.979, 0.993, 0.986, 0.993, 0.986, 0.986),
}

# Table VI is Table V at C = 4.
TABLE_6_ACCURACY = {key: row[BOUNDS_5.index(4.0)] for key, row in TABLE_5.items()} | {
    ("non-private", data): accuracy for data, accuracy in NON_PRIVATE.items()
}

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
