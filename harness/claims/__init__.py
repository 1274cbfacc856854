"""What filters of frameworks claim beside what is proven of them, without running or importing any framework."""
