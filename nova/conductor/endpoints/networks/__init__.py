"""RPC endpoints for networks, addresses and security groups."""
