"""Hosts and services, for operators."""
