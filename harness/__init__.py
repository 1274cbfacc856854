"""harness: does a federated-learning defense really stop gradient leakage?"""

__version__ = "0.1.0"
SCHEMA_VERSION = 1
