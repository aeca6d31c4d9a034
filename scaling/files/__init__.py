"""Reads, writes and folds text, JSON and YAML; knows nothing else."""
