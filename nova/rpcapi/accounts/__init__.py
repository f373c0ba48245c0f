"""RPC interfaces for flavors, key pairs, quotas and usage."""
