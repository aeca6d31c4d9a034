"""The time of a cell on a machine that need not be present (docs/background/prediction.md). Never imports torch."""
