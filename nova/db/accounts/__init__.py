"""Queries for flavors, key pairs, quotas and usage."""
