"""Bayesian accounting (S003): what a run costs a typical client or record, estimated from the sizes it saw."""
