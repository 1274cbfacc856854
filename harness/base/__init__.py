"""What all other folders need: errors, registries, limits of a run, vectors and random numbers."""
