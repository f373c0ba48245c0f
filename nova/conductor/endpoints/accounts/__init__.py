"""RPC endpoints for flavors, key pairs, quotas and usage."""
