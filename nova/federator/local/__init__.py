"""Kubernetes control planes on this machine, for novactl up and for tests."""
