"""Schedules and traces for other engines, in their own formats. Never imports torch."""
