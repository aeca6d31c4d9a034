"""Ways to bring the ranks' gradients together."""

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker, unmarked

__all__ = ["Aggregator", "AggregatorState", "PhaseMarker", "unmarked"]
