"""What every other room stands on: errors, registries, limits of a run, vectors and random numbers."""
