"""S004: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats" (Fed-αCDP): its tables and sweeps."""
