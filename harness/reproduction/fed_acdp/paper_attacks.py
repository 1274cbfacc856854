"""Numbers printed in Wei et al., "Securing Distributed SGD against Gradient Leakage Threats" (Tables I and III)."""

# Table I, type-2 leakage without defense: attack success rate, reconstruction quality ("RMSE"), attack iterations.
TABLE_1: dict[tuple[str, str], tuple[float, float, float]] = {
    ("dlg", "mnist"): (0.686, 0.145, 18.4),
    ("dlg", "cifar10"): (0.754, 0.109, 114.5),
    ("dlg", "lfw"): (0.857, 0.089, 69.2),
    ("inverting_gradients", "mnist"): (1.0, 0.122, 846),
    ("inverting_gradients", "cifar10"): (0.985, 0.095, 2135),
    ("inverting_gradients", "lfw"): (0.994, 0.071, 1826),
    ("cpl", "mnist"): (1.0, 0.120, 11.5),
    ("cpl", "cifar10"): (0.973, 0.094, 28.3),
    ("cpl", "lfw"): (1.0, 0.067, 25),
}

# Table III, CPL, 100 clients, at most 300 iterations: resilient, reconstruction distance, iterations.
TABLE_3: dict[tuple[int, str, str], tuple[str, float, float]] = {
    (0, "non-private", "mnist"): ("N", 0.1549, 6),
    (0, "non-private", "lfw"): ("N", 0.2214, 24),
    (0, "Fed-SDP", "mnist"): ("Y", 0.6991, 300),
    (0, "Fed-SDP", "lfw"): ("Y", 0.7352, 300),
    (0, "Fed-SDP at client", "mnist"): ("Y", 0.6991, 300),
    (0, "Fed-SDP at client", "lfw"): ("Y", 0.7352, 300),
    (0, "Fed-αCDP[σ]", "mnist"): ("Y", 0.937, 300),
    (0, "Fed-αCDP[σ]", "lfw"): ("Y", 0.9417, 300),
    (1, "non-private", "mnist"): ("N", 0.1549, 6),
    (1, "non-private", "lfw"): ("N", 0.2214, 24),
    (1, "Fed-SDP", "mnist"): ("N", 0.1549, 6),
    (1, "Fed-SDP", "lfw"): ("N", 0.2214, 24),
    (1, "Fed-SDP at client", "mnist"): ("Y", 0.6991, 300),
    (1, "Fed-SDP at client", "lfw"): ("Y", 0.7352, 300),
    (1, "Fed-αCDP[σ]", "mnist"): ("Y", 0.937, 300),
    (1, "Fed-αCDP[σ]", "lfw"): ("Y", 0.9417, 300),
    (2, "non-private", "mnist"): ("N", 0.0008, 7),
    (2, "non-private", "lfw"): ("N", 0.0015, 25),
    (2, "Fed-SDP", "mnist"): ("N", 0.0008, 7),
    (2, "Fed-SDP", "lfw"): ("N", 0.0015, 25),
    (2, "Fed-SDP at client", "mnist"): ("N", 0.0008, 7),
    (2, "Fed-SDP at client", "lfw"): ("N", 0.0015, 25),
    (2, "Fed-αCDP[σ]", "mnist"): ("Y", 0.9415, 300),
    (2, "Fed-αCDP[σ]", "lfw"): ("Y", 0.947, 300),
}
