"""Common base of all other folders: errors, registries, limits of a run, vectors and random numbers."""
