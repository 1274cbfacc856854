"""Imported before any test module: ``harness`` tunes the libraries underneath before torch is imported."""

import harness  # noqa: F401
