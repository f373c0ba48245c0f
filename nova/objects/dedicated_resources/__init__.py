"""Dedicated resources: NUMA cells, CPUs and PCI devices that a host assigns to a single guest."""
