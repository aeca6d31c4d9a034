"""What a cell would take on a machine that need not be there: see docs/prediction.md. Never imports torch."""
