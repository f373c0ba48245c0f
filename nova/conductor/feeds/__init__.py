"""Batched publication of changes after a transaction, to schedulers, hosts and notification consumers."""
