"""Names, resources and selectors of the federator's Kubernetes API."""
