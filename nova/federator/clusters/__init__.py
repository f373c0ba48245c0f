"""The agent of a workload cluster."""
