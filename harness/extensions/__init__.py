"""What others can add to this package: registries, settings built from text, and their code run with care."""
