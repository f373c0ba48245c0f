"""Metrics, tracing and worker statistics of a process."""
