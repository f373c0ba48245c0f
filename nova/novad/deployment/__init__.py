"""Deployments on one node: containers, data, backups, health, history and rollback."""
