"""Queries for hosts: services, compute nodes, claims, aggregates, drains and image precaching."""
