"""Collective algorithms as data (`Schedule`) and what reads them: `verify` and `execute`."""
