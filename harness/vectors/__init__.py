"""Flat vectors of parameters: what their slices are called, how they are clipped, and keyed random numbers."""
