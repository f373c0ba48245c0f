"""A client of the Kubernetes API: requests, watches, caches and credentials."""
