"""Controlled experiments on a training script that is not ours: how a run of it is changed, marked and stopped."""
