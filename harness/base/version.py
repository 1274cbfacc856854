"""Version of this package; what --resume may use depends on it."""

__version__ = "0.1.8"

#: Of result documents and all that is stored beside them.
SCHEMA_VERSION = 1
