"""Processes: options, metrics, signals."""
