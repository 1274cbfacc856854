"""Bayesian accounting: what a run costs a typical client or record, estimated from the sizes it saw."""
