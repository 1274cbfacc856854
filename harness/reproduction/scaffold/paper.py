"""Settings and numbers of S002: Noble, Bellet, Dieuleveut, "Differentially Private Federated Learning on Heterogeneous
Data"."""

# S002: users, training records per user, sigma_g; l = s = 0.2.
S002_DATA = {"synthetic": (100, 4000, 60.0), "FEMNIST": (40, 2000, 30.0), "MNIST": (60, 800, 30.0)}
# Its figures' captions (rounded): the only printed cells.
S002_CAPTIONS = {("synthetic", 50, 400): 12.9, ("FEMNIST", 50, 400): 11.4, ("MNIST", 50, 100): 7.15}
# The released script's method, recomputed independently: (data, K) -> third party at T = 100 and 400, server.
S002_CELLS: dict[tuple[str, int], tuple[float, float, float]] = {
    ("synthetic", 5): (6.67, 9.89, 12.99), ("synthetic", 10): (6.90, 10.17, 13.08),
    ("synthetic", 50): (8.19, 12.91, 13.79), ("synthetic", 100): (10.22, 12.91, 14.68),
    ("FEMNIST", 5): (6.14, 9.09, 11.65), ("FEMNIST", 10): (6.37, 9.38, 12.00),
    ("FEMNIST", 50): (7.42, 11.36, 14.85), ("FEMNIST", 100): (9.49, 11.43, 18.40),
    ("MNIST", 5): (5.97, 8.83, 11.13), ("MNIST", 10): (6.20, 9.12, 11.49),
    ("MNIST", 50): (7.15, 10.83, 14.34), ("MNIST", 100): (9.21, 10.87, 17.89),
}  # fmt: skip

# S002, Table 1: most rounds at a target epsilon, synthetic data, s = 0.2; l = 0.05 is the only plausible user rate.
TRADE_OFF_STEPS = (1, 5, 10, 20, 40)
TRADE_OFF_USER_RATE = 0.05
TRADE_OFF: dict[tuple[float, float], tuple[int, ...]] = {
    (3.0, 10.0): (542, 488, 428, 324, 72),
    (3.0, 20.0): (545, 502, 451, 352, 83),
    (3.0, 40.0): (546, 505, 457, 360, 86),
    (3.0, 80.0): (546, 506, 458, 362, 87),
    (3.0, 160.0): (546, 507, 459, 363, 87),
    (5.0, 10.0): (2690, 2394, 2087, 1615, 936),
    (5.0, 160.0): (2726, 2543, 2328, 1931, 1190),
}
