"""Servers and their subresources."""
