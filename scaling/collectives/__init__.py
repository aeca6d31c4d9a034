"""Collective algorithms as data (`Schedule`) and what reads them: `verify`, `simulate` and the executors."""
