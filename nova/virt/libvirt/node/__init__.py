"""Inventory, traits and capabilities that the host reports."""
