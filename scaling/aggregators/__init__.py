"""Ways to bring the ranks' gradients together."""

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.state import AggregatorState

__all__ = ["Aggregator", "AggregatorState", "PhaseMarker", "unmarked"]
