"""S002: DP-SCAFFOLD beside DP-FedAvg and DP-FedSGD: accounting, accuracy and trade-offs."""
