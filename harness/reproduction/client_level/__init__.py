"""S001 and S003: privacy of whole clients, by global differential privacy and by Bayesian accounting."""
