"""Shared set-up of the tests."""

import os

# Ranks are threads here: one OpenMP thread each, or they wait for one another's pools.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The figures are drawn to files.
os.environ.setdefault("MPLBACKEND", "Agg")
