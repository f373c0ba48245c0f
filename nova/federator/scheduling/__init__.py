"""Decisions on clusters: pure functions over a snapshot."""
