"""The federator: one Kubernetes API over many clusters. It imports nothing of the compute suite."""
