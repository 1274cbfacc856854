"""Settings and numbers of S000: Heikkilä et al., "On Using Secure Aggregation in Differentially Private Federated
Learning with Multiple Local Steps"."""

# S000, released configurations: clients, examples per client, expected batch (or rate), rounds, local steps, each
# client's noise multiplier, parameters of the model. All target epsilon 1 at delta 1e-5.
S000_TARGET, S000_DELTA = 1.0, 1e-5
S000: dict[str, tuple[int, float, int, int, float, int]] = {
    "Fashion-MNIST, 1 step": (10, 128 / 5600, 20, 1, 0.43265, 26010),
    "Fashion-MNIST, 1 epoch": (10, 512 / 5600, 20, 11, 2.15733, 26010),
    "CIFAR-10, 1 step, T=10": (10, 128 / 4800, 10, 1, 0.43710, 10250),
    "CIFAR-10, 1 step, T=20": (10, 128 / 4800, 20, 1, 0.44715, 10250),
    "CIFAR-10, 1 step, T=40": (10, 128 / 4800, 40, 1, 0.47071, 10250),
    "CIFAR-10, 1 step, T=80": (10, 128 / 4800, 80, 1, 0.51573, 10250),
    "CIFAR-10, 1 step, T=160": (10, 128 / 4800, 160, 1, 0.62198, 10250),
    "CIFAR-10, 1 epoch, T=10": (10, 256 / 4800, 10, 19, 1.21006, 10250),
    "CIFAR-10, 1 epoch, T=20": (10, 256 / 4800, 20, 19, 1.66145, 10250),
    "CIFAR-10, 1 epoch, T=40": (10, 256 / 4800, 40, 19, 2.31435, 10250),
    "CIFAR-10, 1 epoch, T=80": (10, 256 / 4800, 80, 19, 3.24804, 10250),
    "CIFAR-10, 1 epoch, T=160": (10, 256 / 4800, 160, 19, 4.57577, 10250),
    "Income, 1 step": (51, 0.05, 10, 1, 0.22685, 109),
    "Income, 1 epoch": (51, 0.05, 10, 20, 0.51646, 109),
}

# The same configurations: clipping bound C, local learning rate and momentum, server learning rate and momentum.
S000_TRAINING: dict[str, tuple[float, float, float, float, float]] = {
    "Fashion-MNIST, 1 step": (12.185, 0.20508, 0.1325, 0.9463, 0.8983),
    "Fashion-MNIST, 1 epoch": (19.076, 0.36505, 0.4651, 0.9931, 0.1995),
    "CIFAR-10, 1 step, T=10": (9.2433, 0.31071, 0.7490, 0.9877, 0.8974),
    "CIFAR-10, 1 step, T=20": (13.3275, 0.44219, 0.8576, 0.7945, 0.8080),
    "CIFAR-10, 1 step, T=40": (16.3976, 0.37486, 0.1407, 0.8320, 0.6986),
    "CIFAR-10, 1 step, T=80": (8.1847, 0.51267, 0.7868, 0.7201, 0.7558),
    "CIFAR-10, 1 step, T=160": (11.2960, 0.93352, 0.2511, 0.1984, 0.8873),
    "CIFAR-10, 1 epoch, T=10": (13.3743, 0.41811, 0.6519, 0.4335, 0.6811),
    "CIFAR-10, 1 epoch, T=20": (18.6031, 0.28607, 0.8820, 0.9849, 0.4892),
    "CIFAR-10, 1 epoch, T=40": (17.6802, 0.53280, 0.8381, 0.9767, 0.4741),
    "CIFAR-10, 1 epoch, T=80": (18.8969, 0.25210, 0.8827, 0.9447, 0.7892),
    "CIFAR-10, 1 epoch, T=160": (9.5426, 0.40891, 0.8178, 0.9485, 0.3942),
    "Income, 1 step": (9.2454, 0.95599, 0.3267, 0.9669, 0.8123),
    "Income, 1 epoch": (14.0017, 0.52681, 0.8013, 0.9447, 0.5787),
}

# S000, appendix A.7, Table 1: its numbers did not survive in our copy. Recomputed independently:
# (each party's epsilon, its local steps) -> its noise multiplier, epsilon of the average over so many parties.
PARTIES = (2, 4, 5, 8, 10, 20)
AVERAGING_RATE, AVERAGING_PARAMETERS = 0.1, 10250
AVERAGING: dict[tuple[int, int], tuple[float, tuple[float, ...]]] = {
    (1, 1): (1.7143, (0.525, 0.282, 0.233, 0.160, 0.136, 0.084)),
    (1, 10): (2.2563, (0.617, 0.401, 0.351, 0.268, 0.237, 0.162)),
    (1, 50): (3.8170, (0.680, 0.469, 0.417, 0.326, 0.291, 0.203)),
    (1, 100): (5.1544, (0.691, 0.481, 0.429, 0.337, 0.301, 0.211)),
    (5, 1): (0.6903, (2.781, 1.493, 1.216, 0.787, 0.640, 0.339)),
    (5, 10): (0.9020, (2.606, 1.426, 1.188, 0.836, 0.716, 0.459)),
    (5, 50): (1.1794, (2.855, 1.781, 1.548, 1.168, 1.027, 0.698)),
    (10, 1): (0.4415, (5.905, 3.338, 2.729, 1.814, 1.462, 0.769)),
    (10, 10): (0.6551, (4.791, 2.487, 2.038, 1.360, 1.139, 0.691)),
}
