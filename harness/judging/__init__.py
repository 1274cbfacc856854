"""Judges updates that clients of somebody's federation sent."""
