"""Queries for networks, addresses and security groups."""
