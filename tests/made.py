"""What tests of all folders are made of."""

from typing import Any

from scaling.study.cell import Cell


def cell_of(**changes: Any) -> Cell:
    """A timed cell of two CPU ranks, or another one."""
    values = {
        **{"kind": "iteration", "model": "mlp", "dataset": "digits", "aggregator": "ring", "step": "eager"},
        **{"device": "cpu", "scaling": "strong", "world_size": 2, "local_batch": 32, "global_batch": 64},
        **{"threads": 1, "peer_access": None, "tf32": None, "seed": 0, "nesterov": False},
        **{"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0},
    }
    return Cell(**{**values, **changes})
