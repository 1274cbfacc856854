"""Imported before any test module: ``harness`` must set its thread policy before torch is imported."""

import harness  # noqa: F401
