"""Kubernetes control planes and clusters on this machine, for novactl up and for tests."""
