"""Predicts cells for a machine that need not exist (docs/background/prediction.md). Never imports torch."""
