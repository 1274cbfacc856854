"""harness: does a federated-learning defense really stop gradient leakage?"""

import os

# OpenMP threads that spin while they wait make a shared machine up to a hundred times slower. The setting is read when
# torch is first imported, so it has to be made here; a value from outside wins.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# MKL picks kernels by the alignment of its operands, so a row's last bits would depend on its place in a chunk. Strict
# reproducibility costs nothing measurable; other BLAS libraries ignore the setting.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__version__ = "0.1.0"
SCHEMA_VERSION = 1
