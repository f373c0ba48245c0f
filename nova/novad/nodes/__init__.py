"""Deployments on several nodes: the coordinator, its participants, node discovery."""
