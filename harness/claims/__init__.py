"""What filters of frameworks claim beside what is proven of them, without running or importing any framework."""

from harness.claims import central  # noqa: F401  (imported to register)
