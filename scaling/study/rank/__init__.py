"""What one rank does with the cells of its launch."""
