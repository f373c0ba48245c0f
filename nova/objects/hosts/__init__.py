"""Objects for hosts: compute nodes, services, aggregates, scheduling requests."""
