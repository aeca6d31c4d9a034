"""Controlled experiments on a training script that is not ours: how a run is changed, marked and ended."""
