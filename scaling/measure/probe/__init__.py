"""Measured topologies: cases, fits and what is written of them."""
