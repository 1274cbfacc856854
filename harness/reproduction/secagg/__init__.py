"""S000: sums behind secure aggregation with distributed noise: accounting, accuracy and leakage."""
