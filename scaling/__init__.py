"""How synchronous data-parallel SGD scales: aggregation strategies, measured and explained."""

__version__ = "0.1.0"
