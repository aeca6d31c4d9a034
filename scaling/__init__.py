"""How synchronous data-parallel SGD scales: aggregation strategies, measured and explained."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`attached`, for a script that `scaling attach` does not reach by itself: it imports torch."""
    if name == "attached":
        import importlib

        return importlib.import_module("scaling.attach.inside").attached
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
