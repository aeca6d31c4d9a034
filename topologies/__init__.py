"""Machines as data: their devices and what connects them. No torch."""
