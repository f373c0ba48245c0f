"""Hosts as operators see them."""
