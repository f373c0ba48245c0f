"""Queries for volumes and shares."""
