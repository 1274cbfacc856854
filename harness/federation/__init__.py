"""One round of federated training under a defense, played once for all who look: attacks, training, audits, benches."""
