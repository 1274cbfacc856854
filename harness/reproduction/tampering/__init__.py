"""Servers that tamper, and exact batches: the papers' figures, and secure sums judged again."""
