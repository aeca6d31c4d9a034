"""How synchronous data-parallel SGD scales: aggregation strategies, measured and explained."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`load` reads a results folder; `comm_hook` and `attached` are for scripts, and import torch."""
    places = {
        "attached": "scaling.attach.inside",
        "comm_hook": "scaling.training.comm_hook",
        "load": "scaling.report.load",
    }
    if name in places:
        import importlib

        return getattr(importlib.import_module(places[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
