"""Queries of the Placement API, on the providers, inventories and allocations of hosts and claims."""
