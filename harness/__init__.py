"""harness: does a federated-learning defense really stop gradient leakage?"""

from harness.tuning import tune

tune()

__version__ = "0.1.0"
SCHEMA_VERSION = 1
